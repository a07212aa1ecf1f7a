"""All experiments by name, and all cases in the order of the table."""

import router.policies  # noqa: F401  # registers every policy by its name
from simulator.validation.case import Case, Experiment
from simulator.validation.kubeai import kubeai_cases, kubeai_experiments
from simulator.validation.llmd import ladder_cases, ladder_experiments
from simulator.validation.mooncake import (
    exact_cases,
    exact_experiments,
    round_robin_cases,
    round_robin_experiments,
)
from simulator.validation.queueing import queueing_cases, queueing_experiments

EXPERIMENTS: dict[str, Experiment] = {
    experiment.name: experiment
    for experiment in (
        *exact_experiments(),
        *round_robin_experiments(),
        *ladder_experiments(),
        *kubeai_experiments(),
        *queueing_experiments(),
    )
}

QUICK_CASES: tuple[Case, ...] = tuple(exact_cases())
"""Those that take seconds, and have one right answer."""

CASES: tuple[Case, ...] = (
    *QUICK_CASES,
    *round_robin_cases(),
    *ladder_cases(),
    *kubeai_cases(),
    *queueing_cases(),
)
