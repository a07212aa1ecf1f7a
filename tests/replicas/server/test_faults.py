"""The catalogue: every fault is complete, and what it is not is refused with what is known."""

from dataclasses import fields
from typing import Any

import pytest

from contract.options import SettingError, build_section, option_rows
from replicas.server.config import ReplicaConfig
from replicas.server.faults import (
    FAULTS,
    AbsurdLoad,
    ErrorStatus,
    Fault,
    Figures,
    Freeze,
    Stall,
    build_fault,
    meaning_of,
    read_fault,
)


@pytest.mark.parametrize("kind", FAULTS.values(), ids=list(FAULTS))
def test_every_fault_says_what_it_does_and_what_its_parameters_mean(kind: type[Fault]) -> None:
    rows = list(option_rows(kind))

    assert meaning_of(kind).endswith(".")
    assert len(rows) == len(fields(kind))
    assert all(len(row.meaning) > 12 for row in rows)
    assert build_fault(kind.name, {}) == kind()


@pytest.mark.parametrize("text", FAULTS)
def test_a_name_alone_is_a_fault_with_its_defaults(text: str) -> None:
    assert read_fault(text) == FAULTS[text]()


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (
            "error_status:share=0.25:status=429:retry_after_s=2",
            ErrorStatus(share=0.25, status=429, retry_after_s=2),
        ),
        ("stall:after_tokens=0:duration_s=none", Stall(after_tokens=0, duration_s=None)),
        (
            "freeze:duration_s=1.5:health_answers=false",
            Freeze(duration_s=1.5, health_answers=False),
        ),
        ("absurd_load:figures=negative", AbsurdLoad(figures=Figures.NEGATIVE)),
    ],
)
def test_a_flag_s_text_is_read(text: str, fault: Fault) -> None:
    assert read_fault(text) == fault


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("no_such_fault", "no fault 'no_such_fault'; known: error_status, admission_503"),
        ("", "no fault ''; known: error_status"),
        ("freeze:5", "'5', expected name:parameter=value"),
        ("freeze:length_s=5", "fault 'freeze' has no setting 'length_s'; known: duration_s"),
        ("freeze:duration_s=soon", "fault 'freeze' duration_s is 'soon', expected number"),
        ("freeze:duration_s=-1", "duration_s is -1.0, expected 0 or more"),
        ("freeze:duration_s=inf", "duration_s is inf, expected 0 or more"),
        ("stall:share=1.01", "share is 1.01, expected 0 to 1"),
        ("stall:share=nan", "share is nan, expected 0 to 1"),
        ("stall:after_tokens=-1", "after_tokens is -1, expected 0 or more"),
        ("error_status:status=200", "status is 200, expected 400 to 599"),
        ("error_status:retry_after_s=-1", "retry_after_s is -1, expected 0 or more"),
        ("slow_start:slowdown=0.5", "slowdown is 0.5, expected 1 or more"),
        ("absurd_load:figures=odd", "'odd', expected one of huge, negative"),
    ],
)
def test_what_is_no_fault_is_refused_with_what_would_be_one(text: str, told: str) -> None:
    with pytest.raises(SettingError) as refused:
        read_fault(text)

    assert told in str(refused.value)


def test_a_replica_does_not_start_with_a_fault_that_is_none() -> None:
    settings: dict[str, Any] = {"faults": "freeze,no_such_fault"}

    with pytest.raises(SettingError, match="no_such_fault"):
        build_section(ReplicaConfig, settings, "replica")
