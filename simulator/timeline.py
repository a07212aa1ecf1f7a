"""How full each replica was over virtual time, in a bounded number of samples."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ReplicaSample:
    """One replica at one moment."""

    running: int  # sequences
    waiting: int  # sequences
    kv_usage: float  # 0..1, of what sequences hold


@dataclass(frozen=True)
class Track:
    """One replica over time; None where it was not in the fleet."""

    running: tuple[int | None, ...]
    waiting: tuple[int | None, ...]
    kv_usage: tuple[float | None, ...]


@dataclass(frozen=True)
class TimelineTable:
    """All replicas at the same moments, in seconds from the start of the run."""

    at_s: tuple[float, ...]
    replicas: dict[str, Track]


class Timeline:
    """Samples at equal distances; when there are too many, every second one goes.

    The distance then doubles, so a run of any length leaves between half of ``samples_max`` and
    ``samples_max`` samples, and which ones depends on nothing but the times.
    """

    def __init__(self, interval_us: int, samples_max: int) -> None:
        assert interval_us > 0
        assert samples_max > 1
        self.interval_us = interval_us
        self._samples_max = samples_max
        self._samples: list[tuple[int, dict[str, ReplicaSample]]] = []

    def take(self, now_us: int, replicas: Mapping[str, ReplicaSample]) -> int:
        """Keep the state of this moment; return when the next sample is due."""
        self._samples.append((now_us, dict(replicas)))
        if len(self._samples) > self._samples_max:
            self._samples = self._samples[::2]
            self.interval_us *= 2
        return self._samples[-1][0] + self.interval_us

    def table(self) -> TimelineTable:
        """Return what was kept, by replica in the order of their first sample."""
        ids = dict.fromkeys(replica_id for _, each in self._samples for replica_id in each)
        return TimelineTable(
            at_s=tuple(at_us / 1e6 for at_us, _ in self._samples),
            replicas={replica_id: self._track(replica_id) for replica_id in ids},
        )

    def _track(self, replica_id: str) -> Track:
        samples = [each.get(replica_id) for _, each in self._samples]
        return Track(
            running=tuple(None if each is None else each.running for each in samples),
            waiting=tuple(None if each is None else each.waiting for each in samples),
            kv_usage=tuple(None if each is None else each.kv_usage for each in samples),
        )
