"""Every fault of a replica, on real processes, and what clients of a gateway get to see of it.

One of two replicas is told to fail. Whatever it does, an answer is whole and right, or an error, or
visibly broken, and only the faulty replica's answers are not whole.
"""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tests.blackbox.conftest import MODEL
from tests.blackbox.faulty_fleet import (
    DEADLINE_S,
    FAULTY,
    SOUND,
    Fleet,
    is_at_rest,
    running_fleet,
    start_replica,
)
from tests.blackbox.streams import Stream
from warmroute.demo.processes import Child, StartError, free_port, stop_all

pytestmark = [pytest.mark.blackbox, pytest.mark.asyncio(loop_scope="module")]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Fleet]:
    async with running_fleet(tmp_path_factory.mktemp("faults")) as fleet:
        yield fleet


@pytest_asyncio.fixture(loop_scope="module")
async def fleet(running: Fleet) -> AsyncIterator[Fleet]:
    """The fleet at rest: no fault is set, and the gateway has nothing against either replica.

    Nor does it believe the figures that a fault of the test before made up: a replica that seems
    to be full would get no request.
    """
    async with asyncio.timeout(DEADLINE_S):
        for name in (FAULTY, SOUND):
            while not is_at_rest(await running.belief(name)):
                await asyncio.sleep(0.05)
                if (await running.belief(name)).get("breaker") == "half_open":
                    await running.ask(num_streams=2, num_tokens=2)
            await running.until_reported_anew(name)
    yield running
    await running.clear()


def are_whole(streams: list[Stream]) -> bool:
    return all(
        each.status == 200 and each.is_whole and each.text == each.expected for each in streams
    )


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("error_status", {"status": 502}),
        ("error_status", {"status": 503}),
        ("error_status", {"status": 429, "retry_after_s": 1}),
        ("admission_503", {}),
        ("stall", {"after_tokens": 0}),
        ("close_mid_stream", {"after_tokens": 0}),
        ("reset_mid_stream", {"after_tokens": 0, "share": 0.5}),
    ],
)
async def test_what_fails_before_the_first_byte_is_answered_by_the_other_replica(
    name: str, parameters: dict[str, Any], fleet: Fleet
) -> None:
    await fleet.set(name, parameters)

    streams = await fleet.ask_until_struck(name)

    assert are_whole(streams)
    assert SOUND in {each.replica_id for each in streams}


@pytest.mark.parametrize(
    ("name", "parameters"),
    [("freeze", {"health_answers": False}), ("slow_start", {"ready_after_s": 3_600})],
)
async def test_a_replica_that_does_nothing_is_left_for_the_other(
    name: str, parameters: dict[str, Any], fleet: Fleet
) -> None:
    await fleet.set(name, parameters)

    streams = await fleet.ask(16)

    assert are_whole(streams)
    assert {each.replica_id for each in streams} == {SOUND}


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("freeze", {"duration_s": 0.3}),
        ("stall", {"duration_s": 0.3}),
        ("slow_start", {"slow_for_s": 0.5, "slowdown": 3}),
        ("slow_health", {"delay_s": 3_600}),
    ],
)
async def test_what_is_only_slow_is_waited_for(
    name: str, parameters: dict[str, Any], fleet: Fleet
) -> None:
    await fleet.set(name, parameters)

    streams = await fleet.ask(16)

    assert are_whole(streams)
    assert {each.replica_id for each in streams} == {FAULTY, SOUND}


async def test_a_slow_probe_is_not_answered_in_time(fleet: Fleet) -> None:
    await fleet.set("slow_health", {"delay_s": 3_600})

    with pytest.raises(TimeoutError):
        async with (
            asyncio.timeout(0.2),
            fleet.http.get(f"{fleet.replica_urls[FAULTY]}/health"),
        ):
            pass


async def test_errors_that_may_not_be_retried_reach_the_client_until_the_replica_is_ejected(
    fleet: Fleet,
) -> None:
    await fleet.set("error_status", {"status": 500})

    streams = [each for _ in range(5) for each in await fleet.ask()]

    failed = [each for each in streams if each.status != 200]
    assert {(each.status, each.replica_id) for each in failed} == {(500, FAULTY)}
    assert are_whole([each for each in streams if each.status == 200])
    assert len(failed) < len(streams) / 2


@pytest.mark.parametrize("name", ["close_mid_stream", "reset_mid_stream", "stall"])
async def test_what_breaks_in_the_middle_is_visibly_broken(name: str, fleet: Fleet) -> None:
    await fleet.set(name, {"after_tokens": 3})

    streams = await fleet.ask_until_struck(name)

    broken = [each for each in streams if not each.is_whole]
    assert broken
    assert {each.replica_id for each in broken} == {FAULTY}
    assert all(each.is_visibly_broken for each in broken)
    assert all(each.expected.startswith(each.text) for each in broken)
    assert are_whole([each for each in streams if each.is_whole])


