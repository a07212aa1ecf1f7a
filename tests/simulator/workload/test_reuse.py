"""Ideal reuse, against a cache that compares the tokens themselves."""

from array import array

from hypothesis import given
from hypothesis import strategies as st

from simulator.request import Segment, SimRequest
from simulator.workload.reuse import Reuse, ideal_reuse


def request(number: int, segments: list[tuple[int, int]], output_tokens: int) -> SimRequest:
    return SimRequest(
        request_id=f"request-{number}",
        segments=tuple(Segment(segment_id, tokens) for segment_id, tokens in segments),
        output_tokens=output_tokens,
        output_id=1_000 + number % 3,
    )


def by_tokens(requests: list[SimRequest], block_size: int) -> Reuse:
    cached: set[bytes] = set()
    prompt_tokens = matched_tokens = 0
    for each in requests:
        prompt = each.tokens()
        held = prompt + array("I", [each.output_id]) * (each.output_tokens - 1)
        prompt_tokens += len(prompt)
        for end in range(block_size, len(prompt), block_size):
            if held[:end].tobytes() not in cached:
                break
            matched_tokens += block_size
        cached |= {held[:end].tobytes() for end in range(block_size, len(held) + 1, block_size)}
    return Reuse(prompt_tokens, matched_tokens)


prompts = st.lists(st.tuples(st.integers(1, 3), st.integers(1, 9)), min_size=1, max_size=5)


@given(st.lists(st.tuples(prompts, st.integers(1, 6)), max_size=8), st.integers(1, 5))
def test_reuse_is_that_of_a_cache_of_tokens(
    rows: list[tuple[list[tuple[int, int]], int]], block_size: int
) -> None:
    requests = [request(number, *row) for number, row in enumerate(rows)]

    assert ideal_reuse(requests, block_size) == by_tokens(requests, block_size)


def test_a_repeated_prompt_computes_its_last_token_again() -> None:
    reuse = ideal_reuse([request(0, [(1, 32)], 1), request(1, [(1, 32)], 1)], 16)

    assert (reuse.matched_tokens, reuse.computed_tokens, reuse.share) == (16, 48, 0.25)


def test_an_answer_is_reused_but_for_its_last_token() -> None:
    first = request(0, [(1, 16)], 17)
    second = request(1, [(1, 16), (1_000, 17), (2, 16)], 1)

    assert ideal_reuse([first, second], 16).matched_tokens == 32
    assert ideal_reuse([request(0, [(1, 16)], 16), second], 16).matched_tokens == 16


def test_nothing_is_reused_of_nothing() -> None:
    assert ideal_reuse([], 16).share == 0
