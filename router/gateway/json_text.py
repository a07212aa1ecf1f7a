"""Says whether a text in JSON can be whole, as its pieces come: by its strings and brackets alone.

For bodies whose end is that of their connection: the FIN of a process that was killed in the
middle looks like that of one which has finished.
"""


class JsonText:
    """Takes a text piece by piece; holds none of it."""

    __slots__ = ("_backslash", "_depth", "_in_string", "is_empty")

    def __init__(self) -> None:
        self._depth = 0  # brackets without an end
        self._in_string = 0  # 1: the next byte belongs to one
        self._backslash = b""  # at the end of the last piece: what it escapes is yet to come
        self.is_empty = True  # nothing but space has come

    def take(self, piece: bytes) -> None:
        """Take the next bytes."""
        plain = (self._backslash + piece).replace(rb"\\", b"").replace(rb"\"", b"")
        self._backslash = b"\\" if plain.endswith(b"\\") else b""
        self.is_empty = self.is_empty and not plain.strip()
        parts = plain.split(b'"')  # by turns between strings and within them
        between = b"".join(parts[self._in_string :: 2])
        self._in_string = (self._in_string + len(parts) - 1) % 2
        self._depth += between.count(b"{") + between.count(b"[")
        self._depth -= between.count(b"}") + between.count(b"]")

    @property
    def is_among_fields(self) -> bool:
        """Whether the next byte belongs to the object that is the text, and to none within it."""
        return self._depth == 1 and not self._in_string

    @property
    def is_open(self) -> bool:
        """Whether a string or a bracket has no end yet."""
        return self._in_string == 1 or self._depth != 0
