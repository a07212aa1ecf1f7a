"""A bar on a terminal that says how much is done."""

from collections.abc import Callable
from types import TracebackType
from typing import TextIO

WIDTH = 40


class Progress:
    """Draws while it is entered, if ``stream`` is a terminal; ``total`` is asked only then."""

    def __init__(self, total: Callable[[], int], stream: TextIO) -> None:
        self._stream = stream
        self._total = max(1, total()) if stream.isatty() else None
        self._done = 0

    def __enter__(self) -> "Progress":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._total is not None:
            self._stream.write("\r\x1b[K")  # a finished bar says nothing that the table does not

    def add(self, num_ended: int) -> None:
        """Count some more."""
        self._done += num_ended
        if self._total is None:
            return
        filled = min(WIDTH, WIDTH * self._done // self._total)
        bar = "#" * filled + "." * (WIDTH - filled)
        self._stream.write(f"\r[{bar}] {self._done:,} of {self._total:,}")
        self._stream.flush()
