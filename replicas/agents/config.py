"""Every setting of an agent."""

from dataclasses import dataclass
from urllib.parse import urlsplit

from contract.options import option
from contract.redis_layout import check_fleet
from replicas.agents.engines.engine import EngineKind


@dataclass(frozen=True)
class AgentConfig:
    """Which engines an agent watches, what it calls them, and whom it tells.

    Raises ValueError for a value out of range.
    """

    engine: EngineKind = option(EngineKind.VLLM, "", "what runs behind the URLs, all of one kind")
    urls: tuple[str, ...] = option((), "URL", "the engines, http://host:port each; at least one")
    model: str | None = option(
        None, "", "name that requests use; none asks each engine's /v1/models"
    )
    aliases: tuple[str, ...] = option((), "", "other names of that model; only with model")
    kv_tokens: int | None = option(
        None, "tokens", "size of the KV cache, for an engine that does not tell (llama.cpp, TGI)"
    )
    api_key: str | None = option(
        None,
        "",
        "sent as a bearer token to engines that want one; read from WARMROUTE_ENGINE_API_KEY "
        "where it is not given",
        secret=True,
    )

    replica_id: str | None = option(
        None, "", "name in the fleet; none makes one of host and port; only with a single URL"
    )
    advertise_url: str | None = option(
        None, "URL", "where gateways reach the engine; none is the URL; only with a single URL"
    )

    scrape_interval_ms: int = option(
        250, "ms", "time between two looks at an engine; gateways find a report old after 1,000"
    )
    scrape_timeout_ms: int = option(
        2_000, "ms", "an engine that takes longer to answer is not reported until it does"
    )
    page_bytes_max: int = option(4 * 1024 * 1024, "bytes", "longest answer that is read")
    identify_interval_ms: int = option(
        5_000, "ms", "time between two looks at an engine's models and health"
    )

    redis_url: str | None = option(
        None,
        "URL",
        "where load is published; read from WARMROUTE_REDIS_URL where it is not given",
        secret=True,
    )
    fleet: str = option("default", "", "fleet whose gateways send to these engines")
    redis_timeout_ms: int = option(1_000, "ms", "a Redis that takes longer counts as away")

    def __post_init__(self) -> None:
        self._check_names()
        for url in (*self.urls, *([self.advertise_url] if self.advertise_url else ())):
            _check_url(url)
        if len(set(self.urls)) < len(self.urls):
            raise ValueError("urls has the same URL twice")
        for name in (
            *("kv_tokens", "scrape_interval_ms", "scrape_timeout_ms", "page_bytes_max"),
            *("identify_interval_ms", "redis_timeout_ms"),
        ):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} is {value}, must be at least 1")

    def _check_names(self) -> None:
        check_fleet(self.fleet)
        if not self.urls:
            raise ValueError("urls is empty, expected at least one --url http://host:port")
        if self.redis_url is None:
            raise ValueError(
                "redis_url is missing, expected redis://host:port/0 from --redis-url or "
                "WARMROUTE_REDIS_URL; a gateway without Redis is told of engines by --replica"
            )
        for name in ("replica_id", "advertise_url"):
            if getattr(self, name) is not None and len(self.urls) > 1:
                raise ValueError(f"{name} is for a single URL, but there are {len(self.urls)}")
        if self.aliases and self.model is None:
            raise ValueError("aliases are given without a model")
        if self.model == "":
            raise ValueError("model is empty, must be a name")


def _check_url(url: str) -> None:
    """Complain without quoting the URL: it may hold a password."""
    expected = "expected http://host:port"
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise ValueError(f"a url cannot be read, {expected}") from error
    if parts.scheme != "http" or not parts.hostname or port is None:
        raise ValueError(f"a url is without http://, a host or a port, {expected}")
    if parts.username is not None or parts.password is not None:
        raise ValueError(f"a url has a user or a password, {expected}")
    if parts.path not in ("", "/") or parts.query or parts.fragment:
        raise ValueError(f"a url has more than host and port, {expected}")
