"""Random fleets by number: the laws hold on all of them, and they are as varied as they should be.

`make fuzz` tries more; `warmroute simulate fuzz --first SEED --seeds 1` tries one again.
"""

import re
from collections import Counter

import pytest

from router.core.policy import POLICIES
from simulator import fuzz
from simulator.fleet_spec import FaultKind
from simulator.fuzz import GENERATORS, fuzz_case, run_case
from simulator.workload.catalogue import ENTRIES, Needs

SEEDS, PART = 200, 20


@pytest.mark.long
@pytest.mark.parametrize("first", range(0, SEEDS, PART))
def test_the_laws_hold_on_random_fleets(first: int) -> None:
    for seed in range(first, first + PART):
        assert run_case(seed), f"seed {seed} had no request"


def test_equal_seeds_give_equal_cases_and_others_do_not() -> None:
    def shown(seed: int) -> str:
        return re.sub(r" at 0x[0-9a-f]+", "", repr(fuzz_case(seed)))

    assert shown(3) == shown(3)
    assert shown(3) != shown(4)


def test_every_generator_is_drawn_from() -> None:
    generators = {
        name
        for name, entry in ENTRIES.items()
        if entry.needs is Needs.NOTHING and entry.shipped is None
    }

    assert set(GENERATORS) == generators
    assert {fuzz_case(seed).workload.name for seed in range(SEEDS)} == generators


@pytest.mark.long
def test_the_cases_cover_what_a_fleet_can_be() -> None:
    specs = [fuzz_case(seed).spec for seed in range(SEEDS)]

    assert {spec.policy.name for spec in specs} == set(POLICIES)
    assert {len(spec.replicas) for spec in specs} == set(range(1, fuzz.REPLICAS_MAX + 1))
    assert {spec.num_gateways for spec in specs} == {1, 2, 3}
    kinds = Counter(fault.kind for spec in specs for fault in spec.faults)
    assert set(kinds) == set(FaultKind)
    assert sum(spec.autoscale is not None for spec in specs) > SEEDS / 10
    assert sum(spec.timing.event_loss > 0 for spec in specs) > SEEDS / 10
