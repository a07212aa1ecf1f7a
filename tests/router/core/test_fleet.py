"""The whole core at work: bursts, prefixes, events, corrections, recovery."""

from collections import Counter
from collections.abc import Callable

import pytest

from contract.kv_events import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    KvEvent,
    KvEventBatch,
    KvSnapshot,
)
from contract.openai_api import PromptTokensDetails, Usage
from router.core.fleet import FleetState
from router.core.health import AttemptOutcome, BreakerState
from router.core.reason import Reason
from router.core.roster import REPLICAS_PER_SLICE
from tests.router.core.making import (
    BLOCK,
    SECOND,
    chosen,
    lease_of,
    make_fleet,
    make_report,
    make_request,
    view_of,
    with_events,
)

TOKENS = BLOCK // 4  # of one block


def batch(sequence: int, *events: KvEvent, incarnation: str = "first") -> KvEventBatch:
    return KvEventBatch(incarnation, sequence, list(events))


def matched_on(fleet: FleetState, replica_id: str, text: str, now_us: int = 0) -> int:
    """Return the tokens of ``text`` that the fleet believes cached there, and leave no trace."""
    request = make_request("probe", text)
    chain = request.chain((BLOCK, None))
    slot = view_of(fleet, replica_id).slot
    return fleet.index.match(chain, [slot]).get(slot, 0) * TOKENS


def spread(picks: list[str]) -> float:
    counts = Counter(picks)
    return max(counts.values()) / min(counts.values())


def usage(prompt_tokens: int, cached_tokens: int) -> Usage:
    return Usage(prompt_tokens, 1, prompt_tokens + 1, PromptTokensDetails(cached_tokens))


def test_burst_of_unrelated_requests_spreads_in_one_turn() -> None:
    """STL-01: 64 decisions before any report, byte or event."""
    fleet = make_fleet("abcd")

    picks = [chosen(fleet.decide(make_request(f"{n}", chr(200 + n)), 0)) for n in range(64)]

    assert len(set(picks)) == 4
    assert spread(picks) <= 1.5


def test_burst_with_a_prefix_that_all_hold_spreads_in_one_turn() -> None:
    fleet = make_fleet()
    prefix = make_request("", "pppp").chain((BLOCK, None))
    for replica_id in "abcd":
        fleet.on_report(with_events(replica_id), 0, 0)
        fleet.on_kv_batch(replica_id, batch(0, BlockStored(prefix)), 0)

    picks = [chosen(fleet.decide(make_request(f"{n}", "pppp"), 0)) for n in range(64)]

    assert spread(picks) <= 1.5


@pytest.mark.parametrize("events", [False, True])
def test_burst_of_siblings_goes_to_one_replica_before_any_event(events: bool) -> None:
    fleet = make_fleet()
    for replica_id in "abc":
        report = with_events(replica_id) if events else make_report(replica_id)
        fleet.on_report(report, 0, 0)

    picks = {chosen(fleet.decide(make_request(f"{n}", "p" * 60 + f"{n}"), 0)) for n in range(7)}

    assert len(picks) == 1


def test_hot_prefix_spreads_when_waiting_costs_more_than_computing_it_again() -> None:
    """HOT-01: one prefix of 2,000 tokens, own parts of 200, none of them computed yet."""
    fleet = make_fleet("abcd")

    decisions = [fleet.decide(make_request(f"{n}", "p" * 31 + f"{n}" * 3), 0) for n in range(10)]
    many = [fleet.decide(make_request(f"m{n}", "p" * 31 + chr(300 + n)), 0) for n in range(100)]

    reasons = {decision.reason for decision in decisions}
    assert reasons >= {Reason.COLD, Reason.WARM, Reason.SPREAD}
    assert len({chosen(decision) for decision in many}) == 4
    fleet.check()


