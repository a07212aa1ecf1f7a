"""The connection to Redis of whatever reports itself: a replica, or an agent beside an engine."""

import asyncio

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from contract.options import SettingError


def redis_client(url: str, timeout_ms: int, section: str) -> "Redis":
    """Return a client that connects when it is first used.

    Raises SettingError, in the name of ``section``, for a URL that cannot be one.
    """
    try:
        return Redis.from_url(
            url,
            socket_timeout=timeout_ms / 1e3,
            socket_connect_timeout=timeout_ms / 1e3,
            # A hidden reconnect would hide a restart, after which Redis has none of the keys.
            retry=Retry(NoBackoff(), 0),
        )
    except ValueError as error:
        # Not the library's words: they may quote the URL, and so its password.
        raise SettingError(
            f"[{section}] redis_url cannot be read, expected redis://host:port/0"
        ) from error


async def drop_connections(redis: "Redis", timeout_ms: int) -> None:
    """Close what a failed command has left: the next one must not read its answer as its own."""
    try:
        async with asyncio.timeout(timeout_ms / 1e3):
            await redis.connection_pool.disconnect()
    except Exception:  # noqa: S110
        pass  # it is broken, which is why it goes
