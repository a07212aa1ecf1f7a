"""Finds stop strings in a text that comes piece by piece, also where they span pieces."""

from collections.abc import Sequence


class StopStrings:
    """Passes a text on until a stop string appears in it.

    What may be the beginning of a stop string is held back until the next piece decides.
    """

    def __init__(self, stops: Sequence[bytes]) -> None:
        assert all(stops)
        self._stops = stops
        self._held = b""
        self._found: bytes | None = None

    @property
    def found(self) -> bool:
        """Whether a stop string has ended the text."""
        return self._found is not None

    @property
    def found_string(self) -> str | None:
        """The stop string that ended the text, None before."""
        return None if self._found is None else self._found.decode("utf-8", "surrogatepass")

    def feed(self, piece: bytes) -> bytes:
        """Return what may be shown now; ``found`` says that the text ends there."""
        assert not self.found
        text = self._held + piece
        starts = [(start, stop) for stop in self._stops if (start := text.find(stop)) >= 0]
        if starts:
            start, self._found = min(starts)
            self._held = b""
            return text[:start]
        num_shown = len(text) - self._longest_beginning(text)
        self._held = text[num_shown:]
        return text[:num_shown]

    def rest(self) -> bytes:
        """Return what was held back, when the text ends for another reason."""
        held, self._held = self._held, b""
        return held

    def _longest_beginning(self, text: bytes) -> int:
        """Length of the longest end of ``text`` that is the beginning of a stop string."""
        longest = 0
        for stop in self._stops:
            for length in range(min(len(stop) - 1, len(text)), longest, -1):
                if text.endswith(stop[:length]):
                    longest = length
                    break
        return longest
