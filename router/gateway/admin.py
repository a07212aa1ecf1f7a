"""The admin port: metrics, what the gateway believes of each replica, and changes to the fleet.

Whoever may use this port can send all traffic elsewhere, so it listens on loopback by default, can
ask for keys of its own, adds replicas at allowed hosts only, and refuses changes that a web page of
another origin asks a browser to make.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from ipaddress import ip_address
from typing import Any, cast
from urllib.parse import urlsplit

import msgspec
from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from contract.failures import Failure, error_body
from contract.options import SettingError
from router.core.belief import Freshness
from router.core.fleet import FleetState
from router.core.request import BadRequestError, route_request
from router.core.status import ReplicaStatus
from router.gateway.api_keys import bearer_token
from router.gateway.body_reader import BodyReader
from router.gateway.body_worker import Question
from router.gateway.dashboard import PAGE, SECURITY_POLICY
from router.gateway.limits import is_read_in_turn
from router.metrics import RouterMetrics
from router.reload import LiveSettings
from router.replica_entry import is_host_allowed, read_entry
from router.store.sync import FleetSync

SMALL_BODY_BYTES_MAX = 64 * 1024
METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True)
class AdminParts:
    """What the admin app shows and changes."""

    settings: LiveSettings
    fleet: FleetState
    sync: FleetSync
    metrics: RouterMetrics
    clock_us: Callable[[], int]
    bodies: BodyReader


class AdminError(Exception):
    """A request that is refused; becomes an error body in OpenAI's shape."""

    def __init__(self, status: int, message: str, failure: Failure) -> None:
        super().__init__(message)
        self.status = status
        self.failure = failure


def admin_app(parts: AdminParts) -> web.Application:
    """Return the application; ``GET /`` lists its routes."""
    handlers = _Handlers(parts)
    app = web.Application(middlewares=[_errors_as_json, _keys_only(parts), _own_origin_only(parts)])
    app.add_routes(
        [
            web.get("/", handlers.index),
            web.get("/health", handlers.health),
            web.get("/metrics", handlers.metrics),
            web.get("/dashboard", handlers.dashboard),
            web.get("/admin/config", handlers.config),
            web.post("/admin/reload", handlers.reload),
            web.get("/admin/replicas", handlers.replicas),
            web.post("/admin/replicas", handlers.add),
            # An id may be a URL, so it may hold slashes.
            web.post("/admin/replicas/{replica_id:.+}/drain", handlers.drain),
            web.post("/admin/replicas/{replica_id:.+}/undrain", handlers.undrain),
            web.delete("/admin/replicas/{replica_id:.+}", handlers.remove),
            web.post("/admin/explain", handlers.explain),
        ]
    )
    return app


_ROUTES = {
    "GET /": "this list",
    "GET /health": "200 while the process runs, with the store's state and the replicas' number",
    "GET /metrics": "all metrics as Prometheus reads them",
    "GET /dashboard": "a page with every replica as it stands, made anew each second",
    "GET /admin/config": "every setting in force, and where it came from",
    "POST /admin/reload": "take in changed settings, all of them or none; as SIGHUP does",
    "GET /admin/replicas": "every replica and what is believed of it",
    "POST /admin/replicas": 'add one that does not report: {"url": ..., "id": ..., "model": ...}',
    "POST /admin/replicas/{id}/drain": "give it nothing new",
    "POST /admin/replicas/{id}/undrain": "take it back",
    "DELETE /admin/replicas/{id}": "forget it; what runs there is not touched",
    "POST /admin/explain?path=...": "how a request with this body would be routed; nothing is sent",
}


