"""Clients: open loop, at random from a seed, each keeping all that it was sent."""

import asyncio
from collections.abc import Callable, Iterator
from random import Random

import aiohttp

from bench.reliability.ledger import Entry, Spec
from contract.sse import SseReader

MODEL = "llama-3.1-8b"
HUNG_S = 60.0
"""Longer than all limits on silence, all retries and all tokens together."""

NUM_PREFIXES = 20
SHARE_LEAVING = 0.06
SHARE_OF_NEW_CONNECTIONS = 0.2

Clock = Callable[[], float]


def specs(rng: Random, num_streams: int, num_plain: int) -> Iterator[Spec]:
    """Yield the requests in a random order; prompts share prefixes, as chats and agents do."""
    kinds = [True] * num_streams + [False] * num_plain
    rng.shuffle(kinds)
    for number, is_stream in enumerate(kinds):
        prefix = f"system {rng.randrange(NUM_PREFIXES)} " + "lorem ipsum " * 40
        leaves = rng.random() < SHARE_LEAVING
        yield Spec(
            number=number,
            is_stream=is_stream,
            is_chat=rng.random() < 0.5,
            prompt=f"{prefix}request {number} of {rng.random()}",
            num_tokens=rng.randint(5, 60),
            wants_usage=is_stream and rng.random() < 0.5,
            leaves_after_s=rng.uniform(0.0, 1.0) if leaves else None,
        )


class Traffic:
    """Sends requests at random moments, ``rate`` a second on average."""

    def __init__(self, url: str, rate: float, clock: Clock) -> None:
        self.entries: list[Entry] = []
        self._url = url
        self._rate = rate
        self._clock = clock

    async def run(self, rng: Random, asked: Iterator[Spec]) -> None:
        """Send all of them and wait for their ends."""
        connector = aiohttp.TCPConnector(limit=0)
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=HUNG_S)
        async with (
            aiohttp.ClientSession(connector=connector, timeout=timeout) as session,
            asyncio.TaskGroup() as tasks,
        ):
            for spec in asked:
                closes = rng.random() < SHARE_OF_NEW_CONNECTIONS
                tasks.create_task(self._ask(session, spec, closes=closes))
                await asyncio.sleep(rng.expovariate(self._rate))

    async def _ask(self, session: aiohttp.ClientSession, spec: Spec, *, closes: bool) -> None:
        entry = Entry(spec, self._clock())
        self.entries.append(entry)
        limit_s = HUNG_S if spec.leaves_after_s is None else spec.leaves_after_s
        headers = {"Connection": "close"} if closes else {}
        try:
            async with asyncio.timeout(limit_s):
                await self._read(session, entry, headers)
        except TimeoutError:
            entry.has_left = spec.leaves_after_s is not None
            entry.is_hung = not entry.has_left
        except (aiohttp.ClientError, ConnectionError) as error:
            entry.transport_error = f"{type(error).__name__}: {error}"
        entry.ended_s = self._clock()

    async def _read(
        self, session: aiohttp.ClientSession, entry: Entry, headers: dict[str, str]
    ) -> None:
        spec, reader = entry.spec, SseReader()
        url, body = self._url + spec.path, spec.body(MODEL)
        async with session.post(url, json=body, headers=headers) as response:
            entry.status = response.status
            entry.replica_id = response.headers.get("x-warmroute-replica", "")
            entry.request_id = response.headers.get("x-request-id", "")
            async for data in response.content.iter_any():
                is_events = spec.is_stream and response.status == 200
                entry.payloads += reader.feed(data) if is_events else [data]
