"""Heads that were read before are not read again; the Content-Length is, as it alone changes."""

from collections.abc import Callable
from typing import Generic, TypeVar

MEMO_SIZE_MAX = 1024
MEMO_HEAD_BYTES_MAX = 2048
LENGTH_DIGITS_MAX = 18  # of a Content-Length; more is beyond any limit, and slow to convert

_LENGTH_NAMES = (b"\r\nContent-Length: ", b"\r\ncontent-length: ")  # as nearly all write it

H = TypeVar("H")


class HeadMemo(Generic[H]):
    """Heads that have been read, by all of their bytes but the digits of the Content-Length.

    A client's heads are alike, and so are a replica's within the second of their Date. What could
    not be read is never in it. Nobody may change a head that comes from here.
    """

    def __init__(self, parse: Callable[[bytes], tuple[H, int | None]]) -> None:
        self._parse: Callable[[bytes], tuple[H, int | None]] = parse
        self._heads: dict[tuple[bytes, bytes, bytes], H] = {}

    def get(self, head: bytes) -> tuple[H, int | None]:
        """Return what ``head`` says, and the Content-Length. Raises BadHeadError."""
        for name in _LENGTH_NAMES:
            before, found, rest = head.partition(name)
            if found:
                break
        digits, _, after = rest.partition(b"\r\n")
        key = (before, found, after)  # with the name: a head without it must be no other's key
        known = self._heads.get(key)
        if known is not None and not found:
            return known, None
        if known is not None and digits.isdigit() and len(digits) <= LENGTH_DIGITS_MAX:
            return known, int(digits)
        result, length = self._parse(head)
        # A length that was not cut out, for it is written otherwise, would be that of every body.
        if len(head) <= MEMO_HEAD_BYTES_MAX and (found or length is None):
            if len(self._heads) >= MEMO_SIZE_MAX:
                self._heads.clear()
            self._heads[key] = result
        return result, length

    def forget(self) -> None:
        """Read every head anew."""
        self._heads.clear()