def test_turns_of_a_conversation_stay_together_and_conversations_spread() -> None:
    """PFX-01: one system prompt, 20 conversations of 6 turns, each resending its history."""
    fleet = make_fleet("abcd")
    homes: dict[int, list[str]] = {}

    now_us = 0
    for turn in range(1, 7):
        leases = []
        for talk in range(20):
            text = "s" * 8 + "".join(chr(256 + talk * 16 + part) * 6 for part in range(turn))
            decision = fleet.decide(make_request(f"{talk}/{turn}", text), now_us)
            homes.setdefault(talk, []).append(chosen(decision))
            leases.append(lease_of(decision))
        for lease in leases:
            lease.first_byte(now_us)
            lease.end(AttemptOutcome.OK, now_us)
        now_us += SECOND

    stayed = [home == picks[0] for picks in homes.values() for home in picks[1:]]
    assert sum(stayed) >= 0.9 * len(stayed)
    assert {picks[0] for picks in homes.values()} == set("abcd")


def test_block_in_the_middle_of_a_prompt_is_no_hit() -> None:
    """PFX-03: b + a does not go where a is."""
    fleet = make_fleet("ab")
    first = fleet.decide(make_request("1", "a"), 0)

    swapped = fleet.decide(make_request("2", "ba"), 0)

    assert swapped.matched_tokens == 0
    assert chosen(swapped) != chosen(first)


def test_another_name_of_a_model_shares_no_blocks() -> None:
    """PFX-05: base model and adapter, same prompt, same replicas."""
    fleet = make_fleet()
    for replica_id in "ab":
        fleet.on_report(make_report(replica_id, aliases=["lora"]), 0, 0)
    fleet.decide(make_request("1", "pppp"), 0)

    assert fleet.decide(make_request("2", "pppp", model="lora"), 0).reason is Reason.COLD


def test_at_least_the_last_token_is_always_computed() -> None:
    fleet = make_fleet("a")
    fleet.decide(make_request("1", "pp"), 0)

    again = fleet.decide(make_request("2", "pp"), 0)

    assert (again.matched_tokens, lease_of(again).uncached_tokens) == (127, 1)


@pytest.mark.parametrize("outcome", list(AttemptOutcome))
@pytest.mark.parametrize("replied", [False, True])
def test_every_end_gives_all_load_back(outcome: AttemptOutcome, replied: bool) -> None:
    """STL-06: both counts, on every path, and then the replica is used again."""
    fleet = make_fleet("ab", "least_loaded")
    for n in range(4):
        lease = lease_of(fleet.decide(make_request(f"{n}", "p"), n))
        if replied:
            lease.first_byte(n)
        lease.end(outcome, n)
        lease.end(AttemptOutcome.OK, n)

    loads = [(s.view.own_requests, s.view.own_ahead_tokens) for s in fleet.views()]
    fleet.tick(60 * SECOND)
    picks = [chosen(fleet.decide(make_request(f"x{n}", "p"), 60 * SECOND)) for n in range(20)]

    assert loads == [(0, 0), (0, 0)]
    assert picks.count("a") == picks.count("b")


def test_load_includes_a_stream_until_its_end() -> None:
    """STL-07: eight streams whose first byte came long ago."""
    fleet = make_fleet("ab", "least_loaded")
    for n in range(8):
        lease_of(fleet.decide(make_request(f"{n}", ""), 0, ["b"])).first_byte(1)

    picks = [chosen(fleet.decide(make_request(f"x{n}", ""), 2)) for n in range(8)]

    assert view_of(fleet, "a").requests == 8
    assert set(picks) == {"b"}


def test_events_are_believed_and_taken_back() -> None:
    fleet = make_fleet()
    fleet.on_report(with_events("a"), 0, 0)
    chain = make_request("", "pqrs").chain((BLOCK, None))

    fleet.on_kv_batch("a", batch(0, BlockStored(chain)), 0)
    stored = matched_on(fleet, "a", "pqrs")
    fleet.on_kv_batch("a", batch(1, BlockRemoved(chain[2:])), 0)
    removed = matched_on(fleet, "a", "pqrs")
    fleet.on_kv_batch("a", batch(2, AllBlocksCleared()), 0)

    assert (stored, removed) == (4 * TOKENS, 2 * TOKENS)
    assert fleet.index.num_entries == 0