async def test_a_restart_cuts_its_own_streams_and_is_believed_to_be_cold(fleet: Fleet) -> None:
    await fleet.ask()
    before = await fleet.until_believed(lambda belief: belief.get("believed_blocks", 0) > 0)
    asking = asyncio.create_task(fleet.ask(16, num_tokens=600))
    await fleet.until_gauge("warmroute_in_flight_requests", 16)

    await fleet.set("restart", {"after_s": 0.5})
    streams = await asking

    after = await fleet.until_believed(
        lambda belief: belief["report"]["incarnation"] != before["report"]["incarnation"]
    )
    assert after["report"]["prompt_tokens_total"] == after["believed_blocks"] == 0
    broken = [each for each in streams if not each.is_whole]
    assert {each.replica_id for each in broken} == {FAULTY}
    assert all(each.is_visibly_broken for each in broken)
    assert are_whole([each for each in streams if each.is_whole])
    assert are_whole(await fleet.ask())


@pytest.mark.parametrize(
    ("name", "parameters"),
    [("drop_load_reports", {}), ("stale_load", {"numbers": "old"})],
)
async def test_a_replica_that_says_nothing_new_gets_no_traffic_while_the_other_does(
    name: str, parameters: dict[str, Any], fleet: Fleet
) -> None:
    await fleet.set(name, parameters)
    await fleet.until_believed(lambda belief: belief.get("standing") != "eligible")

    streams = await fleet.ask(16)

    assert are_whole(streams)
    assert {each.replica_id for each in streams} == {SOUND}


@pytest.mark.parametrize(
    ("name", "parameters"),
    [("drop_load_reports", {"share": 0.5}), ("stale_load", {"numbers": "new"})],
)
async def test_old_figures_that_look_new_take_no_replica_out_and_herd_nobody(
    name: str, parameters: dict[str, Any], fleet: Fleet
) -> None:
    await fleet.set(name, parameters)
    await fleet.until_struck(name)

    streams = await fleet.ask(40, num_tokens=100)  # long enough to be there all at once

    assert are_whole(streams)
    assert 10 <= sum(each.replica_id == FAULTY for each in streams) <= 30


@pytest.mark.parametrize(
    ("figures", "is_refused"),
    [
        ("huge", False),
        ("negative", True),
        ("not_a_number", True),
        ("overfull", False),
        ("idle", False),
        ("other_schema", True),
    ],
)
async def test_absurd_figures_are_refused_or_do_no_harm(
    figures: str, is_refused: bool, fleet: Fleet
) -> None:
    await fleet.set("absurd_load", {"figures": figures})
    if is_refused:
        await fleet.until_believed(lambda belief: belief["standing"] == "contract_mismatch")
    else:
        await fleet.ask_until_struck("absurd_load")

    streams = await fleet.ask(16)

    assert are_whole(streams)
    assert not is_refused or {each.replica_id for each in streams} == {SOUND}
    await fleet.until_gauge("warmroute_in_flight_requests", 0)


@pytest.mark.parametrize(
    ("name", "parameters"),
    [("lose_kv_events", {"share": 0.5}), ("reorder_kv_events", {"share": 0.5})],
)
async def test_a_gap_in_the_events_is_seen_and_closed_by_a_snapshot(
    name: str, parameters: dict[str, Any], fleet: Fleet
) -> None:
    gaps = await fleet.gauge("warmroute_kv_gaps_total")
    await fleet.set(name, parameters)

    async with asyncio.timeout(DEADLINE_S):
        while await fleet.gauge("warmroute_kv_gaps_total") == gaps:
            assert are_whole(await fleet.ask())

    await fleet.clear()
    assert are_whole(await fleet.ask())
    await fleet.until_agreed()


async def test_events_that_are_lost_without_a_gap_spoil_no_answer(fleet: Fleet) -> None:
    await fleet.set("lose_kv_events", {"noticed": False})

    streams = await fleet.ask_until_struck("lose_kv_events")

    assert are_whole(streams)


@pytest.mark.parametrize(
    ("name", "parameters", "status"),
    [("admission_503", {}, 503), ("error_status", {"status": 500}, 500)],
)
async def test_a_fleet_that_fails_as_a_whole_says_so(
    name: str, parameters: dict[str, Any], status: int, fleet: Fleet
) -> None:
    await fleet.set(name, parameters)
    await fleet.set(name, parameters, SOUND)

    body = {"model": MODEL, "prompt": "hello", "max_tokens": 3, "stream": True}
    async with fleet.http.post(f"{fleet.url}/v1/completions", json=body) as response:
        error = (await response.json())["error"]

    assert response.status == status
    assert error["type"] == "server_error"


async def test_faults_can_be_flags_and_a_wrong_one_stops_the_start(
    running: Fleet, tmp_path: Path
) -> None:
    children: list[Child] = []
    redis_url = f"redis://127.0.0.1:{free_port()}/0"
    try:
        flag = "error_status:status=429:retry_after_s=3,stall:share=0.1"
        url = await start_replica("flagged", redis_url, tmp_path, children, "--faults", flag)
        async with running.http.post(f"{url}/v1/completions", json={"prompt": "hi"}) as response:
            assert (response.status, response.headers["retry-after"]) == (429, "3")
        with pytest.raises(StartError, match="no fault 'stalls'; known: error_status"):
            await start_replica("wrong", redis_url, tmp_path, children, "--faults", "stalls")
        assert children[-1].process.returncode == 3
    finally:
        await stop_all(children)
