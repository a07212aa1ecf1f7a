"""Streams that a test holds open, and chats whose answers say who gave them and what was cached."""

import asyncio
import json
from collections.abc import Sequence
from typing import Any

from tests.field.harness import FIN, Fake, FieldGateway, tok
from tests.router.gateway.running import RawClient
from tests.router.gateway.scripted_replica import Turn
from tests.router.gateway.wire import (
    DONE,
    LAST_CHUNK,
    STREAM_HEAD,
    Answer,
    chat,
    chunk,
    ok,
    post,
)
from tests.waiting import until

LONG = "All that is said is said at length. " * 60  # 2,160 bytes: 540 tokens

PATIENT = {"report_stale_s": 20.0, "report_dead_s": 20.0, "gateway_report_ttl_s": 20.0}
"""Settings under which a slow machine makes no report old."""


class Held:
    """Streams that begin at once and end when they are let go."""

    def __init__(self) -> None:
        self._go = asyncio.Event()

    async def play(self, turn: Turn) -> None:
        """Send the first token, and the others later."""
        await turn.send(STREAM_HEAD + chunk(tok(0)))
        await self._go.wait()
        await turn.send(chunk(FIN + DONE) + LAST_CHUNK)

    def let_go(self) -> None:
        """Let all end, and those that come no longer wait."""
        self._go.set()


async def open_streams(
    gateway: FieldGateway, *texts: str, of: Sequence[Fake], stream: bool = True
) -> list[RawClient]:
    """Send all these at once, each on its own connection, and wait until ``of`` have them all."""
    before = sum(len(fake.asked) for fake in of)
    clients = [await gateway.connect() for _ in texts]
    for client, text in zip(clients, texts, strict=True):
        await client.send(post(chat(text, stream=stream)))
    await until(lambda: sum(len(fake.asked) for fake in of) == before + len(texts), "all are sent")
    return clients


async def end_all(held: Held, clients: Sequence[RawClient]) -> None:
    """Let the streams end, and read them whole."""
    held.let_go()
    answers = [await client.answer() for client in clients]
    assert all(answer.is_whole and answer.body.endswith(DONE) for answer in answers)


async def add(gateway: FieldGateway, fake: Fake) -> None:
    """Add a replica to a running gateway."""
    entry = {"url": fake.url, "id": fake.replica_id, "model": "m"}
    assert (await gateway.admin("POST", "/admin/replicas", entry)).status in (200, 201)


async def untold(turn: Turn) -> None:
    """Answer without a word on what was cached."""
    await turn.send(ok(b"{}"))


def say(content: Any, role: str = "user", **fields: Any) -> dict[str, Any]:
    """Return a message."""
    return {"role": role, "content": content, **fields}


async def talk(gateway: FieldGateway, *messages: dict[str, Any], **fields: Any) -> Answer:
    """Send a chat of these messages, and wait until the gateway has counted it."""
    body = {"model": "m", "messages": messages, "max_tokens": 1} | fields
    answer = await gateway.ask(post(json.dumps(body).encode()))
    await gateway.rests()
    assert answer.status == 200, answer.body
    return answer


def home_of(answer: Answer) -> str:
    """Return who answered."""
    return answer.value("x-warmroute-replica")


def matched(answer: Answer) -> int:
    """Return how many tokens the gateway believed cached."""
    return int(answer.value("x-warmroute-matched-tokens"))


def cached(answer: Answer) -> int:
    """Return how many tokens the engine had cached."""
    count: int = json.loads(answer.body)["usage"]["prompt_tokens_details"]["cached_tokens"]
    return count


def most_known(gateway: FieldGateway) -> int:
    """Return how many blocks it believes on the replica that has most."""
    return max(status.believed_blocks for status in gateway.fleet.views())