class _Handlers:
    """One method for each route."""

    def __init__(self, parts: AdminParts) -> None:
        self._parts = parts
        self._fleet = parts.fleet

    async def index(self, _: web.Request) -> web.Response:
        return _json({"routes": _ROUTES})

    async def health(self, _: web.Request) -> web.Response:
        statuses = self._fleet.views()
        return _json(
            {
                "status": "ok",
                "store": self._parts.sync.state.value,
                "replicas": len(statuses),
                "eligible_replicas": sum(status.standing is None for status in statuses),
            }
        )

    async def metrics(self, _: web.Request) -> web.Response:
        text = await self._parts.metrics.render_in_turns()
        return web.Response(body=text, headers={"Content-Type": METRICS_TYPE})

    async def dashboard(self, _: web.Request) -> web.Response:
        headers = {"Content-Security-Policy": SECURITY_POLICY, "X-Content-Type-Options": "nosniff"}
        return web.Response(text=PAGE, content_type="text/html", headers=headers)

    async def config(self, _: web.Request) -> web.Response:
        settings = self._parts.settings
        rows = [asdict(row) for row in settings.now.config.effective()]
        return _json({"generation": settings.generation, "settings": rows})

    async def reload(self, _: web.Request) -> web.Response:
        settings = self._parts.settings
        try:
            changed = await settings.reload()
        except SettingError as error:
            message = f"settings stay as they were: {error}"
            raise AdminError(400, message, Failure.INVALID_REQUEST) from error
        return _json({"generation": settings.generation, "changed": changed})

    async def replicas(self, _: web.Request) -> web.Response:
        statuses = [_status(status) for status in self._fleet.views()]
        return _json({"replicas": statuses, "store": self._parts.sync.state.value})

    async def add(self, request: web.Request) -> web.Response:
        try:
            entry = read_entry(await _json_body(request))
        except SettingError as error:
            raise AdminError(400, str(error), Failure.INVALID_REQUEST) from error
        replica_id = entry.replica_id or entry.url
        statuses = self._fleet.views()
        known = _find(statuses, replica_id)
        if known is not None and _reports(known):
            message = f"replica {replica_id!r} is known by its own reports; it cannot be replaced"
            raise AdminError(409, message, Failure.INVALID_REQUEST)
        config = self._parts.settings.now.config
        hosts = config.admin.replica_hosts_allowed
        hosts += tuple(urlsplit(status.view.url).hostname or "" for status in statuses)
        if not is_host_allowed(entry.url, hosts):
            message = "no replica may be added at this host; replica_hosts_allowed lists those"
            raise AdminError(403, message, Failure.NOT_ALLOWED)
        if known is None and len(statuses) >= config.store.replicas_max:
            message = f"{len(statuses)} replicas are known, and replicas_max is not more"
            raise AdminError(409, message, Failure.INVALID_REQUEST)
        view = self._fleet.add_static(
            entry.url, entry.replica_id, entry.model, now_us=self._parts.clock_us()
        )
        is_new = all(status.view is not view for status in statuses)
        status = _find(self._fleet.views(), view.replica_id)
        assert status is not None
        return _json(_status(status), 201 if is_new else 200)

    async def remove(self, request: web.Request) -> web.Response:
        status = self._named(request)
        if _reports(status):
            message = "it reports and would be back at once; drain it, or stop the replica"
            raise AdminError(409, message, Failure.INVALID_REQUEST)
        self._fleet.remove(status.view.replica_id)
        return _json({"removed": status.view.replica_id})

    async def drain(self, request: web.Request) -> web.Response:
        return self._set_draining(request, True)

    async def undrain(self, request: web.Request) -> web.Response:
        return self._set_draining(request, False)

    async def explain(self, request: web.Request) -> web.Response:
        config = self._parts.settings.now.config
        path = request.query.get("path", "/v1/chat/completions")
        request_id = request.headers.get("x-request-id", "explain")
        session_key = request.headers.get(config.gateway.session_header)
        tenant = request.headers.get(config.gateway.tenant_header, "")
        body = await _body(request, config.gateway.max_body_bytes)
        question = Question(path, session_key, tenant, "", len(body))
        try:
            if is_read_in_turn(body, config.gateway):
                route = route_request(path, body, "", config.routing, session_key, tenant)
            else:
                route = await self._parts.bodies.read(
                    question, body, config.gateway.body_reading_timeout_s, lambda: False
                )
        except BadRequestError as error:
            raise AdminError(error.failure.kind.status, error.message, error.failure) from error
        route.request_id = request_id
        return _json(self._fleet.explain(route))

    def _set_draining(self, request: web.Request, draining: bool) -> web.Response:
        replica_id = self._named(request).view.replica_id
        self._fleet.drain(replica_id, draining)
        status = _find(self._fleet.views(), replica_id)
        assert status is not None
        return _json(_status(status))

    def _named(self, request: web.Request) -> ReplicaStatus:
        replica_id = request.match_info["replica_id"]
        statuses = self._fleet.views()
        status = _find(statuses, replica_id)
        if status is None:
            known = ", ".join(sorted(s.view.replica_id for s in statuses)[:20]) or "none"
            message = f"no replica {replica_id[:200]!r}; known: {known}"
            raise AdminError(404, message, Failure.NOT_FOUND)
        return status


def _reports(status: ReplicaStatus) -> bool:
    """Say whether it would be back by its own word: what cannot be decoded brings nobody back."""
    return status.report is not None and status.freshness is not Freshness.DEAD


def _find(statuses: list[ReplicaStatus], replica_id: str) -> ReplicaStatus | None:
    return next((status for status in statuses if status.view.replica_id == replica_id), None)


