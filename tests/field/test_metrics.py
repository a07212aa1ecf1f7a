"""Metrics: one outcome per request, no series that a client can make, and no sum that goes back."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tests.field.harness import (
    Fake,
    FieldGateway,
    gateway_of,
    refusing,
    resetting,
    saying,
    silent,
    streaming,
    tok,
)
from tests.field.redis_side import reporting
from tests.field.simulated import simulated, stats_of
from tests.redis_server import RedisServer
from tests.router.gateway.scripted_replica import Script, Turn
from tests.router.gateway.wire import DONE, USAGE, chat, completion, event, get, ok, post
from tests.waiting import until


def scrape_size(gateway: FieldGateway) -> int:
    """Return the bytes of a scrape."""
    return len(gateway.metrics.render())


@pytest.mark.parametrize("where", ["model", "user", "path_model"])
async def test_met_01_names_that_clients_invent_make_no_series(where: str) -> None:
    async with Fake() as a, gateway_of(a) as gateway:
        client = await gateway.connect()

        async def ask(name: str) -> None:
            if where == "path_model":
                await client.ask(get(f"/v1/models/{name}"))
            else:
                named: dict[str, Any] = {where: name}
                await client.ask(post(chat(**named)))

        for warm_up in ("m", "x", "y"):
            await ask(warm_up)
        before, size = gateway.num_series(), scrape_size(gateway)
        for index in range(500):
            await ask(f"junk-{index}")
        await gateway.rests()

        assert gateway.num_series() - before <= 5
        assert scrape_size(gateway) < 1.1 * size


async def test_met_01_a_replicas_error_makes_no_series_of_the_name() -> None:
    async with Fake(refusing("404 Not Found")) as a, gateway_of(a) as gateway:
        for index in range(50):
            await gateway.ask(post(chat(user=f"junk-{index}"), path=f"/v1/junk-{index}"))
        await gateway.rests()

        assert "junk" not in gateway.metrics.render().decode()


async def test_met_02_what_a_scanner_sends_makes_no_series() -> None:
    async with Fake() as a, gateway_of(a) as gateway:

        async def scan(index: int) -> None:
            method = ("GET", "POST", "HEAD", "FOO", "PROPFIND", "TRACE")[index % 6]
            lines = [f"User-Agent: scanner-{index}", f"X-Forwarded-For: 10.0.0.{index}"]
            request = get(f"/wp-{index}/admin.php?{index}", *lines, method=method)
            client = await gateway.connect()
            await client.ask(request.replace(b"gateway.example", b"h%d" % index), bodiless=True)
            client.close()

        for index in range(12):
            await scan(index)
        before = gateway.num_series()
        for index in range(200):
            await scan(index)
        await gateway.rests()

        assert gateway.num_series() - before <= 5
        assert "wp-" not in gateway.metrics.render().decode()


async def test_met_04_a_scrape_is_complete_and_never_goes_back() -> None:
    async with Fake() as a, gateway_of(a) as gateway:
        seen: list[float] = []
        for _ in range(10):
            for _ in range(10):
                await gateway.chat()
            text = (await gateway.admin("GET", "/metrics")).body.decode()
            lines = [line for line in text.splitlines() if not line.startswith("#")]
            names = [line.rpartition(" ")[0] for line in lines]
            assert len(names) == len(set(names))
            seen.append(
                sum(
                    float(line.rpartition(" ")[2])
                    for line in lines
                    if line.startswith("warmroute_requests_total{")
                )
            )

    assert seen == sorted(seen)
    assert seen[-1] == 100


@pytest.mark.parametrize("policy", ["prefix_load", "min_ttft"])
async def test_met_06_what_a_replica_does_not_tell_is_unknown_and_not_zero(
    policy: str, redis_server: RedisServer
) -> None:
    async with Fake() as a, Fake(replica_id="b") as b, reporting(redis_server, a, b) as say:
        say.say(a, running_requests=None, waiting_requests=None, kv_blocks_used=None)
        say.say(b, running_requests=0, kv_blocks_total=100, kv_blocks_used=50)
        async with gateway_of(redis_url=redis_server.url, policy=policy) as gateway:
            await gateway.knows("a", "b")
            await until(lambda: gateway.status_of("b").view.kv_usage == 0.5)
            await until(lambda: "does not report" in gateway.log.getvalue(), "it is warned of")
            assert gateway.status_of("a").view.kv_usage is None
            assert not gateway.samples("warmroute_replica_kv_usage_ratio", replica="a")
            for index in range(20):
                assert (await gateway.chat(f"{index} " * 100)).status == 200
            warnings = [line for line in gateway.logged() if "does not report" in line["message"]]

    assert 5 <= len(a.asked) <= 15
    assert [line["level"] for line in warnings] == ["warning"]


async def test_met_07_recomputing_what_was_preempted_counts_as_no_hit() -> None:
    async with simulated(kv_blocks=60, fixed_decode_ms=0.1) as s, gateway_of(s.url) as gateway:
        answers = await asyncio.gather(
            *(
                gateway.chat(f"{index:04d} unlike " * 10, max_tokens=150, ignore_eos=True)
                for index in range(30)
            )
        )
        stats = stats_of(s)
        await gateway.rests()
        cached = gateway.count("warmroute_cached_tokens_total")

    assert {answer.status for answer in answers} == {200}
    assert stats.preemptions_total > 20
    assert stats.cached_tokens_total <= 0.01 * stats.prompt_tokens_total
    assert cached <= 0.01 * stats.prompt_tokens_total


ODD_USAGES: list[Any] = [
    USAGE | {"completion_tokens": -5},
    USAGE | {"prompt_tokens": -1},
    USAGE | {"prompt_tokens_details": {"cached_tokens": 11}},
    USAGE | {"total_tokens": "13"},
    USAGE | {"completion_tokens": 1e20},
    USAGE | {"prompt_tokens": True},
    {"prompt_tokens": {}},
    [],
    "many",
]


@pytest.mark.parametrize("usage", [*ODD_USAGES, None], ids=repr)
@pytest.mark.parametrize("stream", [False, True])
async def test_met_09_a_usage_that_cannot_be_spoils_nothing(usage: Any, stream: bool) -> None:
    body = completion(usage=usage)
    last = event("", finish="stop", usage=usage)
    play = streaming(tok(1), last, DONE)

    async def plain(turn: Turn) -> None:
        await turn.send(ok(body))

    async with Fake(play if stream else plain) as a, gateway_of(a) as gateway:
        answer = await gateway.chat(stream=stream)
        await gateway.rests()
        counted = gateway.samples("warmroute_completion_tokens_total")

        assert gateway.outcomes() == ["complete"]
        assert gateway.count("warmroute_odd_usage_total") <= 1
        assert (await gateway.admin("GET", "/metrics")).status == 200

    assert answer.body == (tok(1) + last + DONE if stream else body)
    assert all(0 <= count < 100 for count in counted)


async def cut_short(turn: Turn) -> None:
    """Begin an answer and reset the connection."""
    if b'"stream": true' in turn.request.body:
        await streaming(tok(1), ends=False)(turn)
    else:
        await turn.send(ok(b"x" * 100)[:-50])
    await asyncio.sleep(0.02)  # a reset overtakes what the kernel has not yet delivered
    turn.reset()


ENDS: dict[str, tuple[Script, str]] = {
    "500": (refusing("500 No"), "replica_error"),
    "400": (refusing("400 No"), "replica_error"),
    "429": (refusing("429 No"), "replica_error"),
    "reset_before_head": (resetting, "refused"),
    "reset_within": (cut_short, "broken"),
    "timeout": (silent, "refused"),
    "client_left": (silent, "client_left"),
    "ok": (saying("a"), "complete"),
}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("end", ENDS)
async def test_met_10_every_request_has_one_outcome(end: str, stream: bool) -> None:
    play, outcome = ENDS[end]
    limits = {"first_byte_timeout_s": 0.05, "answer_timeout_s": 0.05} if end == "timeout" else {}
    async with Fake(play) as a, gateway_of(a, **limits) as gateway:
        client = await gateway.connect()
        await client.send(post(chat(stream=stream)))
        if end == "client_left":
            await a.is_asked()
            client.close()
        else:
            await client.answer()
        await gateway.rests()

        check_one_end(gateway, outcome)


async def test_met_10_a_refused_connection_has_one_outcome() -> None:
    async with gateway_of("http://127.0.0.1:9") as gateway:
        await gateway.chat()
        await gateway.rests()

        check_one_end(gateway, "refused")


LOCAL: dict[str, Callable[[FieldGateway], Awaitable[object]]] = {
    "not_json": lambda gateway: gateway.ask(post(b"{")),
    "no_such_path": lambda gateway: gateway.ask(get("/nothing")),
    "unknown_model": lambda gateway: gateway.chat(model="nope"),
    "too_large": lambda gateway: gateway.ask(post(b"x" * 2000)),
    "not_http": lambda gateway: gateway.ask(b"\x16\x03\x01\r\n\r\n"),
}


@pytest.mark.parametrize("what", LOCAL)
async def test_met_10_a_refusal_of_the_gateway_has_one_outcome(what: str) -> None:
    async with Fake() as a, gateway_of(a, max_body_bytes=1000) as gateway:
        await LOCAL[what](gateway)
        await gateway.rests()

        check_one_end(gateway, "refused")


def check_one_end(gateway: FieldGateway, outcome: str) -> None:
    """Assert that one request has been counted, with this outcome."""
    assert gateway.outcomes() == [outcome]
    assert gateway.count("warmroute_requests_total") == 1
    assert gateway.count("warmroute_requests_total", outcome=outcome) == 1
    assert gateway.count("warmroute_e2e_seconds_count") == 1
    assert gateway.count("warmroute_in_flight_requests") == 0


async def test_met_12_replicas_that_left_leave_no_series() -> None:
    async with Fake() as a, gateway_of(a) as gateway:
        await gateway.chat()
        before = gateway.num_series()
        for index in range(100):
            entry = {"url": f"{a.url}", "id": f"gone-{index}", "model": "m"}
            assert (await gateway.admin("POST", "/admin/replicas", entry)).status == 201
            await gateway.chat()
            await gateway.chat()
            await gateway.admin("DELETE", f"/admin/replicas/gone-{index}")
        await gateway.rests()

        assert gateway.num_series() - before <= 5
        assert "gone-" not in gateway.metrics.render().decode()
        shown = json.loads((await gateway.admin("GET", "/admin/replicas")).body)["replicas"]

    assert [one["replica_id"] for one in shown] == ["a"]
