"""Heads of requests and answers: what is read from one side, and what is passed to the other.

    Rule 1: a head is matched against the whole grammar (RFC 9112, without what it calls obsolete)
            or refused: CR LF line ends only, no folds, no space before a colon, no control bytes.
    Rule 2: the headers that matter here are cut out; all others go on as they came, byte for byte,
            in their order, their case and with their duplicates.
    Rule 3: one framing per message, one Host per request; hop-by-hop headers end here.

Regular expressions with possessive quantifiers do it in a third of the time that calls back and
forth with a parser cost, and heads that were seen before are not read again; the tests compare
each verdict with llhttp's.
"""

import re
from dataclasses import dataclass, field
from enum import Enum

from contract.failures import Failure
from router.gateway.api_keys import ApiKeys, bearer_token
from router.gateway.config import GatewayConfig
from router.gateway.cors import Cors
from router.gateway.head_memo import LENGTH_DIGITS_MAX, HeadMemo
from router.gateway.hop_by_hop import FRAMING, HOP_BY_HOP, tokens, without_listed
from router.gateway.http_grammar import (
    ANSWER_HEAD,
    FIRST_LINE,
    NAMED_FIELD,
    ODD_FIELD,
    REQUEST_HEAD,
)

HEAD_END = b"\r\n\r\n"
EXPLAIN_HEADER = b"x-warmroute-explain"
REQUEST_ID_CHARS_MAX = 128  # a longer one is forwarded, but not kept

_ANSWER_SPECIAL = re.compile(
    rb"\r\n(" + HOP_BY_HOP + FRAMING + rb"|content-type|content-encoding|x-request-id):"
)
_KEY_HEADERS = frozenset({b"authorization", b"x-api-key", b"api-key"})  # the last is Azure's


class BadHeadError(ValueError):
    """A head that must not be passed on; the message says why."""


class Framing(Enum):
    """How the end of a body is found."""

    NONE = "none"
    LENGTH = "length"
    CHUNKED = "chunked"
    CLOSE = "close"


class Media(Enum):
    """What an answer's body is, as far as a gateway cares."""

    JSON = "json"
    STREAM = "stream"
    OTHER = "other"


@dataclass(slots=True)
class RequestHead:
    """A client's head. ``fields`` are the headers to pass on, without Host and framing.

    They begin and end with a line end, so a head is first line + fields + more fields + line end.
    """

    method: str
    target: bytes  # origin form: path and query
    path: str
    fields: bytes
    is_http_1_0: bool
    num_fields: int
    has_length: bool = False
    is_chunked: bool = False
    expects_continue: bool = False
    keep_alive: bool = True
    request_id: str | None = None
    session_key: str | None = None
    tenant: str = ""
    timeout: str | None = None  # in milliseconds, as the client wrote it
    wants_explanation: bool = False
    encoding: bytes = b""  # of the body's content; empty: none
    objection: Failure | None = None  # why it is not served, whatever its path
    answer_lines: bytes = b""  # that every answer to it carries

    @property
    def has_body(self) -> bool:
        """Whether a framing was given, were it for an empty body."""
        return self.is_chunked or self.has_length


@dataclass(slots=True)
class AnswerHead:
    """A replica's head. ``lines`` are the status line and the headers to pass on.

    They hold no framing: that depends on the client.
    """

    status: int
    lines: bytes
    framing: Framing = Framing.CLOSE
    keep_alive: bool = True
    media: Media = Media.OTHER
    is_encoded: bool = False  # compressed, so nothing in it can be looked for
    has_request_id: bool = False


@dataclass(slots=True)
class _Noted:
    """What the headers of one request say that only all of them together can be judged by."""

    listed: set[bytes] = field(default_factory=set)  # by Connection
    lengths: list[int] = field(default_factory=list)
    keys: list[bytes] = field(default_factory=list)
    num_hosts: int = 0
    origin: bytes = b""
    is_preflight: bool = False
    asked_headers: bytes = b""


