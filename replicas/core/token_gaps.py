"""Times between the tokens of answers, counted by steps and not by tokens.

Who decodes gets a token at the end of each step, so a step adds one gap for each sequence that
decodes in it, and all of them are equal. Only for an answer that will not be whole must it be
known which gaps were its own: those of the steps from its first token on, which are kept while
anybody that is live has lived through them.
"""

from collections import Counter, deque
from collections.abc import Hashable
from dataclasses import dataclass, field
from operator import sub

Ends = list[int] | range | tuple[int, ...]
"""Times at which steps end, in microseconds."""

RUNS_KEPT_MIN = 256
"""Runs of steps are forgotten when they are so many, and twice as many as live answers need."""


@dataclass(slots=True)
class _Answer:
    """Steps are numbered from 1. In each one of a stretch it got a token."""

    begun: int | None  # first step of the stretch that has not ended
    stretches: list[tuple[int, int]] = field(default_factory=list)  # that have ended: first, last
    paused_us: int = 0
    pauses_us: list[int] = field(default_factory=list)


class TokenGaps:
    """Counts the gaps of whole answers."""

    def __init__(self) -> None:
        self._counts: Counter[int] = Counter()  # of whole and live answers
        self._answers: dict[Hashable, _Answer] = {}  # live, in the order of their first tokens
        self._runs: deque[Ends] = deque()
        self._first = 1  # step, of the oldest run
        self._last = 0  # step
        self._last_us = 0  # its end
        self._before_us = 0  # end of the one before it
        self._runs_max = RUNS_KEPT_MIN

    @property
    def num_runs(self) -> int:
        """Runs of steps that are kept for answers that may still be dropped."""
        return len(self._runs)

    def note_steps(self, ends_us: Ends, num_decoding: int) -> None:
        """Take in steps that follow; in each of them so many got one more token."""
        if num_decoding:
            self._add(self._last_us, ends_us, num_decoding)
        self._last += len(ends_us)
        self._before_us = ends_us[-2] if len(ends_us) > 1 else self._last_us
        self._last_us = ends_us[-1]
        self._runs.append(ends_us)
        if len(self._runs) > self._runs_max:
            self._forget_runs()

    def note_token(self, owner: Hashable) -> None:
        """Take in a token of the last step that was not counted as one more."""
        answer = self._answers.get(owner)
        if answer is None:
            self._answers[owner] = _Answer(self._last)
        elif answer.begun is None:
            answer.begun = self._last
            pause_us = self._last_us - answer.paused_us
            answer.pauses_us.append(pause_us)
            self._counts[pause_us] += 1
        else:
            self._counts[self._last_us - self._before_us] += 1

    def note_pause(self, owner: Hashable) -> None:
        """Take in that ``owner`` gets no token after the last step, until one is told."""
        answer = self._answers.get(owner)
        if answer is not None and answer.begun is not None:
            answer.stretches.append((answer.begun, self._last))
            answer.begun, answer.paused_us = None, self._last_us

    def note_whole(self, owner: Hashable) -> None:
        """Take in that an answer is whole."""
        self._answers.pop(owner, None)

    def drop(self, owner: Hashable) -> None:
        """Take in that an answer will not be whole; its gaps count for nothing."""
        answer = self._answers.pop(owner, None)
        if answer is None:
            return
        if answer.begun is not None:
            answer.stretches.append((answer.begun, self._last))
        ends_us = [end_us for run in self._runs for end_us in run]
        for first, last in answer.stretches:
            begin, end = first - self._first, last - self._first
            self._add(ends_us[begin], ends_us[begin + 1 : end + 1], -1)
        self._counts.subtract(answer.pauses_us)

    def take(self) -> Counter[int]:
        """Return the gaps of all whole answers since the last call, in microseconds.

        Answers that are live now will not be counted.
        """
        for owner in list(self._answers):
            self.drop(owner)
        counts, self._counts = +self._counts, Counter()
        return counts

    def _add(self, before_us: int, ends_us: Ends, times: int) -> None:
        if not ends_us:
            return
        counts = self._counts
        counts[ends_us[0] - before_us] += times
        if isinstance(ends_us, range):
            counts[ends_us.step] += times * (len(ends_us) - 1)
        elif len(ends_us) > 1:
            for gap_us, num_gaps in Counter(map(sub, ends_us[1:], ends_us)).items():
                counts[gap_us] += times * num_gaps

    def _forget_runs(self) -> None:
        oldest = self._last
        for answer in self._answers.values():
            oldest = answer.stretches[0][0] if answer.stretches else answer.begun or oldest
            break
        runs = self._runs
        while len(runs) > 1 and self._first + len(runs[0]) <= oldest:
            self._first += len(runs.popleft())
        self._runs_max = max(RUNS_KEPT_MIN, 2 * len(runs))
