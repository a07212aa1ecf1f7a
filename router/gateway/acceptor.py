"""Accepts connections in batches: uvloop's own server takes one per turn of the loop.

When a process has no descriptor left, the kernel keeps the connections; they are accepted as soon
as others have closed.
"""

import asyncio
import errno
import os
import socket
import stat
from collections.abc import Callable

ACCEPTS_PER_TURN = 128
PAUSE_S = 0.1
"""How long no connection is accepted when there is no descriptor for it."""

UNIX_PREFIX = "unix:"
"""Of a host that is the path of a socket."""

_NO_DESCRIPTORS = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


class Acceptor:
    """One listening socket. Every accepted one is given to ``take``, non-blocking."""

    def __init__(self, listener: socket.socket, take: Callable[[socket.socket], None]) -> None:
        self._listener = listener
        self._take = take
        self._loop = asyncio.get_running_loop()
        self._pause: asyncio.TimerHandle | None = None
        self._is_open = True
        self._is_unix = listener.family == socket.AF_UNIX
        listener.setblocking(False)
        self._loop.add_reader(listener, self._accept)

    @property
    def port(self) -> int:
        """The port that is listened on; 0 where it is a path."""
        return 0 if self._is_unix else int(self._listener.getsockname()[1])

    def close(self) -> None:
        """Refuse further connections."""
        if not self._is_open:
            return
        self._is_open = False
        if self._pause is not None:
            self._pause.cancel()
        self._loop.remove_reader(self._listener)
        path = self._listener.getsockname() if self._is_unix else ""
        self._listener.close()
        if path:
            _remove_socket(path)

    def _accept(self) -> None:
        for _ in range(ACCEPTS_PER_TURN):
            try:
                sock, _ = self._listener.accept()
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                if error.errno in _NO_DESCRIPTORS:
                    self._loop.remove_reader(self._listener)
                    self._pause = self._loop.call_later(PAUSE_S, self._go_on)
                    return
                continue  # that client has gone already (ECONNABORTED and the like)
            sock.setblocking(False)
            if not self._is_unix:
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._take(sock)

    def _go_on(self) -> None:
        if self._is_open:
            self._loop.add_reader(self._listener, self._accept)


def listen(host: str, port: int, backlog: int) -> socket.socket:
    """Return a listening socket. Raises OSError if the address is in use or unknown."""
    if host.startswith(UNIX_PREFIX):
        return _listen_at(host.removeprefix(UNIX_PREFIX), backlog)
    family, kind, protocol, _, address = socket.getaddrinfo(
        host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    sock = socket.socket(family, kind, protocol)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
        sock.listen(backlog)
    except OSError:
        sock.close()
        raise
    return sock


def _listen_at(path: str, backlog: int) -> socket.socket:
    """Listen on a path; a socket that is left of a process which has ended gives way."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            _remove_socket(path)
        except OSError:
            pass  # there is nothing, or it is no socket: bind tells which
        else:
            raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.bind(path)
        sock.listen(backlog)
    except OSError:
        sock.close()
        raise
    return sock


def _remove_socket(path: str) -> None:
    try:
        if stat.S_ISSOCK(os.stat(path).st_mode):
            os.unlink(path)
    except OSError:
        pass  # somebody has tidied up already
