"""One setting of an experiment, by its name alone, and the experiment at another value of it."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from contract.options import SettingError, option_rows
from router.core.policy import POLICIES
from simulator.routing import parse_choice
from simulator.workload.shape import ShapeSettings
from warmroute.simulate.jobs import natural_rate
from warmroute.simulate.settings import (
    REPLICA_SETTINGS,
    Experiment,
    changed,
    settings_of,
)
from warmroute.workloads import parse_workload

SECTIONS = ("timing", "routing")


@dataclass(frozen=True)
class Sweep:
    """``name=value,value,...``."""

    name: str
    points: tuple[str, ...]

    @property
    def is_numeric(self) -> bool:
        """Whether the points have a place on an axis."""
        try:
            return bool([float(point) for point in self.points])
        except ValueError:
            return False


def parse_sweep(text: str) -> Sweep:
    """Return what ``--over`` asks for. Raises SettingError."""
    name, equals, values = text.partition("=")
    points = tuple(filter(None, values.split(",")))
    if not (equals and name and points):
        raise SettingError(f"--over is {text!r}, expected SETTING=VALUE,VALUE,...")
    if len(set(points)) < len(points):
        raise SettingError(f"--over {text!r} has a value twice")
    return Sweep(name, points)


def at_point(experiment: Experiment, name: str, value: str) -> Experiment:
    """Return the experiment with the setting ``name`` at ``value``.

    A setting is looked for among the fleet's own, then in the replicas, the policy and the
    workload, then as ``timing.X`` and ``routing.X``. Raises SettingError for one that is nowhere.
    """
    section, dot, setting = name.partition(".")
    if dot and section in SECTIONS:
        own = changed(getattr(experiment, section), setting, value, f"[{section}]")
        return replace(experiment, **{section: own})
    for applies, change in _PLACES:
        if applies(experiment, name):
            return change(experiment, name, value)
    known = ("rate", "replicas", "gateways", *REPLICA_SETTINGS, *_policy_settings(experiment))
    raise SettingError(
        f"--over {name!r} is no setting of this experiment; known: {', '.join(known)}, "
        f"{', '.join(_workload_settings(experiment))}, timing.SETTING, routing.SETTING"
    )


def unit_of(experiment: Experiment, name: str) -> str:
    """Return the unit of a rate or of a workload's setting, "" of others: names say theirs."""
    if name == "rate":
        return "1/s"
    return _workload_settings(experiment).get(name, "")


def _replica_count(experiment: Experiment, _: str, value: str) -> Experiment:
    if len(experiment.replicas) > 1:
        raise SettingError("--over replicas: the fleet is a mix, expected a single --replicas")
    _, colon, rest = experiment.replicas[0].partition(":")
    return replace(experiment, replicas=(f"{value}{colon}{rest}",))


def _gateway_count(experiment: Experiment, _: str, value: str) -> Experiment:
    if not (value.isascii() and value.isdigit() and int(value) > 0):
        raise SettingError(f"--over gateways has {value!r}, expected a whole number above 0")
    return replace(experiment, gateways=int(value))


def _rate(experiment: Experiment, _: str, value: str) -> Experiment:
    """Set the generator's own rate, or let the trace's arrivals come so much faster or slower."""
    spec = parse_workload(experiment.workload)
    if "rate" in {row.name for row in option_rows(spec.entry.settings)}:
        return _in_workload(experiment, "rate", value)
    try:
        scale = spec.shape.rate_scale * float(value) / natural_rate(experiment)
    except ValueError as error:
        raise SettingError(f"--over rate has {value!r}, expected a number") from error
    return _in_workload(experiment, "rate_scale", repr(scale))


def _in_replicas(experiment: Experiment, name: str, value: str) -> Experiment:
    return replace(experiment, replicas=tuple(_all_with(experiment.replicas, name, value)))


def _all_with(replicas: tuple[str, ...], name: str, value: str) -> Iterator[str]:
    for text in replicas:
        head, _, rest = text.partition(":")
        settings = settings_of(rest, f"--replicas {text!r}") | {name: value}
        yield f"{head}:" + ",".join(f"{key}={item}" for key, item in settings.items())


def _in_policy(experiment: Experiment, name: str, value: str) -> Experiment:
    choice = parse_choice(experiment.policy)
    settings = {**choice.settings, name.removeprefix("policy."): value}
    return replace(experiment, policy=replace(choice, settings=settings).text)


def _in_workload(experiment: Experiment, name: str, value: str) -> Experiment:
    head, *items = experiment.workload.split(",")
    kept = [item for item in items if not item.startswith(f"{name}=")]
    return replace(experiment, workload=",".join((head, *kept, f"{name}={value}")))


def _policy_settings(experiment: Experiment) -> list[str]:
    return [row.name for row in option_rows(POLICIES[parse_choice(experiment.policy).name])]


def _workload_settings(experiment: Experiment) -> dict[str, str]:
    entry = parse_workload(experiment.workload).entry
    rows = (*option_rows(entry.settings), *option_rows(ShapeSettings))
    return {row.name: row.unit for row in rows}


_PLACES: tuple[
    tuple[Callable[[Experiment, str], bool], Callable[[Experiment, str, str], Experiment]], ...
] = (
    (lambda _, name: name == "replicas", _replica_count),
    (lambda _, name: name == "gateways", _gateway_count),
    (lambda _, name: name == "rate", _rate),
    (lambda _, name: name in REPLICA_SETTINGS, _in_replicas),
    (lambda e, name: name.removeprefix("policy.") in _policy_settings(e), _in_policy),
    (lambda e, name: name in _workload_settings(e), _in_workload),
)
"""Where a setting may be found, and how it is changed there."""
