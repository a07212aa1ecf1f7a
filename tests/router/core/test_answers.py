"""Answers in the index: what the next turn's prompt holds of them, and what an engine says of it.

Prompts are rendered as routing renders them, so that the law is about two bodies of one client.
"""

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from contract.openai_api import PromptTokensDetails, Usage
from router.core.answers import BEGINNINGS_MAX, AnswerPlace
from router.core.belief import ANSWERS_MISSED_IN_A_ROW_MAX
from router.core.config import RoutingConfig
from router.core.fleet import FleetState
from router.core.health import AttemptOutcome
from router.core.ledger import Lease
from router.core.request import CHAT_PATH, COMPLETION_PATH, route_request
from router.core.view import RouteRequest
from tests.router.core.making import (
    BLOCK,
    MODEL,
    SECOND,
    lease_of,
    make_fleet,
    make_report,
    with_events,
)

CONFIG = RoutingConfig(index_block_bytes=BLOCK)
OK = AttemptOutcome.OK
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=40).map(lambda text: text * 20)
"""Also non-ASCII, and often longer than a block."""

Messages = list[dict[str, Any]]


def chat(messages: Messages, **fields: Any) -> RouteRequest:
    body = json.dumps({"model": MODEL, "messages": messages} | fields).encode()
    return route_request(CHAT_PATH, body, "r", CONFIG)


