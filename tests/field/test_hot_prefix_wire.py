"""Hot prefixes over time and on the wire: what is hot gets more replicas, what is new a place."""

from collections import Counter
from dataclasses import dataclass
from math import ceil
from statistics import quantiles

import pytest

from replicas.core.scheduler_config import SchedulerConfig
from replicas.core.step_time import StepLoad, StepTime
from router.core.config import RoutingConfig
from router.core.health import AttemptOutcome
from router.core.ledger import Lease
from router.core.policy import build_policy
from router.core.request import prefix_key
from simulator.fleet_run import FleetRun
from simulator.fleet_spec import FleetSpec, ReplicaSpec
from simulator.laws import check_laws
from simulator.outcome import Outcome
from simulator.request import Segment, SimRequest, Workload
from tests.field.asking import LONG, Held, add, end_all, home_of, open_streams, say, talk, untold
from tests.field.harness import Fake, gateway_of, listening
from tests.router.core.making import chosen, lease_of, make_fleet, make_request
from tests.waiting import until

WEIGHS_BOTH = ["prefix_load", "min_ttft", "prefix_capped"]
"""Policies that weigh a prefix against load."""

MANY = "ABCDEFGHIJKLMNOP"


@dataclass(frozen=True)
class LinearStepTime(StepTime):
    """10 ms a step, and 1 s for each 8,000 tokens that it prefills."""

    def step_time_us(self, load: StepLoad) -> int:
        return 10_000 + 125 * load.prefill_tokens


def clients_with_one_system_prompt(num_clients: int, turns: int) -> Workload:
    """Return requests of clients who ask again as soon as they are answered."""
    requests = [
        SimRequest(
            request_id=f"{client}-{turn}",
            segments=(Segment(1, 1_000), Segment(10 + turn * num_clients + client, 60)),
            output_tokens=16,
            output_id=100_000 + turn * num_clients + client,
            after=f"{client}-{turn - 1}" if turn else None,
        )
        for turn in range(turns)
        for client in range(num_clients)
    ]
    return Workload("hot", "a system prompt of 1,000 tokens", tuple(requests))


def run(policy: str) -> list[Outcome]:
    """Let 64 such clients use four replicas."""
    engine = SchedulerConfig(num_blocks=8_000)
    replicas = [
        ReplicaSpec(replica_id=name, model="m", engine=engine, step_time=LinearStepTime())
        for name in "abcd"
    ]
    fleet_run = FleetRun(
        FleetSpec(replicas=replicas, policy=build_policy(policy)),
        clients_with_one_system_prompt(64, 12),
    )
    outcomes = fleet_run.run()
    check_laws(fleet_run)
    return outcomes


def p95_ttft_us(outcomes: list[Outcome]) -> float:
    """Return the time to the first token that 19 of 20 requests do not exceed."""
    return quantiles([each.ttft_us or 0 for each in outcomes], n=20)[-1]


@pytest.mark.parametrize("policy", WEIGHS_BOTH)
def test_hot_01_one_prefix_of_all_clients_is_served_by_all_replicas(policy: str) -> None:
    outcomes = run(policy)
    shares = Counter(each.replica_id for each in outcomes)

    assert max(shares.values()) <= 1.5 * len(outcomes) / 4
    assert p95_ttft_us(outcomes) <= 1.5 * p95_ttft_us(run("round_robin"))


@pytest.mark.parametrize("policy", WEIGHS_BOTH)
async def test_hot_01_the_first_burst_of_a_hot_prefix_finds_all_replicas(policy: str) -> None:
    held = Held()
    fakes = [Fake(held.play, name) for name in "abcd"]
    async with (
        listening(fakes),
        gateway_of(*fakes, policy=policy) as gateway,
    ):
        texts = [LONG * 2 + f"{number} asks" for number in range(40)]
        clients = await open_streams(gateway, *texts, of=fakes)
        shares = [len(fake.asked) for fake in fakes]
        await end_all(held, clients)

    assert max(shares) <= 1.5 * 40 / 4


@pytest.mark.parametrize("policy", WEIGHS_BOTH)
async def test_hot_02_what_nobody_holds_goes_to_the_idle_replica(policy: str) -> None:
    """Though the idle one holds many prefixes, and the busy one few."""
    long, held, a, b = Held(), Held(), Fake(), Fake(untold, "b")
    a.play = long.play
    async with a, b, gateway_of(b, policy=policy) as gateway:
        for number in range(40):
            await talk(gateway, say(f"held {number} {LONG}"))
        await add(gateway, a)
        await gateway.admin("POST", "/admin/replicas/b/drain")
        texts = [f"long {number} {LONG}" for number in range(8)]
        busy = await open_streams(gateway, *texts, of=[a])
        await until(lambda: gateway.status_of("a").view.ahead_tokens == 0, "all are computed")
        await gateway.admin("POST", "/admin/replicas/b/undrain")
        at_rest = [home_of(await gateway.chat(f"new {n} {LONG}")) for n in range(20)]
        b.play = held.play
        before = len(b.asked)
        for number in range(8):
            busy += await open_streams(gateway, f"more {number} {LONG}", of=[a, b])
        on_b = len(b.asked) - before
        long.let_go()
        await end_all(held, busy)

    assert at_rest.count("b") >= 18
    assert on_b >= 7  # until the loads meet


