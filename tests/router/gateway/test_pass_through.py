"""What a client sends is what the replica gets, and the other way round, byte for byte."""

import gzip

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from router.core.reason import Outcome
from tests.router.gateway.running import gateway_of
from tests.router.gateway.scripted_replica import ScriptedReplica, Turn, answering
from tests.router.gateway.wire import (
    DONE,
    LAST_CHUNK,
    STREAM_HEAD,
    chat,
    chunk,
    completion,
    event,
    get,
    ok,
    post,
)

ODD_BODY = (
    b'{ "model":"m","messages":[{"role":"user","content":"caf\\u00e9 \xc3\xa9"}],'
    b'"big":9007199254740993123, "f":0.10000000000000001,"t":1e-7,   "chat_template_kwargs":'
    b'{"x":[1,2,{"y":null}]}}'
)
UNICODE = event("北京🙂é")


def cut(data: bytes, cuts: list[int]) -> list[bytes]:
    """Cut ``data`` at positions modulo its length."""
    ends = sorted({cut % len(data) for cut in cuts} | {len(data)})
    return [data[start:end] for start, end in zip([0, *ends], ends, strict=False)]


async def test_a_body_goes_through_unchanged_in_both_directions() -> None:
    answer_body = b'{"a":"\\u00e9" ,  "usage":null}'
    async with (
        ScriptedReplica(answering(ok(answer_body))) as replica,
        gateway_of(replica) as gateway,
    ):
        answer = await gateway.ask(post(ODD_BODY))

    assert (answer.status, answer.body) == (200, answer_body)
    assert replica.requests[0].body == ODD_BODY
    assert answer.value("content-length") == str(len(answer_body))


async def test_a_stream_goes_through_with_its_chunks() -> None:
    pieces = [chunk(event(f"t{i}")) for i in range(5)] + [chunk(DONE), LAST_CHUNK]

    async def script(turn: Turn) -> None:
        await turn.send_pieces(STREAM_HEAD, *pieces)

    async with ScriptedReplica(script) as replica, gateway_of(replica) as gateway:
        answer = await gateway.chat(stream=True)
        record = await gateway.record()

    assert answer.raw == b"".join(pieces)
    assert answer.value("content-type") == "text/event-stream; charset=utf-8"
    assert answer.is_whole
    assert record.outcome is Outcome.COMPLETE


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    request_cuts=st.lists(st.integers(0, 5000), max_size=6),
    answer_cuts=st.lists(st.integers(0, 5000), max_size=12),
    is_stream=st.booleans(),
)
async def test_any_cut_of_the_bytes_gives_the_same_answer(
    request_cuts: list[int], answer_cuts: list[int], is_stream: bool
) -> None:
    body = b"".join(map(chunk, (UNICODE, UNICODE, DONE))) + LAST_CHUNK
    sent = STREAM_HEAD + body if is_stream else ok(completion("é"))
    request = post(chat("é", stream=is_stream))

    async def script(turn: Turn) -> None:
        await turn.send_pieces(*cut(sent, answer_cuts))

    async with ScriptedReplica(script) as replica, gateway_of(replica) as gateway:
        client = await gateway.connect()
        for piece in cut(request, request_cuts):
            await client.send(piece)
        answer = await client.answer()
        record = await gateway.record()

    assert replica.requests[0].body == chat("é", stream=is_stream)
    assert answer.raw == body if is_stream else completion("é")
    assert record.outcome is Outcome.COMPLETE


async def test_an_event_sent_byte_by_byte_arrives_whole() -> None:
    framed = chunk(UNICODE) + chunk(DONE) + LAST_CHUNK

    async def script(turn: Turn) -> None:
        await turn.send(STREAM_HEAD)
        await turn.send_pieces(*[framed[i : i + 1] for i in range(len(framed))])

    async with ScriptedReplica(script) as replica, gateway_of(replica) as gateway:
        answer = await gateway.chat(stream=True)

    assert answer.raw == framed
    assert answer.body == UNICODE + DONE


@pytest.mark.parametrize("size", [200 * 1024, 1024 * 1024])
async def test_one_line_of_a_stream_may_be_very_long(size: int) -> None:
    line = b"data: " + b"x" * size + b"\n\n"

    async def script(turn: Turn) -> None:
        await turn.send(STREAM_HEAD + chunk(line) + chunk(DONE) + LAST_CHUNK)

    async with ScriptedReplica(script) as replica, gateway_of(replica) as gateway:
        answer = await gateway.chat(stream=True)
        record = await gateway.record()

    assert answer.body == line + DONE
    assert record.outcome is Outcome.COMPLETE


