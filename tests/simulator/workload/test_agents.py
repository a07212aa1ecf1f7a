"""Agent trees: siblings share the plan's context, the join reads all answers."""

from simulator.request import Segment, SimRequest
from simulator.workload.agents import AgentSettings, agent_requests


def tree(settings: AgentSettings) -> dict[str, SimRequest]:
    requests = list(agent_requests(settings, "0"))
    return {each.request_id.removeprefix("tree-0-"): each for each in requests}


def answer(request: SimRequest) -> Segment:
    return Segment(request.output_id, request.output_tokens)


def test_siblings_share_the_plan_s_whole_context_and_differ_in_their_instruction() -> None:
    requests = tree(AgentSettings(trees=1, rounds=1, fan_out=3))
    plan = requests["plan"]
    workers = [requests[f"round-0-worker-{index}"] for index in range(3)]

    assert {each.segments[:-1] for each in workers} == {(*plan.segments, answer(plan))}
    assert len({each.segments[-1] for each in workers}) == 3
    assert {each.after for each in workers} == {plan.request_id}


def test_a_join_reads_all_answers_and_follows_the_longest() -> None:
    requests = tree(AgentSettings(trees=1, rounds=1, fan_out=5))
    plan, join = requests["plan"], requests["round-0-join"]
    workers = [requests[f"round-0-worker-{index}"] for index in range(5)]

    assert join.segments == (*plan.segments, answer(plan), *map(answer, workers))
    longest = max(each.output_tokens for each in workers)
    assert [each.output_tokens for each in workers if each.request_id == join.after] == [longest]


def test_the_next_round_goes_on_from_the_join() -> None:
    requests = tree(AgentSettings(trees=1, rounds=2, fan_out=2))
    join, worker = requests["round-0-join"], requests["round-1-worker-0"]

    assert worker.after == join.request_id
    assert worker.segments[:-1] == (*join.segments, answer(join))


def test_trees_share_their_instructions_only() -> None:
    requests = list(agent_requests(AgentSettings(trees=2, rounds=1, fan_out=1), "0"))
    plans = [each for each in requests if each.after is None]

    assert len(requests) == 2 * (1 + 1 + 1)
    assert plans[0].segments[0] == plans[1].segments[0]
    assert plans[0].segments[1] != plans[1].segments[1]
    assert {each.session for each in requests} == {"tree-0", "tree-1"}


def test_whoever_is_waited_for_stands_before() -> None:
    seen: set[str] = set()
    for each in agent_requests(AgentSettings(trees=5), "0"):
        assert each.after is None or each.after in seen
        seen.add(each.request_id)
