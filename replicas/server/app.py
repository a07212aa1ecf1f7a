"""The HTTP application of one replica: all its routes, and one shape for every refusal."""

import logging
from collections.abc import Awaitable, Callable

from aiohttp import web

from contract.failures import Failure
from replicas.server.adapter_routes import AdapterRoutes
from replicas.server.config import ReplicaConfig
from replicas.server.embeddings import EmbeddingRoutes
from replicas.server.fault_injector import FaultInjector
from replicas.server.fault_routes import FaultRoutes
from replicas.server.gate import Gate
from replicas.server.generation_routes import GenerationRoutes, SequenceIds
from replicas.server.metrics import ReplicaMetrics
from replicas.server.ranks import Ranks
from replicas.server.refusal import RefusedError, error_response
from replicas.server.served_models import ServedModels
from replicas.server.status_routes import StatusRoutes
from replicas.server.token_routes import TokenRoutes

log = logging.getLogger(__name__)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Api:
    """The routes of one replica over what they share."""

    def __init__(
        self, config: ReplicaConfig, ranks: Ranks, metrics: ReplicaMetrics, faults: FaultInjector
    ) -> None:
        engine = ranks.drivers[0].engine.scheduler.config
        self.models = ServedModels(config)
        self.gate = Gate(config, ranks, metrics)
        sequences = SequenceIds()
        self.faults = FaultRoutes(faults)
        self.generation = GenerationRoutes(
            config, engine, self.models, self.gate, sequences, metrics, self.faults
        )
        self.embeddings = EmbeddingRoutes(config, engine, self.models, self.gate, sequences)
        self.tokens = TokenRoutes(engine, self.models, self.gate)
        self.adapters = AdapterRoutes(self.models, self.gate)
        self.status = StatusRoutes(engine, self.models, self.gate, ranks, metrics)
        self._max_body_bytes = config.max_body_bytes
        self._metrics = metrics

    def app(self) -> web.Application:
        """Return the application; it must run with handler cancellation on."""
        middlewares = [self._errors, self.faults.middleware]
        app = web.Application(middlewares=middlewares, client_max_size=self._max_body_bytes)
        for group in (self.generation, self.embeddings, self.tokens, self.adapters, self.status):
            app.add_routes(group.routes())
        app.add_routes(self.faults.routes())
        return app

    @web.middleware
    async def _errors(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Give every refusal OpenAI's shape."""
        try:
            return await handler(request)
        except RefusedError as error:
            return self._refusal(error)
        except web.HTTPNotFound:
            message = f"no route {request.method} {request.path}"
            return self._refusal(RefusedError(Failure.NOT_FOUND, message))
        except web.HTTPMethodNotAllowed as error:
            message = f"{request.path} takes {', '.join(sorted(error.allowed_methods))}"
            return self._refusal(RefusedError(Failure.METHOD_NOT_ALLOWED, message))
        except web.HTTPRequestEntityTooLarge:
            message = f"the body has more than {self._max_body_bytes} bytes"
            return self._refusal(RefusedError(Failure.BODY_TOO_LARGE, message))
        except ConnectionResetError:
            raise  # the client left: there is nobody to answer
        except Exception:
            # Once an answer has begun, only cutting the connection shows that it is not whole.
            if request.transport is None or request.writer.output_size > 0:
                raise
            log.exception("%s %s failed", request.method, request.path)
            return self._refusal(RefusedError(Failure.INTERNAL, "the replica failed; see its log"))

    def _refusal(self, error: RefusedError) -> web.Response:
        self._metrics.count_refused(error.failure.kind.code)
        return error_response(error)
