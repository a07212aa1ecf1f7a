"""Every expression of the dashboard and of the rules, asked of a real Prometheus.

It scrapes two gateways and three replicas once a second: first a healthy fleet under the demo's
load, then one with every trouble that can be made from outside. What panels say is held against
what the clients themselves have seen.
"""

import asyncio
import math
import subprocess
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from signal import SIGCONT, SIGKILL, SIGSTOP
from statistics import median
from typing import Any

import aiohttp
import pytest

from router.metrics import E2E_BOUNDS_S, TTFT_BOUNDS_S
from tests.blackbox.conftest import MODEL
from tests.blackbox.prometheus import (
    MISSING,
    ROOT,
    RULES,
    Prometheus,
    Sample,
    is_installed,
    substituted,
)
from tests.blackbox.streams import Streams
from tests.blackbox.watched_fleet import NUM_REPLICAS, WatchedFleet, watched_fleet
from warmroute.dashboard.rows import ROWS
from warmroute.demo.replay import Answer, replay
from warmroute.demo.workload import demo_trace

pytestmark = [
    pytest.mark.blackbox,
    pytest.mark.timeout(180),  # the fixture's three scenes are part of the first test
    pytest.mark.skipif(not is_installed(), reason=MISSING),
]

NUM_REQUESTS = 500
TIME_COMPRESSION = 12.0  # the first 500 requests of the trace in about 15 s
WARM_UPS = [
    f"{number}: the first event of a series is what rate() cannot see. " * 10
    for number in range(2 * NUM_REPLICAS)
]

Key = tuple[str, str]  # a panel's title; a line's legend or a column's title
EXPRS: dict[Key, str] = {
    (panel.title, name): expr
    for row in ROWS
    for panel in row.panels
    for name, expr in [
        *((query.legend, query.expr) for query in panel.queries),
        *((column.title, column.expr) for column in panel.columns),
    ]
}
EMPTY_WHEN_HEALTHY: dict[Key, str] = {
    ("Errors by code", "{{code}}"): "no request fails",
    ("Second tries and lost clients", "retry: {{reason}}"): "no attempt fails",
    ("Broken streams, continued", "{{reason}}"): "no stream breaks",
    ("Broken streams, continued", "not continued: {{reason}}"): "no stream breaks",
    ("Refused at the door", "{{code}}"): "no client is refused",
    ("Store faults", "{{fault}}"): "Redis answers",
    ("Store faults", "undecodable values"): "only replicas write to Redis",
    ("Bugs met", "restart of {{task}}"): "no background loop fails",
}
OF_A_BUSY_MACHINE = {
    *("WarmrouteTtftHigh", "WarmrouteEventLoopLag", "WarmrouteQueueGrowing"),
    *("WarmrouteGatewaySaturated", "WarmrouteStoreDown", "WarmrouteEventLoopBlocked"),
    "WarmrouteReplicaSlow",
}
"""What a healthy fleet may come near to where other tests take its cores."""

NEVER_PROVOKED = {
    ("Store faults", "undecodable values"),  # Redis of a fleet belongs to its replicas
    ("Bugs met", "restart of {{task}}"),  # needs a bug
}


@dataclass
class Seen:
    """What clients and Prometheus saw."""

    answers: list[Answer]
    healthy: dict[Key, list[Sample]]  # while requests came
    num_warm_ups: int  # requests before these
    whole: dict[Key, list[Sample]] = field(default_factory=dict)  # as one rate over all of them
    troubled: dict[Key, list[Sample]] = field(default_factory=dict)
    totals: dict[str, list[Sample]] = field(default_factory=dict)
    rules: list[dict[str, Any]] = field(default_factory=list)

    def number(self, title: str, name: str) -> float:
        """Return the only value of a line over all requests."""
        (sample,) = self.whole[title, name]
        return sample.value


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Seen:
    return asyncio.run(_scenes(tmp_path_factory.mktemp("watched")))


