"""What is learned of a replica that tells of no blocks: from what runs there, and from its words.

Prompts are of whole blocks, one for each letter.
"""

from contract.openai_api import PromptTokensDetails, Usage
from router.core.answers import MEAN_OVER
from router.core.fleet import FleetState
from router.core.health import AttemptOutcome
from router.core.learning import KEPT_PER_SEND
from router.core.ledger import Lease
from router.core.view import RouteRequest
from tests.router.core.making import (
    BLOCK,
    SECOND,
    lease_of,
    make_fleet,
    make_report,
    make_request,
    with_events,
)

OK = AttemptOutcome.OK
BLOCK_TOKENS = BLOCK // 4


def small_fleet(num_blocks: int) -> FleetState:
    """Return a fleet of one replica that learns, with room for so many blocks."""
    fleet = make_fleet()
    fleet.on_report(make_report("a", kv_blocks_total=num_blocks, block_size=BLOCK_TOKENS), 0, 0)
    return fleet


def send(fleet: FleetState, text: str, now_us: int) -> Lease:
    return lease_of(fleet.decide(make_request(text, text), now_us))


def make_answerable() -> RouteRequest:
    """Return a request with an empty prompt, whose answer can be learned."""
    request = make_request("?")
    request.prompt, request.answer_at = b"????", 0
    return request


def known(fleet: FleetState, text: str) -> int:
    """Return how many blocks of a prompt are believed to be there."""
    return fleet.index.match(make_request("", text).chain((BLOCK, None)), [0]).get(0, 0)


def test_a_prompt_that_runs_is_kept_however_many_come_and_go() -> None:
    fleet = small_fleet(8)
    runs = send(fleet, "abcd", SECOND)

    for number in range(20):
        send(fleet, chr(ord("A") + number) + "wxyz", (2 + number) * SECOND).end(OK, 99 * SECOND)

    assert known(fleet, "abcd") >= 3  # it gives way to what was sent last, and comes back
    assert runs.is_open
    fleet.check()


def test_a_prompt_that_has_ended_goes() -> None:
    fleet = small_fleet(8)
    send(fleet, "abcd", SECOND).end(OK, SECOND)

    for number in range(20):
        send(fleet, chr(ord("A") + number) + "wxyz", (2 + number) * SECOND).end(OK, 99 * SECOND)

    assert known(fleet, "abcd") == 0


def test_all_that_run_take_their_turn() -> None:
    fleet = small_fleet(20)
    running = ["abc", "def", "ghi", "jkl"]
    for text in running:
        send(fleet, text, SECOND)

    for number in range(40):
        send(fleet, chr(0x41 + number) + "wxyz", (2 + number) * SECOND).end(OK, 99 * SECOND)

    assert len(running) > KEPT_PER_SEND
    assert [known(fleet, text) for text in running] == [3, 3, 3, 3]


def test_with_room_nothing_is_used_again() -> None:
    fleet = small_fleet(100)
    runs = send(fleet, "abc", SECOND)

    send(fleet, "def", 5 * SECOND)
    fleet.index.forget_older(0, 4 * SECOND)

    assert runs.is_open
    assert known(fleet, "abc") == 0


def test_ended_leases_are_not_held() -> None:
    fleet = make_fleet()
    fleet.on_report(with_events("b"), 0, 0)
    fleet.on_report(make_report("a"), 0, 0)

    for text in ("", "a", "bc"):
        for _ in range(3):
            send(fleet, text, SECOND).end(AttemptOutcome.CANCELLED, SECOND)

    held = [belief.running for belief in fleet._roster]
    assert held == [{}, {}]


def test_blocks_of_the_engine_that_are_larger_than_ours_are_no_news() -> None:
    """The engine had all of its whole blocks: 8 of our 11 fill two of them."""
    fleet = make_fleet()
    fleet.on_report(make_report("a", kv_blocks_total=100, block_size=4 * BLOCK_TOKENS), 0, 0)
    send(fleet, "z", 0).end(OK, 0)
    send(fleet, "abcdefghijk", SECOND).end(OK, SECOND)

    lease = send(fleet, "abcdefghijklmn", 2 * SECOND)
    cached = PromptTokensDetails(8 * BLOCK_TOKENS)
    lease.end(OK, 3 * SECOND, Usage(14 * BLOCK_TOKENS, 1, 0, cached))

    assert lease.matched_blocks == 11
    assert fleet.prediction_errors.corrections == 0
    assert known(fleet, "z") == 1


def test_one_block_of_the_engine_less_is_news() -> None:
    fleet = make_fleet()
    fleet.on_report(make_report("a", kv_blocks_total=100, block_size=4 * BLOCK_TOKENS), 0, 0)
    send(fleet, "z", 0).end(OK, 0)
    send(fleet, "abcdefghijk", SECOND).end(OK, SECOND)

    lease = send(fleet, "abcdefghijklmn", 2 * SECOND)
    cached = PromptTokensDetails(4 * BLOCK_TOKENS)
    lease.end(OK, 3 * SECOND, Usage(14 * BLOCK_TOKENS, 1, 0, cached))

    assert fleet.prediction_errors.corrections == 1
    assert known(fleet, "z") == 0


def test_answers_under_way_take_room() -> None:
    """Half of a mean answer for each request that runs when one more is sent."""
    fleet = small_fleet(100)
    lease = lease_of(fleet.decide(make_answerable(), SECOND))
    place = lease.answer_place
    assert place is not None
    lease.end(OK, SECOND)
    for _ in range(10 * MEAN_OVER):
        place.learn(b"y" * 8 * BLOCK, SECOND)

    for text in ("abc", "def", "ghi"):
        send(fleet, text, SECOND)

    known_blocks = fleet.index.num_blocks(0)
    assert known_blocks == 8 + 3 * 3
    assert fleet.index.room(0) in (100 - known_blocks - 8, 100 - known_blocks - 7)


def test_at_most_half_of_a_cache_is_reserved() -> None:
    fleet = make_fleet()
    fleet.on_report(make_report("a", kv_blocks_total=12, block_size=BLOCK_TOKENS), 0, 0)
    send(fleet, "abcdefghijkl", SECOND)

    fleet.index.reserve(0, 1_000)
    fleet.index.expire(2 * SECOND)

    assert fleet.index.num_blocks(0) == 6
