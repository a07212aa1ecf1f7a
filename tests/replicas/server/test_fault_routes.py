"""Faults at the sockets of a real replica.

Times are either nothing or for ever, so that what ends is ended by the test.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import aiohttp
import msgspec
import pytest

from contract.sse import DONE_PAYLOAD, SseReader
from replicas.core.text import expected_text
from replicas.server.replica import Replica, running_replica
from tests.replicas.server.conftest import CONFIG, Start
from tests.replicas.server.test_fault_admin import admin
from tests.waiting import DEADLINE_S, until

PROMPT = "a prompt of some blocks " * 10
STREAM = {"prompt": PROMPT, "max_tokens": 20, "stream": True}
FOREVER_S = 3_600.0


async def ask(http: aiohttp.ClientSession, replica: Replica, **more: Any) -> aiohttp.ClientResponse:
    body = STREAM | more
    async with http.post(f"{replica.url}/v1/completions", json=body) as response:
        await response.read()
        return response


class Answer:
    """The payloads of a stream, and the error that cut it, if one did."""

    def __init__(self) -> None:
        self.payloads: list[bytes] = []
        self.error: aiohttp.ClientError | None = None

    @property
    def text(self) -> str:
        choices = [msgspec.json.decode(p)["choices"] for p in self.payloads if p != DONE_PAYLOAD]
        return "".join(choice["text"] for listed in choices for choice in listed)


async def stream(
    http: aiohttp.ClientSession, replica: Replica, answer: Answer, **more: Any
) -> None:
    reader = SseReader()
    try:
        async with http.post(f"{replica.url}/v1/completions", json=STREAM | more) as response:
            assert response.status == 200
            async for data in response.content.iter_any():
                answer.payloads += reader.feed(data)
    except aiohttp.ClientError as error:
        answer.error = error


@contextlib.asynccontextmanager
async def streaming(
    http: aiohttp.ClientSession, replica: Replica, **more: Any
) -> AsyncIterator[Answer]:
    """Stream in the background; at the end of the block the stream must end."""
    answer = Answer()
    task = asyncio.create_task(stream(http, replica, answer, **more))
    try:
        yield answer
        await asyncio.wait_for(task, DEADLINE_S)
    finally:
        task.cancel()


@pytest.mark.parametrize(("status", "error_type"), [(500, "server"), (429, "invalid_request")])
async def test_requests_get_the_error_and_others_do_not(
    status: int, error_type: str, start: Start, http: aiohttp.ClientSession
) -> None:
    replica = await start(faults=(f"error_status:status={status}:retry_after_s=7",))

    async with http.post(f"{replica.url}/v1/completions", json=STREAM) as response:
        error = (await response.json())["error"]
    async with http.get(f"{replica.url}/v1/models") as models:
        pass
    async with http.get(f"{replica.url}/health") as health:
        pass

    assert response.status == status
    assert response.headers["retry-after"] == "7"
    assert (error["code"], error["type"]) == ("injected_fault", f"{error_type}_error")
    assert (models.status, health.status) == (200, 200)
    assert (await admin(http, replica, "GET"))["error_status"]["struck"] == 1


async def test_a_request_id_meets_the_same_fate_each_time(
    start: Start, http: aiohttp.ClientSession
) -> None:
    replica = await start(faults=("error_status:share=0.5",))

    async def fate(number: int) -> int:
        headers = {"x-request-id": f"id-{number}"}
        url = f"{replica.url}/v1/completions"
        async with http.post(url, json=STREAM, headers=headers) as response:
            await response.read()
            return response.status

    first = [await fate(number) for number in range(30)]
    again = [await fate(number) for number in range(30)]

    assert set(first) == {200, 500}
    assert again == first


async def test_admission_refuses_as_a_full_replica_does(
    start: Start, http: aiohttp.ClientSession
) -> None:
    replica = await start(faults=("admission_503",))

    async with http.post(f"{replica.url}/v1/completions", json=STREAM) as response:
        error = (await response.json())["error"]

    assert (response.status, response.headers["retry-after"]) == (503, "1")
    assert error["code"] == "replica_overloaded"


async def test_a_replica_that_is_not_ready_refuses_and_says_so_to_probes(
    start: Start, http: aiohttp.ClientSession
) -> None:
    replica = await start(faults=(f"slow_start:ready_after_s={FOREVER_S}",))

    refused = await ask(http, replica)
    async with http.get(f"{replica.url}/health") as health:
        pass
    await admin(http, replica, "DELETE")
    served = await ask(http, replica)

    assert (refused.status, health.status, served.status) == (503, 503, 200)
    assert refused.headers["retry-after"] == health.headers["retry-after"] == "1"


async def test_a_slow_probe_is_answered_when_the_fault_is_cleared(
    start: Start, http: aiohttp.ClientSession
) -> None:
    replica = await start(faults=(f"slow_health:delay_s={FOREVER_S}",))
    probe = asyncio.create_task(http.get(f"{replica.url}/health").__aenter__())
    await until(lambda: replica.metrics.faults == {"slow_health": 1})

    assert (await ask(http, replica)).status == 200
    assert not probe.done()
    await admin(http, replica, "DELETE", "/slow_health")

    async with await asyncio.wait_for(probe, DEADLINE_S) as response:
        assert response.status == 200


@pytest.mark.parametrize("after_tokens", [0, 1, 7])
async def test_a_stall_holds_text_back_and_loses_none(
    after_tokens: int, start: Start, http: aiohttp.ClientSession
) -> None:
    replica = await start(faults=(f"stall:after_tokens={after_tokens}",))

    async with streaming(http, replica) as answer:
        await until(lambda: replica.driver.engine.stats().finished_total == 1, "the end")
        await until(lambda: answer.text == expected_text(PROMPT.encode(), after_tokens))
        await admin(http, replica, "DELETE", "/stall")

    assert answer.error is None
    assert answer.payloads[-1] == DONE_PAYLOAD
    assert answer.text == expected_text(PROMPT.encode(), 20)


async def test_a_stall_ends_with_its_time(start: Start, http: aiohttp.ClientSession) -> None:
    replica = await start(faults=("stall:duration_s=0.01",), fixed_decode_ms=2.0)

    async with streaming(http, replica) as answer:
        pass

    assert answer.payloads[-1] == DONE_PAYLOAD
    assert answer.text == expected_text(PROMPT.encode(), 20)
    assert replica.metrics.faults == {"stall": 1}


async def test_a_stalled_client_that_leaves_takes_its_request_along(start: Start) -> None:
    replica = await start(faults=("stall",), fixed_decode_ms=1.0)
    async with aiohttp.ClientSession() as http:
        answer = Answer()
        asking = asyncio.create_task(stream(http, replica, answer, max_tokens=10_000))
        await until(lambda: replica.metrics.faults == {"stall": 1})
        asking.cancel()
        await asyncio.wait([asking])

    await until(lambda: replica.driver.num_live == 0, "the abort")
    replica.faults.clear()  # nobody is left to take what was held back


@pytest.mark.parametrize("fault", ["close_mid_stream", "reset_mid_stream"])
@pytest.mark.parametrize("after_tokens", [1, 7, 19])
async def test_a_cut_stream_has_its_first_tokens_and_no_end(
    fault: str, after_tokens: int, start: Start, http: aiohttp.ClientSession
) -> None:
    replica = await start(faults=(f"{fault}:after_tokens={after_tokens}",), fixed_decode_ms=2.0)

    async with streaming(http, replica) as answer:
        pass

    if fault == "close_mid_stream":
        assert isinstance(answer.error, aiohttp.ClientPayloadError)
        assert answer.text == expected_text(PROMPT.encode(), after_tokens)
    else:
        assert isinstance(answer.error, aiohttp.ClientError)
        assert expected_text(PROMPT.encode(), after_tokens).startswith(answer.text)
    assert b'"finish_reason":"' not in b"".join(answer.payloads)
    await until(lambda: replica.driver.engine.stats().kv_blocks_used == 0, "rest")
    assert replica.metrics.faults == {fault: 1}


@pytest.mark.parametrize("fault", ["close_mid_stream", "reset_mid_stream"])
@pytest.mark.parametrize("whole", [True, False])
async def test_an_answer_without_a_byte_is_cut_before_its_head(
    fault: str, whole: bool, start: Start, http: aiohttp.ClientSession
) -> None:
    replica = await start(faults=(f"{fault}:after_tokens=0",))

    with pytest.raises(
        aiohttp.ClientOSError if fault[0] == "r" else aiohttp.ServerDisconnectedError
    ):
        await ask(http, replica, stream=not whole)


async def test_an_answer_that_ends_before_the_cut_is_whole(
    start: Start, http: aiohttp.ClientSession
) -> None:
    replica = await start(
        faults=("close_mid_stream:after_tokens=20", "reset_mid_stream:after_tokens=20")
    )

    async with streaming(http, replica) as answer:
        pass

    assert answer.payloads[-1] == DONE_PAYLOAD
    assert replica.metrics.faults == {}


@pytest.mark.parametrize("health_answers", [True, False])
async def test_a_frozen_engine_accepts_and_does_nothing_until_it_thaws(
    health_answers: bool, start: Start, http: aiohttp.ClientSession
) -> None:
    replica = await start(faults=(f"freeze:health_answers={health_answers}",))
    probe = asyncio.create_task(http.get(f"{replica.url}/health").__aenter__())

    async with streaming(http, replica) as answer:
        await until(lambda: replica.driver.num_live == 1)
        if health_answers:
            await asyncio.wait_for(probe, DEADLINE_S)
        async with http.get(f"{replica.url}/metrics") as page:
            assert page.status == 200
        assert replica.driver.engine.stats().steps_total == 0
        assert probe.done() is health_answers
        await admin(http, replica, "DELETE", "/freeze")

    assert answer.text == expected_text(PROMPT.encode(), 20)
    async with await asyncio.wait_for(probe, DEADLINE_S) as health:
        assert health.status == 200


async def test_a_restart_cuts_what_runs_and_forgets_what_was_cached(
    start: Start, http: aiohttp.ClientSession
) -> None:
    replica = await start(fixed_decode_ms=1.0)
    first = replica.incarnation
    await ask(http, replica)
    assert replica.driver.engine.cached_hashes()

    async with streaming(http, replica, max_tokens=10_000) as answer:
        await until(lambda: bool(answer.payloads), "the first token")
        await admin(http, replica, "PUT", restart={})
    await until(lambda: replica.incarnation != first)

    assert isinstance(answer.error, aiohttp.ClientError)
    stats = replica.driver.engine.stats()
    assert (stats.prompt_tokens_total, stats.kv_blocks_used, stats.running_requests) == (0, 0, 0)
    assert replica.driver.engine.cached_hashes() == []
    assert (await ask(http, replica)).status == 200
    replica.driver.engine.scheduler.check()


async def test_a_restart_during_a_step_begins_with_an_engine_at_rest(
    start: Start, http: aiohttp.ClientSession
) -> None:
    replica = await start(faults=("freeze",))  # the step lasts until the fault is cleared
    async with streaming(http, replica) as answer:
        await until(lambda: replica.driver.engine.stats().running_requests == 1)
        replica.restart()
        replica.faults.clear()

    assert isinstance(answer.error, aiohttp.ClientError)
    assert (await ask(http, replica)).status == 200
    assert replica.driver.engine.stats().prompt_tokens_total == 60


async def test_a_replica_that_ends_takes_its_faults_along() -> None:
    faults = (
        *("freeze:health_answers=false", f"slow_health:delay_s={FOREVER_S}", "stall"),
        *(f"slow_start:slow_for_s={FOREVER_S}", f"restart:after_s={FOREVER_S}"),
    )
    async with aiohttp.ClientSession() as http:
        async with running_replica(replace(CONFIG, faults=faults)) as replica:
            probe = asyncio.create_task(http.get(f"{replica.url}/health").__aenter__())
            await until(lambda: bool(replica.metrics.faults.get("slow_health")))
        await asyncio.wait([probe])

    assert not replica.faults.any_set
    assert probe.exception() is not None or probe.result().status == 200


async def test_strikes_are_scraped_by_fault(start: Start, http: aiohttp.ClientSession) -> None:
    replica = await start(faults=("error_status",))
    await ask(http, replica)
    await ask(http, replica)

    async with http.get(f"{replica.url}/metrics") as response:
        page = await response.text()

    lines = [line for line in page.splitlines() if line.startswith("warmroute_engine_faults_total")]
    assert len(lines) == 1
    assert 'fault="error_status"' in lines[0]
    assert lines[0].endswith(" 2.0")
