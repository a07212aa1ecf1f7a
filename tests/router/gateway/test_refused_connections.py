"""Connections that end before any request are counted, each under its reason."""

import asyncio
import ssl
from pathlib import Path

import pytest

from tests.router.gateway.certificates import OPENSSL, Authority
from tests.router.gateway.running import gateway_of
from tests.router.gateway.wire import get
from tests.waiting import until


async def test_one_beyond_the_limit_is_counted() -> None:
    async with gateway_of(connections_max=1) as gateway:
        await (await gateway.connect()).ask(get("/health"))
        await (await gateway.connect()).answer()
        stats = gateway.plane.stats()

    assert (stats.clients, stats.turned_away, stats.handshakes_failed) == (1, 1, 0)


@pytest.mark.skipif(OPENSSL is None, reason="the openssl command makes the certificates")
@pytest.mark.parametrize("offered", [b"GET / HTTP/1.1\r\n\r\n", b""], ids=["plain", "nothing"])
async def test_one_that_comes_to_no_tls_session_is_counted(offered: bytes, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    cert, key = authority.sign("gateway")
    trusting = ssl.create_default_context(cafile=str(authority.cert))
    async with gateway_of(tls_cert_file=str(cert), tls_key_file=str(key)) as gateway:
        _, well = await asyncio.open_connection("127.0.0.1", gateway.port, ssl=trusting)
        _, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
        writer.write(offered)
        await writer.drain()
        writer.close()

        await until(lambda: gateway.plane.stats().handshakes_failed == 1, "it is counted")
        well.close()

    assert gateway.plane.stats().turned_away == 0
