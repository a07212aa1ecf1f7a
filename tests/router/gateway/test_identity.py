"""Whose headers say which prompts may match, end to end: session, tenant, and no request id."""

from typing import Any

from tests.router.gateway.running import gateway_of
from tests.router.gateway.scripted_replica import ScriptedReplica, answering
from tests.router.gateway.wire import completion, ok

LONG = "hello " * 300
MATCHED = "x-warmroute-matched-tokens"


async def matches(*headers: str, **settings: Any) -> list[int]:
    """Return the matched tokens of the same prompt, sent once with each header."""
    async with (
        ScriptedReplica(answering(ok(completion()))) as replica,
        gateway_of(replica, policy="prefix_load", **settings) as gateway,
    ):
        answers = [await gateway.chat(LONG, header) for header in headers]

    return [int(answer.value(MATCHED)) for answer in answers]


async def test_a_request_id_or_a_session_changes_no_match() -> None:
    cold, *warm = await matches("x-request-id: 1", "x-request-id: 2", "x-session-id: 3")

    assert cold == 0
    assert min(warm) > 300


async def test_a_tenant_matches_its_own_prompts_only_where_tenants_are_told_apart() -> None:
    tenants = ("x-team: a", "x-team: b", "X-Team: a", "x-other: 1")

    apart = await matches(*tenants, tenant_header="x-team")
    together = await matches(*tenants)

    assert [tokens > 0 for tokens in apart] == [False, False, True, False]
    assert [tokens > 0 for tokens in together] == [False, True, True, True]


async def test_the_replica_is_told_the_tenant_and_the_session_as_they_came() -> None:
    async with (
        ScriptedReplica(answering(ok(completion()))) as replica,
        gateway_of(replica, tenant_header="X-Team", session_header="x-chat") as gateway,
    ):
        await gateway.chat("hi", "X-TEAM: a", "X-Chat: s")

    assert replica.requests[0].values("x-team") == ["a"]
    assert replica.requests[0].values("x-chat") == ["s"]
