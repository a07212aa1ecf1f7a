"""How slow each replica is beside its peers, learned from its own answers.

    slowdown = median over its last answers of  its time / its peers' time for as much work

A prompt's work is the tokens ahead of it and its own uncached ones, at the speed that is taken for
granted (reported, else configured); its time is that from dispatch to the first byte. A stream's
work is the requests beside it; its time is that of a token. Only like amounts are compared, within
half an octave: what every step costs anyway, a token budget and a full batch then cancel out, and
no model of an engine is needed. The peers' time is the median over replicas of the last answer of
each, the lower one of two: one vote each, however unequal their traffic.

Where no replica of a model tells its speed, how fast they all are is learned too, as the median of
tokens over time of prompts with much work. That changes no choice between them; it makes seconds of
what a policy calls seconds.

A median of ratios does not see a stalled client, a lost packet or a burst. ``PRIOR_ANSWERS`` stand
for the belief that all are alike, and within the dead band a slowdown counts as none, so that an
even fleet is routed as if nothing had been learned. Source of both needs and of the band: this
project's study of routing rules, where learned rates without them cost an even fleet 3 % of TTFT.

A few answers of each replica are compared, off the path of any request, at the tick: to compare
one takes twice as long as all else at the end of its lease.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, log2

from contract.openai_api import Usage
from router.core.config import RoutingConfig, micros
from router.core.ledger import Lease
from router.core.view import ReplicaView

ANSWERS_KEPT = 32
PRIOR_ANSWERS = 8
PEERS_KEPT = 8
CLASSES_MAX = 1_024
"""Classes of work over all models; a model has about twenty."""

CLASSES_PER_OCTAVE = 2
STREAM_TOKENS_MIN = 8  # below which the time of a token says little
SPEED_TOKENS_MIN = 2_000  # of work, below which what every step costs hides the speed
SPEED_ANSWERS_MIN = 16
MODELS_MAX = 256
ANSWERS_PER_TICK = 4
"""Of one replica. Ten ticks a second: what is kept is full, or as new, within a second."""

_ALIKE = [1.0] * PRIOR_ANSWERS


class Recent:
    """The last values of one figure. To sort so few is cheaper than to keep them in order."""

    def __init__(self) -> None:
        self._values: deque[float] = deque(maxlen=ANSWERS_KEPT)
        self._ended_us: deque[int] = deque(maxlen=ANSWERS_KEPT)

    def __len__(self) -> int:
        return len(self._values)

    def add(self, value: float, ended_us: int) -> None:
        """Take in the value of an answer that ended then."""
        self._values.append(value)
        self._ended_us.append(ended_us)

    def forget_until(self, since_us: int) -> bool:
        """Forget what ended up to then; return whether there was any."""
        ended_us = self._ended_us
        if not ended_us or ended_us[0] > since_us:
            return False
        while ended_us and ended_us[0] <= since_us:
            ended_us.popleft()
            self._values.popleft()
        return True

    def median(self, more: Sequence[float] = ()) -> float | None:
        """Return the lower median of the values and ``more``; None where there are none."""
        values = sorted([*self._values, *more])
        return values[(len(values) - 1) // 2] if values else None


class Pace:
    """How fast one replica process is at one kind of work."""

    def __init__(self) -> None:
        self.slowdown = 1.0  # times as long as its peers; 1 where little is known
        self.took_us: float | None = None  # median
        self._took_us = Recent()
        self._ratios = Recent()
        self._has_news = False

    def add(self, took_us: float, ratio: float | None, ended_us: int) -> None:
        """Take in one answer; ``ratio``: to its peers, None where no other did as much work."""
        self._took_us.add(took_us, ended_us)
        if ratio is not None:
            self._ratios.add(ratio, ended_us)
        self._has_news = True

    def update(self, since_us: int) -> bool:
        """Forget what ended up to ``since_us``; return whether the figures were made anew.

        A replica that is avoided because it was slow gets another chance by this.
        """
        has_fewer = self._took_us.forget_until(since_us) | self._ratios.forget_until(since_us)
        if not (self._has_news or has_fewer):
            return False
        self._has_news = False
        self.slowdown = self._ratios.median(_ALIKE) or 1.0
        self.took_us = self._took_us.median()
        return True


class Peers:
    """What each replica last took for each amount of one kind of work."""

    def __init__(self, window_us: int) -> None:
        self._window_us = window_us
        self._classes: dict[tuple[str | None, int], dict[Pace, tuple[float, int]]] = {}

    def compare(
        self, model: str | None, amount: float, took_us: float, pace: Pace, now_us: int
    ) -> None:
        """Let ``pace`` know what it took for ``amount``, and its peers for as much.

        Both are above 0. A replica that alone had so much work within the window has no peers.
        """
        key = (model, int(CLASSES_PER_OCTAVE * log2(amount)))
        last = self._classes.setdefault(key, {})
        last.pop(pace, None)
        last[pace] = (took_us, now_us)  # and so the newest is the last one
        if len(last) > PEERS_KEPT:
            del last[next(iter(last))]
        if len(self._classes) > CLASSES_MAX:
            del self._classes[next(iter(self._classes))]
        since_us = now_us - self._window_us
        times_us = sorted([took for took, ended_us in last.values() if ended_us > since_us])
        ratio = took_us / times_us[(len(times_us) - 1) // 2] if len(times_us) > 1 else None
        pace.add(took_us, ratio, now_us)


class ModelSpeeds:
    """Prefill speeds that answers have shown, by model; each as if of a replica like its peers."""

    def __init__(self) -> None:
        self._shown: dict[str | None, Recent] = {}

    def add(self, model: str | None, tokens_per_s: float, ended_us: int) -> None:
        """Take in what one answer shows."""
        if model not in self._shown and len(self._shown) == MODELS_MAX:
            del self._shown[next(iter(self._shown))]
        self._shown.setdefault(model, Recent()).add(tokens_per_s, ended_us)

    def of(self, model: str | None) -> float | None:
        """Return the median in tokens/s; None where too little is known."""
        shown = self._shown.get(model)
        if shown is None or len(shown) < SPEED_ANSWERS_MIN:
            return None
        return shown.median()


class ReplicaRates:
    """What was learned of one replica process; gone with it."""

    def __init__(self) -> None:
        self.prefill = Pace()
        self.decode = Pace()
        self.num_new = 0  # answers that are yet to be compared


@dataclass(frozen=True, slots=True)
class _Answer:
    """One whole answer, as ``Rates.learn`` has it."""

    rates: ReplicaRates
    prior: float
    lease: Lease
    ended_us: int
    usage: Usage | None


class Rates:
    """What one gateway learns of its fleet. Time is that of the answers' ends."""

    def __init__(self, config: RoutingConfig) -> None:
        self._window_us = micros(config.rate_window_s)
        self._dead_band = config.rate_dead_band
        self._prompts = Peers(self._window_us)
        self._streams = Peers(self._window_us)
        self.speeds = ModelSpeeds()
        self._new: list[_Answer] = []

    def learn(
        self, rates: ReplicaRates, prior: float, lease: Lease, now_us: int, usage: Usage | None
    ) -> None:
        """Take in a whole answer; ``prior`` is the replica's speed taken for granted, tokens/s.

        It has to be a stream: only that shows where its prefill ended and its decoding began.
        """
        if rates.num_new < ANSWERS_PER_TICK and lease.first_byte_us is not None:
            rates.num_new += 1
            self._new.append(_Answer(rates, prior, lease, now_us, usage))

    def compare(self) -> None:
        """Compare the answers that have come since the last time."""
        answers, self._new = self._new, []
        for answer in answers:
            answer.rates.num_new = 0
            self._compare(answer)

    def _compare(self, answer: _Answer) -> None:
        rates, lease, usage = answer.rates, answer.lease, answer.usage
        now_us, first_us = answer.ended_us, lease.first_byte_us
        assert first_us is not None
        model = lease.replica.model
        work_tokens = lease.ahead_tokens + _computed_tokens(lease, usage)
        took_us = first_us - lease.booked_us
        work_s = work_tokens / answer.prior
        if 0 < work_s < inf and took_us > 0:  # inf: it reports next to no speed
            self._prompts.compare(model, work_s, took_us, rates.prefill, now_us)
            if work_tokens >= SPEED_TOKENS_MIN:
                speed = work_tokens / took_us * 1e6 * rates.prefill.slowdown
                self.speeds.add(model, speed, now_us)
        num_tokens = lease.num_chunks if usage is None else usage.completion_tokens
        decode_us = now_us - first_us
        if num_tokens >= STREAM_TOKENS_MIN and decode_us > 0:
            token_us = decode_us / (num_tokens - 1)
            self._streams.compare(model, lease.num_streams, token_us, rates.decode, now_us)

    def apply(self, rates: ReplicaRates, speed: float, view: ReplicaView, now_us: int) -> None:
        """Let policies see what is known now; ``speed``: the replica's if it is like its peers."""
        since_us = now_us - self._window_us
        if rates.prefill.update(since_us):
            view.prefill_slowdown = self._outside_band(rates.prefill.slowdown)
        if rates.decode.update(since_us):
            view.decode_slowdown = self._outside_band(rates.decode.slowdown)
            view.token_us = rates.decode.took_us
        view.prefill_tokens_per_s = speed / view.prefill_slowdown

    def _outside_band(self, slowdown: float) -> float:
        is_inside = 1 / self._dead_band <= slowdown <= self._dead_band
        return 1.0 if is_inside else slowdown


def _computed_tokens(lease: Lease, usage: Usage | None) -> float:
    """Return the tokens of this prompt that the replica computed, in the router's count."""
    if usage is None or usage.cached_tokens is None or usage.prompt_tokens <= 0:
        return lease.uncached_tokens
    share = min(max(usage.cached_tokens / usage.prompt_tokens, 0.0), 1.0)
    return (lease.matched_tokens + lease.uncached_tokens) * (1.0 - share)
