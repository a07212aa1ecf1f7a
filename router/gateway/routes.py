"""Which paths there are, who answers them, and how they are called in metrics."""

from dataclasses import dataclass
from enum import Enum
from urllib.parse import unquote

from contract.failures import Failure
from router.core.request import CHAT_PATH, COMPLETION_PATH
from router.gateway.config import GatewayConfig
from router.gateway.http_head import RequestHead
from router.gateway.verdict import Refusal, refusal_of_head

MODELS_PATH = "/v1/models"
UNMATCHED = "unmatched"
OTHER = "other"

_LABELS = frozenset(
    {
        *(CHAT_PATH, COMPLETION_PATH, MODELS_PATH, "/health", "/ready"),
        *("/v1/embeddings", "/v1/responses", "/v1/messages", "/v1/rerank", "/v1/score"),
        *("/v1/audio/transcriptions", "/tokenize", "/detokenize"),
    }
)
_READING = ("GET", "HEAD")
_POST_ONLY = frozenset({CHAT_PATH, COMPLETION_PATH})
_CHANGES_ONE_REPLICA = frozenset({"load_lora_adapter", "unload_lora_adapter"})
"""Last parts of paths (vLLM, SGLang) that would make one replica differ from its peers: they are
refused unless `proxied_paths` has the very path."""


class Route(Enum):
    """Who answers."""

    REPLICA = "replica"
    MODELS = "models"
    HEALTH = "health"
    READY = "ready"
    OPTIONS = "options"


_OPEN = frozenset({Route.HEALTH, Route.READY, Route.OPTIONS})


@dataclass(frozen=True, slots=True)
class Match:
    """What a request's first line leads to: a route, or a refusal."""

    label: str  # one of a closed list, for metrics
    route: Route | None = None
    refusal: Refusal | None = None
    methods: str = ""  # that are allowed

    @property
    def is_open(self) -> bool:
        """Whether it is answered without a key: probes and browsers before a request have none."""
        return self.route in _OPEN

    def refuse(self, head: RequestHead, *, is_draining: bool) -> Refusal | None:
        """Return why a request with this head is not served, None if it is."""
        if head.objection is not None and not self.is_open:
            return refusal_of_head(head.objection)
        if self.refusal is not None:
            return self.refusal
        if is_draining and self.route is Route.REPLICA:
            return Refusal(Failure.DRAINING, "the gateway is stopping; try another or again later")
        return None


class Routes:
    """The table of paths; its answers are kept for the paths of the closed list."""

    def __init__(self, config: GatewayConfig) -> None:
        self._exact = frozenset(path for path in config.proxied_paths if not path.endswith("/"))
        self._prefixes = tuple(path for path in config.proxied_paths if path.endswith("/"))
        self._known: dict[tuple[str, str], Match] = {}

    def match(self, method: str, path: str) -> Match:
        """Return what ``method`` on ``path`` leads to."""
        key = (method, path)
        match = self._known.get(key)
        if match is None:
            match = self._match(method, path)
            if match.label == path and match.refusal is None:  # methods may be invented, too
                self._known[key] = match
        return match

    def _match(self, method: str, path: str) -> Match:
        label = path if path in _LABELS else OTHER
        local = {"/health": Route.HEALTH, "/ready": Route.READY, MODELS_PATH: Route.MODELS}
        route = local.get(path)
        if route is None and path.startswith(MODELS_PATH + "/"):
            route = Route.MODELS
        if route is not None:
            return _checked(method, label, route, _READING)
        if path == "*" and method == "OPTIONS":
            return Match(OTHER, Route.OPTIONS, methods="GET, HEAD, POST, OPTIONS")
        if not self._is_proxied(path):
            refusal = Refusal(Failure.NOT_FOUND, "there is no such path; the API is under /v1/")
            return Match(UNMATCHED, refusal=refusal)
        allowed = ("POST",) if path in _POST_ONLY else (*_READING, "POST")
        return _checked(method, label, Route.REPLICA, allowed)

    def _is_proxied(self, path: str) -> bool:
        # A replica may resolve dots, and then it is asked for what was not to be reached.
        lower = path.lower()
        if "/." in lower or "%2e" in lower or "%2f" in lower or "\\" in lower:
            return False
        if path in self._exact:
            return True
        name = unquote(path).rstrip("/").rpartition("/")[2]
        return path.startswith(self._prefixes) and name.lower() not in _CHANGES_ONE_REPLICA


def _checked(method: str, label: str, route: Route, allowed: tuple[str, ...]) -> Match:
    methods = ", ".join((*allowed, "OPTIONS"))
    if method == "OPTIONS":
        return Match(label, Route.OPTIONS, methods=methods)
    if method not in allowed:
        message = f"this path takes {methods}"
        return Match(label, None, Refusal(Failure.METHOD_NOT_ALLOWED, message), methods)
    return Match(label, route, methods=methods)
