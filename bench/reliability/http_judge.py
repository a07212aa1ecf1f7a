"""The laws of the HTTP fuzz: what must hold of any case, whatever bytes were in it.

nothing raises           no callback, no task; no request is answered with the gateway's own bug
nothing is left          no exchange, lease, queued request, buffered byte, connection, task or
                         timer; every request that began has ended, once
no one is misread        what reaches a replica is one of the client's requests as h11 reads
                         them: method, target, headers, body; what h11 refuses is refused
no answer is another's   the k-th answer to a client belongs to its k-th request; a whole one
                         is a replica's whole answer, unchanged, or the gateway's own
no answer lies           where the replica's answer broke, a client can see that its own did
"""

from collections.abc import Iterator

from bench.reliability.http_oracle import (
    Answer,
    Headers,
    Request,
    Unread,
    read_answers,
    read_requests,
)
from bench.reliability.http_world import Attempt, ClientEnd, World

_NOT_PASSED_ON = frozenset(
    {b"connection", b"keep-alive", b"te", b"trailer", b"upgrade", b"http2-settings", b"host"}
    | {b"proxy-authenticate", b"proxy-authorization", b"proxy-connection", b"content-length"}
    | {b"transfer-encoding", b"x-warmroute-replica", b"x-warmroute-matched-tokens", b"expect"}
    | {b"x-request-id", b"x-session-id", b"x-warmroute-timeout-ms", b"via"}
)
_CORS = (b"access-control-allow-", b"access-control-expose-", b"vary")
_OWN_EVENT = b'data: {"error":'
_OWN_BUG = b"internal_error"


def broken_laws(world: World) -> Iterator[str]:
    """Yield a sentence for each law that a case, which has been run, has broken."""
    yield from world.loop.faults
    for end in world.replica_ends:
        yield from end.faults
    yield from _left_behind(world)
    sent: list[Request] = []
    for client in world.clients:
        requests, unread = read_requests(client.sent)
        sent += requests
        yield from _of_client(world, client, requests, unread)
    if not world.resumes:
        yield from _misread(world, sent)


def _left_behind(world: World) -> Iterator[str]:
    stats, pools = world.plane.stats(), world.plane.context.pools
    held = {
        "exchanges": stats.exchanges,
        "queued requests": stats.queued,
        "buffered bytes": stats.buffered_bytes,
        "clients": stats.clients,
        "idle replica connections": pools.num_idle,
        "leases": len(world.fleet.ledger),
        "tasks": sum(not task.done() for task in world.loop.tasks),
        "connections": sum(not transport.is_lost for transport in world.transports),
        "timers beside the sweep": world.loop.num_timers - 1,
        "requests begun and not ended": world.tally.num_started - len(world.tally.ended),
    }
    yield from (f"{number} {what} left" for what, number in held.items() if number)
    world.fleet.check()


def _of_client(
    world: World, client: ClientEnd, requests: list[Request], unread: Unread
) -> Iterator[str]:
    ended_in_order = not (client.has_reset or client.sock.closes_with_reset)
    methods = [request.method for request in requests]
    answers, junk = read_answers(client.got, methods, has_ended=ended_in_order)
    if junk.why not in ("", "unfinished"):
        yield f"the client cannot read what it got: {junk.why}: {junk.data!r}"
    for index, answer in enumerate(answers):
        if _OWN_BUG in answer.body:
            yield f"the gateway met a fault of its own: {answer.body!r}"
        relayed = answer.header(b"x-warmroute-replica") is not None
        if index >= len(requests):
            if relayed or answer.status < 400 or index > len(requests):
                yield (
                    f"answer {index} ({answer.status}) to what h11 does not read as a request "
                    f"({unread.why}): {unread.data[:200]!r}"
                )
        elif relayed and not world.resumes:
            yield from _of_relayed(world, requests[index], answer)


def _of_relayed(world: World, request: Request, answer: Answer) -> Iterator[str]:
    mine = [each for each in world.attempts if _is_same(each.request, request)]
    if not mine:
        yield f"relayed an answer to a request that no replica got as it was sent: {request}"
    elif not any(_is_relayed_from(attempt, answer) for attempt in mine):
        sent = [attempt.sent for attempt in mine]
        yield f"the client got {answer}, which is none of {sent}"


def _misread(world: World, sent: list[Request]) -> Iterator[str]:
    for attempt in world.attempts:
        if not any(_is_same(attempt.request, request) for request in sent):
            yield f"a replica got {attempt.request}, which no client sent by h11's reading"


def _is_same(got: Request, sent: Request) -> bool:
    return (
        (got.method, got.body) == (sent.method, sent.body)
        and got.target == _origin_form(sent.target)
        and _passed_on(got.headers) == _passed_on(sent.headers)
    )


def _origin_form(target: bytes) -> bytes:
    scheme, found, rest = target.partition(b"://")
    if not found or target.startswith(b"/") or scheme.lower() not in (b"http", b"https"):
        return target
    return b"/" + rest.partition(b"/")[2]


def _passed_on(headers: Headers) -> Headers:
    listed = [value for name, value in headers if name == b"connection"]
    names = {token.strip().lower() for value in listed for token in value.split(b",")}
    return [
        pair
        for pair in headers
        if pair[0] not in _NOT_PASSED_ON | names and not pair[0].startswith(_CORS)
    ]


def _is_relayed_from(attempt: Attempt, answer: Answer) -> bool:
    """Say whether ``answer`` is all of what the attempt brought, or visibly a part of it."""
    methods = [attempt.request.method]
    read, _ = read_answers(attempt.sent, methods, has_ended=attempt.has_ended)
    if not read or read[0].status != answer.status:
        return False
    source = read[0]
    if _passed_on(answer.headers) != _passed_on(source.headers):
        return False
    if answer.is_whole:
        return source.is_whole and source.body == answer.body
    body, _, own = answer.body.rpartition(_OWN_EVENT)
    return source.body.startswith(answer.body) or (
        own.endswith(b"}}\n\n") and source.body.startswith(body)
    )
