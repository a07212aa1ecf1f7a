"""Stop strings over any split of a text, against a search in the whole text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replicas.server.stop_strings import StopStrings

# Two letters, so that stop strings begin, fail and overlap all the time.
TEXTS = st.text("ab", max_size=30).map(str.encode)
STOPS = st.lists(st.text("ab", min_size=1, max_size=4).map(str.encode), max_size=3)


def shown(text: bytes, stops: list[bytes]) -> bytes:
    """Cut the text before the stop string that is complete first, the longest of equals."""
    for end in range(1, len(text) + 1):
        starts = [end - len(stop) for stop in stops if text[:end].endswith(stop)]
        if starts:
            return text[: min(starts)]
    return text


@given(TEXTS, STOPS)
def test_letter_by_letter_shows_what_a_search_in_the_whole_text_shows(
    text: bytes, stops: list[bytes]
) -> None:
    finder = StopStrings(stops)
    pieces = []
    for index in range(len(text)):
        pieces.append(finder.feed(text[index : index + 1]))
        if finder.found:
            break
    pieces.append(finder.rest())

    assert b"".join(pieces) == shown(text, stops)


@given(TEXTS, STOPS, st.integers(1, 5))
def test_nothing_shown_is_ever_part_of_a_stop_string(
    text: bytes, stops: list[bytes], size: int
) -> None:
    finder = StopStrings(stops)
    seen = b""
    for start in range(0, len(text), size):
        seen += finder.feed(text[start : start + size])
        assert not any(stop in seen for stop in stops)
        if finder.found:
            break


@pytest.mark.parametrize(
    ("pieces", "stops", "expected"),
    [
        ([b"bab ", b"kod "], [b"b k"], b"ba"),
        ([b"bab ", b"kod "], [b"zzz"], b"bab kod "),
        ([b"bab ", b"bac "], [b"ab bad"], b"bab bac "),
        ([b"bab "], [b"bab "], b""),
        ([b"bab ", b"kod "], [b"kod ", b"ab k"], b"b"),
    ],
)
def test_words_with_a_stop_string_over_their_border(
    pieces: list[bytes], stops: list[bytes], expected: bytes
) -> None:
    finder = StopStrings(stops)
    seen = b""
    for piece in pieces:
        if not finder.found:
            seen += finder.feed(piece)

    assert seen + finder.rest() == expected
