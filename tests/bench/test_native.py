"""The fake replica and the load client, built and run against each other.

Goal: the two programs count what really happened, since every figure of `bench` rests on them.
Method: real processes on loopback ports, small numbers, raw sockets where a misbehaving peer is
needed. Nothing here depends on how long anything takes.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import threading
import time
from collections.abc import Callable, Iterator
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path

import msgspec
import pytest

from bench.bodies import PromptGroups, chat_requests, write_bodies
from bench.fake_fleet import FakeReplica, ReplicaStats, affinity, start_replicas
from bench.load import Load, LoadResult, run_load
from bench.native import build as native_build
from bench.processes import Processes, placement

pytestmark = [
    pytest.mark.blackbox,
    pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc: apt-get install gcc"),
]

STREAM_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
CORES = placement().load
NO_REQUESTS: dict[str, object] = dict.fromkeys(ReplicaStats.__struct_fields__, 0)


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> native_build.Programs:
    return native_build.build(tmp_path_factory.mktemp("native"))


@pytest.fixture
def replica(programs: native_build.Programs, tmp_path: Path) -> Iterator[FakeReplica]:
    with Processes(tmp_path) as processes:
        yield start_replicas(processes, programs.fake_replica, 1, CORES)[0]


def post(replica: FakeReplica, body: object, path: str = "/v1/chat/completions") -> bytes:
    connection = HTTPConnection("127.0.0.1", replica.port, timeout=10)
    try:
        connection.request("POST", path, json.dumps(body))
        return connection.getresponse().read()
    finally:
        connection.close()


def bodies(tmp_path: Path, *, stream: bool, num_groups: int = 5, num_requests: int = 20) -> Path:
    path = tmp_path / "bodies"
    groups = PromptGroups(num_requests, prompt_bytes=500, stream=stream, num_groups=num_groups)
    write_bodies(path, chat_requests(groups))
    return path


def wait_for(replica: FakeReplica, condition: Callable[[ReplicaStats], bool]) -> ReplicaStats:
    """Poll the counts until `condition` holds; pytest's own time limit ends a vain wait."""
    while not condition(stats := replica.stats()):
        time.sleep(0.005)
    return stats