@pytest.mark.parametrize("framing", ["length", "chunked", "close"])
async def test_a_stream_arrives_whole_however_its_replica_frames_it(framing: str) -> None:
    events = [event(f"t{i}") for i in range(10)] + [DONE]
    body = b"".join(events)
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
    heads = {
        "length": head + b"Content-Length: %d\r\n\r\n" % len(body),
        "chunked": head + b"Transfer-Encoding: chunked\r\n\r\n",
        "close": head + b"Connection: close\r\n\r\n",
    }

    async def script(turn: Turn) -> None:
        await turn.send(heads[framing])
        for piece in events:
            await turn.send(chunk(piece) if framing == "chunked" else piece)
        if framing == "chunked":
            await turn.send(LAST_CHUNK)
        elif framing == "close":
            turn.close()

    async with ScriptedReplica(script) as replica, gateway_of(replica) as gateway:
        answer = await gateway.chat(stream=True)
        record = await gateway.record()

    assert answer.body == body
    assert answer.is_whole
    framings = answer.values("content-length") + answer.values("transfer-encoding")
    assert len(framings) == 1
    assert record.outcome is Outcome.COMPLETE


async def test_each_event_is_passed_on_before_the_next_comes() -> None:
    seen: list[bytes] = []

    async with gateway_of() as gateway:
        client = await gateway.connect()

        async def script(turn: Turn) -> None:
            await turn.send(STREAM_HEAD)
            for index in range(3):
                await turn.send(chunk(event(f"t{index}")))
                while not (line := await client.line()).startswith(b"data:"):
                    pass
                seen.append(line)
            await turn.send(chunk(DONE) + LAST_CHUNK)

        async with ScriptedReplica(script) as replica:
            gateway.fleet.add_static(replica.url, "a", "m", now_us=0)
            await client.send(post(chat(stream=True), "Accept-Encoding: gzip, br"))
            record = await gateway.record()

    assert seen == [event(f"t{index}")[:-1] for index in range(3)]
    assert record.outcome is Outcome.COMPLETE


async def test_compressed_bytes_go_through_as_they_are() -> None:
    packed = gzip.compress(completion())

    async with (
        ScriptedReplica(answering(ok(packed, "Content-Encoding: gzip"))) as replica,
        gateway_of(replica) as gateway,
    ):
        answer = await gateway.chat("hi", "Accept-Encoding: gzip")

    assert answer.value("content-encoding") == "gzip"
    assert gzip.decompress(answer.body) == completion()
    assert replica.requests[0].values("accept-encoding") == ["gzip"]


async def test_headers_survive_in_both_directions_with_case_order_and_duplicates() -> None:
    answer_bytes = ok(
        *(b"{}", "X-Dup: 1", "x-DUP: 2", "Set-Cookie: a=1", "Set-Cookie: b=2", "Server: one"),
        *("Server: two", "retry-after-ms: 1500", "x-ratelimit-remaining-requests: 0"),
    )
    sent = ("X-Dup: 1", "traceparent: 00-ab-cd-01", "x-DUP: 2", "Authorization: Bearer sk-1")

    async with (
        ScriptedReplica(answering(answer_bytes)) as replica,
        gateway_of(replica) as gateway,
    ):
        answer = await gateway.chat("hi", *sent)

    upstream = [f"{name}: {value}" for name, value in replica.requests[0].headers]
    downstream = [f"{name}: {value}" for name, value in answer.headers]
    assert [line for line in upstream if line in sent] == list(sent)
    assert [line for line in downstream if line.startswith(("X-Dup", "x-DUP", "Set-", "Ser"))] == [
        *("X-Dup: 1", "x-DUP: 2", "Set-Cookie: a=1", "Set-Cookie: b=2", "Server: one"),
        "Server: two",
    ]
    assert answer.value("retry-after-ms") == "1500"
    assert answer.value("x-ratelimit-remaining-requests") == "0"


async def test_the_replica_gets_one_host_its_own_and_no_hop_by_hop_header() -> None:
    async with (
        ScriptedReplica(
            answering(ok(b"{}", "Connection: X-B", "X-B: 1", "Keep-Alive: timeout=5"))
        ) as replica,
        gateway_of(replica) as gateway,
    ):
        answer = await gateway.chat(
            *("hi", "Connection: X-Secret-Hop", "X-Secret-Hop: 1", "TE: trailers"),
            *("Upgrade: h2c", "Proxy-Authorization: Basic x", "X-Custom: 1"),
        )

    request = replica.requests[0]
    assert request.values("host") == [f"127.0.0.1:{replica.port}"]
    names = {name.lower() for name, _ in request.headers}
    assert names == {"host", "x-custom", "content-length", "x-request-id", "via"}
    assert {name.lower() for name, _ in answer.headers}.isdisjoint({"x-b", "keep-alive"})


@pytest.mark.parametrize("version", ["1.1", "1.0"])
async def test_an_answer_names_its_request_its_replica_and_the_match(version: str) -> None:
    async with (
        ScriptedReplica(answering(ok(b"{}"))) as replica,
        gateway_of(replica) as gateway,
    ):
        answer = await gateway.ask(post(chat(), version=version))

    assert answer.value("x-warmroute-replica") == "a"
    assert answer.value("x-warmroute-matched-tokens") == "0"
    assert replica.requests[0].values("x-request-id") == [answer.value("x-request-id")]


