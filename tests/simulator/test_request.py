"""A request's tokens, and the same as bytes and blocks without the tokens."""

from hypothesis import given
from hypothesis import strategies as st

from contract.blocks import TOKEN_BYTES, BlockHash, chain_blocks, chain_tokens, token_bytes
from simulator.request import Segment, SimRequest, whole_blocks

SEGMENTS = st.lists(
    st.builds(Segment, st.integers(1, 2**32 - 1), st.integers(1, 40)), min_size=1, max_size=8
)


@given(SEGMENTS, st.integers(1, 17))
def test_blocks_of_pieces_chain_as_those_of_tokens(segments: list[Segment], size: int) -> None:
    request = SimRequest(request_id="r", segments=tuple(segments), output_tokens=3, output_id=7)
    root = BlockHash(1)

    pieces = request.pieces()
    chain = chain_blocks(whole_blocks(pieces, size * TOKEN_BYTES), root)

    assert b"".join(pieces) == token_bytes(request.tokens())
    assert chain == chain_tokens(request.tokens(), size, root)


def test_an_answer_is_its_token_again_and_again() -> None:
    request = SimRequest(request_id="r", segments=(Segment(1, 1),), output_tokens=3, output_id=7)

    assert request.answer_bytes() == token_bytes([7, 7, 7])
