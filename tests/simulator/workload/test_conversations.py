"""Conversations: a prompt is exactly the one before it, its answer and a new message."""

from itertools import pairwise
from statistics import fmean

from simulator.request import Segment, SimRequest
from simulator.workload.conversations import ConversationSettings, conversation_requests
from simulator.workload.reuse import ideal_reuse

SETTINGS = ConversationSettings(conversations=50, turns=4)


def sessions(settings: ConversationSettings = SETTINGS) -> list[list[SimRequest]]:
    by_session: dict[str | None, list[SimRequest]] = {}
    for request in conversation_requests(settings, "0"):
        by_session.setdefault(request.session, []).append(request)
    return list(by_session.values())


def test_a_prompt_is_the_one_before_it_and_its_answer_and_a_message() -> None:
    for turns in sessions():
        for former, latter in pairwise(turns):
            said = (*former.segments, Segment(former.output_id, former.output_tokens))
            assert latter.segments[:-1] == said
            expected = former.tokens()
            expected.extend([former.output_id] * former.output_tokens)
            assert latter.tokens()[: len(expected)] == expected


def test_a_turn_waits_for_the_one_before_it() -> None:
    for turns in sessions():
        assert turns[0].after is None
        assert turns[0].think_us == 0
        assert [each.after for each in turns[1:]] == [each.request_id for each in turns[:-1]]


def test_thinking_takes_the_mean_time_asked_for() -> None:
    settings = ConversationSettings(conversations=1_000, turns=4, think_s=10)

    thinking = [each.think_us for turns in sessions(settings) for each in turns[1:]]

    assert abs(fmean(thinking) / 1e6 - 10) < 4 * 10 / 3_000**0.5


def test_conversations_arrive_in_order_with_their_own_messages() -> None:
    firsts = [turns[0] for turns in sessions()]

    assert [each.arrival_us for each in firsts] == sorted(each.arrival_us for each in firsts)
    assert len({each.segments[0] for each in firsts}) == 1  # the system prompt
    assert len({each.segments[1] for each in firsts}) == 50


def test_there_are_as_many_system_prompts_as_asked_for() -> None:
    settings = ConversationSettings(conversations=100, system_prompts=4)

    assert len({turns[0].segments[0] for turns in sessions(settings)}) == 4


def test_a_conversation_may_begin_with_its_first_message() -> None:
    settings = ConversationSettings(conversations=3, system_tokens=0)

    assert all(len(turns[0].segments) == 1 for turns in sessions(settings))


def test_later_turns_find_almost_all_of_their_prompt_cached() -> None:
    settings = ConversationSettings(conversations=20, turns=6, system_tokens=0)

    requests = [each for turns in sessions(settings) for each in turns]

    first_turns = sum(turns[0].prompt_tokens for turns in sessions(settings))
    new = sum(each.segments[-1].num_tokens for each in requests if each.after) + first_turns
    computed = ideal_reuse(requests, 1).computed_tokens
    assert computed == new + sum(1 for each in requests if each.after)  # an answer's last token
