"""Why a replica was chosen, told by what the others that could be chosen have of the prompt."""

import pytest

from router.core.choice import Found, choose
from router.core.prefix_index import slot_bit
from router.core.reason import Reason
from router.core.view import ReplicaView, RouteRequest
from router.policies.prefix_load import PrefixLoad

COLD, WARM, WARMER = (ReplicaView(f"r{slot}", slot, f"http://r{slot}") for slot in range(3))
FOUND = [
    Found(slot_bit(WARM.slot), 1, 300),
    Found(slot_bit(WARMER.slot), 2, 600),
]


@pytest.mark.parametrize(
    ("eligible", "expected"),
    [
        ([COLD, WARM, WARMER], Reason.WARM),
        ([COLD, WARM], Reason.WARM),
        ([COLD, ReplicaView("r3", 3, "http://r3")], Reason.COLD),
        ([COLD], Reason.ONLY_ONE),
    ],
)
def test_what_replicas_have_that_cannot_be_chosen_does_not_count(
    eligible: list[ReplicaView], expected: Reason
) -> None:
    request = RouteRequest("request", "m", 1_000, prompt=b"a prompt")

    choice = choose(PrefixLoad(), request, eligible, FOUND)

    assert choice.reason is expected
    assert request.matched_tokens == {WARM.slot: 300, WARMER.slot: 600}
