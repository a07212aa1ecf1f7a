"""Faults on the way to the routes, and the routes that list, set and clear faults.

    GET    /admin/faults          every fault, its parameters, what is set, how often each struck
    PUT    /admin/faults          {"name": {"parameter": value}} sets faults: all of them, or none
    POST   /admin/faults          the same
    DELETE /admin/faults/{name}   clears one
    DELETE /admin/faults          clears all

Each answers as GET does. A body or a name that says nothing is answered with 400.
"""

from collections.abc import Awaitable, Callable, Iterator
from dataclasses import asdict
from itertools import count
from typing import Any

import msgspec
from aiohttp import hdrs, web

from contract.failures import Failure
from contract.options import OptionRow, SettingError, option_rows
from replicas.server.fault_injector import FaultInjector
from replicas.server.fault_receivers import with_faults
from replicas.server.faults import (
    FAULTS,
    Admission503,
    ErrorStatus,
    Fault,
    Freeze,
    SlowHealth,
    build_fault,
    fault_kind,
    meaning_of,
)
from replicas.server.generation import Receiver
from replicas.server.receivers import Collector, EventStream
from replicas.server.refusal import RefusedError, json_response

PATH = "/admin/faults"
HEALTH_PATHS = frozenset({"/health", "/ping"})
GENERATING_PREFIX = "/v1/"

REQUEST_ID_HEADER = "x-request-id"

STARTING_RETRY_AFTER_S = 1

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class FaultRoutes:
    """The middleware by which faults strike requests and probes, and the admin routes."""

    def __init__(self, faults: FaultInjector) -> None:
        self._faults = faults
        # Of what came while a fault was set, where it has no id of its own.
        self._request_numbers = count()
        self._answer_numbers = count()
        self._probe_numbers = count()

    def routes(self) -> list[web.RouteDef]:
        """Return the admin routes."""
        return [
            web.get(PATH, self._list),
            web.put(PATH, self._put),
            web.post(PATH, self._put),
            web.delete(PATH, self._clear_all),
            web.delete(PATH + "/{name}", self._clear_one),
        ]

    @web.middleware
    async def middleware(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Let the faults of a request or of a probe strike before its handler runs."""
        if self._faults.any_set:
            answer = None
            if request.path in HEALTH_PATHS:
                answer = await self._strike_probe()
            elif request.method == hdrs.METH_POST and request.path.startswith(GENERATING_PREFIX):
                answer = self._strike_request(request)
            if answer is not None:
                return answer
        return await handler(request)

    def receiver(self, request: web.Request, answer: Collector | EventStream) -> Receiver:
        """Return who takes the tokens of ``request`` on their way to ``answer``."""
        transport = request.transport
        if transport is None or not self._faults.any_set:
            return answer
        return with_faults(answer, transport, self._faults, _key(request, self._answer_numbers))

    async def _strike_probe(self) -> web.Response | None:
        faults = self._faults
        slow = faults.strike(SlowHealth, str(next(self._probe_numbers)))
        if slow is not None:
            await faults.wait(SlowHealth, slow.delay_s)
        freeze = faults.get(Freeze)
        if freeze is not None and not freeze.health_answers:
            await faults.wait(Freeze, None)
        if not faults.is_ready:
            return _error(503, "this replica is starting", STARTING_RETRY_AFTER_S)
        return None

    def _strike_request(self, request: web.Request) -> web.Response | None:
        key = _key(request, self._request_numbers)
        if not self._faults.is_ready:
            raise RefusedError(Failure.REPLICA_OVERLOADED, "this replica starts; ask another one")
        if self._faults.strike(Admission503, key):
            message = "the waiting line is full, says an injected fault; ask another replica"
            raise RefusedError(Failure.REPLICA_OVERLOADED, message)
        error = self._faults.strike(ErrorStatus, key)
        if error is not None:
            return _error(error.status, "an injected fault", error.retry_after_s)
        return None

    async def _list(self, _request: web.Request) -> web.Response:
        return self._listing()

    async def _put(self, request: web.Request) -> web.Response:
        body = await request.read()
        try:
            given = msgspec.json.decode(body, type=dict[str, dict[str, Any]])
            faults = [build_fault(name, parameters) for name, parameters in given.items()]
        except msgspec.MsgspecError as error:
            message = f'the body is no JSON object {{"fault": {{"parameter": value}}}}: {error}'
            raise RefusedError(Failure.INVALID_REQUEST, message) from error
        except SettingError as error:
            raise RefusedError(Failure.INVALID_REQUEST, str(error)) from error
        self._faults.set(faults)
        return self._listing()

    async def _clear_all(self, _request: web.Request) -> web.Response:
        self._faults.clear()
        return self._listing()

    async def _clear_one(self, request: web.Request) -> web.Response:
        try:
            kind = fault_kind(request.match_info["name"])
        except SettingError as error:
            raise RefusedError(Failure.INVALID_REQUEST, str(error)) from error
        self._faults.clear([kind])
        return self._listing()

    def _listing(self) -> web.Response:
        listed = {"faults": [self._row(kind) for kind in FAULTS.values()]}
        return json_response(msgspec.json.encode(listed))

    def _row(self, kind: type[Fault]) -> dict[str, Any]:
        fault = self._faults.get(kind)
        return {
            "name": kind.name,
            "meaning": meaning_of(kind),
            "parameters": [_parameter(row) for row in option_rows(kind)],
            "active": None if fault is None else asdict(fault),
            "struck": self._faults.num_struck(kind),
        }


def _key(request: web.Request, numbers: Iterator[int]) -> str:
    return request.headers.get(REQUEST_ID_HEADER) or str(next(numbers))


def _parameter(row: OptionRow) -> dict[str, Any]:
    return {
        "name": row.name,
        "type": row.type_name,
        "default": row.default,
        "unit": row.unit,
        "meaning": row.meaning,
    }


def _error(status: int, message: str, retry_after_s: int | None) -> web.Response:
    error_type = "server_error" if status >= 500 else "invalid_request_error"
    error = {"message": message, "type": error_type, "param": None, "code": "injected_fault"}
    response = json_response(msgspec.json.encode({"error": error}), status)
    if retry_after_s is not None:
        response.headers[hdrs.RETRY_AFTER] = str(retry_after_s)
    return response
