"""Goal: who drives an engine from news to news misses nothing. Method: events and tokens against
those of an engine that is stepped, and against their own times."""

from hypothesis import given, settings
from hypothesis import strategies as st

from contract.kv_events import KvEvent
from replicas.core.engine import Engine
from replicas.core.engine_stats import Progress
from replicas.core.scheduler import NeverFitsError, StepPlan
from replicas.core.scheduler_config import SchedulerConfig
from replicas.core.step_time import FixedStepTime
from tests.examples import examples
from tests.replicas.core import drive
from tests.replicas.core.test_leaping import (
    ABORTS,
    ARRIVALS,
    CONFIGS,
    LATER_US,
    Arrival,
    Stepped,
    UnevenSteps,
    position,
    sequence_of,
)


class TellingEngine(Engine):
    """Notes the events of each step as it begins."""

    told: list[tuple[int, list[KvEvent]]]

    def plan_step(self, now_us: int) -> StepPlan | None:
        plan = super().plan_step(now_us)
        self.told.append((now_us, self.drain_events()))
        return plan

    def told_between(self, after_us: int, until_us: int) -> list[KvEvent]:
        return [
            event for at_us, events in self.told if after_us < at_us <= until_us for event in events
        ]


@settings(deadline=None)
@given(CONFIGS, st.lists(ARRIVALS | ARRIVALS | ABORTS, max_size=10), st.data())
def test_events_up_to_a_time_are_those_of_the_steps_that_have_begun(
    config: SchedulerConfig, arrivals: list[Arrival], data: st.DataObject
) -> None:
    leaping = Engine(config, UnevenSteps(), position, time_events=True)
    telling = TellingEngine(config, UnevenSteps(), position)
    telling.told = []
    stepped = Stepped(telling)
    now_us, asked_us = 0, -1
    for index, arrival in enumerate([*arrivals, Arrival(LATER_US, [], 1, aborted=99)]):
        now_us += arrival.gap_us
        stepped.advance(now_us)
        begins = [at_us for at_us, _ in telling.told if asked_us < at_us < now_us]
        until_us = data.draw(st.sampled_from([asked_us, max(asked_us, now_us - 1), *begins]))
        news = leaping.next_news()
        if data.draw(st.booleans()) or (news is not None and news[0] <= until_us):
            leaping.advance(now_us)
        next_us = leaping.next_event_us()

        events = leaping.events_until(until_us)

        assert events == telling.told_between(asked_us, until_us)
        assert not events or (next_us is not None and next_us <= until_us)
        leaping.advance(now_us)
        asked_us = until_us
        if arrival.aborted is not None:
            leaping.abort(str(arrival.aborted), now_us)
            telling.abort(str(arrival.aborted), now_us)
            continue
        try:
            leaping.add(sequence_of(index, arrival), now_us)
        except NeverFitsError:
            continue
        stepped.add(sequence_of(index, arrival), now_us)


def assert_just_now(progress: Progress, now_us: int) -> None:
    assert all(each.first_token_us == now_us for each in progress.first_tokens)
    assert all(each.finished_us == now_us for each in progress.finished)


@settings(max_examples=examples(2))
@given(CONFIGS, st.lists(ARRIVALS, max_size=10), st.booleans())
def test_tokens_and_ends_are_told_when_they_happen(
    config: SchedulerConfig, arrivals: list[Arrival], time_events: bool
) -> None:
    engine = Engine(config, UnevenSteps(), position, time_events=time_events)
    now_us = 0
    for index, arrival in enumerate([*arrivals, Arrival(LATER_US, [], 1, aborted=99)]):
        now_us += arrival.gap_us
        while (news := engine.next_news()) is not None:
            at_us, at_end = news
            if at_us > now_us or (at_us == now_us and not at_end):
                break  # what arrives comes before a step begins
            assert_just_now(engine.advance(at_us), at_us)
            if not at_end:
                engine.next_end_us()
        assert_just_now(engine.advance(now_us), now_us)
        if arrival.prompt:
            try:
                engine.add(sequence_of(index, arrival), now_us)
            except NeverFitsError:
                continue

    assert not engine.num_live


def test_a_token_is_news_though_only_a_filled_block_lets_its_prompt_in() -> None:
    config = SchedulerConfig(num_blocks=8, block_size=4, max_num_batched_tokens=64, max_num_seqs=4)
    engine = Engine(config, FixedStepTime(1, 10), lambda _: 7, time_events=True)
    engine.add(drive.sequence("writer", [7] * 4, 16), now_us=0)
    engine.advance(1)
    reader = drive.sequence("reader", [7] * 25, 1)
    engine.add(reader, now_us=1)  # lacks a block until the writer has filled one that it shares
    told: list[tuple[str, int]] = []

    while (news := engine.next_news()) is not None:
        at_us, at_end = news
        progress = engine.advance(at_us)
        told += [(each.sequence_id, at_us) for each in progress.first_tokens]
        if not at_end:
            engine.next_end_us()

    assert told == [("reader", reader.first_token_us)]
    assert reader.first_token_us == 31 + 1 + 10


def test_events_are_known_from_the_begin_of_their_step_on() -> None:
    config = SchedulerConfig(num_blocks=99, block_size=4, max_num_batched_tokens=64, max_num_seqs=4)
    engine = Engine(config, FixedStepTime(1, 10), lambda _: 7, time_events=True)
    engine.add(drive.sequence("0", [7] * 4, 16), now_us=0)
    engine.advance(1)
    engine.events_until(1)

    due_us = engine.next_event_us()  # three more tokens fill the second block
    before, after = engine.events_until(30), engine.events_until(31)

    assert (due_us, len(before), len(after)) == (31, 0, 1)
    assert engine.next_news() == (1 + 15 * 10, True)


def test_a_step_of_nothing_but_a_chunk_is_no_news_as_it_ends() -> None:
    config = SchedulerConfig(num_blocks=99, block_size=4, max_num_batched_tokens=64, max_num_seqs=4)
    engine = Engine(config, FixedStepTime(1, 10), lambda _: 7)
    engine.add(drive.sequence("0", range(100), 5), now_us=0)

    news = []
    for _ in range(2):
        engine.next_end_us()
        news.append(engine.next_news())
        engine.advance(news[-1][0] if news[-1] else 0)

    assert news == [(1, False), (2, True)]
