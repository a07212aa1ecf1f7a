"""Small questions to a replica beside its requests, at a port or at the path of a socket."""

import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager

import aiohttp

from router.replica_entry import NAMELESS, socket_path


@asynccontextmanager
async def answer_to_get(
    session: aiohttp.ClientSession,
    url: str,
    path: str,
    *,
    timeout: aiohttp.ClientTimeout,  # noqa: ASYNC109  # handed on, not waited with
    tls: Callable[[], ssl.SSLContext],
    headers: Mapping[str, str] | None = None,
) -> AsyncIterator[aiohttp.ClientResponse]:
    """Give the answer of the replica at ``url`` to ``GET path``; redirects are not followed.

    Raises what aiohttp raises.
    """
    unix_path = socket_path(url)
    if unix_path is None:
        context = tls() if url.startswith("https:") else True
        get = session.get(
            url.rstrip("/") + path,
            allow_redirects=False,
            headers=headers,
            timeout=timeout,
            ssl=context,
        )
        async with get as response:
            yield response
        return
    # A session's connector knows one path, and one for each costs less than keeping them.
    async with (
        aiohttp.ClientSession(connector=aiohttp.UnixConnector(unix_path)) as own,
        own.get(
            f"http://{NAMELESS}{path}", allow_redirects=False, headers=headers, timeout=timeout
        ) as response,
    ):
        yield response
