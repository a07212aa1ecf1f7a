"""The connection to Redis of whatever reports itself: a replica, or an agent beside an engine."""

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
