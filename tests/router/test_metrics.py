"""What is counted and exported: every declared metric, once, with bounded labels.

Ends of exchanges are made by hand and the text that Prometheus would read is parsed back with its
own parser; the fleet behind the gauges is a real one.
"""

import asyncio
import random
import time
from collections.abc import Iterable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families

import router.policies  # noqa: F401  # fills the register
from contract.failures import Failure
from contract.load_report import GatewayReport
from contract.openai_api import PromptTokensDetails, Usage
from router.core.config import RoutingConfig
from router.core.fleet import FleetState
from router.core.health import AttemptOutcome
from router.core.policy import build_policy
from router.core.reason import Outcome, Reason
from router.core.record import ExchangeRecord
from router.core.view import RouteRequest
from router.gateway.data_plane import DataPlaneStats
from router.loop_lag import WINDOW_S, LoopLag
from router.metric_table import METRICS, Kind
from router.metrics import MODELS_MAX, RouterMetrics, metric_rows
from router.store.config import StoreConfig
from router.store.memory import MemoryStore
from router.store.seam import StoreFault, StoreState
from router.store.sync import FleetSync
from tests.router.store.reports import report
from tests.waiting import until

Labels = tuple[tuple[str, str], ...]

RECORD = ExchangeRecord(
    request_id="id",
    path="/v1/chat/completions",
    outcome=Outcome.COMPLETE,
    status=200,
    received_us=1_000_000,
    decided_us=1_000_050,
    sent_us=1_000_100,
    first_byte_us=1_250_000,
    ended_us=3_000_000,
    model="m",
    policy="prefix_load",
    stream=True,
    reason=Reason.WARM,
    replica_id="a",
    prompt_tokens=100,
    matched_tokens=60,
    usage=Usage(120, 7, 127, PromptTokensDetails(50)),
    attempts=1,
    body_bytes=400,
    answer_bytes=900,
)


STATS = DataPlaneStats(
    clients=6,
    exchanges=5,
    queued=4,
    idle_replica_connections=3,
    buffered_bytes=2_000,
    turned_away=7,
    handshakes_failed=8,
    is_draining=False,
)


class World:
    """Metrics over a real fleet of one model."""

    def __init__(self) -> None:
        self.fleet = FleetState(RoutingConfig(), build_policy("prefix_load"))
        self.fleet.on_report(report("a", waiting_requests=2, running_requests=3), 0, 0)
        self.fleet.add_static("http://127.0.0.1:2", "b", "m", now_us=0)
        config = StoreConfig()
        own = GatewayReport("own", "first", 0, {})
        self.sync = FleetSync(MemoryStore(config, int), self.fleet, config, own, int)
        self.lag = LoopLag()
        self.metrics = RouterMetrics()
        self.metrics.attach(self.fleet, self.sync, self.lag, lambda: STATS)

    def end(self, **changes: object) -> None:
        self.metrics.exchange_started()
        self.metrics.exchange_ended(replace(RECORD, **changes))  # type: ignore[arg-type]

    def samples(self) -> dict[str, dict[Labels, float]]:
        """Return what is on the page."""
        return self._by_name(text_string_to_metric_families(self.metrics.render().decode()))

    def counted(self) -> dict[str, dict[Labels, float]]:
        """Return the same without the page, which takes longer to write and read."""
        return self._by_name(self.metrics.registry.collect())

    def _by_name(self, families: Iterable[Metric]) -> dict[str, dict[Labels, float]]:
        found: dict[str, dict[Labels, float]] = {}
        for family in families:
            for sample in family.samples:
                of_name = found.setdefault(sample.name, {})
                labels = tuple(sorted(sample.labels.items()))
                assert labels not in of_name, f"{sample.name}{labels} is there twice"
                of_name[labels] = sample.value
        return found

    def value(self, name: str, **labels: str) -> float:
        return self.samples()[name][tuple(sorted(labels.items()))]

    def num_series(self) -> int:
        return sum(map(len, self.samples().values()))


@pytest.fixture
def world() -> World:
    return World()


def test_every_declared_metric_is_exported_and_no_other(world: World) -> None:
    world.end()
    world.end(outcome=Outcome.REFUSED, failure=Failure.NO_REPLICA)
    world.metrics.retry("503")
    world.metrics.background_restarted("store")

    text = world.metrics.render().decode()

    exported = {
        family.name + ("_total" if family.type == "counter" else ""): family
        for family in text_string_to_metric_families(text)
    }
    assert exported.keys() == {row.name for row in METRICS}
    for row in METRICS:
        family = exported[row.name]
        assert (family.type, family.documentation) == (row.kind.value, row.meaning)
        for sample in family.samples:
            assert sample.labels.keys() - {"le"} == set(row.labels), sample.name


