"""The table of paths: every combination of method and path leads somewhere that was meant."""

import pytest

from contract.failures import Failure
from router.gateway.config import GatewayConfig
from router.gateway.routes import OTHER, UNMATCHED, Route, Routes

CHAT = "/v1/chat/completions"


@pytest.mark.parametrize(
    ("method", "path", "route", "label"),
    [
        ("POST", CHAT, Route.REPLICA, CHAT),
        ("POST", "/v1/embeddings", Route.REPLICA, "/v1/embeddings"),
        ("POST", "/v1/whatever", Route.REPLICA, OTHER),
        ("GET", "/v1/whatever", Route.REPLICA, OTHER),
        ("POST", "/tokenize", Route.REPLICA, "/tokenize"),
        ("GET", "/v1/models", Route.MODELS, "/v1/models"),
        ("GET", "/v1/models/a/b", Route.MODELS, OTHER),
        ("HEAD", "/health", Route.HEALTH, "/health"),
        ("GET", "/ready", Route.READY, "/ready"),
        ("OPTIONS", CHAT, Route.OPTIONS, CHAT),
        ("OPTIONS", "*", Route.OPTIONS, OTHER),
    ],
)
def test_a_path_leads_to_who_answers_it(method: str, path: str, route: Route, label: str) -> None:
    match = Routes(GatewayConfig()).match(method, path)

    assert (match.route, match.refusal, match.label) == (route, None, label)


@pytest.mark.parametrize(
    ("method", "path", "failure"),
    [
        ("GET", "/", Failure.NOT_FOUND),
        ("POST", "/tokenize/x", Failure.NOT_FOUND),
        ("POST", "/v1", Failure.NOT_FOUND),
        ("GET", "/v1/../admin", Failure.NOT_FOUND),
        ("GET", "/v1/./x", Failure.NOT_FOUND),
        ("GET", "/v1/%2e%2E/x", Failure.NOT_FOUND),
        ("GET", "/v1/a%2Fb", Failure.NOT_FOUND),
        ("GET", "/v1/a\\b", Failure.NOT_FOUND),
        ("GET", CHAT, Failure.METHOD_NOT_ALLOWED),
        ("BREW", "/v1/whatever", Failure.METHOD_NOT_ALLOWED),
        ("POST", "/ready", Failure.METHOD_NOT_ALLOWED),
    ],
)
def test_other_paths_and_methods_are_refused(method: str, path: str, failure: Failure) -> None:
    match = Routes(GatewayConfig()).match(method, path)

    assert match.refusal is not None
    assert (match.route, match.refusal.failure) == (None, failure)


def test_paths_that_clients_invent_make_no_labels_and_no_entries() -> None:
    routes = Routes(GatewayConfig())

    labels = {
        routes.match("GET", f"{prefix}{index}").label
        for index in range(1000)
        for prefix in ("/", "/v1/", "/v1/models/")
    }

    assert labels == {OTHER, UNMATCHED}
    assert not routes._known


def test_methods_that_clients_invent_make_no_entries() -> None:
    routes = Routes(GatewayConfig())

    for index in range(1000):
        for path in (CHAT, "/health", "/v1/embeddings"):
            assert routes.match(f"FOO{index}", path).refusal is not None

    assert not routes._known


ADAPTERS = ["/v1/load_lora_adapter", "/v1/unload_lora_adapter"]


@pytest.mark.parametrize(
    "path",
    [
        *ADAPTERS,
        *("/v1/load%5FlorA_adapter", "/v1//load_lora_adapter/", "/v1/x/unload_lora_adapter"),
    ],
)
def test_one_replica_is_not_made_to_differ_from_its_peers(path: str) -> None:
    match = Routes(GatewayConfig()).match("POST", path)

    assert match.refusal is not None
    assert match.refusal.failure is Failure.NOT_FOUND


def test_adapters_are_loaded_through_the_gateway_where_that_is_asked_for() -> None:
    routes = Routes(GatewayConfig(proxied_paths=("/v1/", ADAPTERS[0])))

    assert routes.match("POST", ADAPTERS[0]).route is Route.REPLICA
    assert routes.match("POST", ADAPTERS[1]).route is None


@pytest.mark.parametrize(
    "settings",
    [
        {"max_body_bytes": 0},
        {"sweep_s": -1.0},
        {"session_header": "Authorization"},
        {"session_header": "X-Api-Key"},
        {"probe_path": "health"},
        {"proxied_paths": ("v1/",)},
        {"host": "unix:"},
    ],
    ids=str,
)
def test_settings_that_cannot_work_are_refused(settings: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=next(iter(settings))):
        GatewayConfig(**settings)  # type: ignore[arg-type]