class RequestHeads:
    """Reads the heads of requests by the settings of one gateway.

    ``read(head)`` returns what a head says (all of it up to the end of its last header line) and
    the Content-Length, None if there is none. It raises BadHeadError for a head that is not of the
    grammar, or that two hops may read apart.
    """

    def __init__(
        self, config: GatewayConfig, keys: ApiKeys | None = None, *, own_name: str = ""
    ) -> None:
        """Read by these settings. ``own_name``: of this gateway alone, for ``Via``; empty: none."""
        self._own_name = own_name.encode()
        self._memo: HeadMemo[RequestHead] = HeadMemo(self._parse)
        self.read = self._memo.get
        self.reconfigure(config, keys)

    def reconfigure(self, config: GatewayConfig, keys: ApiKeys | None) -> None:
        """Read by these settings from now on; without ``keys`` nobody needs one."""
        self._keys = keys
        self._cors = Cors(config)
        self._session_header = config.session_header.lower().encode()
        self._tenant_header = config.tenant_header.lower().encode()
        self._timeout_header = config.timeout_header.lower().encode()
        forwards = config.forward_authorization
        self._forwards_keys = keys is None if forwards is None else forwards
        self._own_lines = b""
        if config.upstream_authorization:
            self._forwards_keys = False
            own = config.upstream_authorization.encode("latin-1", "replace")
            self._own_lines += b"Authorization: %b\r\n" % own
        names = HOP_BY_HOP + FRAMING + rb"|host|expect|x-request-id|content-encoding"
        if self._own_name:
            self._own_lines += b"Via: 1.1 %b\r\n" % self._own_name  # RFC 9110, 7.6.3
            names += rb"|via"
        if keys is not None or not self._forwards_keys:
            names += rb"|authorization|x-api-key|api-key"
        if self._cors.is_on:
            names += rb"|origin|access-control-request-method|access-control-request-headers"
        for name in filter(None, (self._session_header, self._tenant_header, self._timeout_header)):
            names += rb"|" + re.escape(name)
        self._special = re.compile(rb"\r\n(" + names + rb"):")
        self._memo.forget()

    def glimpse(self, data: bytes) -> RequestHead | None:
        """Return what the refusal of a head that cannot be read depends on, as far as it shows."""
        first = FIRST_LINE.match(data)
        if first is None:
            return None
        said = {name.lower(): value for name, value in NAMED_FIELD.findall(data)}
        target = first[2]
        path = target.partition(b"?")[0].decode("latin-1")
        head = RequestHead(first[1].decode(), target, path, b"", is_http_1_0=False, num_fields=0)
        head.request_id = said.get(b"x-request-id", b"").decode() or None
        if self._cors.is_on:
            head.answer_lines = self._cors.lines(said.get(b"origin", b""))
        return head

    def _parse(self, head: bytes) -> tuple[RequestHead, int | None]:
        match = REQUEST_HEAD.fullmatch(head)
        if match is None:
            raise BadHeadError("the head is not of HTTP/1.1; every line must end with CR LF")
        if ODD_FIELD.search(head):
            raise BadHeadError("a header is written so that another hop may read it otherwise")
        method = match[1].decode()
        target, path = _origin_form(match[2])
        block = head[match.end(3) :]
        result = RequestHead(method, target, path, b"", match[3] == b"0", block.count(b"\r\n") - 1)
        return result, self._read_fields(block, result)

    def _read_fields(self, block: bytes, head: RequestHead) -> int | None:
        """Fill in ``head`` from the lines in ``block``; return the Content-Length."""
        kept: list[bytes] = []
        noted = _Noted()
        done = 0
        for match in self._special.finditer(block.lower()):
            name, start = match[1], match.start()
            end = block.find(b"\r\n", match.end())
            value = block[match.end() : end].strip(b" \t")
            if self._goes_on(name, value, head, noted):
                continue
            kept.append(block[done:start])
            done = end
            if name == b"host":
                noted.num_hosts += 1
            elif name == b"connection":
                noted.listed |= tokens(value)
            elif name == b"content-length":
                noted.lengths.append(_length(value))
            elif name == b"transfer-encoding":
                _read_encoding(value, head)
            elif name == self._timeout_header:
                head.timeout = value.decode("latin-1")
            elif name == EXPLAIN_HEADER:
                head.wants_explanation = value == b"1"
            elif name == b"expect":
                head.expects_continue = value.lower() == b"100-continue"
                if not head.expects_continue and not head.is_http_1_0:
                    head.objection = Failure.EXPECTATION_FAILED
            elif name == b"upgrade" and b"websocket" in tokens(value):
                head.objection = Failure.UPGRADE_REFUSED  # others may be ignored (RFC 9110, 7.8)
        kept.append(block[done:])
        head.fields = without_listed(b"".join(kept), noted.listed) + self._own_lines
        listed = noted.listed
        head.keep_alive = b"keep-alive" in listed if head.is_http_1_0 else b"close" not in listed
        head.has_length = bool(noted.lengths)
        _check_unambiguous(head, noted.num_hosts, len(noted.lengths))
        self._judge(head, noted)
        return noted.lengths[0] if noted.lengths else None

    def _goes_on(self, name: bytes, value: bytes, head: RequestHead, noted: _Noted) -> bool:
        """Note a header that is looked at; say whether the replica gets it as it came."""
        if name in (b"x-request-id", self._session_header, self._tenant_header):
            self._note_name(name, value.decode("latin-1"), head)
            return bool(value)
        if name in _KEY_HEADERS:
            key = bearer_token(value) if name == b"authorization" else value
            if key:
                noted.keys.append(key)
            return self._forwards_keys
        if name == b"via":
            if self._own_name in value:
                head.objection = Failure.LOOP_DETECTED
        elif name == b"content-encoding":
            head.encoding = value.lower().removeprefix(b"identity")
        elif name == b"origin":
            noted.origin = value
        elif name == b"access-control-request-method":
            noted.is_preflight = head.method == "OPTIONS"
        elif name == b"access-control-request-headers":
            noted.asked_headers = value
        else:
            return False
        return True

    def _note_name(self, name: bytes, text: str, head: RequestHead) -> None:
        """Note who asks; an empty name names nobody."""
        if name == self._session_header:
            head.session_key = text or head.session_key
        if name == self._tenant_header:
            head.tenant = text or head.tenant
        if name == b"x-request-id":
            head.request_id = head.request_id or text[:REQUEST_ID_CHARS_MAX] or None

    def _judge(self, head: RequestHead, noted: _Noted) -> None:
        if self._cors.is_on and noted.is_preflight:
            head.answer_lines = self._cors.preflight_lines(noted.origin, noted.asked_headers)
        elif self._cors.is_on:  # whoever asks: what the engine says of origins must not go through
            head.answer_lines = self._cors.lines(noted.origin)
        if self._keys is not None and not self._keys.allow(noted.keys):
            head.objection = Failure.INVALID_API_KEY


