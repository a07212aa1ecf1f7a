"""What every test may use: a real Redis, and waiting for a state instead of a time."""

from tests.redis_server import redis_server, redis_stopped

__all__ = ["redis_server", "redis_stopped"]
