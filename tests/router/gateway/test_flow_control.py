"""Moments that sockets do not let a test choose, on transports that do as they are told.

The connections, the exchange and the fleet are the real ones; only the kernel is missing.
"""

import asyncio
import socket
from collections.abc import Callable, Iterator
from typing import cast

import pytest

import router.policies  # noqa: F401  # registers the policies
from router.core.config import RoutingConfig
from router.core.fleet import FleetState
from router.core.ledger import Lease
from router.core.policy import build_policy
from router.core.reason import Outcome
from router.core.record import ExchangeRecord
from router.gateway.client_connection import ClientConnection
from router.gateway.config import GatewayConfig
from router.gateway.credentials import read_credentials
from router.gateway.data_plane import DataPlane
from router.gateway.replica_connection import ReplicaConnection
from router.metrics import RouterMetrics
from tests.router.gateway.fake_wire import Wire
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

URL = "http://127.0.0.1:1"
HEAD_END = b"\r\n\r\n"


class Bench:
    """One client and one replica, joined by a gateway whose clock the test sets."""

    def __init__(self, *, client_write_timeout_s: float = 10_000.0) -> None:
        self.now_us = 0
        config = GatewayConfig(client_write_timeout_s=client_write_timeout_s)
        self.fleet = FleetState(RoutingConfig(), build_policy("round_robin"))
        self.fleet.add_static(URL, "a", "m", now_us=0)
        self.records: list[ExchangeRecord] = []
        metrics = RouterMetrics()
        self.plane = DataPlane(
            *(config, self.fleet, RoutingConfig(), metrics, lambda: self.now_us),
            log=self.records.append,
        )
        self.client_wire, self.replica_wire = Wire(), Wire()
        self.socket = socket.socket()
        self.client = ClientConnection(self.plane, self.socket)
        self.client.connection_made(cast(asyncio.Transport, self.client_wire))
        pool = self.plane.context.pools.of(URL)
        self.replica = ReplicaConnection(pool, 32_768)
        self.replica.connection_made(cast(asyncio.Transport, self.replica_wire))
        pool.put(self.replica)

    @property
    def lease(self) -> Lease:
        """The lease of the request under way."""
        (lease,) = self.fleet.ledger._open
        return lease

    def pass_time(self, seconds: float) -> None:
        """Let time pass and everybody look at it."""
        self.now_us += int(seconds * 1_000_000)
        for exchange in list(self.plane.context.exchanges):
            exchange.on_sweep(self.now_us)
        self.client.on_sweep(self.now_us)


@pytest.fixture
def bench() -> Iterator[Bench]:
    bench = Bench()
    yield bench
    bench.socket.close()
    bench.fleet.check()


def test_an_answer_is_written_in_one_piece(bench: Bench) -> None:
    bench.client.data_received(post(chat()))
    bench.replica.data_received(ok(completion()))

    assert len(bench.replica_wire.written) == 1
    (written,) = bench.client_wire.written
    assert written.endswith(HEAD_END + completion())


def test_the_head_of_a_stream_is_written_with_its_first_bytes(bench: Bench) -> None:
    bench.client.data_received(post(chat(stream=True)))
    bench.replica.data_received(STREAM_HEAD)
    held = list(bench.client_wire.written)
    bench.replica.data_received(chunk(event("t")))

    assert held == []
    (written,) = bench.client_wire.written
    assert written.endswith(HEAD_END + chunk(event("t")))


async def test_the_head_of_a_stream_is_not_the_first_byte_waited_for(bench: Bench) -> None:
    limit_s = GatewayConfig().first_byte_timeout_s
    bench.client.data_received(post(chat(stream=True)))
    bench.pass_time(0.9 * limit_s)
    bench.replica.data_received(STREAM_HEAD)
    bench.pass_time(0.05 * limit_s)
    is_waited_for = not bench.replica_wire.is_closed
    bench.pass_time(0.06 * limit_s)

    assert is_waited_for
    assert bench.replica_wire.is_closed


def test_the_head_of_an_answer_in_json_waits_for_its_first_byte(bench: Bench) -> None:
    answer = ok(completion())
    head_bytes = answer.index(HEAD_END) + len(HEAD_END)
    bench.client.data_received(post(chat()))
    bench.replica.data_received(answer[:head_bytes])
    before = list(bench.client_wire.written)
    bench.replica.data_received(answer[head_bytes:])

    assert before == []
    (written,) = bench.client_wire.written
    assert written.endswith(HEAD_END + completion())


