"""The admin port: each route, and what each wrong input is told.

A real aiohttp server on a free port over a real fleet; no data plane behind it.
"""

import json
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from hashlib import sha256
from io import BytesIO
from typing import Any

import pytest
from aiohttp import ClientResponse
from aiohttp.test_utils import TestClient, TestServer
from yarl import URL

from contract.load_report import GatewayReport
from router.config import load_router_config
from router.core.fleet import FleetState
from router.core.request import route_request
from router.gateway.admin import SMALL_BODY_BYTES_MAX, AdminParts, admin_app
from router.gateway.body_reader import BodyReader
from router.metrics import RouterMetrics
from router.reload import LiveSettings, Settings
from router.store.memory import MemoryStore
from router.store.sync import FleetSync
from tests.router.store.reports import report

REPLICA = "http://127.0.0.1:9001"
CHAT = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}


def clock_us() -> int:
    return time.monotonic_ns() // 1000


class Admin:
    """One admin app with the fleet behind it."""

    def __init__(self, table: dict[str, object] | None = None) -> None:
        environ = {"WARMROUTE_REDIS_URL": "redis://user:LEAKED@127.0.0.1:1/0"}
        flags = {"set": ["store.replicas_max=5"]}
        config = load_router_config({"admin": table or {}}, flags, environ)
        self.fleet = FleetState(config.routing, config.policy)
        own = GatewayReport("own", "first", 0, {})
        store = MemoryStore(config.store, clock_us)
        sync = FleetSync(store, self.fleet, config.store, own, clock_us)
        metrics = RouterMetrics()
        metrics.attach(self.fleet, sync)
        settings = LiveSettings(Settings.read(config))
        self.bodies = BodyReader(config.routing)
        parts = AdminParts(settings, self.fleet, sync, metrics, clock_us, self.bodies)
        self.client = TestClient(TestServer(admin_app(parts)))

    async def json(self, method: str, path: str | URL, **arguments: Any) -> Any:
        """Return the answer's JSON; it must be a success."""
        async with self.client.request(method, path, **arguments) as response:
            assert response.status < 400, await response.text()
            return await response.json()

    async def error(self, method: str, path: str | URL, **arguments: Any) -> "Refusal":
        """Return the refusal; it must be one in OpenAI's shape."""
        async with self.client.request(method, path, **arguments) as response:
            return Refusal(response, (await response.json())["error"])


class Refusal:
    def __init__(self, response: ClientResponse, error: dict[str, Any]) -> None:
        assert error.keys() == {"message", "type", "param", "code"}
        self.status = response.status
        self.headers = response.headers
        self.message: str = error["message"]
        self.code: str = error["code"]


@pytest.fixture
async def admin() -> AsyncIterator[Admin]:
    admin = Admin()
    async with admin.client:
        yield admin
    await admin.bodies.close()


async def test_the_index_lists_every_route_and_no_other(admin: Admin) -> None:
    listed = (await admin.json("GET", "/"))["routes"]

    app = admin.client.app
    assert app is not None
    real = {
        f"{route.method} {route.resource.canonical}"
        for route in app.router.routes()
        if route.resource is not None and route.method != "HEAD"
    }
    named = {path.partition("?")[0].replace("{id}", "{replica_id}") for path in listed}
    assert named == real


async def test_health_tells_of_store_and_replicas(admin: Admin) -> None:
    admin.fleet.add_static(REPLICA, "a", now_us=clock_us())
    admin.fleet.drain("a", True)

    health = await admin.json("GET", "/health")

    expected = {"status": "ok", "store": "down", "replicas": 1, "eligible_replicas": 0}
    assert health == expected


async def test_metrics_are_what_prometheus_reads(admin: Admin) -> None:
    async with admin.client.get("/metrics") as response:
        text = await response.text()

    assert response.headers["Content-Type"].startswith("text/plain; version=0.0.4")
    assert "warmroute_in_flight_requests 0.0" in text.splitlines()


async def test_the_configuration_shows_origins_and_no_secret(admin: Admin) -> None:
    settings = (await admin.json("GET", "/admin/config"))["settings"]

    by_name = {f"{row['section']}.{row['name']}": row for row in settings}
    assert by_name["store.redis_url"]["value"] == "redis://127.0.0.1:1/0"
    assert by_name["store.redis_url"]["origin"] == "environment"
    assert by_name["store.replicas_max"]["origin"] == "flag"
    assert by_name["gateway.port"]["origin"] == "default"
    assert "LEAKED" not in json.dumps(settings)


async def test_an_empty_fleet_has_no_replicas(admin: Admin) -> None:
    assert (await admin.json("GET", "/admin/replicas"))["replicas"] == []


