"""The kinds of engine that an agent can read, a row each."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from replicas.agents.engines import llamacpp, sglang, tgi, vllm
from replicas.agents.engines.exposition import (
    MetricsPageError,
    Samples,
    names_on,
    read_page,
    shown,
)
from replicas.agents.engines.figures import Figures


class EngineKind(Enum):
    """What runs behind a URL."""

    VLLM = "vllm"
    LLAMACPP = "llamacpp"
    SGLANG = "sglang"
    TGI = "tgi"


@dataclass(frozen=True, slots=True)
class Engine:
    """How one kind of engine is read."""

    prefix: str  # of the names of its own metrics
    names: frozenset[str]  # of the metrics that are read
    read: Callable[[Samples], Figures]
    metrics_hint: str  # what to do about a page that is not there
    health_path: str | None  # None where asking for it makes the engine generate something
    starts_blank: bool = False  # its page has no metric at all before the first request


ENGINES = {
    EngineKind.VLLM: Engine(
        "vllm:",
        vllm.NAMES,
        vllm.read_vllm,
        "vLLM has it unless started with --disable-log-stats",
        "/health",
    ),
    EngineKind.LLAMACPP: Engine(
        "llamacpp:",
        llamacpp.NAMES,
        llamacpp.read_llamacpp,
        "start llama-server with --metrics",
        "/health",
    ),
    EngineKind.SGLANG: Engine(
        "sglang:",
        sglang.NAMES,
        sglang.read_sglang,
        "start SGLang with --enable-metrics",
        None,
    ),
    EngineKind.TGI: Engine(
        "tgi_",
        tgi.NAMES,
        tgi.read_tgi,
        "TGI has it on the port of its API",
        None,
        starts_blank=True,
    ),
}


def read_metrics(kind: EngineKind, page: str) -> Figures:
    """Return what the metrics page of an engine of this kind tells.

    Raises MetricsPageError for the page of something else, naming that if it is known.
    """
    engine = ENGINES[kind]
    samples = read_page(page, engine.names)
    if not any(name.startswith(engine.prefix) for name in samples.by_name):
        _check_prefix(kind, names_on(page))
    return engine.read(samples)


def _check_prefix(kind: EngineKind, names: list[str]) -> None:
    engine = ENGINES[kind]
    if any(name.startswith(engine.prefix) for name in names):
        return  # its own, though none of those that are read
    if not names and engine.starts_blank:
        return
    expected = f"expected {kind.value}'s, which begin with {engine.prefix!r}"
    for other, row in ENGINES.items():
        of_other = [name for name in names if name.startswith(row.prefix)]
        if of_other:
            raise MetricsPageError(
                f"the page has metrics of {other.value} ({shown(of_other)}), {expected}; "
                f"give --engine {other.value}"
            )
    if not names:
        raise MetricsPageError(f"the page has no metrics, {expected}; {engine.metrics_hint}")
    raise MetricsPageError(
        f"the page has other metrics ({shown(names)}), {expected}; {engine.metrics_hint}"
    )
