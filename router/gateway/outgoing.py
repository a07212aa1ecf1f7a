"""The head of a request as one attempt sends it, and of an answer as its client gets it.

Engines refuse a request whose id is that of one still running (vLLM: "already running"), and the
attempt before may still be. So the first one has the client's id, later ones `<id>-2` and so on;
the client sees its own.
"""

import re
from dataclasses import replace

from router.gateway.http_head import AnswerHead, RequestHead, request_bytes
from router.gateway.local_answer import request_id_line
from router.gateway.replica_pool import ReplicaAddress

_KEY_LINES = re.compile(rb"\r\n(?:authorization|x-api-key|api-key):[^\r]*+", re.IGNORECASE)
_ID_LINE = re.compile(rb"\r\nx-request-id:[^\r]*+", re.IGNORECASE)


def outgoing_head(
    head: RequestHead, address: ReplicaAddress, id_line: bytes, body: bytes, *, is_first: bool
) -> bytes:
    """Return the head with ``id_line``, for which the client's own has to go but the first time."""
    if not is_first:
        head = replace(head, fields=_ID_LINE.sub(b"", head.fields))
    if address.authorization:  # no key of anybody else goes there
        fields = _KEY_LINES.sub(b"", head.fields) + address.authorization
        head = replace(head, fields=fields)
    own_lines = b"" if is_first and head.request_id else id_line
    if head.method == "POST" or head.has_body:
        own_lines += b"Content-Length: %d\r\n" % len(body)
    return request_bytes(head, address.authority, address.prefix, own_lines)


def own_location(answer: AnswerHead, address: ReplicaAddress) -> AnswerHead:
    """Return ``answer`` with a path where it sends its client on to the replica itself.

    A client must not learn where that is, and may not reach it there; engines do so for a path
    with a slash too many.
    """
    place = re.escape(address.authority + address.prefix)
    to_itself = re.compile(rb"(\r\nlocation:[ \t]*+)https?://%b(?=/)" % place, re.IGNORECASE)
    return replace(answer, lines=to_itself.sub(rb"\1", answer.lines))


def later_id_line(request_id: str, num_sent: int) -> bytes:
    """Return the header that names the ``num_sent``-th attempt, from 2."""
    return request_id_line(f"{request_id}-{num_sent}")


def without_id(answer: AnswerHead) -> AnswerHead:
    """Return ``answer`` without the request id that the replica had been given."""
    return replace(answer, lines=_ID_LINE.sub(b"", answer.lines), has_request_id=False)
