"""Policies of others: a file outside this repository, found by its entry point.

A package is not obliged to work. One whose policy cannot be loaded must not keep the gateway from
starting, as nobody may have chosen it; so its place is taken by a policy that says why when it is.
"""

from collections.abc import Sequence
from dataclasses import dataclass, is_dataclass
from importlib.metadata import EntryPoint, entry_points
from inspect import isabstract
from typing import ClassVar

from contract.options import SettingError
from router.core.policy import POLICIES, CostPolicy, Policy, register
from router.core.view import ReplicaView, RouteRequest

GROUP = "warmroute.policies"
"""The group of entry points; each names a subclass of Policy, as ``module:Class``."""


def load_plugins() -> None:
    """Register every policy that an installed package offers, in the order of their names."""
    for entry in sorted(entry_points(group=GROUP)):
        try:
            _load(entry)
        except (Exception, SystemExit) as error:  # whatever a stranger's module raises
            _register_unusable(entry, f"{type(error).__name__}: {error}")


def _load(entry: EntryPoint) -> None:
    policy = entry.load()
    if not (isinstance(policy, type) and issubclass(policy, Policy)) or isabstract(policy):
        raise TypeError(f"{entry.value} is {policy!r}, expected a subclass of Policy with choose()")
    if not is_dataclass(policy):
        raise TypeError(f"{entry.value} is no dataclass; put @dataclass(frozen=True) before it")
    if issubclass(policy, CostPolicy) and not hasattr(policy, "unit"):
        raise TypeError(f"{entry.value} has a cost without a unit, expected unit = 's' or another")
    known = POLICIES.get(policy.name)
    if known is None:
        register(policy)
    elif known is not policy:
        raise ValueError(f"there is a policy {policy.name!r} already; call this one otherwise")


def _register_unusable(entry: EntryPoint, why: str) -> None:
    origin = entry.dist.name if entry.dist else "?"
    taken = entry.name in POLICIES
    message = f"policy {entry.name!r} of the package {origin!r} cannot be loaded ({why})"

    @dataclass(frozen=True)
    class Unusable(Policy):
        __doc__ = f"Cannot be used: {message}."
        name: ClassVar[str] = f"{origin}.{entry.name}" if taken else entry.name

        def __post_init__(self) -> None:
            raise SettingError(f"{message}; repair or remove the package")

        def choose(self, _: RouteRequest, __: Sequence[ReplicaView]) -> ReplicaView:
            raise AssertionError("cannot be built")

    register(Unusable)
