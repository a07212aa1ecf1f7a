"""Whom an inbox asks for events, and up to when."""

from dataclasses import dataclass, field

from contract.blocks import BlockHash
from contract.kv_events import BlockStored, KvEventBatch
from simulator.event_inbox import EventInbox


@dataclass(eq=False)
class Replica:
    """Has one event at each of some times."""

    times_us: list[int]
    asked_us: int | None = None
    asked_until_us: list[int] = field(default_factory=list)

    def events_until(self, us: int) -> KvEventBatch | None:
        self.asked_until_us.append(us)
        told = [at_us for at_us in self.times_us if at_us <= us]
        self.times_us = self.times_us[len(told) :]
        events = [BlockStored([BlockHash(at_us)]) for at_us in told]
        return KvEventBatch("r", len(self.asked_until_us), [*events]) if told else None

    def next_event_us(self) -> int | None:
        return self.times_us[0] if self.times_us else None


def read(inbox: EventInbox[Replica], now_us: int) -> list[tuple[Replica, int]]:
    return [(replica, len(batch.events)) for replica, batch in inbox.read(now_us)]


def test_events_are_there_after_the_delay_all_of_a_replica_at_once() -> None:
    inbox, replica = EventInbox[Replica](10), Replica([5, 7, 30])
    inbox.expect(replica, now_us=0)

    before, after, last = read(inbox, 14), read(inbox, 20), read(inbox, 40)

    assert (before, after, last) == ([], [(replica, 2)], [(replica, 1)])


def test_without_a_delay_a_step_that_begins_now_is_too_late() -> None:
    inbox, replica = EventInbox[Replica](0), Replica([5])
    inbox.expect(replica, now_us=0)

    assert (read(inbox, 5), read(inbox, 6)) == ([], [(replica, 1)])


def test_who_has_nothing_to_tell_is_not_asked() -> None:
    inbox, busy, quiet = EventInbox[Replica](1), Replica([5]), Replica([500])
    for each in (busy, quiet):
        inbox.expect(each, now_us=0)

    for now_us in (10, 20, 30):
        read(inbox, now_us)

    assert (busy.asked_until_us, quiet.asked_until_us) == ([9], [])


def test_who_is_given_work_is_asked_sooner_than_was_thought() -> None:
    inbox, replica = EventInbox[Replica](1), Replica([500])
    inbox.expect(replica, now_us=0)
    replica.times_us.insert(0, 20)

    inbox.expect(replica, now_us=0)

    assert read(inbox, 21) == [(replica, 1)]
    assert read(inbox, 501) == [(replica, 1)]
