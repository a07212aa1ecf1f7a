"""Addresses of replicas' hosts, looked up so that a slow answer for one cannot hold up another.

A name server that is silent about a host that is gone costs 5 to 10 s a look-up, and an event
loop has few threads for them: libuv four. So every host has at most one look-up at a time, on a
thread of its own, and while it is under way the last good addresses serve.
"""

import asyncio
import socket
import threading
from collections.abc import Callable

from router.core.config import micros
from router.gateway.config import GatewayConfig

LookUp = Callable[[str], list[str]]


def look_up(host: str) -> list[str]:
    """Return the IP addresses of ``host``, the preferred one first. Blocks; raises OSError."""
    found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(address[0]) for *_, address in found))


class HostAddresses:
    """The addresses of one host, no older than ``dns_ttl_s`` unless its name server is slow."""

    def __init__(
        self,
        host: str,
        config: GatewayConfig,
        clock_us: Callable[[], int],
        look_up: LookUp = look_up,
    ) -> None:
        self._host = host
        self._clock_us = clock_us
        self._look_up = look_up
        self._ttl_us = micros(config.dns_ttl_s)
        self._known: list[str] = [host] if _is_literal(host) else []
        self._until_us: int | None = None if _is_literal(host) else 0
        self._under_way: asyncio.Future[list[str]] | None = None

    async def get(self) -> list[str]:
        """Return the addresses. Raises OSError where none has ever been found."""
        if self._until_us is None or self._clock_us() < self._until_us:
            return self._known
        if self._under_way is None:
            self._begin()
        if self._known:
            return self._known
        assert self._under_way is not None
        # Whoever gives up waiting leaves the look-up to the others.
        return await asyncio.shield(self._under_way)

    def distrust(self) -> None:
        """Look again before the next use: nobody answered at the addresses."""
        if self._until_us is not None:
            self._until_us = 0

    def _begin(self) -> None:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[list[str]] = loop.create_future()
        self._under_way = future

        def run() -> None:
            try:
                outcome: list[str] | OSError = self._look_up(self._host)
            except OSError as error:
                outcome = error
            try:
                loop.call_soon_threadsafe(self._end, future, outcome)
            except RuntimeError:
                pass  # the loop has closed: nobody waits any more

        # A daemon, for a process must not wait at its end for a name server.
        threading.Thread(target=run, name=f"look up {self._host}", daemon=True).start()

    def _end(self, future: "asyncio.Future[list[str]]", outcome: list[str] | OSError) -> None:
        self._under_way = None
        if isinstance(outcome, OSError):
            future.set_exception(outcome)
            future.exception()  # it is no news to anyone where the last good addresses serve
        else:
            self._known = outcome
            self._until_us = self._clock_us() + self._ttl_us
            future.set_result(outcome)


def _is_literal(host: str) -> bool:
    for family in (socket.AF_INET, socket.AF_INET6):
        try:
            socket.inet_pton(family, host)
        except OSError:
            continue
        return True
    return False