def test_the_table_says_unit_and_meaning_of_everything() -> None:
    names = [row.name for row in metric_rows()]

    assert len(names) == len(set(names))
    for row in metric_rows():
        assert row.meaning
        assert row.name.startswith("warmroute_")
        assert row.name.endswith("_total") is (row.kind is Kind.COUNTER)
        assert row.name.endswith("_seconds") is (row.unit == "s")


def test_one_ended_request_is_counted_everywhere_once(world: World) -> None:
    world.end()

    by = {"model": "m", "status": "2xx", "outcome": "complete"}
    assert world.value("warmroute_requests_total", **by) == 1
    assert world.value("warmroute_in_flight_requests") == 0
    assert world.value("warmroute_queued_requests") == 4
    assert world.value("warmroute_decisions_total", policy="prefix_load", reason="warm") == 1
    assert world.value("warmroute_replica_answers_total", replica="a", outcome="complete") == 1
    assert world.value("warmroute_prompt_tokens_total", model="m") == 100
    assert world.value("warmroute_matched_tokens_total", model="m") == 60
    assert world.value("warmroute_answered_prompt_tokens_total", model="m") == 120
    assert world.value("warmroute_cached_tokens_total", model="m") == 50
    assert world.value("warmroute_completion_tokens_total", model="m") == 7
    assert world.value("warmroute_ttft_seconds_sum", model="m") == pytest.approx(0.25)
    assert world.value("warmroute_e2e_seconds_sum", model="m") == pytest.approx(2.0)
    assert world.value("warmroute_router_overhead_seconds_sum") == pytest.approx(0.0001)
    assert world.value("warmroute_body_bytes_total") == 400
    assert world.value("warmroute_answer_bytes_total") == 900


def test_a_request_in_flight_is_seen(world: World) -> None:
    world.metrics.exchange_started()

    assert world.value("warmroute_in_flight_requests") == 1


@pytest.mark.parametrize("outcome", list(Outcome))
@pytest.mark.parametrize("stream", [True, False])
def test_every_outcome_is_one_request_and_one_duration(
    world: World, outcome: Outcome, stream: bool
) -> None:
    world.end(outcome=outcome, stream=stream, status=0, usage=None, failure=Failure.UPSTREAM_LOST)

    requests = world.samples()["warmroute_requests_total"]
    assert list(requests.values()) == [1]
    assert world.value("warmroute_e2e_seconds_count", model="m") == 1
    assert world.value("warmroute_ttft_seconds_count", model="m") == stream
    by = {"model": "m", "status": "none", "outcome": outcome.value}
    assert world.value("warmroute_requests_total", **by) == 1
    left = outcome is Outcome.CLIENT_LEFT
    assert world.value("warmroute_client_disconnects_total") == left
    assert world.value("warmroute_broken_answers_total") == (outcome is Outcome.BROKEN)


def test_a_failed_attempt_of_a_completed_request_is_no_failed_request(world: World) -> None:
    world.end(failure=Failure.CONNECT_FAILED, attempts=2)

    assert sum(world.samples()["warmroute_failures_total"].values()) == 0
    assert world.value("warmroute_router_overhead_seconds_count") == 0


def test_a_bucket_holds_its_upper_bound(world: World) -> None:
    for gap_us in (1_000, 1_001, 2_500):
        world.metrics.chunk_gap_us(gap_us)

    assert world.value("warmroute_chunk_gap_seconds_bucket", le="0.001") == 1
    assert world.value("warmroute_chunk_gap_seconds_bucket", le="0.0025") == 3
    assert world.value("warmroute_chunk_gap_seconds_bucket", le="+Inf") == 3
    assert world.value("warmroute_chunk_gap_seconds_sum") == pytest.approx(0.004501)


@settings(max_examples=15, deadline=None)
@given(gaps_us=st.lists(st.integers(0, 10**9)))
def test_buckets_agree_with_a_count_by_hand(gaps_us: list[int]) -> None:
    world = World()
    for gap_us in gaps_us:
        world.metrics.chunk_gap_us(gap_us)

    buckets = world.samples()["warmroute_chunk_gap_seconds_bucket"]

    for ((_, bound),), count in buckets.items():
        assert count == sum(gap_us / 1e6 <= float(bound) for gap_us in gaps_us)


def test_names_that_no_replica_serves_share_one_series(world: World) -> None:
    world.end(model="junk 0", status=404, outcome=Outcome.REFUSED, failure=Failure.MODEL_NOT_FOUND)
    before = world.num_series()

    for number in range(5_000):
        world.end(
            model=f"junk {number}",
            status=404,
            outcome=Outcome.REFUSED,
            failure=Failure.MODEL_NOT_FOUND,
            ended_us=3_000_000 + number,
        )

    assert world.num_series() == before
    by = {"model": "other", "status": "4xx", "outcome": "refused"}
    assert world.value("warmroute_requests_total", **by) == 5_001
    assert "junk" not in world.metrics.render().decode()


