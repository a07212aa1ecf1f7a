"""Conversations: each turn's prompt is the one before it, its answer, and a new message.

Open loop between conversations, closed inside: the next message is sent when the answer has been
read, so a slow fleet gets fewer requests, as it would from people.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from contract.options import option
from simulator.draws import Draws
from simulator.request import Segment, SimRequest
from simulator.workload.arrivals import (
    COUNT_MAX,
    CV_MAX,
    TOKENS_MAX,
    ArrivalSettings,
    arrivals_us,
    check_range,
    length_of,
)
from simulator.workload.segments import SegmentIds

THINK_S_MAX = 86_400


@dataclass(frozen=True)
class ConversationSettings(ArrivalSettings):
    """Conversations of several turns, whose prompts grow by the answers."""

    rate: float = option(2.0, "1/s", "mean new conversations per second")
    conversations: int = option(200, "conversations", "in the workload")
    turns: int = option(5, "turns", "messages that a user sends in a conversation")
    system_prompts: int = option(1, "prompts", "different ones, drawn evenly by conversations")
    system_tokens: int = option(500, "tokens", "beginning of every prompt; 0: none")
    message_tokens: int = option(100, "tokens", "mean length of a message")
    output_tokens: int = option(200, "tokens", "mean length of an answer")
    length_cv: float = option(
        0.5, "", "standard deviation / mean of both lengths, lognormal; 0: all equal"
    )
    think_s: float = option(
        10.0, "s", "mean time from an answer's end to the next message, exponential"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range(self, "conversations", 1, COUNT_MAX)
        check_range(self, "turns", 1, COUNT_MAX)
        check_range(self, "system_prompts", 1, COUNT_MAX)
        check_range(self, "system_tokens", 0, TOKENS_MAX)
        check_range(self, "message_tokens", 1, TOKENS_MAX)
        check_range(self, "output_tokens", 1, TOKENS_MAX)
        check_range(self, "length_cv", 0, CV_MAX)
        check_range(self, "think_s", 0, THINK_S_MAX)


def conversation_requests(settings: ConversationSettings, seed: str) -> Iterator[SimRequest]:
    """Yield conversations in the order of their arrival, each with all of its turns."""
    ids = SegmentIds()
    draws = Draws(seed, "conversations")
    systems = [
        (ids.fresh(settings.system_tokens),) if settings.system_tokens else ()
        for _ in range(settings.system_prompts)
    ]
    times = arrivals_us(settings, Draws(seed, "arrivals"))
    for number, arrival_us in enumerate(islice(times, settings.conversations)):
        system = systems[draws.below(len(systems))]
        yield from _turns(f"conversation-{number}", system, arrival_us, settings, ids, draws)


def _turns(
    session: str,
    context: tuple[Segment, ...],
    arrival_us: int,
    settings: ConversationSettings,
    ids: SegmentIds,
    draws: Draws,
) -> Iterator[SimRequest]:
    after: str | None = None
    think_us = 0
    for turn in range(settings.turns):
        message = ids.fresh(length_of(settings.message_tokens, settings.length_cv, draws))
        request = SimRequest(
            request_id=f"{session}-turn-{turn}",
            segments=(*context, message),
            output_tokens=length_of(settings.output_tokens, settings.length_cv, draws),
            output_id=ids.new(),
            arrival_us=0 if after else arrival_us,
            after=after,
            think_us=think_us,
            session=session,
        )
        yield request
        context = (*request.segments, answer_of(request))
        after = request.request_id
        think_us = round(draws.exponential(settings.think_s) * 1_000_000)


def answer_of(request: SimRequest) -> Segment:
    """Return what ``request`` generates, as a later prompt has it."""
    return Segment(request.output_id, request.output_tokens)