def test_block_that_came_and_went_is_no_longer_predicted_either() -> None:
    fleet = make_fleet()
    fleet.on_report(with_events("a"), 0, 0)
    request = make_request("1", "pq")
    fleet.decide(request, 0)
    chain = request.chain((BLOCK, None))

    fleet.on_kv_batch("a", batch(0, BlockStored(chain), BlockRemoved(chain[1:])), 0)

    assert matched_on(fleet, "a", "pq") == TOKENS


def test_gap_in_events_forgets_and_a_snapshot_brings_back() -> None:
    fleet = make_fleet()
    fleet.on_report(with_events("a"), 0, 0)
    chain = make_request("", "pqrs").chain((BLOCK, None))
    fleet.on_kv_batch("a", batch(0, BlockStored(chain[:1])), 0)

    in_sync = fleet.on_kv_batch("a", batch(2, BlockStored(chain[2:3])), 0)
    after_gap = matched_on(fleet, "a", "pqrs")
    still_out = fleet.on_kv_batch("a", batch(3, BlockStored(chain[3:])), 0)
    fleet.on_kv_snapshot("a", KvSnapshot("first", 2, chain[:3]), 0)
    replayed = [fleet.on_kv_batch("a", batch(n, BlockStored(chain[n:])), 0) for n in (2, 3)]

    assert (in_sync, after_gap, still_out) == (False, 0, False)
    assert replayed == [True, True]
    assert matched_on(fleet, "a", "pqrs") == 4 * TOKENS


def test_reader_that_comes_late_asks_for_the_snapshot() -> None:
    fleet = make_fleet()
    fleet.on_report(with_events("a"), 0, 0)

    assert fleet.on_kv_batch("a", batch(7), 0) is False


def test_snapshot_of_another_process_does_not_end_a_gap() -> None:
    fleet = make_fleet()
    fleet.on_report(with_events("a"), 0, 0)
    chain = make_request("", "p").chain((BLOCK, None))
    fleet.on_kv_batch("a", batch(7), 0)

    fleet.on_kv_snapshot("a", KvSnapshot("zeroth", 99, chain), 0)

    assert matched_on(fleet, "a", "p") == 0
    assert fleet.on_kv_batch("a", batch(8), 0) is False


@pytest.mark.parametrize("events_first", [False, True])
def test_events_of_a_restarted_process_survive_whichever_news_comes_first(
    events_first: bool,
) -> None:
    fleet = make_fleet()
    fleet.on_report(with_events("a", 50), 0, 0)
    old, new = (
        make_request("", "o").chain((BLOCK, None)),
        make_request("", "n").chain((BLOCK, None)),
    )
    fleet.on_kv_batch("a", batch(0, BlockStored(old)), 0)
    news: list[Callable[[], object]] = [
        lambda: fleet.on_report(with_events("a", 1, incarnation="second"), 0, 1),
        lambda: fleet.on_kv_batch("a", batch(0, BlockStored(new), incarnation="second"), 1),
    ]

    for tell in reversed(news) if events_first else news:
        tell()

    assert (matched_on(fleet, "a", "o"), matched_on(fleet, "a", "n")) == (0, TOKENS)
    fleet.check()


def test_late_events_of_the_process_before_are_dropped() -> None:
    fleet = make_fleet()
    fleet.on_report(with_events("a", 50), 0, 0)
    fleet.on_report(with_events("a", 1, incarnation="second"), 0, 1)

    fleet.on_kv_batch("a", batch(0, BlockStored(make_request("", "o").chain((BLOCK, None)))), 1)

    assert matched_on(fleet, "a", "o") == 0


def test_replicas_with_blocks_of_different_sizes_are_matched_each_in_its_own() -> None:
    fleet = make_fleet()
    fleet.on_report(with_events("a", block_bytes=64), 0, 0)
    fleet.on_report(make_report("b"), 0, 0)
    request = make_request("1", "pp")
    fleet.on_kv_batch("a", batch(0, BlockStored(request.chain((64, None))[:3])), 0)
    lease_of(fleet.decide(make_request("0", "p"), 0, ["a"])).end(AttemptOutcome.OK, 0)

    fleet.decide(request, 0)

    slots = {view_of(fleet, "a").slot: 48, view_of(fleet, "b").slot: 64}
    assert request.matched_tokens == slots


