"""The HTTP fuzz: its laws hold of the gateway, and they notice when one is broken on purpose.

Each law has a gateway that breaks it; a fuzz that cannot see that would prove nothing.
"""

import asyncio
from typing import Any

import pytest

from bench.reliability.http_fuzz import command, main, play, try_case
from bench.reliability.http_oracle import read_answers, read_requests
from bench.reliability.virtual_loop import EndlessTurnsError, VirtualLoop
from bench.reliability.virtual_wire import VirtualSocket, VirtualTransport
from router.core.ledger import Lease
from router.gateway.client_connection import ClientConnection
from router.gateway.relay import Relay
from router.gateway.replica_connection import ReplicaConnection

SEED = 1
NUM_INPUTS_FAST, NUM_INPUTS = 150, 5_000


def failures_of(numbers: range) -> list[str]:
    return [
        f"{failure}\nagain: {command(SEED, number)}"
        for number in numbers
        for failure in try_case(SEED, number).failures
    ]


def test_hostile_bytes_break_no_law() -> None:
    assert failures_of(range(NUM_INPUTS_FAST)) == []


@pytest.mark.long
@pytest.mark.timeout(600)
def test_thousands_of_hostile_inputs_break_no_law() -> None:
    assert failures_of(range(NUM_INPUTS_FAST, NUM_INPUTS)) == []


def test_a_case_is_its_seed_and_its_number() -> None:
    first, again, other = play(SEED, 7), play(SEED, 7), play(SEED, 8)

    def bytes_of(world: Any) -> list[tuple[bytes, bytes]]:
        return [(client.sent, client.got) for client in world.clients]

    assert bytes_of(first) == bytes_of(again)
    assert bytes_of(first) != bytes_of(other)
    for world in (first, again, other):
        world.loop.close()


def test_a_failing_input_prints_the_command_that_repeats_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Relay, "finish", lambda relay, _: relay.write(b"junk"))

    status = main(["--seed", "1", "--count", "60", "--processes", "1"])

    assert status == 1
    assert (
        "again: python -m bench.reliability.http_fuzz --seed 1 --first" in capsys.readouterr().out
    )


# ---- gateways that break one law each


def raises(_: ClientConnection) -> bool:
    raise RuntimeError("a bug")


def does_nothing(*_: object) -> None:
    pass


def ends_in_order(connection: ClientConnection, *, reset: bool) -> None:
    """Close a connection whose answer is broken as if it were whole."""
    connection.write(b"0\r\n\r\n")
    connection.close()


@pytest.mark.parametrize(
    ("owner", "name", "broken", "told"),
    [
        (ClientConnection, "eof_received", raises, "RuntimeError('a bug')"),
        (Lease, "end", does_nothing, "leases left"),
        (ClientConnection, "cut", ends_in_order, "which is none of"),
        (ReplicaConnection, "abort", does_nothing, "connections left"),
        (Relay, "finish", lambda relay, _: relay.write(b"junk"), "cannot read"),
    ],
)
def test_a_broken_law_is_noticed(
    owner: type, name: str, broken: object, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owner, name, broken)

    assert any(told in failure for failure in failures_of(range(60)))


# ---- the virtual loop and the oracle


async def never(*_: object) -> asyncio.Transport:
    raise ConnectionRefusedError


def test_time_jumps_from_timer_to_timer() -> None:
    loop = VirtualLoop(never)
    seen: list[float] = []
    loop.call_later(3600.0, lambda: seen.append(loop.time()))

    loop.run_until(7200.0)

    assert (seen, loop.time(), loop.num_timers) == ([3600.0], 7200.0, 0)
    loop.close()


def test_callbacks_without_end_are_an_error_and_not_a_hang() -> None:
    loop = VirtualLoop(never)

    def again() -> None:
        loop.call_soon(again)

    again()

    with pytest.raises(EndlessTurnsError):
        loop.run_until(1.0)
    loop.close()


def test_the_oracle_reads_pipelined_messages_and_says_where_it_stops() -> None:
    one = b"POST /a HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\nhi"

    requests, unread = read_requests(one + one + b"GET / HTTP/1.1\nbad")

    assert [request.body for request in requests] == [b"hi", b"hi"]
    assert (unread.data, bool(unread.why)) == (b"GET / HTTP/1.1\nbad", True)


@pytest.mark.parametrize(("has_ended", "is_whole"), [(True, True), (False, False)])
def test_an_answer_without_a_length_is_whole_only_if_its_connection_ended_in_order(
    has_ended: bool, is_whole: bool
) -> None:
    answers, _ = read_answers(b"HTTP/1.1 200 OK\r\n\r\nbody", [b"GET"], has_ended=has_ended)

    assert [(answer.body, answer.is_whole) for answer in answers] == [(b"body", is_whole)]


def test_a_transport_whose_far_end_does_not_read_pauses_its_protocol() -> None:
    loop, events = VirtualLoop(never), list[str]()

    class Protocol(asyncio.Protocol):
        def pause_writing(self) -> None:
            events.append("pause")

        def resume_writing(self) -> None:
            events.append("resume")

    got: list[bytes] = []
    transport = VirtualTransport(loop, Protocol(), VirtualSocket(), got.append)
    transport.set_write_buffer_limits(10)
    transport.set_far_end_reads(False)

    transport.write(b"x" * 11)
    transport.set_far_end_reads(True)

    assert (events, got) == (["pause", "resume"], [b"x" * 11])
    loop.close()
