"""What h11 reads in the bytes of one connection: the second opinion on every message."""

from dataclasses import dataclass

import h11

EVENT_BYTES_MAX = 1 << 20
_AFTER_ALL = (h11.NEED_DATA, h11.PAUSED)

Headers = list[tuple[bytes, bytes]]


@dataclass(frozen=True)
class Request:
    """A whole request as h11 has it."""

    method: bytes
    target: bytes
    headers: Headers
    body: bytes


@dataclass(frozen=True)
class Answer:
    """An answer as h11 has it, whole or not."""

    status: int
    headers: Headers
    body: bytes
    is_whole: bool

    def header(self, name: bytes) -> bytes | None:
        """Return the first value of this name, None if there is none."""
        return next((value for key, value in self.headers if key == name), None)


@dataclass
class Unread:
    """What is left behind the messages, and why no message was read there (empty: no bytes)."""

    data: bytes
    why: str


def read_requests(data: bytes) -> tuple[list[Request], Unread]:
    """Return all whole requests that a client has sent, up to the first that is none."""
    requests: list[Request] = []
    while data:
        while data.startswith(b"\r\n"):  # RFC 9112, 2.2; h11 leaves it to its caller
            data = data[2:]
        connection = h11.Connection(h11.SERVER, EVENT_BYTES_MAX)
        try:
            request = _read_request(connection, data)
        except h11.RemoteProtocolError as error:
            return requests, Unread(data, str(error))
        if request is None:
            return requests, Unread(data, "unfinished" if data else "")
        requests.append(request)
        data = connection.trailing_data[0]
    return requests, Unread(b"", "")


def _read_request(connection: h11.Connection, data: bytes) -> Request | None:
    if not data:
        return None
    connection.receive_data(data)
    head: h11.Request | None = None
    body = b""
    while True:
        event = connection.next_event()
        if isinstance(event, h11.Request):
            head = event
        elif isinstance(event, h11.Data):
            body += bytes(event.data)
        elif isinstance(event, h11.EndOfMessage):
            assert head is not None
            return Request(bytes(head.method), bytes(head.target), _pairs(head.headers), body)
        elif event in _AFTER_ALL:
            return None


def read_answers(
    data: bytes, methods: list[bytes], *, has_ended: bool
) -> tuple[list[Answer], Unread]:
    """Return the answers to requests of these methods; the last one may not be whole.

    ``has_ended``: the connection was closed in order behind ``data``. More answers than methods
    are read as such to GET.
    """
    answers: list[Answer] = []
    while data:
        method = methods[len(answers)] if len(answers) < len(methods) else b"GET"
        connection = h11.Connection(h11.CLIENT, EVENT_BYTES_MAX)
        headers = [(b"host", b"a")]
        connection.send(h11.Request(method=method, target=b"/", headers=headers))
        connection.send(h11.EndOfMessage())
        connection.receive_data(data)
        answer, why = _read_answer(connection, has_ended=has_ended)
        if answer is not None:
            answers.append(answer)
        if answer is None or not answer.is_whole:
            return answers, Unread(data, why)
        rest = connection.trailing_data[0]
        assert len(rest) < len(data)
        data = rest
    return answers, Unread(b"", "")


def _read_answer(connection: h11.Connection, *, has_ended: bool) -> tuple[Answer | None, str]:
    head: h11.Response | None = None
    body, why, is_whole = b"", "unfinished", False
    is_at_end = False
    while not is_whole:
        try:
            event = connection.next_event()
        except h11.RemoteProtocolError as error:
            # At the end it is only that there should have been more.
            why = why if is_at_end else str(error)
            break
        if isinstance(event, h11.Response):
            head = event
        elif isinstance(event, h11.Data):
            body += bytes(event.data)
        elif isinstance(event, h11.EndOfMessage):
            is_whole = True
        elif event is h11.NEED_DATA and has_ended and not is_at_end:
            is_at_end = True
            connection.receive_data(b"")
        elif event in _AFTER_ALL or isinstance(event, h11.ConnectionClosed):
            break
    if head is None:
        return None, why
    return Answer(head.status_code, _pairs(head.headers), body, is_whole), why


def _pairs(headers: "h11._headers.Headers") -> Headers:
    return [(bytes(name), bytes(value)) for name, value in headers]