def request_bytes(head: RequestHead, authority: bytes, prefix: bytes, own_fields: bytes) -> bytes:
    """Return the head to send to a replica. ``own_fields`` are whole lines of the gateway."""
    return b"%b %b%b HTTP/1.1\r\nHost: %b%b%b\r\n" % (
        *(head.method.encode(), prefix, head.target, authority, head.fields, own_fields),
    )


def _parse_answer_head(head: bytes) -> tuple[AnswerHead, int | None]:
    match = ANSWER_HEAD.fullmatch(head)
    if match is None:
        raise BadHeadError("it is not of the grammar of HTTP/1.1")
    answer = AnswerHead(int(match[2]), b"")
    done = match.end(2)
    kept: list[bytes] = [b"HTTP/1.1 ", match[2]]
    if not head.startswith(b" ", done):
        kept.append(b" ")  # it must be there, even before no words (RFC 9112, 4)
    listed: set[bytes] = set()
    lengths: list[int] = []
    encodings: list[bytes] = []
    for special in _ANSWER_SPECIAL.finditer(head.lower()):
        name = special[1]
        end = head.find(b"\r\n", special.end())
        value = head[special.end() : end].strip(b" \t")
        if name == b"content-type":
            answer.media = _media(value)
            continue
        if name == b"x-request-id":
            answer.has_request_id = True
            continue
        if name == b"content-encoding":
            answer.is_encoded = value.lower() != b"identity"
            continue
        kept.append(head[done : special.start()])
        done = end
        if name == b"content-length":
            lengths.append(_length(value))
        elif name == b"transfer-encoding":
            encodings.append(value.lower())
        elif name == b"connection":
            listed |= tokens(value)
    kept.append(head[done:])
    answer.lines = without_listed(b"".join(kept), listed)
    answer.framing = _framing(answer.status, len(lengths), encodings)
    keeps = b"close" not in listed if match[1] == b"1" else b"keep-alive" in listed
    answer.keep_alive = keeps and answer.framing is not Framing.CLOSE
    return answer, lengths[0] if lengths else None


