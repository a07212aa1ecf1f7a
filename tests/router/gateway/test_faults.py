"""Faults of the gateway itself: wherever one strikes, that request ends so that its client sees it,
nothing of it is left, and nobody else feels it.

A function that an exchange calls is made to raise, once, at each of its calls in turn.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from contract.failures import Failure
from router.core.ledger import Lease
from router.core.reason import Outcome
from router.gateway.actions import Actions
from router.gateway.attempt import Attempt
from router.gateway.client_connection import ClientConnection
from router.gateway.config import Failover
from router.gateway.context import Context
from router.gateway.relay import Relay
from router.gateway.resume import Resume
from router.metrics import RouterMetrics
from tests.router.gateway.running import RunningGateway, gateway_of
from tests.router.gateway.scripted_replica import Script, ScriptedReplica, Turn, answering
from tests.router.gateway.wire import (
    DONE,
    LAST_CHUNK,
    STREAM_HEAD,
    chat,
    chunk,
    completion,
    event,
    ok,
    post,
)
from tests.waiting import until

EVENTS = STREAM_HEAD + chunk(event("one ")) + chunk(event("two"))
END = chunk(event("", "stop")) + chunk(DONE) + LAST_CHUNK
CALLED: list[tuple[type, str]] = [
    *((Attempt, name) for name in ("connect", "send", "begin_relay", "finish_relay", "reuse")),
    *((Attempt, name) for name in ("drop", "release", "judge", "fill", "on_head", "on_body")),
    *((Actions, name) for name in ("_send", "_begin_relay", "_judge", "_wait_for_retry")),
    *((Actions, name) for name in ("_routed", "_answer", "_finish_record", "on_failure")),
    *((Relay, "begin"), (Relay, "finish"), (Lease, "end"), (RouterMetrics, "exchange_ended")),
    *((Context, "report"), (Context, "watch"), (ClientConnection, "writer")),
    *((Resume, "judge"), (Resume, "prepare"), (Actions, "_redecide"), (Actions, "_splice")),
]


@dataclass
class Raising:
    """A function that raises at one of its calls."""

    function: Callable[..., Any]
    at: int
    num_calls: int = field(default=0)

    def method(self) -> Callable[..., Any]:
        """Return it as it stands in its class."""

        def called(*args: Any, **named: Any) -> Any:
            self.num_calls += 1
            if self.num_calls == self.at:
                raise ZeroDivisionError
            return self.function(*args, **named)

        return called


def failing_first(*pieces: bytes) -> Script:
    """Return a script that breaks off its first answer behind ``pieces``; later ones are whole."""

    async def script(turn: Turn) -> None:
        is_stream = b'"stream"' in turn.request.body
        if turn.index == 0 and not hasattr(script, "has_failed"):
            script.has_failed = True  # type: ignore[attr-defined]  # kept where it belongs
            await turn.send_pieces(*pieces)
            turn.close()
        else:
            await turn.send(EVENTS + END if is_stream else ok(completion()))

    return script


@pytest.mark.parametrize("at", [1, 2])
@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize(("owner", "name"), CALLED, ids=lambda value: str(value))
async def test_a_fault_ends_its_own_request_only(
    owner: type, name: str, is_stream: bool, at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    raising = Raising(getattr(owner, name), at)
    pieces = (EVENTS,) if is_stream else ()  # of the answer that breaks
    routing = {"retry_floor_per_s": 100.0}

    async with (
        ScriptedReplica(failing_first(*pieces)) as a,
        ScriptedReplica(failing_first(*pieces), "b") as b,
        ScriptedReplica(answering(EVENTS + END if is_stream else ok(completion())), "c") as c,
        gateway_of(a, b, c, routing=routing, failover=Failover.RESUME) as gateway,
    ):
        client = await gateway.connect()
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, raising.method())
            await client.send(post(chat(stream=is_stream, max_tokens=9), "Connection: close"))
            got = await client.rest()
            await until(lambda: gateway.is_at_rest, "it has ended")
        after = await gateway.chat(stream=is_stream, max_tokens=9)

    shown = got.partition(b"\r\n\r\n")[0][:12]
    is_whole = got.endswith((LAST_CHUNK, completion())) if shown == b"HTTP/1.1 200" else bool(shown)
    assert (after.status, after.is_whole) == (200, True)
    if raising.num_calls < at:
        assert (shown, is_whole) == (b"HTTP/1.1 200", True)
    elif gateway.records and gateway.records[0].outcome is Outcome.COMPLETE:
        assert is_whole
    assert shown in (b"", b"HTTP/1.1 200", b"HTTP/1.1 500", b"HTTP/1.1 502")


async def test_a_fault_before_the_answer_is_a_500_and_after_its_first_bytes_a_break(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def ask(gateway: RunningGateway, owner: type, name: str) -> bytes:
        client = await gateway.connect()
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, Raising(getattr(owner, name), 1).method())
            await client.send(post(chat(stream=True), "Connection: close"))
            return await client.rest()

    async with (
        ScriptedReplica(answering(EVENTS + END)) as replica,
        gateway_of(replica) as gateway,
    ):
        before = await ask(gateway, Attempt, "send")
        after = await ask(gateway, Attempt, "finish_relay")
        records = gateway.records

    assert before.startswith(b"HTTP/1.1 500 ")
    assert b"internal_error" in before
    assert after.count(b"HTTP/1.1") == 1
    assert not after.endswith(LAST_CHUNK)
    assert [record.outcome for record in records] == [Outcome.REFUSED, Outcome.BROKEN]
    assert {record.failure for record in records} == {Failure.INTERNAL}
    assert caplog.text.count("met a fault of the gateway") == 2


async def test_a_fault_while_a_queued_request_is_placed_is_that_requests_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def script(turn: Turn) -> None:
        await turn.send(ok(completion()))

    async with (
        ScriptedReplica(script) as replica,
        gateway_of(replica, routing={"in_flight_max": 1}) as gateway,
    ):
        asked = [await gateway.connect() for _ in range(3)]
        decide = gateway.fleet.decide
        monkeypatch.setattr(gateway.fleet, "decide", Raising(decide, 3).method())
        for client in asked:
            await client.send(post(chat()))
        statuses = sorted([(await client.answer()).status for client in asked])

    assert statuses == [200, 200, 500]
    assert gateway.plane.stats().queued == 0


async def test_a_request_that_has_ended_within_a_sweep_is_left_alone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    seen = asyncio.Event()

    async def script(turn: Turn) -> None:
        await seen.wait()
        await turn.send(ok(b"{}"))

    async with ScriptedReplica(script) as replica, gateway_of(replica) as gateway:
        client = await gateway.connect()
        await client.send(post(chat()))
        await replica.arrived.wait()
        (exchange,) = gateway.plane.context.exchanges
        seen.set()
        await client.answer()
        exchange.on_sweep(2**61)

    assert len(gateway.records) == 1
    assert "fault" not in caplog.text