def homes_of_groups(policy: str, num_groups: int, turns: int, draw: int = 0) -> list[list[str]]:
    """Return who gets each group in each turn; requests come one by one, each after the last."""
    fleet = make_fleet("abcd", policy)
    homes: list[list[str]] = []
    for turn in range(turns):
        homes.append([])
        for group in range(num_groups):
            request = make_request(f"{draw}-{turn}-{group}", chr(300 + group) * 4)
            decision = fleet.decide(request, turn)
            lease_of(decision).end(AttemptOutcome.OK, turn)
            homes[turn].append(chosen(decision))
    return homes


@pytest.mark.parametrize("policy", WEIGHS_BOTH)
def test_hot_04_new_groups_find_places_and_stay(policy: str) -> None:
    """Among equals the request's id draws: so 400 groups are 100 on each, give or take 26."""
    first, second = homes_of_groups(policy, 400, turns=2)

    assert all(74 <= first.count(name) <= 126 for name in "abcd")  # three deviations
    assert second == first


@pytest.mark.parametrize("policy", ["prefix_load", "min_ttft"])
def test_hot_04_few_new_groups_are_as_even_as_if_each_took_the_emptiest(policy: str) -> None:
    for draw in range(20):
        (homes,) = homes_of_groups(policy, 40, turns=1, draw=draw)
        assert all(7 <= homes.count(name) <= 13 for name in "abcd")


class OneHotPrefix:
    """Sixteen replicas, and requests that are all for one prefix."""

    def __init__(self, policy: str) -> None:
        self._fleet = make_fleet(MANY, policy)
        self._count = 0

    def ask(self) -> tuple[str, Lease]:
        """Return who gets the next request, and its lease."""
        self._count += 1
        request = make_request(f"q{self._count}", "PPPP")
        request.prefix_key = prefix_key(request.prompt, request.root, RoutingConfig())
        decision = self._fleet.decide(request, self._count)
        return chosen(decision), lease_of(decision)

    def ask_alone(self) -> str:
        """Return who gets the next request, which ends at once."""
        home, lease = self.ask()
        lease.first_byte(self._count)
        lease.end(AttemptOutcome.OK, self._count)
        return home


@pytest.mark.parametrize("policy", ["prefix_hash", "chwbl", *WEIGHS_BOTH])
def test_hot_06_a_lone_request_finds_its_home_free(policy: str) -> None:
    hot = OneHotPrefix(policy)

    assert len({hot.ask_alone() for _ in range(50)}) == 1


@pytest.mark.parametrize("policy", ["prefix_hash", "chwbl"])
def test_hot_06_a_few_at_once_spill_no_further_than_the_next(policy: str) -> None:
    hot = OneHotPrefix(policy)
    home = hot.ask_alone()
    few: list[tuple[str, Lease]] = []
    used: set[str] = set()
    for _ in range(20):
        few = [hot.ask() for _ in range(3)]
        used |= {replica_id for replica_id, _ in few}
        assert few[0][0] == home
        for _, lease in few:
            lease.end(AttemptOutcome.OK, 0)

    assert len(used) <= 3
    assert hot.ask_alone() == home


def test_hot_06_under_load_the_busiest_keeps_to_the_bound() -> None:
    """Unlike ``chwbl``, which is another router's rule: there all stay at home at first."""
    hot = OneHotPrefix("prefix_hash")

    shares = Counter(replica_id for replica_id, _ in (hot.ask() for _ in range(64)))

    assert max(shares.values()) <= ceil(1.25 * 64 / 16) + 1


@pytest.mark.parametrize("policy", WEIGHS_BOTH)
def test_hot_06_a_large_fleet_does_not_forget_who_is_warm(policy: str) -> None:
    """Here one replica stands for all that are alike; the warm one is like no other."""
    hot = OneHotPrefix(policy)
    home = hot.ask_alone()
    burst = [hot.ask() for _ in range(64)]
    for _, lease in burst:
        lease.end(AttemptOutcome.OK, 0)

    assert burst[0][0] == home
    assert len({replica_id for replica_id, _ in burst}) > 3
    assert hot.ask_alone() in {replica_id for replica_id, _ in burst}