async def test_a_request_id_of_the_client_is_kept_everywhere() -> None:
    async with (
        ScriptedReplica(answering(ok(b"{}"))) as replica,
        gateway_of(replica) as gateway,
    ):
        answer = await gateway.chat("hi", "X-Request-ID: mine-7")
        record = await gateway.record()

    assert replica.requests[0].values("x-request-id") == ["mine-7"]
    assert answer.value("x-request-id") == "mine-7"
    assert record.request_id == "mine-7"


async def test_a_request_id_that_the_replica_echoes_is_not_doubled() -> None:
    async with (
        ScriptedReplica(answering(ok(b"{}", "X-Request-Id: of-the-replica"))) as replica,
        gateway_of(replica) as gateway,
    ):
        answer = await gateway.chat()

    assert answer.values("x-request-id") == ["of-the-replica"]


async def test_authorization_can_be_kept_from_the_replica() -> None:
    async with (
        ScriptedReplica(answering(ok(b"{}"))) as replica,
        gateway_of(replica, forward_authorization=False) as gateway,
    ):
        await gateway.chat("hi", "Authorization: Bearer sk-LEAK")

    assert b"sk-LEAK" not in replica.requests[0].head


@pytest.mark.parametrize("interim", [b"100 Continue", b"103 Early Hints"])
async def test_an_interim_answer_is_not_taken_for_the_answer(interim: bytes) -> None:
    first = b"HTTP/1.1 " + interim + b"\r\nLink: x\r\n\r\n"

    async def script(turn: Turn) -> None:
        await turn.send_pieces(first, first[:9], first[9:] + ok(b"{}"))

    async with ScriptedReplica(script) as replica, gateway_of(replica) as gateway:
        answer = await gateway.chat()

    assert (answer.status, answer.body) == (200, b"{}")
    assert not answer.values("link")


@pytest.mark.parametrize("framing", ["Content-Length: 5", "Transfer-Encoding: chunked"])
async def test_an_answer_to_a_head_has_no_body(framing: str) -> None:
    head = f"HTTP/1.1 200 OK\r\nX-Y: 1\r\n{framing}\r\n\r\n".encode()

    async with (
        ScriptedReplica(answering(head)) as replica,
        gateway_of(replica) as gateway,
    ):
        client = await gateway.connect()
        answers = [
            await client.ask(get("/v1/files", method="HEAD"), bodiless=True) for _ in range(2)
        ]

    assert [answer.status for answer in answers] == [200, 200]
    assert replica.num_connections == 1


@pytest.mark.parametrize("status", ["204 No Content", "304 Not Modified"])
async def test_an_answer_that_can_have_no_body_has_none(status: str) -> None:
    async with (
        ScriptedReplica(answering(f"HTTP/1.1 {status}\r\nX-Y: 1\r\n\r\n".encode())) as replica,
        gateway_of(replica) as gateway,
    ):
        client = await gateway.connect()
        answers = [await client.ask(get("/v1/files")) for _ in range(2)]

    assert [f"{answer.status}" for answer in answers] == [status[:3]] * 2
    assert replica.num_connections == 1


async def test_an_empty_body_of_known_length_ends_its_exchange() -> None:
    async with (
        ScriptedReplica(answering(ok(b""))) as replica,
        gateway_of(replica) as gateway,
    ):
        answer = await gateway.chat()

    assert (answer.status, answer.value("content-length")) == (200, "0")


@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_other_paths_of_the_api_reach_a_replica_with_their_query(method: str) -> None:
    async with (
        ScriptedReplica(answering(ok(b"{}"))) as replica,
        gateway_of(replica) as gateway,
    ):
        answer = await gateway.ask(get("/v1/files?x=1&y=%20", method=method))

    assert answer.status == 200
    assert replica.requests[0].line == f"{method} /v1/files?x=1&y=%20 HTTP/1.1"


async def test_every_proxied_path_forwards_the_same_headers() -> None:
    paths = ["/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/audio", "/tokenize"]
    sent = ("X-T: 1", "traceparent: 00-1", "Authorization: Bearer sk-1")

    async with (
        ScriptedReplica(answering(ok(b"{}"))) as replica,
        gateway_of(replica) as gateway,
    ):
        for path in paths:
            await gateway.ask(post(chat(prompt="x"), *sent, path=path))

    assert [request.target for request in replica.requests] == paths
    for request in replica.requests:
        assert [f"{name}: {value}" for name, value in request.headers if name in "X-T traceparent"]
        assert request.values("authorization") == ["Bearer sk-1"]


async def test_the_prefix_of_a_replicas_url_is_put_before_the_path() -> None:
    async with (
        ScriptedReplica(answering(ok(b"{}"))) as replica,
        gateway_of(f"{replica.url}/engine/") as gateway,
    ):
        await gateway.chat()

    assert replica.requests[0].target == "/engine/v1/chat/completions"