@pytest.mark.parametrize(
    "outcome",
    [
        AttemptOutcome.BACK_PRESSURE,
        AttemptOutcome.CLIENT_ERROR,
        AttemptOutcome.SERVER_ERROR,
        AttemptOutcome.TRANSPORT_ERROR,
    ],
)
def test_refused_prompt_leaves_no_trace_in_the_index(outcome: AttemptOutcome) -> None:
    fleet = make_fleet("a")
    lease_of(fleet.decide(make_request("1", "p"), 0)).end(AttemptOutcome.OK, 0)

    lease_of(fleet.decide(make_request("2", "pqr"), 0)).end(outcome, 0)

    assert matched_on(fleet, "a", "pqr") == TOKENS


def test_engine_that_evicted_a_prefix_has_evicted_all_that_is_older() -> None:
    fleet = make_fleet("a")
    for second, text in enumerate(("old", "hot", "new")):
        lease = lease_of(fleet.decide(make_request(text, text), second * SECOND))
        lease.end(AttemptOutcome.OK, second * SECOND)

    lease = lease_of(fleet.decide(make_request("4", "hot"), 3 * SECOND))
    lease.end(AttemptOutcome.OK, 3 * SECOND, usage(192, 0))

    assert matched_on(fleet, "a", "old") == 0
    assert matched_on(fleet, "a", "hot") == 3 * TOKENS  # just computed
    assert matched_on(fleet, "a", "new") == 3 * TOKENS


def test_siblings_that_were_computed_side_by_side_prove_no_eviction() -> None:
    fleet = make_fleet("a")
    lease_of(fleet.decide(make_request("0", "old"), 0)).end(AttemptOutcome.OK, 0)
    leases = [lease_of(fleet.decide(make_request(f"{n}", "hot"), SECOND)) for n in range(5)]

    for lease in leases:
        lease.end(AttemptOutcome.OK, 2 * SECOND, usage(192, 0))

    assert matched_on(fleet, "a", "old") == matched_on(fleet, "a", "hot") == 3 * TOKENS


def test_engine_that_never_caches_ends_without_credit() -> None:
    fleet = make_fleet("a")

    for n in range(4):
        lease = lease_of(fleet.decide(make_request(f"{n}", "hot"), n * SECOND))
        lease.end(AttemptOutcome.OK, n * SECOND, usage(192, 0))

    assert matched_on(fleet, "a", "hot") == 0


@pytest.mark.parametrize(
    ("prompt_tokens", "cached_tokens"), [(0, 0), (-5, 3), (192, -1), (192, 10**20), (10**20, 1)]
)
def test_nonsense_in_usage_does_no_harm(prompt_tokens: int, cached_tokens: int) -> None:
    fleet = make_fleet("a")
    for n in range(5):
        lease = lease_of(fleet.decide(make_request(f"{n}", "hot"), n * SECOND))
        lease.end(AttemptOutcome.OK, n * SECOND, usage(prompt_tokens, cached_tokens))

    fleet.check()


def test_failing_replica_loses_the_prefix_it_holds_and_takes_traffic_after_recovery() -> None:
    """RTY-10: the warm replica answers 500 to all, the other is well."""
    fleet = make_fleet("ab", breaker_failures=5, breaker_cooldown_s=5.0)
    first = lease_of(fleet.decide(make_request("0", "p" * 60), 0))
    first.end(AttemptOutcome.OK, 0)
    sick = first.replica.replica_id
    hits = 0
    for n in range(200):
        now_us = n * SECOND // 10
        fleet.tick(now_us)
        decision = fleet.decide(make_request(f"{n}", "p" * 60), now_us)
        hits += chosen(decision) == sick
        outcome = AttemptOutcome.SERVER_ERROR if chosen(decision) == sick else AttemptOutcome.OK
        lease_of(decision).end(outcome, now_us)

    fleet.tick(60 * SECOND)
    for n in range(20):  # new prompts, and all is well
        lease = lease_of(fleet.decide(make_request(f"new {n}", f"{n}"), 60 * SECOND))
        lease.end(AttemptOutcome.OK, 60 * SECOND)

    assert hits <= 5 + 3  # the threshold, and a probe for each cooldown
    assert status_is_closed(fleet, sick)