async def _scenes(folder: Path) -> Seen:
    async with watched_fleet(folder) as fleet:
        prometheus = fleet.prometheus
        num_warm_ups = await _warm_up(fleet)
        began = time.time()
        stamps = await prometheus.ask("timestamp(warmroute_requests_total)")
        # The last look at each gateway before the load: a rate from there on misses none of it.
        first = min(stamp.value for stamp in stamps)
        result = await replay(
            fleet.gateway_urls, MODEL, demo_trace(NUM_REQUESTS), TIME_COMPRESSION, lambda _: None
        )
        await prometheus.until(f"sum(warmroute_requests_total) == {NUM_REQUESTS + num_warm_ups}")
        ended = time.time()
        seen = Seen(result.answers, await _ranges(prometheus, began, ended), num_warm_ups)
        interval = f"{math.ceil((ended - first) * 1000)}ms"
        for key, expr in EXPRS.items():
            seen.whole[key] = await prometheus.ask(substituted(expr, interval), at=ended)
        for label, name in (("replica", "replica_answers"), ("reason", "decisions")):
            expr = f"sum by ({label}) (warmroute_{name}_total)"
            seen.totals[label] = await prometheus.ask(expr)
        seen.rules = await prometheus.rules()
        for rule in seen.rules:
            seen.totals[rule["name"]] = await prometheus.ask(rule["query"])
        troubled = time.time()
        await _make_trouble(fleet)
        seen.troubled = await _ranges(prometheus, troubled, time.time())
        return seen


async def _ranges(prometheus: Prometheus, start: float, end: float) -> dict[Key, list[Sample]]:
    return {
        key: await prometheus.ask_range(substituted(expr), start, end)
        for key, expr in EXPRS.items()
    }


async def _warm_up(fleet: WatchedFleet) -> int:
    """Send requests until every series of healthy traffic has begun; return how many.

    Of each gateway: one for each replica, and of decisions those for cold and for warm ones.
    """
    num_sent = 0
    for url in fleet.gateway_urls * 2:
        warm_up = Streams(url, MODEL)
        await warm_up.run(WARM_UPS, num_tokens=3)
        assert all(stream.is_whole for stream in warm_up.all)
        num_sent += len(WARM_UPS)
    seen, num_gateways = fleet.prometheus.until, len(fleet.gateway_urls)
    await seen(f"count(warmroute_replica_answers_total) == {num_gateways * NUM_REPLICAS}")
    await seen(f'count(warmroute_decisions_total{{reason="warm"}}) == {num_gateways}')
    await seen(f"sum(warmroute_requests_total) == {num_sent}")
    return num_sent


async def _make_trouble(fleet: WatchedFleet) -> None:
    """Make one trouble after the other, each until Prometheus has seen it."""
    url, seen = fleet.gateway_urls[0], fleet.prometheus.until
    async with aiohttp.ClientSession() as session:
        body = {"model": "no-such-model", "prompt": "hello"}
        async with session.post(f"{url}/v1/completions", json=body) as response:
            assert response.status == 404
        headers = {"x-long": "x" * 40_000}
        async with session.post(f"{url}/v1/completions", headers=headers) as response:
            assert response.status == 431
    await seen('sum(rate(warmroute_failures_total{code="headers_too_large"}[8s])) > 0')
    await seen('sum(rate(warmroute_failures_total{code="model_not_found"}[8s])) > 0')

    leaving = Streams(url, MODEL)
    left = asyncio.create_task(leaving.run(["a long answer"], num_tokens=2_000))
    await leaving.begun.wait()
    left.cancel()
    await asyncio.gather(left, return_exceptions=True)
    await seen("sum(rate(warmroute_client_disconnects_total[8s])) > 0")

    fleet.children["replica-1"].signal(SIGKILL)
    await Streams(url, MODEL).run([f"after {number}" for number in range(40)], num_tokens=3)
    await seen("sum(rate(warmroute_retries_total[8s])) > 0")
    await seen('max(warmroute_replica_ejected{replica="replica-1"}) == 1')

    broken, resumes, refused = (
        f"sum(rate(warmroute_{name}_total[8s])) > 0"
        for name in ("broken_answers", "resumes", "resumes_refused")
    )
    await _kill_under_streams(fleet, "replica-2", fleet.gateway_urls, broken, resumes)
    await _kill_under_streams(fleet, "replica-0", fleet.gateway_urls[1:], refused)  # the last one

    fleet.children["redis"].signal(SIGSTOP)
    try:
        # For two seconds, so that a range query in steps of one cannot step over it.
        await seen('max(max_over_time(warmroute_store_state{state="up"}[2s])) == 0')
        await seen("sum(rate(warmroute_store_faults_total[8s])) > 0")
    finally:
        fleet.children["redis"].signal(SIGCONT)


