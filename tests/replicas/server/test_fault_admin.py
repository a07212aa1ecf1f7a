"""The routes that list, set and clear faults."""

from typing import Any

import aiohttp
import pytest

from replicas.server.faults import FAULTS
from replicas.server.replica import Replica
from tests.replicas.server.conftest import Start


async def admin(
    http: aiohttp.ClientSession, replica: Replica, method: str, path: str = "", **body: Any
) -> dict[str, Any]:
    url = f"{replica.url}/admin/faults{path}"
    async with http.request(method, url, json=body or None) as response:
        assert response.status == 200, await response.text()
        return {row["name"]: row for row in (await response.json())["faults"]}


async def test_the_list_has_every_fault_with_its_parameters(
    start: Start, http: aiohttp.ClientSession
) -> None:
    replica = await start(faults=("stall:after_tokens=3",))

    listed = await admin(http, replica, "GET")

    assert list(listed) == list(FAULTS)
    stall = listed["stall"]
    assert stall["active"] == {"after_tokens": 3, "duration_s": None, "share": 1.0}
    assert stall["struck"] == 0
    assert stall["parameters"][0] == {
        "name": "after_tokens",
        "type": "whole number",
        "default": 5,
        "unit": "tokens",
        "meaning": "of the answer, that pass first",
    }
    assert {row["active"] for name, row in listed.items() if name != "stall"} == {None}


@pytest.mark.parametrize("method", ["PUT", "POST"])
async def test_faults_are_set_beside_others_and_cleared_one_by_one_or_all(
    method: str, start: Start, http: aiohttp.ClientSession
) -> None:
    replica = await start()

    def active(listed: dict[str, Any]) -> set[str]:
        return {name for name, row in listed.items() if row["active"] is not None}

    await admin(http, replica, method, stall={"share": 0.5})
    listed = await admin(http, replica, method, freeze={}, absurd_load={"figures": "idle"})
    assert active(listed) == {"stall", "freeze", "absurd_load"}
    assert listed["absurd_load"]["active"] == {"figures": "idle", "share": 1.0}
    assert active(await admin(http, replica, "DELETE", "/freeze")) == {"stall", "absurd_load"}
    assert active(await admin(http, replica, "DELETE", "/freeze")) == {"stall", "absurd_load"}
    assert active(await admin(http, replica, "DELETE")) == set()


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (b"", "the body is no JSON object"),
        (b"[]", "Expected `object`, got `array`"),
        (b'{"freeze": 5}', "Expected `object`, got `int`"),
        (b'{"frieze": {}}', "no fault 'frieze'; known: error_status"),
        (b'{"freeze": {"for": 5}}', "'freeze' has no setting 'for'; known: duration_s"),
        (b'{"freeze": {"duration_s": "x"}}', "duration_s is 'x', expected number"),
        (b'{"freeze": {"duration_s": [1]}}', "duration_s is [1], expected number"),
        (b'{"stall": {}, "freeze": {"duration_s": -1}}', "duration_s is -1.0, expected 0 or"),
    ],
)
async def test_a_body_that_says_nothing_is_refused_and_sets_nothing(
    body: bytes, told: str, start: Start, http: aiohttp.ClientSession
) -> None:
    replica = await start()

    async with http.put(f"{replica.url}/admin/faults", data=body) as response:
        error = (await response.json())["error"]

    assert (response.status, error["code"]) == (400, "invalid_request")
    assert told in error["message"]
    assert not replica.faults.any_set


async def test_to_clear_an_unknown_fault_is_refused(
    start: Start, http: aiohttp.ClientSession
) -> None:
    replica = await start(faults=("stall",))

    async with http.delete(f"{replica.url}/admin/faults/stalls") as response:
        error = (await response.json())["error"]

    assert response.status == 400
    assert "no fault 'stalls'; known: error_status" in error["message"]
    assert replica.faults.any_set
