"""A long body that could not be read: its request goes to a replica of its model all the same.

The process that reads is stopped by a signal, so that nothing depends on how slow it is.
"""

import gzip
import json
import os
import signal
import sys
from collections.abc import Coroutine
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.core.reason import Outcome
from router.gateway.unread_body import model_named
from tests.router.gateway.running import RawClient, RunningGateway, gateway_of
from tests.router.gateway.scripted_replica import ScriptedReplica, answering
from tests.router.gateway.wire import Answer, chat, completion, ok, post
from tests.waiting import until

SMALL_TURN: dict[str, Any] = {"body_in_turn_bytes_max": 100, "body_reading_timeout_s": 30.0}
UNREAD_S = 0.2
MESSAGES = [{"role": "user", "content": "x" * 200_000}]
DECOYS = [
    {"role": "user", "content": '{"model": "m", "x": "'},
    {"role": "user", "content": [{"type": "text", "text": "{", "model": "m"}]},
]
MODEL = "big"


def form(**fields: str) -> bytes:
    parts = [
        f'--edge\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'
        for name, value in fields.items()
    ]
    return "".join([*parts, "--edge--\r\n"]).encode()


def worker_of(gateway: RunningGateway) -> int:
    process = gateway.plane.context.bodies._process
    assert process is not None
    return process.pid


async def stop_reading(gateway: RunningGateway) -> None:
    """Start the process that reads, and stop it."""
    await gateway.chat("x" * 200)
    os.kill(worker_of(gateway), signal.SIGSTOP)
    context = gateway.plane.context
    context.config = replace(context.config, body_reading_timeout_s=UNREAD_S)


