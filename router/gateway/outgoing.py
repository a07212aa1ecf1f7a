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

_ID_LINE = re.compile(rb"\r\nx-request-id:[^\r]*+", re.IGNORECASE)


def outgoing_head(
    head: RequestHead, address: ReplicaAddress, request_id: str, num_sent: int, body: bytes
) -> bytes:
    """Return the head for the ``num_sent``-th time that this request is sent, from 1."""
    if num_sent > 1:
        head = replace(head, fields=_ID_LINE.sub(b"", head.fields))
        own_lines = request_id_line(f"{request_id}-{num_sent}")
    else:
        own_lines = b"" if head.request_id else request_id_line(request_id)
    if head.has_body or head.method == "POST":
        own_lines += b"Content-Length: %d\r\n" % len(body)
    return request_bytes(head, address.authority, address.prefix, own_lines)


def without_id(answer: AnswerHead) -> AnswerHead:
    """Return ``answer`` without the request id that the replica had been given."""
    return replace(answer, lines=_ID_LINE.sub(b"", answer.lines), has_request_id=False)