async def test_every_belief_of_a_replica_is_shown_and_the_unknown_is_null(admin: Admin) -> None:
    now_us = clock_us()
    admin.fleet.on_report(report("a", waiting_requests=None, kv_blocks_total=10), 250_000, now_us)
    admin.fleet.add_static(REPLICA, "b", "m", now_us=now_us)

    a, b = (await admin.json("GET", "/admin/replicas"))["replicas"]

    assert (a["replica_id"], a["standing"], a["freshness"]) == ("a", "eligible", "fresh")
    assert a["report_age_s"] == pytest.approx(0.25)
    assert a["report"]["waiting_requests"] is None
    assert a["report"]["running_requests"] == 1
    assert (b["report"], b["report_age_s"], b["kv_usage"]) == (None, None, None)
    assert (b["static"], b["model"], b["url"]) == (True, "m", REPLICA)
    assert a.keys() == b.keys()


async def test_a_replica_is_added_and_can_be_chosen(admin: Admin) -> None:
    body = {"url": REPLICA, "id": "a", "model": "m"}

    async with admin.client.post("/admin/replicas", json=body) as response:
        added = await response.json()

    assert response.status == 201
    assert (added["replica_id"], added["url"], added["model"]) == ("a", REPLICA, "m")
    assert admin.fleet.models() == ["m"]


async def test_the_same_replica_again_changes_nothing(admin: Admin) -> None:
    statuses = []
    for _ in range(2):
        async with admin.client.post("/admin/replicas", json={"url": REPLICA}) as response:
            statuses.append(response.status)

    assert statuses == [201, 200]
    assert len(admin.fleet.views()) == 1


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "not JSON"),
        (b"{", "not JSON"),
        (b"[" * 20_000, "not JSON"),
        (b'"text"', "replica is a str"),
        (b"[]", "replica is a list"),
        (b"{}", "no url"),
        (b'{"url": null}', "no url"),
        (b'{"url": 5}', "url is a int"),
        (b'{"url": "ftp://127.0.0.1:1"}', "expected http://host:port"),
        (b'{"url": "http://user:LEAKED@127.0.0.1:1"}', "expected http://host:port"),
        (b'{"url": "unix:///run/docker.sock"}', "scheme 'unix', expected http://host:port"),
        (b'{"url": "http://127.0.0.1:1", "x": 1}', "known: url, id, model"),
        (b'{"url": "http://127.0.0.1:1", "id": "a\\nb"}', "cannot be printed"),
    ],
)
async def test_what_is_no_replica_is_refused_with_the_reason(
    admin: Admin, body: bytes, message: str
) -> None:
    refusal = await admin.error("POST", "/admin/replicas", data=body)

    assert refusal.status == 400
    assert message in refusal.message
    assert "LEAKED" not in refusal.message
    assert admin.fleet.views() == []


