"""The header that explains a decision: who is told, what it says, how long it gets."""

import json
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core.explanation import Candidate, Explanation
from router.core.reason import Ineligible, Reason
from router.gateway.config import GatewayConfig
from router.gateway.explain import explanation_line
from tests.router.gateway.running import gateway_of
from tests.router.gateway.scripted_replica import ScriptedReplica, Turn, answering
from tests.router.gateway.wire import completion, ok

ASK = "x-warmroute-explain: 1"
HEADER = "x-warmroute-explanation"


async def test_who_asks_is_told_where_allowed() -> None:
    async with (
        ScriptedReplica(answering(ok(completion()))) as replica,
        gateway_of(
            *(replica, "http://user:secret@127.0.0.1:1"),
            policy="prefix_load",
        ) as gateway,
    ):
        gateway.fleet.drain("r1", True)
        await gateway.chat("hello " * 300)
        answer = await gateway.chat("hello " * 300, ASK)
        silent = await gateway.chat("hello")

    told = json.loads(answer.value(HEADER))
    chosen = told["candidates"][0]
    assert (told["policy"], told["unit"], told["reason"]) == ("prefix_load", "ms", "only_one")
    assert told["ineligible"] == [{"replica": "r1", "why": "draining"}]
    assert chosen["replica"] == answer.value("x-warmroute-replica")
    assert str(chosen["matched_tokens"]) == answer.value("x-warmroute-matched-tokens")
    assert chosen["matched_tokens"] + chosen["uncached_tokens"] == told["prompt_tokens"]
    assert (chosen["ahead_tokens"], chosen["requests"]) == (0, 0)
    assert sum(chosen["terms"].values()) == pytest.approx(chosen["cost"])
    assert silent.values(HEADER) == []


async def test_a_retry_explains_its_own_decision() -> None:
    async def overloaded(turn: Turn) -> None:
        await turn.send(ok(b"", status="503 Service Unavailable"))

    async with (
        ScriptedReplica(overloaded, "a") as first,
        ScriptedReplica(answering(ok(completion())), "b") as second,
        gateway_of(first, second) as gateway,
    ):
        answer = await gateway.chat("hi", ASK)

    told = json.loads(answer.value(HEADER))
    assert [each["replica"] for each in told["candidates"]] == ["b"]
    assert told["ineligible"] == [{"replica": "a", "why": "already_tried"}]


@pytest.mark.parametrize("value", ["0", "", "yes"])
async def test_no_other_word_asks(value: str) -> None:
    async with (
        ScriptedReplica(answering(ok(completion()))) as replica,
        gateway_of(replica) as gateway,
    ):
        answer = await gateway.chat("hi", f"x-warmroute-explain: {value}")

    assert answer.values(HEADER) == []


async def test_where_it_is_off_nobody_is_told_and_the_replica_is_never_asked() -> None:
    async with (
        ScriptedReplica(answering(ok(completion(), f"{HEADER}: of another"))) as replica,
        gateway_of(replica, explain_requests=False) as gateway,
    ):
        answer = await gateway.chat("hi", ASK)

    assert answer.values(HEADER) == []
    assert replica.requests[0].values("x-warmroute-explain") == []


@st.composite
def explanations(draw: st.DrawFn) -> Explanation:
    texts = st.text(max_size=300) | st.text('a\x7f\r\n"é')
    names = draw(st.lists(texts, unique=True, max_size=20))
    split = draw(st.integers(0, len(names)))
    costs = st.floats(allow_nan=False) | st.just(inf)
    candidates = [
        Candidate(name, 1, 2, 3, 4, None, 8000.0, cost, {"a": cost, "b": 0.0})
        for name in names[:split]
        for cost in [draw(costs)]
    ]
    chosen = candidates[-1].replica_id if candidates else None
    excluded = dict.fromkeys(names[split:], Ineligible.DRAINING)
    unit = draw(st.sampled_from(["s", "tokens", None]))
    return Explanation("r", "p", unit, "m", 3, Reason.COLD, chosen, candidates, excluded)


@given(explanation=explanations(), bytes_max=st.integers(1, 5000))
def test_the_line_is_one_header_within_its_limits_that_leaves_out_what_it_says(
    explanation: Explanation, bytes_max: int
) -> None:
    config = GatewayConfig(explain_candidates_max=4, explanation_bytes_max=bytes_max)

    line = explanation_line(explanation, config)

    assert len(line) <= bytes_max
    if not line:
        return
    name, _, value = line.partition(b": ")
    assert (name, value[-2:]) == (HEADER.encode(), b"\r\n")
    assert all(0x20 <= byte < 0x7F for byte in value[:-2])
    told = json.loads(value, parse_constant=pytest.fail)
    assert len(told["candidates"]) <= 4
    shown = len(told["candidates"]) + told["candidates_left_out"]
    excluded = len(told["ineligible"]) + told["ineligible_left_out"]
    assert (shown, excluded) == (len(explanation.candidates), len(explanation.ineligible))
