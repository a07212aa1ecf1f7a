"""A worked example: 12 requests of three tenants on 3 replicas, none of which finishes.

Each prompt is its tenant's 2,000 tokens and 100 of its own. All policies are given the same
requests; what differs is how many tokens are computed and who computes them.
"""

from dataclasses import dataclass
from typing import Any

import pytest

import router.policies  # noqa: F401  # registers the policies
from contract.blocks import root_hash
from router.core.config import RoutingConfig
from router.core.fleet import FleetState
from router.core.policy import build_policy
from router.core.view import RouteRequest

TENANTS = "AABAAACAABAC"
SYSTEM_TOKENS, OWN_TOKENS = 2000, 100
BLOCK_TOKENS = 100  # divides both, so the arithmetic is exact
BYTES_PER_TOKEN = 4


@dataclass(frozen=True)
class Row:
    """One policy's result."""

    computed_tokens: int
    load: list[int]  # requests by replica


def fnv_1a(text: str) -> int:
    value = 0x811C9DC5
    for byte in text.encode():
        value = (value ^ byte) * 0x01000193 % 2**32
    return value


def tenant_request(index: int, tenant: str) -> RouteRequest:
    prompt = tenant.encode() * SYSTEM_TOKENS * BYTES_PER_TOKEN
    prompt += bytes([index]) * OWN_TOKENS * BYTES_PER_TOKEN
    return RouteRequest(
        f"r{index}",
        "m",
        SYSTEM_TOKENS + OWN_TOKENS,
        root_hash("m"),
        prompt,
        prefix_key=fnv_1a(f"system-prompt-{tenant}"),
    )


def route_all(policy: str, settings: dict[str, Any]) -> Row:
    config = RoutingConfig(index_block_bytes=BLOCK_TOKENS * BYTES_PER_TOKEN)
    fleet = FleetState(config, build_policy(policy, settings))
    views = [fleet.add_static(f"http://{name}", name, "m", now_us=0) for name in "abc"]
    computed_tokens = 0
    for index, tenant in enumerate(TENANTS):
        lease = fleet.decide(tenant_request(index, tenant), index).lease
        assert lease is not None
        computed_tokens += lease.uncached_tokens
    return Row(computed_tokens, [view.requests for view in views])


@pytest.mark.parametrize(
    ("policy", "settings", "row"),
    [
        ("round_robin", {}, Row(15_200, [4, 4, 4])),
        (
            "prefix_hash",
            {"placement": "modulo", "load_factor": "none"},
            Row(7_200, [2, 8, 2]),
        ),
        ("prefix_capped", {"ahead_max": 2, "tie": "lowest_slot"}, Row(9_200, [5, 4, 3])),
    ],
)
def test_policies_compute_and_balance_as_the_table_says(
    policy: str, settings: dict[str, Any], row: Row
) -> None:
    assert route_all(policy, settings) == row
