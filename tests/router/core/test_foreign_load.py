"""Others' load: what a report shows beyond our own, and how far an old telling is believed."""

from hypothesis import given
from hypothesis import strategies as st

from contract.load_report import InFlight
from router.core.foreign_load import MEAN_OVER, ForeignLoad
from router.core.health import AttemptOutcome
from router.core.view import ReplicaView
from tests.router.core.making import (
    SECOND,
    chosen,
    lease_of,
    make_fleet,
    make_report,
    make_request,
    view_of,
)

TRUST_US = 200_000
LOADS = st.lists(st.tuples(st.integers(0, 1000), st.integers(0, 10**6)), min_size=1, max_size=20)


def told(loads: list[tuple[int, int]], interval_us: int) -> ForeignLoad:
    """Return what is expected by one that is told so, at that interval."""
    load, view = ForeignLoad(TRUST_US), ReplicaView("a", 0, "http://a:1")
    for number, (requests, ahead_tokens) in enumerate(loads):
        load.report(requests, ahead_tokens, view, number * interval_us)
    return load


@given(loads=LOADS, interval_us=st.integers(0, 10**8))
def test_no_more_and_no_less_is_expected_than_was_ever_told(
    loads: list[tuple[int, int]], interval_us: int
) -> None:
    expected = told(loads, interval_us).expected()

    for index, number in enumerate((expected.requests, expected.ahead_tokens)):
        values = [load[index] for load in loads]
        assert min(values) <= number <= max(values)


@given(loads=LOADS)
def test_what_is_told_all_the_time_counts_as_told(loads: list[tuple[int, int]]) -> None:
    assert told(loads, 0).expected() == InFlight(*loads[-1])


def test_the_longer_ago_the_more_the_mean_counts() -> None:
    loads = [(0, 0)] * 10 + [(0, 1000)]

    believed = [told(loads, ms * 1000).expected().ahead_tokens for ms in (1, 10, 100, 500)]

    assert believed == sorted(believed, reverse=True)
    assert believed[0] > 990
    assert believed[-1] < 500


def test_one_report_of_nonsense_is_forgotten_after_some_more() -> None:
    nonsense = [(0, 0), (2**62, 2**62), *[(0, 0)] * MEAN_OVER]

    assert told(nonsense, 100_000).expected() == InFlight(0, 0)


def test_after_long_silence_the_last_telling_is_all_there_is() -> None:
    assert told([(0, 1000)] * 5 + [(0, 0)], 60 * SECOND).expected() == InFlight(0, 0)


def test_a_replica_that_does_not_tell_its_load_is_as_busy_as_its_peers() -> None:
    fleet = make_fleet()
    fleet.on_report(make_report("a", waiting_requests=None, running_requests=None), 0, 0)
    fleet.on_report(make_report("b", running_requests=6), 0, 0)
    fleet.on_report(make_report("c", running_requests=2), 0, 0)
    fleet.tick(0)

    assert view_of(fleet, "a").requests == 4
    assert view_of(fleet, "b").requests == 6


def test_a_replica_whose_peers_tell_nothing_counts_as_idle() -> None:
    fleet = make_fleet()
    for name in "ab":
        fleet.on_report(make_report(name, waiting_requests=None, running_requests=None), 0, 0)
    fleet.tick(0)
    picks = []
    for number in range(40):
        decision = fleet.decide(make_request(str(number), chr(300 + number)), 0)
        picks.append(chosen(decision))
        lease_of(decision).end(AttemptOutcome.OK, 0)

    assert {view_of(fleet, name).requests for name in "ab"} == {0}
    assert set(picks) == {"a", "b"}


def test_the_same_replica_with_another_model_is_another_one() -> None:
    fleet = make_fleet()
    fleet.add_static("http://a:1", "a", "m", now_us=0)
    fleet.add_static("http://a:1", "a", "q", now_us=0)

    assert fleet.models() == ["q"]