def status_is_closed(fleet: FleetState, replica_id: str) -> bool:
    states = {status.view.replica_id: status.breaker for status in fleet.views()}
    return states[replica_id] is BreakerState.CLOSED


def test_only_one_request_probes_a_half_open_replica() -> None:
    fleet = make_fleet("ab", "least_loaded", breaker_failures=1)
    lease_of(fleet.decide(make_request("0"), 0, ["b"])).end(AttemptOutcome.TIMEOUT, 0)
    fleet.tick(6 * SECOND)

    picks = [chosen(fleet.decide(make_request(f"{n}"), 6 * SECOND)) for n in range(10)]

    assert picks.count("a") == 1


def test_when_all_are_ejected_all_are_used_and_an_answer_brings_one_back() -> None:
    """DED-02: the fleet died under load and has come back."""
    fleet = make_fleet("ab", "least_loaded", breaker_failures=1)
    for other in "ab":
        lease_of(fleet.decide(make_request("0"), 0, [other])).end(AttemptOutcome.TIMEOUT, 0)

    picks = {chosen(fleet.decide(make_request(f"{n}"), 1)) for n in range(4)}
    lease = lease_of(fleet.decide(make_request("5"), 1))
    lease.end(AttemptOutcome.OK, 2)

    assert picks == {"a", "b"}
    assert lease.replica.replica_id == chosen(fleet.decide(make_request("6"), 3))


def test_replica_that_pushes_back_loses_traffic_without_being_ejected() -> None:
    """RTY-07: one always answers 429."""
    fleet = make_fleet("ab")
    hits = 0
    for n in range(50):
        now_us = n * SECOND // 10
        fleet.tick(now_us)
        decision = fleet.decide(make_request(f"{n}", f"{n % 10}"), now_us)
        pushes_back = chosen(decision) == "a"
        hits += pushes_back
        outcome = AttemptOutcome.BACK_PRESSURE if pushes_back else AttemptOutcome.OK
        lease_of(decision).end(outcome, now_us)

    assert 1 <= hits <= 5
    assert status_is_closed(fleet, "a")


def test_own_report_tells_the_other_gateways_what_is_open_here() -> None:
    fleet = make_fleet("ab")
    lease = lease_of(fleet.decide(make_request("1", "pp"), 0))

    before = fleet.own_report("g", "i", 1).in_flight
    lease.first_byte(1)
    during = fleet.own_report("g", "i", 2).in_flight
    lease.end(AttemptOutcome.OK, 2)

    load = before[lease.replica.replica_id]
    assert (load.requests, load.ahead_tokens) == (1, 128)
    assert during[lease.replica.replica_id].ahead_tokens == 0
    assert fleet.own_report("g", "i", 3).in_flight == {}


def test_models_are_those_of_live_replicas_without_doubles() -> None:
    """MDL-05"""
    fleet = make_fleet()
    fleet.on_report(make_report("a", model="m1", aliases=["m2"]), 0, 0)
    fleet.on_report(make_report("b", model="m2", aliases=["m3"]), 0, 0)
    fleet.on_report(make_report("c", model="m4"), 0, 0)
    fleet.on_reports_read({"a", "b"}, 1)

    assert fleet.models() == ["m1", "m2", "m3"]


def test_swapped_models_take_effect_with_the_next_report() -> None:
    """MDL-06"""
    fleet = make_fleet()
    for sequence, models in ((1, ("m1", "m2")), (2, ("m2", "m1"))):
        for replica_id, model in zip("ab", models, strict=True):
            fleet.on_report(make_report(replica_id, sequence, model=model), 0, 0)

    assert chosen(fleet.decide(make_request("1", model="m1"), 0)) == "b"


def test_invented_model_names_leave_nothing_behind() -> None:
    fleet = make_fleet("a")
    fleet.add_static("http://b", "b", now_us=0)  # takes any

    for n in range(1000):
        lease_of(fleet.decide(make_request(f"{n}", model=f"junk {n}"), 0)).end(AttemptOutcome.OK, 0)

    assert len(fleet._arrivals) <= 2


