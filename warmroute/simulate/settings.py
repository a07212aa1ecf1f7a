"""What `warmroute simulate` is told on the command line, and the fleet that this makes.

An `Experiment` is one run in words: it can be sent to another process, swept over, and written
into a report. `fleet_of()` and `workload_of()` make it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import router.policies  # noqa: F401  # registers every policy by its name
from contract.options import SettingError, build_section, option, option_rows
from replicas.server.config import ReplicaConfig
from replicas.server.engine_setup import engine_settings, step_time_of
from router.core.config import RoutingConfig, micros
from router.core.policy import DEFAULT_POLICY, build_policy
from simulator.autoscaler import AutoscaleRule
from simulator.fleet_spec import Fault, FaultKind, FleetSpec, ReplicaSpec, Timing
from simulator.routing import parse_choice
from simulator.summary import Slo
from simulator.workload.stages import StagedWorkload
from warmroute.workloads import open_workload, parse_workload

REPLICAS_MAX = 1_000
REPLICA_SETTINGS = (
    *("model", "gpu", "tensor_parallel", "weight_precision", "kv_precision"),
    *("gpu_memory_utilization", "fixed_prefill_ms", "fixed_decode_ms", "kv_blocks", "block_size"),
    *("max_num_batched_tokens", "max_num_seqs", "max_model_len", "scheduling", "batching"),
    *("admission", "enable_prefix_caching"),
)
"""Those of `warmroute replica` that mean something in virtual time."""

Section = TypeVar("Section")


@dataclass(frozen=True)
class SimulateSettings:
    """Flags that every simulation has."""

    workload: str = option(
        "multiturn", "", "NAME, NAME:FILE or NAME,setting=value,...; see `simulate workloads`"
    )
    gateways: int = option(1, "gateways", "that requests go to in turn")
    seed: int = option(0, "", "of the workload, of ties and of losses; 0 leaves a trace as it is")
    slo_ttft_ms: float | None = option(None, "ms", "goodput counts answers that begin within this")
    slo_itl_ms: float | None = option(
        None, "ms", "and whose mean time between tokens is at most this"
    )

    def __post_init__(self) -> None:
        if not 1 <= self.gateways <= REPLICAS_MAX:
            raise ValueError(f"gateways is {self.gateways}, must be from 1 to {REPLICAS_MAX}")
        for name in ("slo_ttft_ms", "slo_itl_ms"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ValueError(f"{name} is {value}, must be above 0, or none")


@dataclass(frozen=True)
class TimingSettings:
    """`--set timing.NAME=VALUE`: time between the parts, and what is lost there."""

    send_delay_ms: float = option(0.0, "ms", "from a gateway to a replica, and back")
    report_interval_ms: float | None = option(
        100.0, "ms", "time between load reports; none: the first one, and the gateway's own ledger"
    )
    report_delay_ms: float = option(1.0, "ms", "from a report to the gateways that read it")
    report_loss: float = option(0.0, "0..1", "share of reports that are lost")
    event_delay_ms: float = option(1.0, "ms", "from a KV event to the gateways that read it")
    event_loss: float = option(0.0, "0..1", "share of batches of KV events that are lost")
    snapshot_delay_ms: float = option(10.0, "ms", "from noticing a gap to having read a snapshot")

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            most = 1 if name.endswith("_loss") else 1e9
            if value is not None and not 0 <= value <= most:
                raise ValueError(f"{name} is {value}, must be from 0 to {most:g}")
        if self.report_interval_ms is not None and self.report_interval_ms < 1:
            raise ValueError(f"report_interval_ms is {self.report_interval_ms}, must be 1 or more")

    @property
    def timing(self) -> Timing:
        """The same in microseconds."""
        values = {
            f"{name.removesuffix('_ms')}_us": None if value is None else round(value * 1_000)
            for name, value in vars(self).items()
            if name.endswith("_ms")
        }
        return Timing(**values, report_loss=self.report_loss, event_loss=self.event_loss)  # type: ignore[arg-type]


@dataclass(frozen=True)
class FaultSettings:
    """`--fault KIND:setting=value,...`: what happens to one replica."""

    replica: int = option(0, "", "its number, from 0")
    at_s: float = option(0.0, "s", "when, from the start")
    for_s: float = option(10.0, "s", "how long")
    factor: float = option(2.0, "x", "how many times as long steps take, where it is slow")

    def __post_init__(self) -> None:
        for name, least in (("replica", 0), ("at_s", 0), ("for_s", 1e-6), ("factor", 1e-3)):
            if not least <= getattr(self, name) <= 1e9:
                raise ValueError(f"{name} is {getattr(self, name)}, must be {least:g} to 1e9")


@dataclass(frozen=True)
class JoinSettings:
    """Settings of `--replicas` that only a simulated replica has."""

    publishes_events: bool = option(True, "", "tells gateways what its cache holds")
    joins_s: float = option(0.0, "s", "when it joins the fleet, from the start")

    def __post_init__(self) -> None:
        if not 0 <= self.joins_s <= 1e9:
            raise ValueError(f"joins_s is {self.joins_s}, must be from 0 to 1e9")


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """One run in words. ``seed`` None leaves everything as the workload says."""

    workload: str
    policy: str = DEFAULT_POLICY
    replicas: tuple[str, ...] = ("4",)
    gateways: int = 1
    timing: TimingSettings = field(default_factory=TimingSettings)
    routing: RoutingConfig = field(default_factory=RoutingConfig)
    faults: tuple[str, ...] = ()
    autoscale: AutoscaleRule | None = None
    slo: Slo = field(default_factory=Slo)
    seed: int = 0


def fleet_of(experiment: Experiment) -> FleetSpec:
    """Return the fleet of an experiment. Raises SettingError for what cannot be."""
    replicas: list[ReplicaSpec] = []
    for text in experiment.replicas:
        replicas += _parse_replicas(text, first=len(replicas))
    choice = parse_choice(experiment.policy)
    return FleetSpec(
        replicas=replicas,
        policy=build_policy(choice.name, choice.settings),
        num_gateways=experiment.gateways,
        routing=experiment.routing,
        timing=experiment.timing.timing,
        faults=[_parse_fault(text, replicas) for text in experiment.faults],
        autoscale=experiment.autoscale,
        seed=experiment.seed,
    )


def workload_of(experiment: Experiment) -> StagedWorkload:
    """Return the workload as the experiment's seed makes it.

    The seed is that of all that is drawn, unless the workload names its own. Requests get ids of
    the seed as well, as policies draw ties by them; seed 0 leaves a trace's ids as they are.
    """
    text, seed = experiment.workload, experiment.seed
    if not any(item.startswith("seed=") for item in text.split(",")[1:]):
        text = f"{text},seed={seed}"
    workload = open_workload(text)
    if not seed:
        return workload
    stages = tuple(
        replace(
            stage,
            requests=tuple(
                replace(
                    each,
                    request_id=f"{seed}/{each.request_id}",
                    after=None if each.after is None else f"{seed}/{each.after}",
                )
                for each in stage.requests
            ),
        )
        for stage in workload.stages
    )
    return replace(workload, stages=stages)


def parse_autoscale(text: str) -> AutoscaleRule:
    """Return the rule that ``setting=value,...`` describes; "" has the defaults."""
    return build_section(AutoscaleRule, settings_of(text, "--autoscale"), "--autoscale")


def parse_set(items: Sequence[str]) -> tuple[TimingSettings, RoutingConfig]:
    """Return both sections as ``timing.NAME=VALUE`` and ``routing.NAME=VALUE`` change them."""
    given: dict[str, dict[str, str]] = {"timing": {}, "routing": {}}
    for item in items:
        name, equals, value = item.partition("=")
        section, dot, setting = name.partition(".")
        if not (equals and dot and section in given):
            raise SettingError(
                f"--set has {item!r}, expected timing.SETTING=VALUE or routing.SETTING=VALUE"
            )
        given[section][setting] = value
    timing = build_section(TimingSettings, given["timing"], "[timing]")
    return timing, build_section(RoutingConfig, given["routing"], "[routing]")


def settings_of(text: str, where: str) -> dict[str, str]:
    """Return the settings of ``name=value,name=value``."""
    settings: dict[str, str] = {}
    for item in filter(None, text.split(",")):
        name, equals, value = item.partition("=")
        if not equals or name in settings:
            problem = "twice" if equals else "without a value"
            raise SettingError(f"{where} has {item!r} {problem}, expected setting=value,...")
        settings[name] = value
    return settings


def changed(section: Section, name: str, value: Any, where: str) -> Section:
    """Return a settings object with one setting changed from text."""
    known = {row.name: getattr(section, row.name) for row in option_rows(type(section))}
    return build_section(type(section), known | {name: value}, where)


def check_experiment(experiment: Experiment) -> None:
    """Raise SettingError for anything that the run would stumble on before it begins."""
    parse_workload(experiment.workload)
    fleet_of(experiment)


def _parse_replicas(text: str, first: int) -> list[ReplicaSpec]:
    """Return the replicas of ``COUNT:setting=value,...``, numbered from ``first``."""
    where = f"--replicas {text!r}"
    head, _, rest = text.partition(":")
    if not (head.isascii() and head.isdigit() and 1 <= int(head) <= REPLICAS_MAX):
        raise SettingError(
            f"{where} begins with {head!r}, expected a number from 1 to {REPLICAS_MAX}, "
            "as in 8:gpu=h100,model=llama-3.1-8b"
        )
    settings = settings_of(rest, where)
    joins = {row.name for row in option_rows(JoinSettings)}
    _check_known(settings, {*REPLICA_SETTINGS, *joins}, where)
    own = {name: value for name, value in settings.items() if name in joins}
    engine = {name: value for name, value in settings.items() if name not in joins}
    config = build_section(ReplicaConfig, engine, where)
    join = build_section(JoinSettings, own, where)
    return [
        ReplicaSpec(
            replica_id=f"replica-{number}",
            model=config.model,
            engine=engine_settings(config),
            step_time=step_time_of(config),
            publishes_events=join.publishes_events,
            joins_us=micros(join.joins_s),
            waiting_max=config.max_queued_requests,
        )
        for number in range(first, first + int(head))
    ]


def _check_known(settings: Mapping[str, str], known: set[str], where: str) -> None:
    for name in settings:
        if name not in known:
            raise SettingError(
                f"{where} has no setting {name!r}; known: {', '.join(sorted(known))}"
            )


def _parse_fault(text: str, replicas: Sequence[ReplicaSpec]) -> Fault:
    where = f"--fault {text!r}"
    head, _, rest = text.partition(":")
    kinds = {kind.value: kind for kind in FaultKind}
    if head not in kinds:
        raise SettingError(f"{where} is of kind {head!r}, expected one of {', '.join(kinds)}")
    fault = build_section(FaultSettings, settings_of(rest, where), where)
    if fault.replica >= len(replicas):
        raise SettingError(
            f"{where} strikes replica {fault.replica}, expected one from 0 to {len(replicas) - 1}"
        )
    return Fault(
        at_us=micros(fault.at_s),
        kind=kinds[head],
        replica_id=replicas[fault.replica].replica_id,
        duration_us=micros(fault.for_s),
        factor=fault.factor,
    )
