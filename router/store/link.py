"""One connection to Redis for one caller at a time: bounded, and dropped after anything odd.

Rule: a connection is kept only if every reply to everything sent on it has been read. After a
cancelled, timed out or garbled call it is closed, so no caller ever gets another's reply.
redis-py's client and pool are left out: they retry and reconnect by themselves, without bound.
"""

import asyncio
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

from redis.asyncio.connection import AbstractConnection, Connection, parse_url
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import (
    AuthenticationError,
    AuthorizationError,
    BusyLoadingError,
    InvalidResponse,
    MasterDownError,
    NoPermissionError,
    ReadOnlyError,
    ResponseError,
)
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from contract.options import SettingError
from router.store.seam import StoreFault, StoreUnavailableError

Command = tuple[str | bytes | int, ...]
REPLY_TEXT_MAX = 200


def safe_url(url: str) -> str:
    """Return ``url`` without user, password and query, for logs and pages."""
    parts = urlsplit(url)
    place = parts.netloc.rpartition("@")[2]
    return f"{parts.scheme}://{place}{parts.path}"


class RedisLink:
    """Sends commands and reads their replies. Connects when it is first used, and again.

    Raises SettingError for a URL that cannot be read.
    """

    def __init__(self, url: str, timeout_s: float) -> None:
        self._place = safe_url(url)
        self._timeout_s = timeout_s
        try:
            settings: dict[str, Any] = dict(parse_url(url))
        except ValueError as error:
            # Without the library's words: they may quote the URL, and so its password.
            raise SettingError("redis_url cannot be read, expected redis://host:port/0") from error
        self._kind: type[AbstractConnection] = settings.pop("connection_class", Connection)
        # With a socket_timeout, redis-py sends under asyncio.wait_for(), which in Python 3.11 may
        # lose a cancellation (https://github.com/python/cpython/issues/86296): one in ten did, and
        # the gateway would not have stopped.
        settings |= {"socket_timeout": None, "socket_connect_timeout": timeout_s}
        settings |= {"retry": Retry(NoBackoff(), 0), "protocol": 2, "decode_responses": False}
        self._settings = settings
        self._connection: AbstractConnection | None = None
        self._is_stale = False

    async def call(self, commands: Sequence[Command], waits_s: float = 0.0) -> list[Any]:
        """Return the replies to ``commands``, sent at once. ``waits_s``: a command may block.

        Raises StoreUnavailableError. After an error reply the connection is kept, as all replies
        have been read; after everything else it is closed.
        """
        is_whole = False
        connected = False
        try:
            async with asyncio.timeout(self._timeout_s + waits_s):
                connection = await self._connected()
                connected = True
                await connection.send_packed_command(connection.pack_commands(commands), False)
                replies = [await _read(connection) for _ in commands]
            is_whole = True
        except Exception as error:  # redis-py answers to garbage with many types, not all its own
            raise self._translated(error, connected) from error
        finally:
            if not is_whole:  # a cancelled call too
                await self.close()
        self._raise_for_errors(replies)
        return replies

    def mark_stale(self) -> None:
        """Let the next call begin with a new connection, to an address asked for again."""
        self._is_stale = True

    async def close(self) -> None:
        """Close the connection, if there is one; does not wait for the other side."""
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.disconnect(nowait=True)

    async def _connected(self) -> AbstractConnection:
        if self._is_stale:
            self._is_stale = False
            await self.close()
        if self._connection is None:
            connection: AbstractConnection = self._kind(**self._settings)
            self._connection = connection
            await connection.connect()  # type: ignore[no-untyped-call]  # redis-py has none
        return self._connection

    def _raise_for_errors(self, replies: list[Any]) -> None:
        for reply in replies:
            if isinstance(reply, ReadOnlyError | MasterDownError):
                self.mark_stale()
                raise StoreUnavailableError(
                    StoreFault.READ_ONLY, f"{self._place} is no master any more"
                )
            if isinstance(reply, ResponseError):
                text = str(reply)[:REPLY_TEXT_MAX]
                raise StoreUnavailableError(StoreFault.REPLY, f"{self._place} answered: {text}")

    def _translated(self, error: Exception, connected: bool) -> StoreUnavailableError:
        """Build the message from fields: the text of another's exception may quote the URL."""
        match error:
            case TimeoutError() | RedisTimeoutError():
                what = f"did not answer in {self._timeout_s:g} s"
                return StoreUnavailableError(StoreFault.TIMEOUT, f"{self._place} {what}")
            case AuthenticationError() | AuthorizationError() | NoPermissionError():
                what = "refuses this user or password"
                return StoreUnavailableError(StoreFault.AUTH, f"{self._place} {what}")
            case BusyLoadingError():
                what = "is still loading its data"
                return StoreUnavailableError(StoreFault.LOADING, f"{self._place} {what}")
            case RedisConnectionError() | OSError() if not connected:
                what = "cannot be connected to"
                return StoreUnavailableError(StoreFault.REFUSED, f"{self._place} {what}")
            case InvalidResponse():
                what = "sent bytes that are no reply"
                return StoreUnavailableError(StoreFault.PROTOCOL, f"{self._place} {what}")
            case RedisConnectionError() | OSError():
                what = "closed the connection"
                return StoreUnavailableError(StoreFault.LOST, f"{self._place} {what}")
        what = f"sent what cannot be understood ({type(error).__name__})"
        return StoreUnavailableError(StoreFault.PROTOCOL, f"{self._place} {what}")


async def _read(connection: AbstractConnection) -> Any:
    """Return one reply; an error reply as a value, so that the replies behind it are read too."""
    try:
        return await connection.read_response()
    except ResponseError as error:
        return error