def completion(prompt: Any) -> RouteRequest:
    body = json.dumps({"model": MODEL, "prompt": prompt}).encode()
    return route_request(COMPLETION_PATH, body, "r", CONFIG)


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def assistant(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def sent(fleet: FleetState, request: RouteRequest, now_us: int) -> tuple[Lease, AnswerPlace | None]:
    """Return the lease, and where its answer goes on: the lease itself forgets that."""
    lease = lease_of(fleet.decide(request, now_us))
    return lease, lease.answer_place


def answered(fleet: FleetState, request: RouteRequest, text: str, now_us: int) -> None:
    """Send ``request``, end it a millisecond later, and learn what it was answered."""
    lease, place = sent(fleet, request, now_us)
    lease.end(OK, now_us + 1_000)
    assert place is not None
    place.learn(text.encode(), now_us + 2_000)


def matched_blocks(fleet: FleetState, request: RouteRequest) -> int:
    """Return how many blocks of ``request`` the replica of slot 0 is believed to hold."""
    chain = request.chain((BLOCK, None))
    return fleet.index.match(chain, [0]).get(0, 0)


@given(before=st.lists(TEXTS, min_size=1, max_size=3), answer=TEXTS, after=TEXTS)
def test_an_answer_is_learned_as_the_next_turn_of_the_chat_will_hold_it(
    before: list[str], answer: str, after: str
) -> None:
    fleet = make_fleet("a")
    turn = [user(text) for text in before]
    answered(fleet, chat(turn), answer, SECOND)

    following = chat([*turn, assistant(answer), user(after)])

    known = len(chat(turn).prompt) + len(answer.encode())
    assert following.prompt.startswith(chat(turn).prompt + answer.encode())
    assert matched_blocks(fleet, following) >= known // BLOCK
    fleet.check()


@given(prompt=TEXTS, answer=TEXTS, after=TEXTS)
def test_an_answer_is_learned_as_a_longer_completion_will_hold_it(
    prompt: str, answer: str, after: str
) -> None:
    fleet = make_fleet("a")
    first = completion(prompt or "p")
    answered(fleet, first, answer, SECOND)

    following = completion((prompt or "p") + answer + after)

    known = len((prompt or "p").encode() + answer.encode())
    assert matched_blocks(fleet, following) >= known // BLOCK
    fleet.check()


@given(question=TEXTS, begun=TEXTS, rest=TEXTS)
def test_an_answer_that_goes_on_from_a_beginning_is_one_with_it(
    question: str, begun: str, rest: str
) -> None:
    fleet = make_fleet("a")
    turn = [user(question), assistant(begun)]
    answered(fleet, chat(turn, continue_final_message=True), rest, SECOND)

    following = chat([user(question), assistant(begun + rest), user("and?")])

    known = len(chat([user(question)]).prompt) + len((begun + rest).encode())
    assert matched_blocks(fleet, following) >= known // BLOCK


def test_answers_that_no_prompt_will_hold_have_no_place() -> None:
    fleet = make_fleet("a")
    ids = completion(list(range(200)))
    headless = chat([user("x" * 600)], add_generation_prompt=False)
    calls = [assistant("x" * 600) | {"tool_calls": [{"id": "1"}]}]
    call = chat(calls, continue_final_message=True)
    parts = [{"role": "assistant", "content": [{"type": "text", "text": "x"}]}]
    in_parts = chat(parts, continue_final_message=True)
    nothing = chat([], continue_final_message=True)
    cut = chat([user("x" * 600)])
    cut.prompt = cut.prompt[:300]  # as of a body that was too long to be read whole

    places = [sent(fleet, r, SECOND)[1] for r in (ids, headless, call, in_parts, nothing, cut)]

    assert places == [None] * 6


def test_replicas_that_tell_of_their_blocks_have_no_place() -> None:
    fleet = make_fleet()
    fleet.on_report(with_events("a"), 0, SECOND)

    assert sent(fleet, chat([user("x" * 600)]), SECOND)[1] is None


def test_nothing_has_a_place_where_the_setting_is_off() -> None:
    fleet = make_fleet("a", index_answers=False)

    assert sent(fleet, chat([user("x" * 600)]), SECOND)[1] is None


def test_an_answer_from_before_a_reset_is_not_learned() -> None:
    fleet = make_fleet()
    fleet.on_report(make_report("a"), 0, SECOND)
    lease, place = sent(fleet, chat([user("x" * 600)]), SECOND)
    lease.end(OK, SECOND)
    assert place is not None

    fleet.index.clear(0)
    place.learn(b"y" * 600, SECOND)

    assert fleet.index.num_entries == 0


def test_an_answer_of_a_process_that_was_replaced_is_not_learned() -> None:
    fleet = make_fleet()
    fleet.on_report(make_report("a"), 0, SECOND)
    lease, place = sent(fleet, chat([user("x" * 600)]), SECOND)
    lease.end(OK, SECOND)
    assert place is not None

    fleet.on_report(make_report("a", incarnation="second"), 0, SECOND)
    place.learn(b"y" * 600, SECOND)

    assert fleet.index.num_entries == 0


def test_an_answer_of_a_replica_that_left_is_not_learned_of_the_one_in_its_slot() -> None:
    fleet = make_fleet("a")
    lease, place = sent(fleet, chat([user("x" * 600)]), SECOND)
    lease.end(OK, SECOND)
    assert place is not None

    fleet.remove("a")
    place.learn(b"y" * 600, SECOND)
    fleet.add_static("http://b:1", "b", MODEL, now_us=SECOND)
    place.learn(b"y" * 600, SECOND)

    assert fleet.index.num_entries == 0


def test_answers_take_room_within_the_capacity_of_the_replica() -> None:
    fleet = make_fleet()
    fleet.on_report(make_report("a", kv_blocks_total=10, block_size=BLOCK // 4), 0, SECOND)

    answered(fleet, chat([user("x" * BLOCK * 4)]), "y" * BLOCK * 4, SECOND)
    answered(fleet, chat([user("z" * BLOCK * 4)]), "y" * BLOCK * 4, 2 * SECOND)

    assert fleet.index.num_blocks(0) == 10
    fleet.check()


def test_the_end_of_an_older_answer_goes_before_its_prompt() -> None:
    fleet = make_fleet()
    fleet.on_report(make_report("a", kv_blocks_total=12, block_size=BLOCK // 4), 0, SECOND)
    old, new = [user("x" * BLOCK * 4)], [user("z" * BLOCK * 5)]
    text = "y" * BLOCK * 3

    answered(fleet, chat(old), text, SECOND)
    lease_of(fleet.decide(chat(new), 2 * SECOND))

    assert matched_blocks(fleet, chat(new)) == 5
    assert matched_blocks(fleet, chat([*old, assistant(text), user("?")])) == 7


def test_a_prompt_counts_as_used_when_its_answer_ends() -> None:
    """An engine gives the blocks of a request back when it ends, and takes the oldest of these."""
    fleet = make_fleet()
    fleet.on_report(make_report("a", kv_blocks_total=10, block_size=BLOCK // 4), 0, SECOND)
    first, second, third = ([user(letter * BLOCK * 4)] for letter in "xyz")
    lease, place = sent(fleet, chat(first), SECOND)
    answered(fleet, chat(second), "", 2 * SECOND)
    lease.end(OK, 3 * SECOND)
    assert place is not None

    place.learn(b"!" * 8, 3 * SECOND)
    lease_of(fleet.decide(chat(third), 4 * SECOND))

    assert matched_blocks(fleet, chat(first)) == 4
    assert matched_blocks(fleet, chat(second)) < 4


def usage_of(request: RouteRequest, cached_tokens: int) -> Usage:
    tokens = request.prompt_tokens
    return Usage(tokens, 10, tokens + 10, PromptTokensDetails(cached_tokens))


def two_turns(fleet: FleetState, letter: str, cached_tokens: int, now_us: int) -> None:
    """Have an answer, then ask again with it; the engine had ``cached_tokens`` of that."""
    turn = [user(letter * 2_000)]
    answered(fleet, chat(turn), letter * 2_000, now_us)
    following = chat([*turn, assistant(letter * 2_000), user("?" * 1_000)])
    lease, _ = sent(fleet, following, now_us + SECOND)
    assert lease.matched_blocks == 15
    lease.end(OK, now_us + 2 * SECOND, usage_of(following, cached_tokens))


def test_an_answer_that_is_not_found_again_says_nothing_of_what_else_is_cached() -> None:
    fleet = make_fleet("a")
    other = chat([user("o" * 2_000)])
    lease_of(fleet.decide(other, 0)).end(OK, 1_000)

    two_turns(fleet, "x", cached_tokens=500, now_us=SECOND)

    assert fleet.prediction_errors.corrections == 0
    assert fleet.prediction_errors.over_tokens > 400
    assert fleet._answers.num_beginnings == 0  # from here on it is part of a prompt
    assert matched_blocks(fleet, other) == len(other.chain((BLOCK, None)))


def test_a_prompt_that_is_gone_with_its_answer_says_that_all_older_is_gone() -> None:
    fleet = make_fleet("a")
    other = chat([user("o" * 2_000)])
    lease_of(fleet.decide(other, 0)).end(OK, 1_000)

    two_turns(fleet, "x", cached_tokens=16, now_us=SECOND)

    assert fleet.prediction_errors.corrections == 1
    assert matched_blocks(fleet, other) == 0


def test_a_replica_that_never_finds_answers_again_is_not_told_of_them() -> None:
    fleet = make_fleet("a")
    for number in range(ANSWERS_MISSED_IN_A_ROW_MAX):  # each time there was a place
        two_turns(fleet, chr(ord("a") + number), 500, (2 + 4 * number) * SECOND)

    assert sent(fleet, chat([user("x" * 600)]), 99 * SECOND)[1] is None


def test_one_answer_that_is_found_again_is_enough_to_go_on() -> None:
    fleet = make_fleet("a")
    for number in range(2 * ANSWERS_MISSED_IN_A_ROW_MAX):
        cached_tokens = 980 if number % ANSWERS_MISSED_IN_A_ROW_MAX == 1 else 500
        two_turns(fleet, chr(ord("a") + number), cached_tokens, (2 + 4 * number) * SECOND)

    assert sent(fleet, chat([user("x" * 600)]), 99 * SECOND)[1] is not None


def test_the_beginnings_of_answers_are_bounded() -> None:
    fleet = make_fleet("a")
    _, place = sent(fleet, chat([user("x" * 600)]), SECOND)
    assert place is not None

    for number in range(BEGINNINGS_MAX + 9):
        place.learn(b"%-512d" % number, SECOND)

    assert place.answers.num_beginnings == BEGINNINGS_MAX
