"""What is tried again, where, how often, and what the client gets when nothing helps."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from contract.failures import Failure
from router.core.health import BreakerState
from router.core.reason import Outcome
from router.gateway.http_head import HEAD_END
from router.serve import clock_us
from tests.router.gateway.running import RunningGateway, gateway_of
from tests.router.gateway.scripted_replica import (
    Script,
    ScriptedReplica,
    Turn,
    answering,
    never_answering,
)
from tests.router.gateway.wire import (
    DONE,
    LAST_CHUNK,
    STREAM_HEAD,
    Answer,
    chat,
    chunk,
    completion,
    event,
    ok,
    post,
)
from tests.waiting import until
from warmroute.demo.processes import free_port

RATE_LIMITED = ok(
    *(b'{"error":{"code":"rl"}}', "Retry-After: 7", "x-should-retry: false"),
    status="429 Too Many Requests",
)
GOOD = answering(ok(completion()))


async def close_at_once(turn: Turn) -> None:
    turn.close()


async def reset_at_once(turn: Turn) -> None:
    turn.reset()


@asynccontextmanager
async def fleet_of(
    *scripts: Script, **routing: float
) -> AsyncIterator[tuple[RunningGateway, list[ScriptedReplica]]]:
    """Run a gateway in front of one replica per script, used in turn."""
    async with AsyncExitStack() as stack:
        replicas = [
            await stack.enter_async_context(ScriptedReplica(script, "abcd"[index]))
            for index, script in enumerate(scripts)
        ]
        gateway = await stack.enter_async_context(
            gateway_of(*replicas, routing=dict(routing), reuse_race_s=20.0)
        )
        yield gateway, replicas


def hits(replicas: list[ScriptedReplica]) -> int:
    return sum(len(replica.requests) for replica in replicas)


@pytest.mark.parametrize("status", ["400 Bad Request", "401 U", "404 N", "409 C", "422 X", "500 E"])
@pytest.mark.parametrize("is_stream", [False, True])
async def test_an_answer_that_another_replica_would_give_too_is_relayed_at_once(
    status: str, is_stream: bool
) -> None:
    script = answering(ok(b'{"detail": "unique"}', "X-Err: 7", status=status))

    async with fleet_of(script, script) as (gateway, replicas):
        answer = await gateway.chat(stream=is_stream)
        record = await gateway.record()

    assert (answer.status, answer.body) == (int(status[:3]), b'{"detail": "unique"}')
    assert (answer.value("x-err"), answer.value("content-type")) == ("7", "application/json")
    assert hits(replicas) == 1
    assert (record.outcome, record.status) == (Outcome.REPLICA_ERROR, int(status[:3]))


@pytest.mark.parametrize(
    "bad",
    [
        *(close_at_once, reset_at_once, answering(RATE_LIMITED), answering(b"junk\r\n\r\n")),
        *(answering(ok(b"busy", status=f"{status} X")) for status in (502, 503, 504)),
        answering(b"HTTP/1.1 503 X\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nbusy\r\n0\r\n\r\n"),
        answering(b"HTTP/1.1 503 X\r\nContent-Length: 0\r\n\r\n"),
        answering(STREAM_HEAD),
    ],
    ids=[
        *("closed", "reset", "429", "not http", "502", "503", "504", "503 chunked", "503 empty"),
        "stream without a byte",
    ],
)
async def test_what_breaks_before_the_first_byte_is_served_by_another_replica(bad: Script) -> None:
    async def bad_once(turn: Turn) -> None:
        await bad(turn)
        turn.close()

    async with fleet_of(bad_once, bad_once, GOOD) as (gateway, _):
        answers = [await gateway.chat(f"{index}") for index in range(6)]
        record = await gateway.record(0)

    assert [answer.status for answer in answers] == [200] * 6
    assert [answer.body for answer in answers] == [completion()] * 6
    assert {answer.value("x-warmroute-replica") for answer in answers} == {"c"}
    assert record.outcome is Outcome.COMPLETE
    assert record.failure is None
    assert max(record.attempts for record in gateway.records) > 1


async def test_a_replica_that_cannot_be_reached_is_not_felt() -> None:
    async with (
        ScriptedReplica(GOOD) as replica,
        gateway_of(f"http://127.0.0.1:{free_port()}", replica) as gateway,
    ):
        answers = [await gateway.chat(f"{index}") for index in range(10)]

    assert [answer.status for answer in answers] == [200] * 10
    assert len(replica.requests) == 10


async def test_the_last_refusal_of_a_replica_is_relayed_as_it_is() -> None:
    script = answering(RATE_LIMITED)

    async with fleet_of(script, script) as (gateway, replicas):
        answer = await gateway.chat()
        record = await gateway.record()

    assert (answer.status, answer.body) == (429, b'{"error":{"code":"rl"}}')
    assert (answer.value("retry-after"), answer.value("x-should-retry")) == ("7", "false")
    assert hits(replicas) == 2
    assert (record.outcome, record.failure) == (Outcome.REPLICA_ERROR, None)


async def test_a_refusal_outlives_the_failure_of_the_replica_after_it() -> None:
    async with fleet_of(answering(RATE_LIMITED), close_at_once) as (gateway, replicas):
        answer = await gateway.chat()

    assert answer.status == 429
    assert hits(replicas) == 2


async def test_no_more_replicas_are_asked_than_the_settings_say() -> None:
    async with fleet_of(*[close_at_once] * 4, retry_max=2) as (gateway, replicas):
        answer = await gateway.chat("POISON")
        record = await gateway.record()

    assert (answer.status, answer.code) == (502, "replica_connection_lost")
    assert [len(replica.requests) for replica in replicas].count(1) == 3
    assert hits(replicas) == 3
    assert (record.attempts, record.failure) == (3, Failure.UPSTREAM_LOST)


async def test_retries_end_with_their_budget() -> None:
    settings = {"retry_budget": 0.0, "retry_floor_per_s": 0.1, "breaker_failures": 99}
    async with fleet_of(*[close_at_once] * 4, **settings) as (
        gateway,
        replicas,
    ):
        for _ in range(10):
            assert (await gateway.chat()).status == 502

    # One retry had been saved up; and who was on a replica when it began to fail was moved.
    assert 11 <= hits(replicas) <= 10 + 1 + 4


async def test_all_that_wait_on_a_replica_that_dies_are_served_by_those_that_are_well() -> None:
    death, life = asyncio.Event(), asyncio.Event()

    async def die(turn: Turn) -> None:
        await death.wait()
        turn.reset()

    async def live(turn: Turn) -> None:
        await life.wait()
        await GOOD(turn)

    async with fleet_of(die, live, live) as (gateway, replicas):
        waiting = [asyncio.create_task(gateway.chat()) for _ in range(120)]
        await until(lambda: hits(replicas) == 120, "all requests on their replicas")
        num_lost = len(replicas[0].requests)
        death.set()
        await until(lambda: hits(replicas) == 120 + num_lost, "the lost ones on the others")
        life.set()
        statuses = [(await each).status for each in waiting]

    assert num_lost > 25  # the budget of a quiet fleet has 20
    assert statuses == [200] * 120


async def test_a_probe_that_streams_gives_its_replica_back_to_all_when_it_begins() -> None:
    async def lose(turn: Turn) -> None:
        turn.reset()

    finish = asyncio.Event()

    async def stream_on(turn: Turn) -> None:
        await turn.send_pieces(STREAM_HEAD, chunk(event("t")))
        await finish.wait()
        await turn.send_pieces(chunk(event("t")), chunk(DONE), LAST_CHUNK)

    routing = {"breaker_failures": 1, "breaker_cooldown_s": 0.1, "slow_start_s": 0.0}
    async with fleet_of(lose, GOOD, **routing) as (gateway, replicas):
        breaker = gateway.fleet.views()[0].breaker
        assert breaker is BreakerState.CLOSED
        while gateway.fleet.views()[0].breaker is BreakerState.CLOSED:
            await gateway.chat()
        replicas[0].script = stream_on
        streams: list[asyncio.Task[Answer]] = []

        def is_back() -> bool:
            gateway.fleet.tick(clock_us())
            if gateway.fleet.views()[0].breaker is BreakerState.HALF_OPEN and not streams:
                streams.append(asyncio.create_task(gateway.chat(stream=True)))
            return gateway.fleet.views()[0].breaker is BreakerState.CLOSED

        await until(is_back, "the replica back")
        own = gateway.fleet.views()[0].view.own_requests
        finish.set()
        answers = [await stream for stream in streams]

    assert own == 1  # the probe is still under way
    assert [answer.is_whole for answer in answers] == [True]


async def test_nothing_is_sent_again_after_the_first_byte() -> None:
    async def break_off(turn: Turn) -> None:
        await turn.send_pieces(STREAM_HEAD, chunk(event("t1")), chunk(event("t2")))
        turn.reset()

    async with fleet_of(break_off, break_off) as (gateway, replicas):
        answer = await gateway.chat(stream=True)

    assert not answer.is_whole
    assert hits(replicas) == 1


async def test_a_refusal_too_long_to_keep_is_relayed_at_once() -> None:
    body = b"x" * 200_000

    async with fleet_of(*[answering(ok(body, status="503 Busy"))] * 2) as (gateway, replicas):
        answer = await gateway.chat()

    assert (answer.status, answer.body) == (503, body)
    assert hits(replicas) == 1


async def test_a_reused_connection_that_was_closed_meanwhile_is_replaced_unnoticed() -> None:
    executed = 0

    async def close_the_second(turn: Turn) -> None:
        nonlocal executed
        if turn.index == 1:
            turn.close()
            return
        executed += 1
        await turn.send(ok(completion()))

    async with fleet_of(close_the_second, breaker_failures=1) as (gateway, _):
        answers = [await gateway.chat(f"{index}") for index in range(50)]

    assert {answer.status for answer in answers} == {200}
    assert {record.attempts for record in gateway.records} == {1}
    assert executed == 50
    assert gateway.fleet.views()[0].standing is None


async def test_a_fresh_connection_that_is_closed_counts_as_a_failure() -> None:
    async with fleet_of(close_at_once) as (gateway, replicas):
        answer = await gateway.chat()

    assert answer.status == 502
    assert hits(replicas) == 1


async def test_a_reused_connection_lost_long_after_the_request_is_a_failure() -> None:
    async def script(turn: Turn) -> None:
        if turn.index == 0:
            await turn.send(ok(completion()))
        else:
            turn.close()

    async with (
        ScriptedReplica(script) as replica,
        gateway_of(replica, reuse_race_s=0.0) as gateway,
    ):
        statuses = [(await gateway.chat(f"{index}")).status for index in range(2)]

    assert statuses == [200, 502]


async def test_connections_are_reused_newest_first_and_closed_when_old() -> None:
    async with (
        ScriptedReplica(GOOD) as replica,
        gateway_of(replica, replica_idle_s=1.0) as gateway,
    ):
        for _ in range(5):
            await gateway.chat()
        connections = replica.num_connections
        await until(lambda: replica.num_open == 0)
        await gateway.chat()

    assert connections == 1
    assert replica.num_connections == 2


async def test_no_more_idle_connections_are_kept_than_the_settings_say() -> None:
    async with (
        ScriptedReplica(GOOD) as replica,
        gateway_of(replica, replica_idle_max=0) as gateway,
    ):
        for _ in range(3):
            await gateway.chat()

    assert replica.num_connections == 3


async def test_a_connection_is_not_reused_if_its_request_was_not_read_to_the_end() -> None:
    num_connections = 0
    over = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal num_connections
        num_connections += 1
        await reader.readuntil(HEAD_END)
        writer.write(ok(b"too large", status="413 Content Too Large"))
        await over.wait()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0, limit=1000) as server:
        port = server.sockets[0].getsockname()[1]
        async with gateway_of(f"http://127.0.0.1:{port}") as gateway:
            answers = [await gateway.chat("x" * 10_000_000) for _ in range(2)]
        over.set()

    assert [answer.status for answer in answers] == [413, 413]
    assert num_connections == 2


async def test_a_request_whose_replica_is_gone_waits_for_no_other_than_the_fleet() -> None:
    async with fleet_of(never_answering) as (gateway, replicas):
        client = await gateway.connect()
        await client.send(post(chat()))
        await replicas[0].arrived.wait()
        gateway.fleet.remove("a")
        client.close()
        record = await gateway.record()

    assert record.outcome is Outcome.CLIENT_LEFT


async def test_retries_are_counted_by_their_cause() -> None:
    async with fleet_of(close_at_once, GOOD) as (gateway, _):
        for index in range(2):
            await gateway.chat(f"{index}")
        text = gateway.metrics.render().decode()

    name = 'reason="replica_connection_lost"'
    (line,) = [line for line in text.splitlines() if "retries" in line and name in line]
    assert float(line.rsplit(" ", 1)[1]) == sum(record.attempts - 1 for record in gateway.records)


async def test_the_stream_of_the_second_replica_is_the_whole_answer() -> None:
    async def open_and_close(turn: Turn) -> None:
        await turn.send(STREAM_HEAD)
        turn.close()

    events = [event("b1"), event("b2", "stop"), DONE]

    async def stream(turn: Turn) -> None:
        await turn.send_pieces(STREAM_HEAD, *map(chunk, events), LAST_CHUNK)

    async with fleet_of(open_and_close, stream) as (gateway, _):
        answers = [await gateway.chat(f"{index}", stream=True) for index in range(2)]

    assert [answer.body for answer in answers] == [b"".join(events)] * 2
    assert [answer.value("x-warmroute-replica") for answer in answers] == ["b", "b"]


async def lost_model(turn: Turn) -> None:
    error = b'{"error": {"message": "The model `m` does not exist.", "code": 404}}'
    await turn.send(ok(error, status="404 Not Found"))


async def test_a_replica_that_lost_its_model_costs_no_client_a_request() -> None:
    async with (
        ScriptedReplica(lost_model, "a") as a,
        ScriptedReplica(answering(ok(completion())), "b") as b,
        gateway_of(a, b) as gateway,
    ):
        statuses = [(await gateway.chat(f"text {index}")).status for index in range(20)]
        breakers = [status.breaker.value for status in gateway.fleet.views()]
        page = gateway.metrics.render().decode()

    assert statuses == [200] * 20
    assert len(a.requests) == 1  # then it is left alone for a while
    assert breakers == ["closed", "closed"]
    assert 'warmroute_retries_total{reason="replica_lacks_model"} 1.0' in page


async def test_a_model_that_all_replicas_lost_is_their_own_404() -> None:
    async with (
        ScriptedReplica(lost_model, "a") as a,
        ScriptedReplica(lost_model, "b") as b,
        gateway_of(a, b) as gateway,
    ):
        answer = await gateway.chat()
        record = await gateway.record()

    assert (answer.status, record.outcome) == (404, Outcome.REPLICA_ERROR)
    assert b"The model `m` does not exist." in answer.body
    assert len(a.requests) + len(b.requests) == 2


async def test_each_attempt_has_an_id_of_its_own_and_the_client_its_own_back() -> None:
    async def busy(turn: Turn) -> None:
        await turn.send(ok(b"{}", status="503 Service Unavailable"))

    async def echoing(turn: Turn) -> None:
        (given,) = turn.request.values("x-request-id")
        await turn.send(ok(completion(), f"X-Request-Id: {given}"))

    async with (
        ScriptedReplica(busy, "a") as a,
        ScriptedReplica(busy, "b") as b,
        gateway_of(a, b) as gateway,
    ):
        refused = await gateway.chat("hi", "X-Request-ID: mine")
        a.script = b.script = echoing
        served = await gateway.chat("hi", "x-request-id: mine too")

    ids = [request.values("x-request-id") for request in (*a.requests, *b.requests)]
    assert sorted(ids) == [["mine"], ["mine too"], ["mine-2"]]
    assert refused.status == 503
    assert served.value("x-request-id") == "mine too"


async def test_a_kept_connection_that_was_closed_is_counted() -> None:
    async def answers_once(turn: Turn) -> None:
        if turn.index == 0:
            await turn.send(ok(completion()))
        else:
            turn.close()

    async with (
        ScriptedReplica(answers_once) as replica,
        gateway_of(replica, reuse_race_s=20.0) as gateway,
    ):
        statuses = [(await gateway.chat()).status for _ in range(2)]
        page = gateway.metrics.render().decode()

    assert statuses == [200, 200]
    assert "warmroute_stale_connections_total 1.0" in page
    assert [r.values("x-request-id")[0][-2:] for r in replica.requests][2] == "-2"


async def test_a_burst_of_one_id_does_not_come_back_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    drawn_by: list[str] = []

    async def resetting(turn: Turn) -> None:
        turn.reset()

    def drawn(_: int, request_id: str, __: object) -> int:
        drawn_by.append(request_id)
        return 0

    monkeypatch.setattr("router.gateway.actions.backoff_us", drawn)
    async with (
        ScriptedReplica(resetting) as a,
        ScriptedReplica(answering(ok(b"{}")), "b") as b,
        gateway_of(a, b, routing={"breaker_failures": 1000}) as gateway,
    ):
        for _ in range(4):
            await gateway.chat("hi", "x-request-id: the-same")
        for index, record in enumerate(gateway.records):
            record.request_id += str(index)  # which are otherwise known to be of one request each

    assert len(set(drawn_by)) == len(drawn_by) > 1