async def _kill_under_streams(
    fleet: WatchedFleet, replica: str, urls: Sequence[str], *seen: str
) -> None:
    """Kill a replica while it streams; the other streams last until Prometheus has ``seen`` it."""
    prompts = [f"stream {number} of {replica}" for number in range(6)]
    all_streams = [Streams(url, MODEL) for url in urls]
    running = [
        asyncio.create_task(streams.run(prompts, num_tokens=4_000)) for streams in all_streams
    ]
    for streams in all_streams:
        await streams.begun.wait()
    fleet.children[replica].signal(SIGKILL)
    for condition in seen:
        await fleet.prometheus.until(condition)
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)


def test_every_client_was_answered(seen: Seen) -> None:
    assert Counter(answer.error for answer in seen.answers) == {None: NUM_REQUESTS}


def test_every_panel_of_a_healthy_fleet_has_data_but_those_of_trouble(seen: Seen) -> None:
    empty = {key for key, samples in seen.healthy.items() if not samples}

    # On a busy machine Redis may answer late.
    assert empty | {("Store faults", "{{fault}}")} == EMPTY_WHEN_HEALTHY.keys()


def test_trouble_gives_the_panels_of_trouble_data(seen: Seen) -> None:
    empty = {key for key in EMPTY_WHEN_HEALTHY if not seen.troubled[key]}

    assert empty == NEVER_PROVOKED


@pytest.mark.parametrize("name", ["predicted", "actual"])
def test_the_hit_rate_is_what_clients_were_told(seen: Seen, name: str) -> None:
    prompt_tokens = sum(answer.prompt_tokens for answer in seen.answers)
    field_name = {"predicted": "predicted_tokens", "actual": "cached_tokens"}[name]
    told = sum(getattr(answer, field_name) for answer in seen.answers) / prompt_tokens

    assert seen.number("Hit rate, predicted and actual", name) == pytest.approx(told, abs=0.02)
    assert 0 < told < 1
    assert all(
        0 <= value <= 1
        for sample in seen.healthy["Hit rate, predicted and actual", name]
        for value in sample.values
    )


def test_saved_and_computed_tokens_are_what_clients_were_told(seen: Seen) -> None:
    cached_tokens = sum(answer.cached_tokens for answer in seen.answers)
    prompt_tokens = sum(answer.prompt_tokens for answer in seen.answers)

    assert seen.number("Prefill tokens saved", "saved") == pytest.approx(cached_tokens, rel=0.15)
    saved, computed = (
        seen.number("Prompt tokens, computed and saved", name) for name in ("saved", "computed")
    )
    assert saved / (saved + computed) == pytest.approx(cached_tokens / prompt_tokens, abs=0.02)


def test_times_are_what_clients_waited(seen: Seen) -> None:
    waited_s = median(answer.ttft_s for answer in seen.answers if answer.ttft_s is not None)
    whole_s = median(answer.e2e_s for answer in seen.answers if answer.e2e_s is not None)

    ttft_s = {q: seen.number("Time to first token", f"{{{{model}}}} {q}") for q in ("p50", "p99")}
    e2e_s = seen.number("Whole answer", "{{model}} p50")
    gap_s = seen.number("Between two chunks of a stream", "p50")

    assert 0 < ttft_s["p50"] < ttft_s["p99"] < 10
    # The gateway's clock starts later and stops earlier than a client's, never the other way.
    assert ttft_s["p50"] <= upper_bound(waited_s, TTFT_BOUNDS_S)
    assert ttft_s["p50"] < e2e_s <= upper_bound(whole_s, E2E_BOUNDS_S)
    assert 0.0005 < gap_s < ttft_s["p99"]


def upper_bound(seconds: float, bounds_s: Sequence[float]) -> float:
    """Return the end of the bucket that holds it: as much as a quantile can know."""
    return next(bound for bound in bounds_s if seconds <= bound)


