"""Connections that mean the gateway no good: bytes of the HTTP fuzz, on real sockets, and away."""

import asyncio
import contextlib
import itertools
import socket
import struct
from random import Random
from urllib.parse import urlsplit

from bench.reliability import http_grammar as grammar

GAP_S = 0.2
PATIENCE_S = 0.5
READ_BYTES = 65_536
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)  # of SO_LINGER: on, and for no time


async def stray(url: str, rng: Random) -> None:
    """Open one connection after the other until cancelled; each sends, listens a little, leaves."""
    for number in itertools.count():
        with contextlib.suppress(OSError, TimeoutError):  # the gateway may close at any time
            await _visit(url, rng, grammar.requests(rng, f"stray{number}-"))
        await asyncio.sleep(rng.expovariate(1 / GAP_S))


async def _visit(url: str, rng: Random, data: bytes) -> None:
    address = urlsplit(url)
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    try:
        for piece in grammar.split(rng, data)[: rng.randint(1, 10)]:
            writer.write(piece)
            await writer.drain()
        if rng.random() < 0.5:
            writer.write_eof()
        async with asyncio.timeout(rng.uniform(0.0, PATIENCE_S)):
            while await reader.read(READ_BYTES):
                pass
    finally:
        if rng.random() < 0.5:
            sock = writer.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
        writer.transport.abort()