def test_no_text_of_a_request_becomes_a_label(world: World) -> None:
    world.end(request_id="LEAKED", path="LEAKED", detail="LEAKED", model="LEAKED")
    world.metrics.retry("LEAKED")

    assert "LEAKED" not in world.metrics.render().decode()
    assert world.value("warmroute_retries_total", reason="other") == 1


def test_the_cpu_of_the_process_is_told(world: World) -> None:
    before = time.process_time()

    told = world.value("warmroute_cpu_seconds_total")

    assert 0 < before <= told <= time.process_time()


@pytest.mark.parametrize("name", ["warmroute_failures_total", "warmroute_retries_total"])
def test_counters_of_errors_are_there_before_the_first_error(world: World, name: str) -> None:
    counts = world.samples()[name]

    assert set(counts.values()) == {0}
    assert (("code", "replica_connect_failed"),) in counts or (("reason", "503"),) in counts


def test_a_model_that_appears_is_known_within_a_second(world: World) -> None:
    world.end(model="new", ended_us=5_000_000)
    world.fleet.on_report(report("c", model="new"), 0, 0)

    world.end(model="new", ended_us=6_000_000)

    requests = {dict(labels)["model"] for labels in world.samples()["warmroute_requests_total"]}
    assert requests == {"other", "new"}


def test_models_that_come_and_go_are_bounded(world: World) -> None:
    for number in range(3 * MODELS_MAX):
        world.fleet.on_report(report("a", sequence=number + 1, model=f"model {number}"), 0, number)
        world.end(model=f"model {number}", ended_us=(number + 4) * 1_000_000)

    models = {dict(labels)["model"] for labels in world.samples()["warmroute_requests_total"]}
    assert len(models) <= MODELS_MAX
    assert f"model {3 * MODELS_MAX - 1}" in models


def test_series_of_departed_replicas_go(world: World) -> None:
    world.end(replica_id=None)
    before = world.num_series()

    for number in range(500):
        name = f"r{number}"
        world.fleet.add_static(f"http://127.0.0.1:{number + 1000}", name, "m", now_us=0)
        world.end(replica_id=name)
        world.fleet.remove(name)

    assert "warmroute_replica_answers_total" not in world.samples()
    assert world.num_series() == before


def test_what_a_replica_said_before_it_fell_silent_is_absent(world: World) -> None:
    world.fleet.tick(60_000_000)

    samples = world.samples()

    assert "warmroute_replica_waiting_requests" not in samples
    assert "warmroute_replica_running_requests" not in samples


def test_what_a_replica_does_not_say_is_absent_and_never_zero(world: World) -> None:
    samples = world.samples()

    for name in ("waiting_requests", "running_requests", "report_age_seconds"):
        assert samples[f"warmroute_replica_{name}"].keys() == {(("replica", "a"),)}
    assert "warmroute_replica_kv_usage_ratio" not in samples
    assert world.value("warmroute_replica_waiting_requests", replica="a") == 2


def test_what_the_data_plane_holds_and_refuses_is_read_at_the_scrape(world: World) -> None:
    refused = "warmroute_connections_refused_total"

    assert world.value("warmroute_client_connections") == 6
    assert world.value("warmroute_queued_requests") == 4
    assert world.value("warmroute_buffered_bytes") == 2_000
    assert world.value(refused, reason="limit") == 7
    assert world.value(refused, reason="tls") == 8


def test_a_slow_start_is_seen_until_it_is_over(world: World) -> None:
    world.fleet.on_report(report("a", incarnation="second"), 0, 1_000_000)

    during = world.value("warmroute_replica_recovering", replica="a")
    world.fleet.tick(1_000_000 + round(RoutingConfig().slow_start_s * 1e6))

    assert during == 1
    assert world.value("warmroute_replica_recovering", replica="a") == 0
    assert world.value("warmroute_replica_recovering", replica="b") == 0


def test_own_load_and_standing_of_a_replica_are_seen(world: World) -> None:
    world.fleet.drain("b", True)
    decision = world.fleet.decide(RouteRequest("id", "m", 10), now_us=5)
    assert decision.lease is not None
    during = world.value("warmroute_replica_in_flight_requests", replica="a")
    decision.lease.end(AttemptOutcome.OK, 6)

    assert during == 1
    assert world.value("warmroute_replica_in_flight_requests", replica="a") == 0
    assert world.value("warmroute_replica_draining", replica="b") == 1
    assert world.value("warmroute_replica_eligible", replica="b") == 0
    assert world.value("warmroute_replica_breaker_state", replica="a", state="closed") == 1
    assert world.value("warmroute_replica_breaker_state", replica="a", state="open") == 0


