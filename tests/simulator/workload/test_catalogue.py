"""The catalogue: equal seed, equal bytes; another seed, other bytes; every entry keeps the seam."""

from functools import cache

import pytest
from xxhash import xxh3_64_hexdigest

from simulator.request import SEGMENT_ID_MAX, Workload
from simulator.workload.catalogue import ENTRIES, Needs
from simulator.workload.kubeai import KubeAiSettings
from simulator.workload.shape import ShapeSettings

GENERATORS = [
    name
    for name, entry in ENTRIES.items()
    if entry.needs is Needs.NOTHING and entry.shipped is None
]
SMALL = {"kubeai": KubeAiSettings(conversations=40)}  # its stages are made whole


@cache
def generated(name: str, seed: str = "0") -> Workload:
    settings = SMALL.get(name) or ENTRIES[name].settings()
    return ENTRIES[name].workload((), settings, ShapeSettings(seed=seed, first=300)).joined()


def digest(workload: Workload) -> str:
    return xxh3_64_hexdigest(repr(workload.requests).encode())


PINNED = {
    "unique": "d6bc8277d9c93296",
    "hot": "3119c72aaa3a09f4",
    "groups": "04c11c161783b463",
    "multiturn": "2209d50ad25bf372",
    "agents": "f0ba17dfd4cd46d6",
    "ladder": "4252406b4c3c1f1d",
    "llmd-37": "53f72b4ccf1821d0",
    "llmd-73": "f2c61b9ae0ee68bd",
    "kubeai": "b5767f10e488d8bc",
}


@pytest.mark.parametrize("name", GENERATORS)
def test_equal_seeds_give_equal_bytes_and_other_seeds_others(name: str) -> None:
    assert digest(generated(name)) == PINNED[name]
    assert digest(generated(name, seed="1")) != PINNED[name]


@pytest.mark.parametrize("name", GENERATORS)
def test_every_generated_request_keeps_what_the_seam_promises(name: str) -> None:
    workload = generated(name)

    seen: set[str] = set()
    for each in workload.requests:
        assert each.request_id not in seen
        assert each.after is None or each.after in seen
        assert each.output_tokens >= 1
        assert each.segments
        assert all(segment.num_tokens >= 1 for segment in each.segments)
        assert all(1 <= segment.segment_id <= SEGMENT_ID_MAX for segment in each.segments)
        assert 1 <= each.output_id <= SEGMENT_ID_MAX
        seen.add(each.request_id)
    open_loop = [each.arrival_us for each in workload.requests if each.after is None]
    assert open_loop == sorted(open_loop)
    assert len(seen) == 300


@pytest.mark.parametrize("name", GENERATORS)
def test_the_provenance_is_one_line_with_the_seed_and_the_settings(name: str) -> None:
    provenance = generated(name).provenance

    assert provenance.startswith(f"{name}: generated with seed '0', ")
    assert "\n" not in provenance