def test_the_head_of_another_answer_is_not_held_back(bench: Bench) -> None:
    answer = ok(completion()).replace(b"application/json", b"audio/mpeg")
    head_bytes = answer.index(HEAD_END) + len(HEAD_END)
    bench.client.data_received(post(chat()))
    bench.replica.data_received(answer[:head_bytes])

    (written,) = bench.client_wire.written
    assert written.startswith(b"HTTP/1.1 200 OK\r\n")
    assert written.endswith(HEAD_END)
    bench.replica.data_received(answer[head_bytes:])
    assert b"".join(bench.client_wire.written).endswith(completion())


def test_every_piece_of_a_body_that_ends_with_its_connection_gets_a_chunk(bench: Bench) -> None:
    bench.client.data_received(post(chat(stream=True)))
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"
    bench.replica.data_received(head + event("a"))
    bench.replica.data_received(event("b", "stop"))
    bench.replica.data_received(DONE)
    bench.replica.connection_lost(None)

    body = b"".join(bench.client_wire.written).partition(HEAD_END)[2]
    assert body == b"".join(map(chunk, (event("a"), event("b", "stop"), DONE))) + LAST_CHUNK


@pytest.mark.parametrize("is_between_chunks", [True, False])
def test_where_the_second_stream_of_a_connection_broke_is_known(
    bench: Bench, is_between_chunks: bool
) -> None:
    bench.client.data_received(post(chat(stream=True)))
    bench.replica.data_received(STREAM_HEAD + chunk(event("a", "stop")))
    bench.replica.data_received(chunk(DONE) + LAST_CHUNK)
    bench.client_wire.written.clear()

    bench.client.data_received(post(chat(stream=True)))
    bench.replica.data_received(STREAM_HEAD + chunk(event("b")))
    bench.replica.data_received(chunk(event("c")) if is_between_chunks else chunk(event("c"))[:20])
    bench.replica.connection_lost(None)

    received = b"".join(bench.client_wire.written)
    assert (b'"error"' in received) == is_between_chunks
    assert bench.client_wire.is_closed


def test_a_client_of_http_1_0_gets_every_piece_without_its_chunk(bench: Bench) -> None:
    bench.client.data_received(post(chat(stream=True), version="1.0"))
    bench.replica.data_received(STREAM_HEAD + chunk(event("a")))
    bench.replica.data_received(chunk(event("b", "stop")))
    bench.replica.data_received(chunk(DONE) + LAST_CHUNK)

    body = b"".join(bench.client_wire.written).partition(HEAD_END)[2]
    assert body == event("a") + event("b", "stop") + DONE


def test_a_comment_does_not_end_a_prefill_and_an_event_does(bench: Bench) -> None:
    bench.client.data_received(post(chat(stream=True)))
    bench.replica.data_received(STREAM_HEAD + chunk(b": ping\n\n"))
    after_comment = bench.lease.first_byte_us
    bench.now_us = 5_000_000
    bench.replica.data_received(chunk(event("t")))

    assert after_comment is None
    assert bench.lease.first_byte_us == 5_000_000
    bench.replica.data_received(chunk(DONE) + LAST_CHUNK)
    assert bench.records[0].first_byte_us == 5_000_000


def test_a_request_renews_its_lease_as_long_as_it_runs(bench: Bench) -> None:
    bench.client.data_received(post(chat(stream=True)))
    heard_us = bench.lease.replica.heard_us
    bench.pass_time(20.0)  # for its prompt to be computed

    assert bench.lease.renewed_us == 20_000_000
    assert bench.lease.replica.heard_us == heard_us  # but it has said nothing yet
    bench.replica.data_received(STREAM_HEAD + chunk(event("t")) + chunk(DONE) + LAST_CHUNK)


def test_bytes_that_flow_show_that_the_replica_lives(bench: Bench) -> None:
    bench.client.data_received(post(chat(stream=True)))
    bench.replica.data_received(STREAM_HEAD + chunk(event("t")))
    bench.now_us = 30_000_000
    bench.replica.data_received(chunk(event("t")))
    bench.pass_time(1.0)

    assert bench.lease.replica.heard_us == 30_000_000
    bench.replica.data_received(chunk(DONE) + LAST_CHUNK)


def test_a_client_that_is_slow_stops_the_reading_from_its_replica(bench: Bench) -> None:
    bench.client.data_received(post(chat(stream=True)))
    bench.replica.data_received(STREAM_HEAD + chunk(event("t")))

    bench.client.pause_writing()
    paused = bench.replica_wire.is_reading
    bench.client.resume_writing()

    assert not paused
    assert bench.replica_wire.is_reading
    bench.replica.data_received(chunk(DONE) + LAST_CHUNK)


def test_a_connection_whose_answer_ends_while_it_is_paused_can_be_used_again(
    bench: Bench,
) -> None:
    bench.client.data_received(post(chat("one")))
    answer = ok(completion())
    bench.replica.data_received(answer[:-10])
    bench.client.pause_writing()
    bench.replica.data_received(answer[-10:])

    assert bench.replica_wire.is_reading
    bench.client.resume_writing()
    bench.client.data_received(post(chat("two")))
    bench.replica.data_received(answer)
    assert len(bench.records) == 2
    assert not bench.replica_wire.is_closed


