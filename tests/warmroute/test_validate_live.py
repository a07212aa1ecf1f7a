"""That the simulator is given the requests that the live fleet is given."""

from collections.abc import Sequence
from itertools import takewhile

from warmroute.demo.workload import demo_trace
from warmroute.simulate.validate_live import BATCH_S, FLEET, as_simulated, spread

REQUESTS = demo_trace(150)
BLOCK_TOKENS = 16  # of the replicas


def words(text: str) -> list[str]:
    """Return a prompt's tokens, of four characters each."""
    return [text[start : start + 4] for start in range(0, len(text), 4)]


def common(one: Sequence[object], other: Sequence[object]) -> int:
    """Return how many whole blocks two prompts share from their beginning."""
    pairs = zip(one, other, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs)) // BLOCK_TOKENS


def test_simulated_prompts_share_the_blocks_that_the_texts_share() -> None:
    simulated = as_simulated(REQUESTS)

    some = range(0, 150, 7)
    for a in some:
        for b in some:
            texts = common(words(REQUESTS[a].prompt), words(REQUESTS[b].prompt))
            assert common(simulated[a].tokens(), simulated[b].tokens()) == texts


def test_simulated_requests_have_the_lengths_and_times_of_the_live_ones() -> None:
    for one, other in zip(as_simulated(REQUESTS), REQUESTS, strict=True):
        assert one.request_id == other.request_id
        assert one.prompt_tokens == other.prompt_tokens
        assert one.output_tokens == other.output_tokens
        assert one.arrival_us == round(other.arrival_s / FLEET.time_compression * 1e6)


def test_spreading_moves_each_request_by_less_than_a_batch_and_keeps_them_in_order() -> None:
    moved = spread(REQUESTS)

    before = {request.request_id: request.arrival_s for request in REQUESTS}
    assert {request.request_id for request in moved} == set(before)
    assert [each.arrival_s for each in moved] == sorted(each.arrival_s for each in moved)
    by_s = [request.arrival_s - before[request.request_id] for request in moved]
    assert 0 < min(by_s) < BATCH_S / 4
    assert BATCH_S * 3 / 4 < max(by_s) < BATCH_S
    assert moved == spread(REQUESTS)