_answers: HeadMemo[AnswerHead] = HeadMemo(_parse_answer_head)
read_answer_head = _answers.get
"""Returns what a replica's head says (all of it up to the end of its last header line) and the
Content-Length, None if there is none. Raises BadHeadError for a head that is not of the grammar, or
whose framing is ambiguous.
"""


def _framing(status: int, num_lengths: int, encodings: list[bytes]) -> Framing:
    if num_lengths + len(encodings) > 1:
        raise BadHeadError("its length is given more than once")
    if encodings and encodings[0] != b"chunked":
        raise BadHeadError("its Transfer-Encoding is not 'chunked'")
    if status in (204, 304):
        return Framing.NONE
    if num_lengths:
        return Framing.LENGTH
    return Framing.CHUNKED if encodings else Framing.CLOSE


def _check_unambiguous(head: RequestHead, num_hosts: int, num_lengths: int) -> None:
    if num_hosts > 1 or (num_hosts == 0 and not head.is_http_1_0):
        raise BadHeadError(f"{num_hosts} Host headers, expected one")
    if num_lengths > 1:
        raise BadHeadError("Content-Length is repeated")
    if head.is_chunked and (num_lengths or head.is_http_1_0):
        raise BadHeadError("Transfer-Encoding beside Content-Length, or in HTTP/1.0")


def _origin_form(target: bytes) -> tuple[bytes, str]:
    """Return the target without scheme and authority, and its path."""
    if not target.startswith(b"/") and target != b"*":
        scheme, found, rest = target.partition(b"://")
        if not found or scheme.lower() not in (b"http", b"https"):
            raise BadHeadError("the target is neither a path nor a URL")
        place, mark, query = rest.partition(b"?")
        target = b"/" + place.partition(b"/")[2] + mark + query
    path, _, _ = target.partition(b"?")
    return target, path.decode("latin-1")


def _read_encoding(value: bytes, head: RequestHead) -> None:
    if head.is_chunked or value.lower() != b"chunked":
        raise BadHeadError("Transfer-Encoding is repeated, or is not 'chunked'")
    head.is_chunked = True


def _length(value: bytes) -> int:
    # isdigit() of bytes is ASCII only: no sign, no underscore, no list.
    if not value.isdigit() or len(value) > LENGTH_DIGITS_MAX:
        raise BadHeadError("Content-Length is not a number of bytes")
    return int(value)


def _media(value: bytes) -> Media:
    lower = value.lower()
    if lower.startswith(b"application/json"):
        return Media.JSON
    return Media.STREAM if lower.startswith(b"text/event-stream") else Media.OTHER