def test_models_that_a_silent_replica_lists_are_served_until_it_reports_its_own() -> None:
    fleet = make_fleet()
    fleet.add_static("http://a:1", "a", now_us=0)
    fleet.set_models("a", ["m1", "m2"])
    listed = fleet.models()

    fleet.on_report(make_report("a", model="m3"), 0, 0)

    assert listed == ["m1", "m2"]
    assert fleet.models() == ["m3"]
    assert fleet.decide(make_request("1", model="m1"), 0).reason is Reason.MODEL_NOT_FOUND


def test_explanation_is_the_decision_that_follows_and_leaves_no_trace() -> None:
    fleet = make_fleet("abc")
    lease_of(fleet.decide(make_request("1", "pppp"), 0)).end(AttemptOutcome.OK, 0)

    for n in range(20):
        explained = fleet.explain(make_request(f"{n}", "ppppq"))
        entries = fleet.index.num_entries
        assert sum(status.view.own_requests for status in fleet.views()) == n
        decision = fleet.decide(make_request(f"{n}", "ppppq"), 0)

        assert (explained.chosen, explained.reason) == (chosen(decision), decision.reason)
        assert fleet.index.num_entries >= entries


def test_same_inputs_give_the_same_decisions() -> None:
    def run() -> list[str]:
        fleet = make_fleet("abcd")
        return [chosen(fleet.decide(make_request(f"{n}", f"{n % 7}" * 4), n)) for n in range(50)]

    assert run() == run()


@pytest.mark.parametrize("name", ["alias", None])
def test_a_request_under_another_name_finds_the_blocks_of_the_model(name: str | None) -> None:
    fleet = make_fleet()
    fleet.on_report(with_events("a", aliases=["alias"]), 0, 0)
    fleet.on_report(with_events("b", aliases=["alias"]), 0, 0)
    fleet.on_kv_batch("b", batch(0, BlockStored(make_request("", "pqr").chain((BLOCK, None)))), 0)

    decision = fleet.decide(make_request("1", "pqr", model=name), 1)

    assert chosen(decision) == "b"
    assert decision.matched_tokens == 3 * BLOCK // 4 - 1


def test_an_adapter_has_blocks_of_its_own() -> None:
    fleet = make_fleet()
    for replica_id in "ab":
        fleet.on_report(with_events(replica_id, aliases=["sql"], adapters=["sql"]), 0, 0)
    of_model = make_request("", "pqr").chain((BLOCK, None))
    of_adapter = make_request("", "pqr", model="sql").chain((BLOCK, None))
    fleet.on_kv_batch("a", batch(0, BlockStored(of_model)), 0)
    fleet.on_kv_batch("b", batch(0, BlockStored(of_adapter)), 0)

    decision = fleet.decide(make_request("1", "pqr", model="sql"), 1)

    assert chosen(decision) == "b"


def test_time_passes_for_many_replicas_in_slices_between_which_the_fleet_may_change() -> None:
    whole, sliced = (make_fleet(slow_start_s=0, breaker_failures=1) for _ in range(2))
    for fleet in (whole, sliced):
        for number in range(300):
            fleet.add_static(f"http://{number}:1", f"r{number}", now_us=0)
        for number in range(299):
            lease_of(fleet.decide(make_request(f"{number}"), 0)).end(
                AttemptOutcome.TRANSPORT_ERROR, 0
            )
    num_slices = 0

    whole.tick(60 * SECOND)
    for _ in sliced.ticking(60 * SECOND):
        num_slices += 1
        if num_slices == 2:
            whole.remove("r299")
            sliced.remove("r299")
        lease = lease_of(sliced.decide(make_request("between"), 60 * SECOND))
        lease.end(AttemptOutcome.CANCELLED, 60 * SECOND)

    assert num_slices > 300 // REPLICAS_PER_SLICE
    states = [[(s.view.replica_id, s.breaker) for s in fleet.views()] for fleet in (whole, sliced)]
    assert states[0] == states[1]
    assert {breaker for _, breaker in states[1]} <= {BreakerState.CLOSED, BreakerState.HALF_OPEN}
