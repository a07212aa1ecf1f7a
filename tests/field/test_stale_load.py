"""Stale load and thundering herds: choices among replicas whose reports are old, equal or wrong.

Method: the fleet's beliefs and decisions as the gateway makes them, in virtual time.
"""

from collections import Counter
from random import Random

import pytest

from router.core.fleet import FleetState
from router.core.health import AttemptOutcome
from router.core.ledger import Lease
from tests.router.core.making import (
    SECOND,
    chosen,
    lease_of,
    make_fleet,
    make_report,
    make_request,
    view_of,
)


def burst(fleet: FleetState, text: str, num_requests: int = 64) -> Counter[str]:
    return Counter(
        chosen(fleet.decide(make_request(f"{text}{n}", text), 0)) for n in range(num_requests)
    )


@pytest.mark.parametrize("policy", ["prefix_load", "min_ttft", "least_loaded", "lmetric"])
@pytest.mark.parametrize("num_replicas", [4, 64])
@pytest.mark.parametrize("is_cached", [False, True])
def test_stl_01_burst_on_frozen_reports_spreads(
    policy: str, num_replicas: int, is_cached: bool
) -> None:
    fleet = make_fleet(policy=policy)
    ids = {f"{number:02}" for number in range(num_replicas)}
    for replica_id in sorted(ids):
        fleet.on_report(make_report(replica_id), 0, 0)
    for replica_id in sorted(ids) if is_cached else ():
        lease = lease_of(fleet.decide(make_request(replica_id, "pp"), 0, ids - {replica_id}))
        lease.end(AttemptOutcome.OK, 0)

    picks = burst(fleet, "pp" if is_cached else "", 16 * num_replicas)

    assert len(picks) == num_replicas
    assert max(picks.values()) <= 1.5 * min(picks.values())


def test_stl_02_replica_that_stopped_reporting_gets_no_more_than_its_share() -> None:
    fleet = make_fleet(policy="least_loaded")
    fleet.on_report(make_report("a"), 0, 0)
    now_us = 10 * SECOND
    fleet.on_report(make_report("b", 9, running_requests=3), 0, now_us)
    fleet.tick(now_us)

    picks = Counter(chosen(fleet.decide(make_request(f"{n}"), now_us)) for n in range(60))
    fleet.remove("b")
    last = fleet.decide(make_request("last"), now_us)

    assert picks["a"] <= 30
    assert chosen(last) == "a"


def test_stl_04_load_of_a_replica_that_flaps_is_of_its_present_life() -> None:
    fleet = make_fleet("a")
    for flap in range(100):
        old = [lease_of(fleet.decide(make_request(f"{flap}o{n}"), flap)) for n in range(5)]
        fleet.remove("a")
        fleet.add_static("http://a:1", "a", "m", now_us=flap)
        new = [lease_of(fleet.decide(make_request(f"{flap}n{n}"), flap)) for n in range(2)]

        for lease in old:
            lease.end(AttemptOutcome.OK, flap)
        between = view_of(fleet, "a").requests
        for lease in new:
            lease.end(AttemptOutcome.OK, flap)

        assert (between, view_of(fleet, "a").requests) == (2, 0)
        fleet.check()


@pytest.mark.parametrize("has_first_byte", [False, True])
@pytest.mark.parametrize("outcome", list(AttemptOutcome))
def test_stl_06_every_end_gives_back_all_load(
    outcome: AttemptOutcome, has_first_byte: bool
) -> None:
    fleet = make_fleet("ab")
    for number in range(20):
        lease = lease_of(fleet.decide(make_request(f"{number}", "pqr"), 0, ["b"]))
        if has_first_byte:
            lease.first_byte(0)
        lease.end(outcome, 0)
        lease.end(outcome, 0)  # a second end changes nothing

    view = view_of(fleet, "a")
    assert (view.own_requests, view.own_ahead_tokens) == (0, 0)


def test_stl_07_streams_count_until_their_last_byte() -> None:
    fleet = make_fleet("ab", policy="least_loaded")
    streams = [lease_of(fleet.decide(make_request(f"{n}"), 0, ["b"])) for n in range(8)]
    for stream in streams:
        stream.first_byte(1)

    while_open = view_of(fleet, "a").requests
    picks = Counter(chosen(fleet.decide(make_request(f"n{n}"), 2)) for n in range(8))

    assert while_open == 8
    assert picks == {"b": 8}


def test_stl_08_who_has_open_streams_is_busy_however_few_requests_it_finishes() -> None:
    fleet = make_fleet("ab")
    for number in range(10):
        lease_of(fleet.decide(make_request(f"long{number}", "l"), 0, ["b"])).first_byte(0)
    running: list[Lease] = []
    for number in range(100):
        running.append(lease_of(fleet.decide(make_request(f"s{number}"), number, ["a"])))
        if len(running) > 2:
            running.pop(0).end(AttemptOutcome.OK, number)

    picks: Counter[str] = Counter()
    for number in range(20):
        decision = fleet.decide(make_request(f"new{number}"), 200)
        picks[chosen(decision)] += 1
        lease_of(decision).end(AttemptOutcome.OK, 200)

    assert picks["b"] == 20


def test_stl_10_second_gateway_sees_the_first_ones_load() -> None:
    first, second = make_fleet("abcd"), make_fleet("abcd")
    for number in range(100):
        first.decide(make_request(f"x{number}", chr(300 + number)), 0)
    report = first.own_report("g1", "i", 1)
    second.on_gateway_reports([report], 0)
    for number in range(100):
        second.decide(make_request(f"y{number}", chr(500 + number)), 0)

    total = [view_of(second, each).requests for each in "abcd"]
    assert sum(total) == 200
    assert max(total) <= 1.5 * min(total)


@pytest.mark.parametrize("policy", ["prefix_load", "min_ttft"])
def test_stl_10_talks_at_one_time_stay_put_by_whichever_gateway_they_come(policy: str) -> None:
    """No events: what each gateway sent differs, and with it what it knows of each cache."""
    gateways = make_fleet("abcd", policy=policy), make_fleet("abcd", policy=policy)
    order = [talk for talk in range(40) for _ in range(10)]
    Random(0).shuffle(order)
    homes = [Counter[str]() for _ in range(40)]
    for talk in order:
        turn = homes[talk].total() + 1
        request = make_request(f"{talk}-{turn}", chr(300 + talk) * 4 * turn)
        request.prefix_key = talk
        decision = gateways[turn % 2].decide(request, 0)
        homes[talk][chosen(decision)] += 1
        lease_of(decision).end(AttemptOutcome.OK, 0)

    at_home = [max(each.values()) for each in homes]
    assert sum(at_home) >= 0.85 * len(order)
    talks = Counter(each.most_common(1)[0][0] for each in homes)
    assert max(talks.values()) <= 13
