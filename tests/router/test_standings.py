"""How replicas stand is said once for every change."""

import logging

import pytest

from router.config import load_router_config
from router.core.fleet import FleetState
from router.standings import Standings


def test_a_change_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    config = load_router_config()
    fleet = FleetState(config.routing, config.policy)
    standings = Standings(fleet)
    fleet.add_static("http://127.0.0.1:1", "a\nb", now_us=0)

    for change in (None, True, None, False):
        if change is not None:
            fleet.drain("a\nb", change)
        for _ in range(3):
            standings.look()
    fleet.remove("a\nb")
    standings.look()
    standings.look()

    assert [record.getMessage() for record in caplog.records] == [
        "replica 'a\\nb' is eligible, was new",
        "replica 'a\\nb' is draining, was eligible",
        "replica 'a\\nb' is eligible, was draining",
        "replica 'a\\nb' is gone",
    ]


def test_how_a_policy_fails_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    config = load_router_config()
    fleet = FleetState(config.routing, config.policy)
    standings = Standings(fleet)

    for _ in range(3):
        for error in (ValueError("x"), ValueError("y"), KeyError("z")):
            fleet.policy_failures.add(config.policy, error)
        standings.look()

    assert [record.getMessage() for record in caplog.records] == [
        f"policy {config.policy.name!r} failed: {error}; until it is mended such requests draw "
        "their replica"
        for error in ("ValueError('x')", "KeyError('z')")
    ]