@pytest.mark.parametrize(
    ("usage", "cached", "odd"),
    [
        (Usage(100, -5, 95, PromptTokensDetails(10)), 10, 1),
        (Usage(100, 5, 105, PromptTokensDetails(500)), 100, 1),
        (Usage(-100, 5, 105, PromptTokensDetails(5)), 0, 1),
        (Usage(100, 5, 105, PromptTokensDetails(-5)), 0, 1),
        (Usage(100, 5, 105, PromptTokensDetails(5)), 5, 0),
        (Usage(100, 5, 105), 0, 0),
    ],
)
def test_an_impossible_usage_is_cut_and_counted(
    world: World, usage: Usage, cached: int, odd: int
) -> None:
    world.end(usage=usage)

    assert world.value("warmroute_cached_tokens_total", model="m") == cached
    assert world.value("warmroute_odd_usage_total") == odd


def test_an_unreadable_usage_is_counted(world: World) -> None:
    world.end(usage=None, usage_unreadable=True)

    assert world.value("warmroute_odd_usage_total") == 1


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_no_counter_ever_goes_back(seed: int) -> None:
    world = World()
    draw = random.Random(seed)
    before: dict[tuple[str, Labels], float] = {}
    for _ in range(10):
        world.end(
            usage=Usage(draw.randint(-9, 9), draw.randint(-9, 9), 0, PromptTokensDetails(-3)),
            outcome=draw.choice(list(Outcome)),
            status=draw.choice([0, 200, 404, 503]),
            model=draw.choice(["m", "junk", None]),
            failure=draw.choice([None, Failure.INTERNAL]),
        )
        world.metrics.retry(draw.choice(["503", "junk"]))
        now = {
            (name, labels): value
            for name, series in world.counted().items()
            if name.endswith(("_total", "_count", "_bucket"))
            for labels, value in series.items()
        }
        assert all(now[key] >= value for key, value in before.items())
        before = now


def test_the_store_is_one_state_and_all_its_faults(world: World) -> None:
    world.sync.state = StoreState.FROZEN
    world.sync.counts.faults[StoreFault.TIMEOUT] = 3

    assert world.value("warmroute_store_state", state="frozen") == 1
    assert world.value("warmroute_store_state", state="up") == 0
    assert world.value("warmroute_store_faults_total", fault="timeout") == 3
    assert world.value("warmroute_store_faults_total", fault="auth") == 0


async def test_a_scrape_in_turns_is_the_same_scrape(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "process_time", lambda: 1.0)  # else it goes on between the two
    world.end()

    assert await world.metrics.render_in_turns() == world.metrics.render()


async def test_a_scrape_in_turns_lets_requests_end_meanwhile(world: World) -> None:
    """Every count may grow between two metrics of one scrape; nothing may trip over that."""
    scrape = asyncio.create_task(world.metrics.render_in_turns())
    number = 0
    while not scrape.done():
        number += 1
        name = f"r{number}"
        world.fleet.add_static(f"http://127.0.0.1:{number + 1000}", name, "m", now_us=0)
        world.end(replica_id=name, model=None, failure=Failure.INTERNAL, outcome=Outcome.BROKEN)
        await asyncio.sleep(0)

    assert b"warmroute_build_info" in scrape.result()
    assert number > len(METRICS)


def test_the_worst_lag_is_remembered_for_a_window_and_forgotten_after_two() -> None:
    lag = LoopLag()

    lag.observe(0.5, now_s=100.0)
    seen = []
    for second in range(1, 4):
        lag.observe(0.001, now_s=100.0 + second * WINDOW_S)
        seen.append(lag.max_s)

    assert seen == [0.5, 0.001, 0.001]


async def test_lag_is_measured_while_the_loop_runs() -> None:
    lag = LoopLag()
    task = asyncio.create_task(lag.run())

    await until(lambda: lag.max_s > 0.0)

    task.cancel()
    await asyncio.wait([task])


async def test_the_tasks_of_the_loop_are_counted_at_the_scrape(world: World) -> None:
    idle = asyncio.Event()
    before_it_ran = world.value("warmroute_event_loop_tasks")
    lag = asyncio.create_task(world.lag.run())
    await until(lambda: world.lag.num_tasks > 0)
    alone = world.value("warmroute_event_loop_tasks")
    others = [asyncio.create_task(idle.wait()) for _ in range(5)]

    with_others = world.value("warmroute_event_loop_tasks")
    idle.set()
    await asyncio.wait(others)

    assert before_it_ran == 0
    assert with_others == alone + 5
    assert world.value("warmroute_event_loop_tasks") == alone
    lag.cancel()
    await asyncio.wait([lag])


def test_no_name_abbreviates_its_unit() -> None:
    """As `promtool check metrics` wants it."""
    words = {word for row in metric_rows() for word in row.name.split("_")}

    assert not words & {"s", "ms", "us", "sec", "b", "kb", "mb", "pct"}