def _status(status: ReplicaStatus) -> dict[str, Any]:
    """Return every belief; what is not known is null."""
    view, report = status.view, status.report
    return {
        "replica_id": view.replica_id,
        "url": view.url,
        "model": view.model,
        "standing": "eligible" if status.standing is None else status.standing.value,
        "draining": status.is_draining,
        "recovering": status.is_recovering,
        "breaker": status.breaker.value,
        "freshness": status.freshness.value,
        "static": status.is_static,
        "mismatch": status.mismatch,
        "own_requests": view.own_requests,
        "own_ahead_tokens": view.own_ahead_tokens,
        "foreign_requests": view.foreign_requests,
        "foreign_ahead_tokens": view.foreign_ahead_tokens,
        "kv_usage": view.kv_usage,
        "prefill_tokens_per_s": view.prefill_tokens_per_s,
        "prefill_slowdown": view.prefill_slowdown,
        "decode_slowdown": view.decode_slowdown,
        "token_us": view.token_us,
        "believed_blocks": status.believed_blocks,
        "report_age_s": None if status.report_age_us is None else status.report_age_us / 1e6,
        "report": None if report is None else msgspec.to_builtins(report),
    }


def _json(value: Any, status: int = 200) -> web.Response:
    return web.Response(body=_encode(value), status=status, content_type="application/json")


async def _json_body(request: web.Request) -> Any:
    try:
        return msgspec.json.decode(await _body(request, SMALL_BODY_BYTES_MAX))
    except (msgspec.DecodeError, RecursionError) as error:
        message = f"the body is not JSON: {error}"
        raise AdminError(400, message, Failure.INVALID_JSON) from error


async def _body(request: web.Request, bytes_max: int) -> bytes:
    """Return a body of at most so many bytes. aiohttp's own way to read it copies it once more."""
    body = bytearray()
    async for piece in request.content.iter_any():
        body += piece
        if len(body) > bytes_max:
            message = f"the body has more than {bytes_max} bytes"
            raise AdminError(413, message, Failure.BODY_TOO_LARGE)
    return cast(bytes, body)  # nobody changes it any more


_OPEN = ("/health", "/dashboard")  # the page itself shows nothing: it asks for a key


def _keys_only(parts: AdminParts) -> Middleware:
    """Refuse whoever has no key, where there are keys. Probes of the process's health need none."""

    @web.middleware
    async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
        keys = parts.settings.now.admin_keys
        if keys is not None and request.path not in _OPEN:
            offered = (
                bearer_token(request.headers.get("Authorization", "").encode()),
                request.headers.get("x-api-key", "").encode(),
            )
            if not keys.allow(key for key in offered if key):
                parts.metrics.admin_key_refused()
                message = "this port needs a key: 'Authorization: Bearer KEY'"
                raise AdminError(401, message, Failure.INVALID_API_KEY)
        return await handler(request)

    return check


def _own_origin_only(parts: AdminParts) -> Middleware:
    """Refuse a change that a page of another origin makes a browser send (CSRF).

    Without keys the origin must be an address: whoever owns a name can let it lead here.
    """

    @web.middleware
    async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
        origin = request.headers.get("Origin")
        if origin is not None and request.method not in ("GET", "HEAD"):
            place = urlsplit(origin)
            has_keys = parts.settings.now.admin_keys is not None
            if place.netloc != request.host or not (has_keys or _is_address(place.hostname or "")):
                message = "changes from another origin are refused; by a name, those without a key"
                raise AdminError(403, message, Failure.NOT_ALLOWED)
        return await handler(request)

    return check


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return host == "localhost"
    return True


@web.middleware
async def _errors_as_json(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Answer what is refused here, or by aiohttp's router, in OpenAI's error shape."""
    try:
        return await handler(request)
    except AdminError as error:
        return _error(error.status, str(error), error.failure)
    except web.HTTPNotFound:
        return _error(404, "no such route; GET / lists them", Failure.NOT_FOUND)
    except web.HTTPMethodNotAllowed as error:
        allowed = ", ".join(sorted(error.allowed_methods))
        message = f"{error.method[:20]} is not one of {allowed}"
        response = _error(405, message, Failure.METHOD_NOT_ALLOWED)
        response.headers["Allow"] = allowed
        return response
    except web.HTTPRequestEntityTooLarge:
        return _error(413, "the body is too large", Failure.BODY_TOO_LARGE)


def _error(status: int, message: str, failure: Failure) -> web.Response:
    body = error_body(failure, message)
    return web.Response(body=body, status=status, content_type="application/json")