@pytest.fixture
def unreadable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the process that reads end as soon as it is started."""
    monkeypatch.setattr(sys, "executable", "/bin/false")


def body_of(**fields: object) -> bytes:
    return json.dumps(fields).encode()


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", body_of(model=MODEL, messages=MESSAGES)),
        ("/v1/chat/completions", body_of(messages=MESSAGES + DECOYS, model=MODEL, stream=False)),
        ("/v1/chat/completions", body_of(messages=MESSAGES, model=MODEL, tools=DECOYS * 5000)),
        ("/v1/messages", body_of(metadata={"model": "m"}, model=MODEL, messages=MESSAGES)),
        ("/v1/audio/transcriptions", form(file="x" * 200_000, model=MODEL)),
        ("/v1/audio/transcriptions", form(model=MODEL, file="x" * 200_000)),
    ],
    ids=["first", "last", "between", "beside a decoy", "form", "form before"],
)
@pytest.mark.usefixtures("unreadable")
async def test_an_unread_request_goes_to_its_model(path: str, body: bytes) -> None:
    async with (
        ScriptedReplica(answering(ok(completion()))) as of_m,
        ScriptedReplica(answering(ok(completion())), "b") as of_its_model,
        gateway_of(of_m, **SMALL_TURN) as gateway,
    ):
        gateway.fleet.add_static(of_its_model.url, "b", MODEL, now_us=0)
        answers = [await gateway.ask(post(body, path=path)) for _ in range(2)]
        record = await gateway.record()

    assert [answer.status for answer in answers] == [200, 200]
    assert [len(replica.requests) for replica in (of_m, of_its_model)] == [0, 2]
    assert record.model == MODEL


@pytest.mark.usefixtures("unreadable")
async def test_an_unread_request_of_an_unknown_model_is_a_404() -> None:
    async with (
        ScriptedReplica(answering(ok(completion()))) as replica,
        gateway_of(replica, **SMALL_TURN) as gateway,
    ):
        answer = await gateway.chat("x" * 200, model="none")

    assert (answer.status, answer.code) == (404, "model_not_found")


async def ask_alone_and_among_others(request: bytes) -> tuple[Answer, Answer, list[bytes]]:
    """Ask a replica that is the only one, then beside one of another model; and what it got."""
    async with (
        ScriptedReplica(answering(ok(completion()))) as replica,
        gateway_of(replica) as gateway,
    ):
        alone = await gateway.ask(request)
        gateway.fleet.add_static("http://127.0.0.1:1", "b", "other", now_us=0)
        among_others = await gateway.ask(request)
    return alone, among_others, [received.body for received in replica.requests]


@pytest.mark.parametrize(("encoding", "body"), [("br", b"any"), ("gzip", b"no gzip")])
async def test_what_nobody_can_read_is_not_sent_to_just_any_model(
    encoding: str, body: bytes
) -> None:
    request = post(body, f"Content-Encoding: {encoding}")

    alone, among_others, received = await ask_alone_and_among_others(request)

    assert alone.status == 200
    assert (among_others.status, among_others.code) == (415, "unsupported_encoding")
    assert among_others.value("accept-encoding") == "gzip, deflate"
    assert received == [body]


@pytest.mark.usefixtures("unreadable")
async def test_what_could_not_be_read_now_may_be_asked_again_where_its_model_matters() -> None:
    request = post(gzip.compress(chat()), "Content-Encoding: gzip")

    alone, among_others, received = await ask_alone_and_among_others(request)

    assert alone.status == 200
    assert (among_others.status, among_others.code) == (503, "overloaded")
    assert among_others.value("retry-after") == "1"
    assert len(received) == 1


async def test_the_books_begin_when_the_body_came_and_not_when_it_was_read() -> None:
    async with (
        ScriptedReplica(answering(ok(completion()))) as replica,
        gateway_of(replica, **SMALL_TURN) as gateway,
    ):
        await stop_reading(gateway)
        await gateway.chat("x" * 200)
        record = await gateway.record()

    assert record.sent_us is not None
    assert record.sent_us - record.received_us >= UNREAD_S * 1_000_000


@pytest.mark.parametrize("leave", [RawClient.close, RawClient.reset])
async def test_clients_that_leave_cost_nobody_the_process(leave: Any) -> None:
    async with (
        ScriptedReplica(answering(ok(completion()))) as replica,
        gateway_of(replica, **SMALL_TURN) as gateway,
    ):
        await gateway.chat("x" * 200)
        reader = worker_of(gateway)
        os.kill(reader, signal.SIGSTOP)
        leaving = [await gateway.connect() for _ in range(3)]
        for client in leaving:
            await client.send(post(chat("x" * 200)))
        await until(lambda: gateway.plane.stats().exchanges == 3, "one is read, two wait")
        for client in leaving:
            leave(client)
        await until(lambda: len(gateway.records) == 4, "they have left")
        os.kill(reader, signal.SIGCONT)
        answer = await gateway.chat("x" * 200)
        is_same = worker_of(gateway) == reader

    assert {record.outcome for record in gateway.records[1:4]} == {Outcome.CLIENT_LEFT}
    assert (answer.status, is_same) == (200, True)
    assert len(replica.requests) == 2


KEYS = st.sampled_from(["model", "a", "messages", 'mod"el', "\\"])
VALUES = st.recursive(
    st.none() | st.text('"\\{}[]:model, \u00e9') | st.integers() | st.just('"model":"x"'),
    lambda inner: st.lists(inner) | st.dictionaries(KEYS, inner),
    max_leaves=4,
)


@settings(max_examples=50)
@given(
    st.lists(st.tuples(KEYS, VALUES), max_size=4),
    st.none() | st.text('m:\\"/\u00e9\n', min_size=1),
    st.lists(st.tuples(KEYS.filter(lambda key: key != "model"), VALUES), max_size=4),
    st.integers(0, 140_000),
)
def test_the_model_is_found_wherever_it_stands(
    before: list[tuple[str, object]],
    model: str | None,
    after: list[tuple[str, object]],
    num_more: int,
) -> None:
    """Names given more than once: the last counts, if it is text."""
    named = [("model", model)] if model is not None else []
    if model is None:
        before = [(key, value) for key, value in before if key != "model"]
    pairs = [*before, ("more", "x" * num_more), *named, *after]
    body = ", ".join(f"{json.dumps(key)}: {json.dumps(value)}" for key, value in pairs)

    assert returned(model_named(b"{%b}" % body.encode())) == model


def returned(coroutine: Coroutine[Any, Any, str | None]) -> str | None:
    """Run what gives way to others only, without a loop for each of so many."""
    while True:
        try:
            coroutine.send(None)
        except StopIteration as end:
            found: str | None = end.value
            return found
