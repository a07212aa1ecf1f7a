"""Whether a text in JSON is whole: what was cut is open, however its pieces came."""

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.gateway.json_text import JsonText

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text('ab"\\{}[]\u00e9\U0001f642\n'),
    lambda inner: st.lists(inner) | st.dictionaries(st.text('k"\\}{'), inner),
    max_leaves=8,
)
OBJECTS = st.lists(VALUES) | st.dictionaries(st.text('k"\\]['), VALUES)


def text_of(data: bytes, cuts: list[int]) -> JsonText:
    text = JsonText()
    places = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    for start, end in pairwise(places):
        text.take(data[start:end])
    return text


@given(VALUES, st.booleans(), st.lists(st.integers(0, 2**20), max_size=8))
def test_what_is_whole_is_never_open(value: object, is_ascii: bool, cuts: list[int]) -> None:
    data = json.dumps(value, ensure_ascii=is_ascii, indent=1).encode() + b"\n"

    text = text_of(data, cuts)

    assert not text.is_open
    assert not text.is_empty


@given(OBJECTS, st.integers(1, 2**20), st.lists(st.integers(0, 2**20), max_size=8))
def test_an_object_or_a_list_that_was_cut_is_open(value: object, at: int, cuts: list[int]) -> None:
    data = json.dumps(value).encode()

    assert text_of(data[: at % len(data) or 1], cuts).is_open


@pytest.mark.parametrize("data", [b"", b" \r\n\t"])
def test_space_alone_is_no_text(data: bytes) -> None:
    assert text_of(data, [1]).is_empty
