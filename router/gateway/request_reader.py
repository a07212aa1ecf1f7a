"""Requests out of the bytes of one connection, however they are cut; refuses what two hops could
read apart.

After a refusal nothing more is read: where the next request would begin is then not certain.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import cast

from contract.failures import Failure
from router.gateway.chunked_body import BadChunkError, ChunkedBody
from router.gateway.config import GatewayConfig
from router.gateway.http_head import HEAD_END, BadHeadError, RequestHead, RequestHeads
from router.gateway.verdict import Refusal

COPIED_BYTES_MAX = 65_536


@dataclass(slots=True)
class Request:
    """A whole request."""

    head: RequestHead
    body: bytes


class Phase(Enum):
    """What the next byte belongs to."""

    BETWEEN = "between"
    HEAD = "head"
    BODY = "body"
    OVER = "over"  # refused, or the last request of its connection


# To look a member up is a call of its own (until Python 3.12); of these there were many a request.
_BETWEEN = Phase.BETWEEN


class RequestReader:
    """Fed with bytes, it puts requests into ``ready``, and at most one Refusal, which is last.

    It reads ahead no further than ``pipelined_max`` requests; ``read_on`` goes on from there.
    ``reserve`` is asked for room for so many bytes of a body; what it has granted is in
    ``held_bytes`` until the request is complete, then in the request.
    """

    def __init__(
        self, config: GatewayConfig, heads: RequestHeads, reserve: Callable[[int], bool]
    ) -> None:
        self._config = config
        self._read = heads.read
        self._glimpse = heads.glimpse
        self._reserve = reserve
        self._rest = b""  # not yet looked at, or the beginning of a head
        self._body = bytearray()  # grows in place: pieces to join would stop all for 32 MiB
        self._missing = 0  # bytes of a body of known length
        self._chunks: ChunkedBody | None = None
        self.head: RequestHead | None = None  # of the request whose body is awaited
        self.held_bytes = 0
        self.phase = Phase.BETWEEN
        self.ready: deque[Request | Refusal] = deque()
        self.wants_continue = False  # the client waits for a 100 before it sends the body
        self.has_more = False  # than it could read in one turn; feed it nothing to go on

    @property
    def is_full(self) -> bool:
        """Whether so much waits that no more bytes should be read."""
        return self.has_more or len(self.ready) > self._config.pipelined_max

    def read_whole(self, data: bytes) -> Request | None:
        """Return the one request that ``data`` is, as nearly always; else None, and ``feed`` it."""
        if self._rest or self.ready or self.phase is not _BETWEEN:
            return None
        end = data.find(HEAD_END)
        if not 0 < end <= self._config.header_bytes_max:
            return None
        try:
            head, length = self._read(data[: end + 2])
        except BadHeadError:
            return None
        body = data[end + len(HEAD_END) :]
        size = len(body)
        if size != (length or 0) or size > self._config.max_body_bytes or head.is_chunked:
            return None
        if head.num_fields > self._config.header_count_max or (size and not self._reserve(size)):
            return None
        if not head.keep_alive:
            self.phase = Phase.OVER
        return Request(head, body)

    def feed(self, data: bytes) -> None:
        """Take the next bytes."""
        if self._rest:
            data = self._rest + data
            self._rest = b""
        self.has_more = False
        ready, ready_max = self.ready, self._config.pipelined_max
        at, size = 0, len(data)
        while at < size and len(ready) <= ready_max and self.phase is not Phase.OVER:
            read = self._read_body if self.phase is Phase.BODY else self._read_head
            following = read(data, at)
            if following is None:
                return
            at = following
            if self.has_more:
                break
        if at < size and self.phase is not Phase.OVER:
            self._rest = data[at:]

    def reconfigure(self, config: GatewayConfig) -> None:
        """Hold to these limits from the next head or body on."""
        self._config = config

    def read_on(self) -> None:
        """Look at what had to wait because the reader was full."""
        if self._rest:
            self.feed(b"")

    def give_up(self) -> None:
        """Read no more: the rest has not come in time."""
        self.phase = Phase.OVER
        self.wants_continue = self.has_more = False
        self._rest = b""

    def let_go_of_bodies(self) -> int:
        """Forget what nobody will serve, finished or not; return its bytes."""
        held = self.held_bytes
        held += sum(len(item.body) for item in self.ready if isinstance(item, Request))
        self.held_bytes = 0
        self._body = bytearray()
        self.ready.clear()
        return held

    def refuse(self, failure: Failure, message: str) -> None:
        """Put a refusal in the place of the request under way, and read no more."""
        self.give_up()
        self.ready.append(Refusal(failure, message))

    # ---- the head: these return where to go on, None if they need more bytes or have refused

    def _read_head(self, data: bytes, at: int) -> int | None:
        if self.phase is Phase.BETWEEN and data.startswith(b"\r", at):
            return self._skip_empty_line(data, at)
        end = data.find(HEAD_END, at)
        limit = self._config.header_bytes_max
        if end < 0:
            self._keep_beginning(data[at:])
            return None
        if end - at > limit:
            self._refuse_head(data[at : at + limit])
            return None
        try:
            head, length = self._read(data[at : end + 2])
        except BadHeadError as error:
            self._refuse_unread(data[at:end], Failure.BAD_HTTP, str(error))
            return None
        if head.num_fields > self._config.header_count_max:
            self._refuse_head(data[at : end + 2])
            return None
        return self._begin_body(head, length or 0, data, end + len(HEAD_END))

    def _skip_empty_line(self, data: bytes, at: int) -> int | None:
        """Skip an empty line before a request, with the robustness that RFC 9112, 2.2 asks for."""
        if data.startswith(b"\r\n", at):
            return at + 2
        if data[at:] == b"\r":
            self._rest = b"\r"
        else:
            self._keep_beginning(data[at:])
        return None

    def _keep_beginning(self, rest: bytes) -> None:
        """Keep an unfinished head, unless it can never become one."""
        self.phase = Phase.HEAD
        self._rest = rest
        if len(rest) > self._config.header_bytes_max:
            self._refuse_head(rest)
        elif not rest[:1].isupper() or rest.count(b"\n") != rest.count(b"\r\n"):
            message = "not HTTP; every line of a head must end with CR LF"
            self._refuse_unread(rest, Failure.BAD_HTTP, message)

    def _refuse_unread(self, head: bytes, failure: Failure, message: str) -> None:
        self.head = self._glimpse(head)
        self.refuse(failure, message)

    def _refuse_head(self, head: bytes) -> None:
        config = self._config
        self._refuse_unread(
            head,
            Failure.HEADERS_TOO_LARGE,
            f"the head of the request is over {config.header_bytes_max} bytes "
            f"or {config.header_count_max} headers",
        )

    # ---- the body

    def _begin_body(self, head: RequestHead, length: int, data: bytes, at: int) -> int | None:
        self.head = head
        if length > self._config.max_body_bytes:
            self._refuse_body()
            return None
        end = at + length
        if not head.is_chunked and end <= len(data):  # all of it came at once, as nearly always
            if not self._make_room(length):
                return None
            return self._complete(data[at:end], end)
        self.phase = Phase.BODY
        self._missing = length
        self._chunks = ChunkedBody(self._config.header_bytes_max) if head.is_chunked else None
        self.wants_continue = head.expects_continue and not head.is_http_1_0
        return at

    def _read_body(self, data: bytes, at: int) -> int | None:
        self.wants_continue = False
        if self._chunks is not None:
            return self._read_chunks(self._chunks, data, at)
        part = data[at : at + self._missing] if at or len(data) > self._missing else data
        if not self._hold(part):
            return None
        self._missing -= len(part)
        at += len(part)
        return at if self._missing else self._complete(self._take_body(), at)

    def _read_chunks(self, chunks: ChunkedBody, data: bytes, at: int) -> int | None:
        try:
            pieces, rest = chunks.feed(data[at:])
        except BadChunkError as error:
            self.refuse(Failure.BAD_HTTP, str(error))
            return None
        if not self._hold(b"".join(pieces)):
            return None
        at = len(data) - len(rest)
        if chunks.is_whole:
            return self._complete(self._take_body(), at)
        self.has_more = bool(rest)
        return at

    def _hold(self, part: bytes) -> bool:
        if self.held_bytes + len(part) > self._config.max_body_bytes:
            self._refuse_body()
            return False
        if not self._make_room(len(part)):
            return False
        self.held_bytes += len(part)
        self._body += part
        return True

    def _make_room(self, size: int) -> bool:
        if size and not self._reserve(size):
            message = "the gateway holds as many bytes of requests as it may; try again later"
            self.refuse(Failure.OVERLOADED, message)
            return False
        return True

    def _take_body(self) -> bytes:
        body, self._body = self._body, bytearray()
        self.held_bytes = 0  # from here on the request holds them
        # As nobody changes it, it is as good as bytes; those of 32 MiB would be a long copy.
        return cast(bytes, body) if len(body) > COPIED_BYTES_MAX else bytes(body)

    def _complete(self, body: bytes, at: int) -> int:
        head = self.head
        assert head is not None
        self.head = None
        self.phase = Phase.BETWEEN if head.keep_alive else Phase.OVER
        self.ready.append(Request(head, body))
        return at

    def _refuse_body(self) -> None:
        limit = self._config.max_body_bytes
        self.refuse(Failure.BODY_TOO_LARGE, f"the body of the request is over {limit} bytes")
