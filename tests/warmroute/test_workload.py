"""The demo's trace: shared prefixes of the recording are shared bytes, and nothing else is."""

from collections.abc import Sequence

from warmroute.demo.workload import BLOCK_TOKENS, TraceRequest, block_text, demo_trace

BLOCK_BYTES = 4 * BLOCK_TOKENS


def shared_blocks(requests: Sequence[TraceRequest]) -> int:
    """Count whole blocks that an endless cache would have held when their request came."""
    seen: set[str] = set()
    hits = 0
    for request in requests:
        prefixes = [
            request.prompt[:end] for end in range(BLOCK_BYTES, len(request.prompt) + 1, BLOCK_BYTES)
        ]
        hits += sum(prefix in seen for prefix in prefixes)
        seen.update(prefixes)
    return hits


def test_the_trace_is_the_first_ten_minutes_with_an_eighth_of_the_tokens() -> None:
    requests = demo_trace()

    assert len(requests) == 1_750
    assert requests[-1].arrival_s < 600
    assert [r.arrival_s for r in requests] == sorted(r.arrival_s for r in requests)
    assert requests[0].prompt_tokens == -(-6_758 // 8)
    assert requests[0].output_tokens == -(-500 // 8)
    assert sum(r.prompt_tokens for r in requests) == 3_061_581


def test_every_prompt_is_whole_tokens_of_four_ascii_bytes() -> None:
    for request in demo_trace(50):
        assert request.prompt.isascii()
        assert len(request.prompt) == 4 * request.prompt_tokens


def test_equal_ids_are_equal_text_and_other_ids_are_other_text() -> None:
    assert block_text(7) == block_text(7)
    assert len({block_text(hash_id) for hash_id in range(2_000)}) == 2_000
    assert len(block_text(7)) == BLOCK_BYTES


def test_prompts_share_prefixes_as_in_the_recording() -> None:
    requests = demo_trace(300)

    # The first block of the recording is in every prompt; later ones in few.
    assert {r.prompt[:BLOCK_BYTES] for r in requests} == {block_text(0)}
    assert 300 < shared_blocks(requests) < 0.4 * sum(r.prompt_tokens for r in requests) / 64