async def test_a_body_that_is_too_large_is_refused(admin: Admin) -> None:
    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(SMALL_BODY_BYTES_MAX // 1024 + 1):
            yield b" " * 1024

    sized = await admin.error("POST", "/admin/replicas", data=b" " * (SMALL_BODY_BYTES_MAX + 1))
    chunked = await admin.error("POST", "/admin/replicas", data=chunks())

    assert (sized.status, chunked.status) == (413, 413)


@pytest.mark.parametrize(
    "host",
    ["169.254.169.254", "[::ffff:169.254.169.254]", "10.0.0.1", "metadata", "127.1", "0x7f.1"],
)
async def test_a_replica_at_a_host_that_is_not_allowed_is_refused(admin: Admin, host: str) -> None:
    refusal = await admin.error("POST", "/admin/replicas", json={"url": f"http://{host}:80"})

    assert refusal.status == 403
    assert "replica_hosts_allowed" in refusal.message
    assert admin.fleet.views() == []


async def test_another_replica_at_a_known_host_needs_no_leave(admin: Admin) -> None:
    admin.fleet.on_report(report("a", url="http://10.0.0.1:80"), 0, clock_us())

    await admin.json("POST", "/admin/replicas", json={"url": "http://10.0.0.1:81"})

    assert len(admin.fleet.views()) == 2


async def test_a_port_with_keys_is_closed_to_all_others() -> None:
    admin = Admin({"admin_keys": [sha256(b"key").hexdigest()]})
    async with admin.client:
        refusals = [
            await admin.error("GET", path, headers=headers)
            for path in ("/", "/metrics", "/admin/replicas", "/none")
            for headers in ({}, {"Authorization": "Bearer other"}, {"x-api-key": "é"})
        ]
        changed = await admin.error("POST", "/admin/replicas", json={"url": REPLICA})
        health = await admin.json("GET", "/health")
        for headers in ({"Authorization": "Bearer key"}, {"x-api-key": "key"}):
            await admin.json("GET", "/admin/replicas", headers=headers)
        async with admin.client.get("/metrics", headers={"x-api-key": "key"}) as response:
            metrics = await response.text()

    assert {refusal.status for refusal in refusals} == {changed.status} == {401}
    assert f"warmroute_admin_keys_refused_total {len(refusals) + 1:.1f}" in metrics
    assert health["status"] == "ok"
    assert admin.fleet.views() == []


async def test_the_dashboard_is_one_page_that_asks_nobody_else(admin: Admin) -> None:
    async with admin.client.get("/dashboard") as response:
        page = await response.text()
        policy = response.headers["Content-Security-Policy"]

    assert response.content_type == "text/html"
    assert "default-src 'none'" in policy
    assert not re.search(r"https?://|\bsrc=|@import|innerHTML", page)
    shown = set(re.findall(r"replica\.(\w+)", page))
    admin.fleet.add_static(REPLICA, "a", "m", now_us=clock_us())
    (status,) = (await admin.json("GET", "/admin/replicas"))["replicas"]
    assert shown <= status.keys()


async def test_a_reload_that_cannot_be_says_why(admin: Admin) -> None:
    refusal = await admin.error("POST", "/admin/reload")

    assert refusal.status == 400
    assert "cannot be repeated" in refusal.message
    assert (await admin.json("GET", "/admin/config"))["generation"] == 1


async def test_a_reporting_replica_cannot_be_replaced_or_removed(admin: Admin) -> None:
    admin.fleet.on_report(report("a"), 0, clock_us())

    added = await admin.error("POST", "/admin/replicas", json={"url": REPLICA, "id": "a"})
    removed = await admin.error("DELETE", "/admin/replicas/a")

    assert (added.status, removed.status) == (409, 409)
    assert "drain it" in removed.message
    assert len(admin.fleet.views()) == 1


async def test_the_number_of_replicas_is_bounded(admin: Admin) -> None:
    for number in range(5):
        await admin.json("POST", "/admin/replicas", json={"url": f"http://127.0.0.1:{number + 1}"})

    refusal = await admin.error("POST", "/admin/replicas", json={"url": REPLICA})

    assert refusal.status == 409
    assert "replicas_max" in refusal.message


async def test_a_replica_is_drained_and_taken_back(admin: Admin) -> None:
    admin.fleet.add_static(REPLICA, "a", "m", now_us=clock_us())

    drained = await admin.json("POST", "/admin/replicas/a/drain")
    back = await admin.json("POST", "/admin/replicas/a/undrain")

    assert (drained["draining"], drained["standing"]) == (True, "draining")
    assert (back["draining"], back["standing"]) == (False, "eligible")


async def test_a_replica_is_removed(admin: Admin) -> None:
    admin.fleet.add_static(REPLICA, "a", "m", now_us=clock_us())

    removed = await admin.json("DELETE", "/admin/replicas/a")

    assert removed == {"removed": "a"}
    assert admin.fleet.views() == []


@pytest.mark.parametrize("path", [REPLICA, "http%3A%2F%2F127.0.0.1%3A9001"])
async def test_an_id_that_is_a_url_is_understood_quoted_or_not(admin: Admin, path: str) -> None:
    admin.fleet.add_static(REPLICA, now_us=clock_us())

    drained = await admin.json("POST", URL(f"/admin/replicas/{path}/drain", encoded=True))
    removed = await admin.json("DELETE", URL(f"/admin/replicas/{path}", encoded=True))

    assert drained["draining"] is True
    assert removed == {"removed": REPLICA}


Call = Callable[[Admin], Awaitable[Refusal]]


@pytest.mark.parametrize(
    "call",
    [
        lambda admin: admin.error("DELETE", "/admin/replicas/x"),
        lambda admin: admin.error("POST", "/admin/replicas/x/drain"),
        lambda admin: admin.error("POST", "/admin/replicas/x/undrain"),
    ],
)
async def test_an_unknown_replica_is_404_with_the_known(admin: Admin, call: Call) -> None:
    admin.fleet.add_static(REPLICA, "a", now_us=clock_us())

    refusal = await call(admin)

    assert refusal.status == 404
    assert refusal.message == "no replica 'x'; known: a"


async def test_an_unknown_route_is_404_and_a_wrong_method_405(admin: Admin) -> None:
    unknown = await admin.error("GET", "/admin/nothing")
    wrong = await admin.error("DELETE", "/admin/replicas")

    assert unknown.status == 404
    assert wrong.status == 405
    assert wrong.headers["Allow"] == "GET, HEAD, POST"


async def test_a_page_of_another_origin_cannot_change_the_fleet(admin: Admin) -> None:
    admin.fleet.add_static(REPLICA, "a", now_us=clock_us())
    foreign = {"Origin": "http://evil.example"}
    own = {"Origin": str(admin.client.make_url("/")).rstrip("/")}

    refusals = [
        await admin.error("POST", "/admin/replicas", json={"url": REPLICA}, headers=foreign),
        await admin.error("POST", "/admin/replicas/a/drain", headers=foreign),
        await admin.error("DELETE", "/admin/replicas/a", headers=foreign),
    ]

    assert {(refusal.status, refusal.code) for refusal in refusals} == {(403, "not_allowed")}
    assert (await admin.json("POST", "/admin/replicas/a/drain", headers=own))["draining"]


async def test_a_page_of_a_name_that_leads_here_cannot_change_the_fleet(admin: Admin) -> None:
    """DNS rebinding: to the browser the page and this port are of one origin."""
    admin.fleet.add_static(REPLICA, "a", now_us=clock_us())
    led_here = {"Origin": "http://evil.example:8081", "Host": "evil.example:8081"}

    refusal = await admin.error("DELETE", "/admin/replicas/a", headers=led_here)

    assert refusal.status == 403


async def test_an_explanation_shows_the_arithmetic_and_books_nothing(admin: Admin) -> None:
    for number in (1, 2):
        url = f"http://127.0.0.1:{number}"
        admin.fleet.add_static(url, f"r{number}", "m", now_us=clock_us())
    admin.fleet.add_static("http://127.0.0.1:3", "r3", "other", now_us=clock_us())
    headers = {"x-request-id": "mine"}

    explained = [
        await admin.json("POST", "/admin/explain", json=CHAT, headers=headers) for _ in range(2)
    ]

    assert explained[0] == explained[1]
    first = explained[0]
    assert (first["request_id"], first["policy"], first["reason"]) == (
        "mine",
        "min_ttft",
        "cold",
    )
    assert first["chosen"] in ("r1", "r2")
    assert first["ineligible"] == {"r3": "other_model"}
    assert [candidate["replica_id"] for candidate in first["candidates"]] == ["r1", "r2"]
    for candidate in first["candidates"]:
        assert candidate["matched_tokens"] + candidate["uncached_tokens"] == first["prompt_tokens"]
        assert candidate["requests"] == 0
    assert len(admin.fleet.ledger) == 0
    assert admin.fleet.index.num_entries == 0


async def test_an_explanation_is_what_the_next_decision_will_be(admin: Admin) -> None:
    for number in range(5):
        admin.fleet.add_static(f"http://127.0.0.1:{number + 1}", f"r{number}", now_us=clock_us())
    routing = load_router_config().routing
    path = "/v1/chat/completions"

    for number in range(20):
        body = json.dumps(CHAT | {"messages": [{"role": "user", "content": "word " * number * 9}]})
        headers = {"x-request-id": f"id {number}"}
        explained = await admin.json("POST", "/admin/explain", data=body, headers=headers)
        route = route_request(path, body.encode(), f"id {number}", routing)
        decision = admin.fleet.decide(route, clock_us())

        assert decision.replica is not None
        assert explained["chosen"] == decision.replica.replica_id
        assert explained["reason"] == decision.reason.value


async def test_a_long_request_is_read_by_another_process_to_be_explained(admin: Admin) -> None:
    admin.fleet.add_static(REPLICA, "a", "m", now_us=clock_us())
    body = json.dumps(CHAT | {"messages": [{"role": "user", "content": "x" * 400_000}]})
    many = b'{"model":"m","prompt":[%b]}' % b",".join([b"{}"] * 10_000)

    explained = await admin.json("POST", "/admin/explain", data=body)
    reader = admin.bodies._process
    more = await admin.json("POST", "/admin/explain?path=/v1/completions", data=many)

    route = route_request("/v1/chat/completions", body.encode(), "", load_router_config().routing)
    assert explained["prompt_tokens"] == route.prompt_tokens
    assert (explained["chosen"], more["chosen"]) == ("a", "a")
    assert reader is not None


async def test_a_body_that_no_client_may_send_is_not_explained(admin: Admin) -> None:
    refusal = await admin.error("POST", "/admin/explain", data=BytesIO(bytes(64 * 1024 * 1024 + 1)))

    assert (refusal.status, refusal.code) == (413, "body_too_large")


async def test_no_replica_is_an_explanation_too(admin: Admin) -> None:
    explained = await admin.json("POST", "/admin/explain?path=/v1/embeddings", data=b"no JSON")

    assert explained["reason"] == "no_replica"
    assert (explained["chosen"], explained["candidates"]) == (None, [])


async def test_a_request_that_cannot_be_read_cannot_be_explained(admin: Admin) -> None:
    refusal = await admin.error("POST", "/admin/explain", data=b"no JSON")

    assert refusal.status == 400
    assert "not JSON" in refusal.message