def serve_bytes(answer: bytes) -> tuple[socket.socket, int]:
    """Listen, and answer the first request of every connection with `answer`, then close."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection:
                connection.recv(65536)
                connection.sendall(answer)

    threading.Thread(target=serve, daemon=True).start()
    return listener, int(listener.getsockname()[1])


def load_against(programs: native_build.Programs, tmp_path: Path, answer: bytes) -> LoadResult:
    listener, port = serve_bytes(answer)
    try:
        load = Load(bodies(tmp_path, stream=True), concurrency=1, count=1)
        return run_load(programs.load_client, load, port, CORES)
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()


# ---- the fake replica


def test_an_answer_reports_what_was_cached_of_a_known_group(replica: FakeReplica) -> None:
    body = {"messages": [{"role": "user", "content": "[[g=7]] " + "word " * 100}]}

    first, second = (json.loads(post(replica, body)) for _ in range(2))

    assert first["object"] == "chat.completion"
    assert first["choices"][0]["message"]["role"] == "assistant"
    assert first["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    prompt_tokens = second["usage"]["prompt_tokens"]
    assert second["usage"]["prompt_tokens_details"]["cached_tokens"] == prompt_tokens * 75 // 100


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_a_stream_holds_the_chunks_asked_for_then_usage_then_done(
    replica: FakeReplica, path: str
) -> None:
    replica.control(chunks=5, interval_us=100)

    text = post(replica, {"stream": True, "stream_options": {"include_usage": True}}, path)

    events = text.decode().removesuffix("\n\n").split("\n\n")
    assert len(events) == 7
    assert json.loads(events[4].removeprefix("data: "))["choices"][0]["finish_reason"] == "stop"
    assert json.loads(events[5].removeprefix("data: "))["usage"]["completion_tokens"] == 5
    assert events[6] == "data: [DONE]"


def test_the_word_stream_inside_a_prompt_asks_for_no_stream(replica: FakeReplica) -> None:
    answer = post(replica, {"prompt": 'say "stream": true', "stream": False}, "/v1/completions")

    assert json.loads(answer)["object"] == "text_completion"


def test_pipelined_requests_and_chunked_bodies_are_answered_in_order(replica: FakeReplica) -> None:
    chunked = (
        b"POST /v1/completions HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"
        b'5;x=y\r\n{"a":\r\n2\r\n1}\r\n0\r\nTrailer: t\r\n\r\n'
    )
    plain = b"POST /v1/chat/completions HTTP/1.1\r\nContent-Length: 2\r\n\r\n{}"
    last = b"GET /v1/models HTTP/1.1\r\nConnection: close\r\n\r\n"

    with socket.create_connection(("127.0.0.1", replica.port), timeout=10) as peer:
        for byte in chunked[:-1]:
            peer.sendall(bytes([byte]))
        peer.sendall(chunked[-1:] + plain + last)
        answers = b"".join(iter(lambda: peer.recv(65536), b""))

    order = [answers.index(kind) for kind in (b"text_completion", b"chat.completion", b'"list"')]
    assert order == sorted(order)
    assert answers.count(b"HTTP/1.1 200 OK") == 3
    assert replica.stats().body_bytes == len('{"a":1}') + len("{}")


def test_a_client_that_leaves_is_counted_as_aborted_once(replica: FakeReplica) -> None:
    replica.control(chunks=1000, interval_us=1_000_000)
    connection = HTTPConnection("127.0.0.1", replica.port, timeout=10)
    connection.request("POST", "/v1/chat/completions", '{"stream": true}')
    answer: HTTPResponse = connection.getresponse()
    assert answer.fp.readline()
    assert replica.stats().open == 1

    answer.close()
    connection.close()

    stats = wait_for(replica, lambda stats: stats.open == 0)
    assert (stats.requests, stats.aborted, stats.done) == (1, 1, 0)


def test_a_forced_status_is_the_answer(replica: FakeReplica) -> None:
    replica.control(status=429, delay_us=1000)
    connection = HTTPConnection("127.0.0.1", replica.port, timeout=10)

    connection.request("POST", "/v1/chat/completions", '{"stream": true}')
    answer = connection.getresponse()

    assert (answer.status, answer.headers["Retry-After"]) == (429, "1")
    connection.close()


def test_what_is_due_soon_does_not_wait_for_what_is_due_late(replica: FakeReplica) -> None:
    request = b"POST /v1/completions HTTP/1.1\r\nContent-Length: 2\r\n\r\n{}"
    peers = [socket.create_connection(("127.0.0.1", replica.port), timeout=10) for _ in range(40)]
    late, soon = peers[:20], peers[20:]

    replica.control(delay_us=3_600_000_000)
    for peer in late:
        peer.sendall(request)
    wait_for(replica, lambda stats: stats.open == len(late))
    for delay_us, peer in zip((5000, 1000, 3000, 7000) * 5, soon, strict=True):
        replica.control(delay_us=delay_us)
        peer.sendall(request)

    assert all(peer.recv(65536).startswith(b"HTTP/1.1 200 OK") for peer in soon)
    assert replica.stats().open == len(late)
    for peer in peers:
        peer.close()


def test_an_unknown_setting_is_refused_with_the_known_ones(replica: FakeReplica) -> None:
    with pytest.raises(ValueError, match="unknown setting; known: chunks"):
        replica.control(chunk=1)


def test_more_streams_than_fit_one_turn_all_end(
    programs: native_build.Programs, replica: FakeReplica, tmp_path: Path
) -> None:
    replica.control(chunks=4, interval_us=500)
    load = Load(bodies(tmp_path, stream=True), concurrency=300, count=900)

    result = run_load(programs.load_client, load, replica.port, CORES)

    assert (result.ok, result.failed, result.chunks) == (900, 0, 3600)
    assert replica.stats().events == 3600


# ---- the load client


def test_both_sides_count_the_same_requests_and_groups(
    programs: native_build.Programs, replica: FakeReplica, tmp_path: Path
) -> None:
    load = Load(bodies(tmp_path, stream=False), concurrency=3, count=40)

    result = run_load(programs.load_client, load, replica.port, CORES)

    stats = replica.stats()
    assert (result.ok, result.failed, result.statuses) == (40, 0, {"200": 40})
    assert (stats.requests, stats.done, sum(stats.groups)) == (40, 40, 40)
    assert len(stats.groups) == 5
    assert affinity([stats]) == 1.0
    assert result.latency_us is not None
    assert result.latency_us.count == 40


def test_an_open_loop_sends_as_many_as_its_rate_says(
    programs: native_build.Programs, replica: FakeReplica, tmp_path: Path
) -> None:
    load = Load(bodies(tmp_path, stream=False), concurrency=4, seconds=0.1, rate=500)

    result = run_load(programs.load_client, load, replica.port, CORES)

    assert (result.ok, result.failed) == (50, 0)


def test_a_stream_without_its_end_is_truncated(
    programs: native_build.Programs, replica: FakeReplica, tmp_path: Path
) -> None:
    replica.control(chunks=10, cut_after=3)
    load = Load(bodies(tmp_path, stream=True), concurrency=2, count=6)

    result = run_load(programs.load_client, load, replica.port, CORES)

    assert (result.ok, result.truncated, result.chunks) == (0, 6, 18)
    stats = replica.stats()
    assert (stats.cut, stats.aborted) == (6, 0)


@pytest.mark.parametrize(
    ("answer", "outcome"),
    [
        (b"", "errors"),
        (STREAM_HEAD, "errors"),
        (STREAM_HEAD + b"\r\ndata: [DONE]\n\n", "ok"),
        (STREAM_HEAD + b"\r\ndata: {}\n\n", "truncated"),
        (STREAM_HEAD + b"Content-Length: 99\r\n\r\ndata: [DONE]\n\n", "truncated"),
        (
            STREAM_HEAD + b"Transfer-Encoding: chunked\r\n\r\ne\r\ndata: [DONE]\n\n\r\n",
            "truncated",
        ),
        (
            STREAM_HEAD + b"Transfer-Encoding: chunked\r\n\r\ne\r\ndata: [DONE]\n\n\r\n0\r\n\r\n",
            "ok",
        ),
        (STREAM_HEAD + b"Transfer-Encoding: chunked\r\n\r\ndata: [DONE]\n\n", "truncated"),
        (
            STREAM_HEAD + b"Transfer-Encoding: chunked\r\n\r\ne\r\ndata: [DONE]\n\n\r\nz\r\n",
            "truncated",
        ),
        (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", "ok"),
        (b"HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n", "bad"),
    ],
    ids=[
        "closed at once",
        "closed within the head",
        "ended by closing",
        "no [DONE]",
        "shorter than its length",
        "no last chunk",
        "complete",
        "not chunked at all",
        "no longer chunked after [DONE]",
        "interim answer first",
        "another status",
    ],
)
def test_an_answer_counts_as_one_outcome(
    programs: native_build.Programs, tmp_path: Path, answer: bytes, outcome: str
) -> None:
    result = load_against(programs, tmp_path, answer)

    counts = {
        name: getattr(result, name) for name in ("ok", "bad", "truncated", "errors", "unfinished")
    }
    assert {name for name, count in counts.items() if count} == {outcome}
    assert counts[outcome] == 1


def test_a_refused_connection_counts_as_an_error(
    programs: native_build.Programs, tmp_path: Path
) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        load = Load(bodies(tmp_path, stream=False), concurrency=1, count=3)

        result = run_load(programs.load_client, load, unused.getsockname()[1], CORES)

    assert (result.ok, result.errors) == (0, 3)


# ---- prompt groups


def test_affinity_is_the_share_of_requests_on_the_main_replica_of_their_group() -> None:
    fleet = [
        msgspec.json.decode(
            msgspec.json.encode(NO_REQUESTS | {"groups": groups}), type=ReplicaStats
        )
        for groups in ([9, 1], [1, 0, 4])
    ]

    assert affinity(fleet) == (9 + 1 + 4) / 15
    assert affinity([]) is None


def test_equal_prompt_groups_give_equal_bytes_and_share_their_beginning() -> None:
    groups = PromptGroups(num_requests=30, prompt_bytes=400, stream=True, num_groups=3)

    requests = list(chat_requests(groups))

    assert requests == list(chat_requests(groups))
    decoded = [json.loads(request) for request in requests]
    assert len({body["messages"][0]["content"] for body in decoded}) == 3
    assert len({body["messages"][1]["content"] for body in decoded}) == 30
    assert all(body["stream"] for body in decoded)


# ---- building


def test_a_program_is_built_again_only_when_a_source_is_newer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sources = tmp_path / "sources"
    shutil.copytree(native_build.SOURCE_DIRECTORY, sources)
    monkeypatch.setattr(native_build, "SOURCE_DIRECTORY", sources)

    def built_at() -> int:
        return native_build.build(tmp_path).load_client.stat().st_mtime_ns

    first = built_at()
    unchanged = built_at()
    os.utime(sources / "wire.h")
    changed = built_at()

    assert first == unchanged < changed


def test_a_missing_compiler_is_named_with_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "no-such-compiler")

    with pytest.raises(native_build.CompilerMissingError, match="apt-get install gcc"):
        native_build.compiler()