def test_an_answer_that_begins_while_its_client_is_slow_is_paused_at_once(bench: Bench) -> None:
    answer = ok(completion())
    bench.client.data_received(post(chat("one")) + post(chat("two")))
    bench.replica.data_received(answer[:-10])
    bench.client.pause_writing()
    bench.replica.data_received(answer[-10:])
    bench.replica.data_received(answer[:-10])

    assert not bench.replica_wire.is_reading
    bench.pass_time(61.0)  # more than between_bytes_timeout_s: its silence is not its fault
    assert len(bench.records) == 1
    bench.client.resume_writing()
    bench.replica.data_received(answer[-10:])
    assert len(bench.records) == 2


def test_a_replica_gets_time_again_when_its_client_has_caught_up(bench: Bench) -> None:
    bench.client.data_received(post(chat(stream=True)))
    bench.replica.data_received(STREAM_HEAD + chunk(event("t")))
    bench.client.pause_writing()
    bench.pass_time(1000.0)
    bench.client.resume_writing()
    bench.pass_time(59.0)
    still_running = not bench.records
    bench.pass_time(2.0)

    assert still_running
    assert bench.records[0].outcome is Outcome.BROKEN


def test_an_open_connection_holds_to_another_limit_on_unsent_bytes(bench: Bench) -> None:
    config = GatewayConfig(write_buffer_bytes_max=1234)

    bench.plane.reconfigure(config, read_credentials(config), policy="", log=None)

    assert bench.client_wire.unsent_bytes_max == 1234


def test_a_client_is_cut_off_only_when_it_takes_nothing() -> None:
    bench = Bench(client_write_timeout_s=60.0)
    bench.client.data_received(post(chat(stream=True)))
    bench.replica.data_received(STREAM_HEAD + chunk(event("t")))
    bench.client_wire.unsent_bytes = 1000
    bench.client.pause_writing()
    for unsent_bytes in range(999, 990, -1):
        bench.client_wire.unsent_bytes = unsent_bytes
        bench.pass_time(30.0)
    was_cut = bench.client_wire.is_closed
    bench.pass_time(59.0)
    was_cut_early = bench.client_wire.is_closed
    bench.pass_time(2.0)
    bench.socket.close()

    assert not was_cut
    assert not was_cut_early
    assert bench.client_wire.is_closed
    assert bench.replica_wire.is_closed
    assert bench.records[0].outcome is Outcome.CLIENT_LEFT


def test_a_queued_request_goes_on_in_the_turn_in_which_another_ends() -> None:
    bench = Bench()
    routing = RoutingConfig(in_flight_max=1)
    bench.fleet = FleetState(routing, build_policy("round_robin"))
    bench.fleet.add_static(URL, "a", "m", now_us=0)
    bench.plane.context.fleet = bench.fleet
    other_wire = Wire()
    other = ClientConnection(bench.plane, bench.socket)
    other.connection_made(cast(asyncio.Transport, other_wire))

    bench.client.data_received(post(chat("one")))
    other.data_received(post(chat("two")))
    sent_before = len(bench.replica_wire.written)
    bench.replica.data_received(ok(completion()))
    sent_after = len(bench.replica_wire.written)
    bench.replica.data_received(ok(completion()))
    bench.socket.close()

    assert (sent_before, sent_after) == (1, 2)
    assert b"".join(other_wire.written).endswith(completion())


class Struck:
    """Something under way that has met its limit, and takes long to end."""

    def __init__(self, passes: Callable[[], None]) -> None:
        self._passes = passes
        self.num_swept = 0

    def on_sweep(self, _: int) -> None:
        self._passes()
        self.num_swept += 1


async def test_others_have_their_turn_where_many_meet_their_limits_at_once() -> None:
    now_us = 0

    def pass_5_ms() -> None:
        nonlocal now_us
        now_us += 5_000

    bench = Bench()
    plane = DataPlane(
        *(GatewayConfig(), bench.fleet, RoutingConfig(), RouterMetrics(), lambda: now_us)
    )
    struck = [Struck(pass_5_ms) for _ in range(10)]
    plane.context.exchanges.update(struck)  # type: ignore[arg-type]  # it is asked no more
    num_swept: list[int] = []

    plane._on_sweep()
    for _ in range(10):
        num_swept.append(sum(each.num_swept for each in struck))
        await asyncio.sleep(0)
    assert plane._sweep is not None
    plane._sweep.cancel()
    bench.socket.close()

    assert num_swept[0] == 2
    assert num_swept[-1] == 10