def test_requests_by_replica_are_what_was_sent(seen: Seen) -> None:
    sent = Counter(answer.replica_id for answer in seen.answers)
    total = {sample.labels["replica"]: sample.value for sample in seen.totals["replica"]}
    rates = by_label(seen.whole["Requests by replica", "{{replica}}"], "replica")

    assert sum(total.values()) == NUM_REQUESTS + seen.num_warm_ups
    assert all(0 <= total[name] - number <= seen.num_warm_ups for name, number in sent.items())
    assert {replica: rate / sum(rates.values()) for replica, rate in rates.items()} == {
        replica: pytest.approx(number / NUM_REQUESTS, abs=0.05) for replica, number in sent.items()
    }
    # The panels are asked one after the other, and the rates fall meanwhile.
    assert sum(rates.values()) == pytest.approx(seen.number("Requests", "ended"), rel=0.05)
    imbalance = max(sent.values()) * NUM_REPLICAS / NUM_REQUESTS
    assert seen.number("Imbalance, max over mean", "requests ended") == pytest.approx(
        imbalance, abs=0.15
    )


def by_label(samples: list[Sample], label: str) -> Mapping[str, float]:
    return {sample.labels[label]: sample.value for sample in samples}


def test_outcomes_and_decisions_are_of_all_requests(seen: Seen) -> None:
    ended = seen.number("Requests", "ended")

    outcomes = by_label(seen.whole["Requests by outcome", "{{outcome}}"], "outcome")
    reasons = by_label(seen.whole["Decisions by reason", "{{reason}}"], "reason")

    assert outcomes == {"complete": pytest.approx(ended)}
    assert seen.number("Failed", "failed") == 0
    # How many were spread away before the first look at that is what no rate can tell.
    assert sum(reasons.values()) == pytest.approx(ended, rel=0.1)
    decided = sum(sample.value for sample in seen.totals["reason"])
    assert decided == NUM_REQUESTS + seen.num_warm_ups
    assert reasons.keys() <= {"warm", "spread", "cold"}


def test_the_fleet_is_seen_well_and_then_not(seen: Seen) -> None:
    standing = ("Replicas", "standing")
    replicas = [f"replica-{number}" for number in range(NUM_REPLICAS)]

    assert by_label(seen.whole[standing], "replica") == dict.fromkeys(replicas, 1)
    assert {s.labels["model"] for s in seen.whole["Replicas", "info"]} == {MODEL}
    assert seen.number("Eligible replicas", "eligible") == 1
    for sample in seen.healthy["Age of load reports", "{{replica}}"]:
        assert 0 <= median(sample.values) < 1
    (eligible,) = seen.troubled["Eligible replicas", "eligible"]
    assert min(eligible.values) < 1
    worst = {s.labels["replica"]: max(s.values) for s in seen.troubled[standing]}
    assert worst["replica-1"] >= 4  # ejected by a gateway at least
    stores = seen.troubled["Store", "{{instance}}"]
    assert [(min(store.values) < 2, max(store.values)) for store in stores] == [(True, 2)] * 2


def test_the_gateway_is_quick(seen: Seen) -> None:
    assert 0 < seen.number("What the gateway adds", "p50") < 0.25
    for sample in seen.healthy["Event-loop lag", "{{instance}} average"]:
        assert 0 <= median(sample.values) < 1


def test_every_rule_is_evaluated(seen: Seen) -> None:
    assert {rule["health"] for rule in seen.rules} == {"ok"}
    for rule in seen.rules:
        if rule["type"] == "recording":
            assert seen.totals[rule["name"]], rule["name"]
        elif rule["name"] not in OF_A_BUSY_MACHINE:
            assert not seen.totals[rule["name"]], f"{rule['name']} in a healthy fleet"


def test_recorded_rules_agree_with_the_panels(seen: Seen) -> None:
    for recorded, panel in (
        ("warmroute:prompt_tokens_cached:ratio_rate5m", "actual"),
        ("warmroute:prompt_tokens_predicted_cached:ratio_rate5m", "predicted"),
    ):
        (sample,) = seen.totals[recorded]
        shown = seen.number("Hit rate, predicted and actual", panel)
        assert sample.value == pytest.approx(shown, abs=0.03)


@pytest.mark.parametrize(
    "what",
    [("check", "rules", str(RULES)), ("test", "rules", "warmroute.rules.test.yml")],
    ids=["check", "test"],
)
def test_promtool_accepts_the_rules(what: tuple[str, ...]) -> None:
    folder = ROOT / "deploy" / "prometheus" / "tests"

    argv = ["promtool", *what]
    done = subprocess.run(argv, cwd=folder, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stdout + done.stderr
    assert "SUCCESS" in done.stdout
