"""Agents: one request plans, several work on its plan at once, one puts their answers together.

```
task ---> plan --+--> worker 0 --+--> join ---> (the next round plans from here)
                 +--> worker 1 --+
                 +--> worker 2 --+
```

All workers share the plan's whole context; the join reads all answers. A request can wait for one
other only, so the join follows the worker with the longest answer: all start at once, and that one
mostly ends last. Workers start as soon as there is a plan; before a join, tools run.
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
from simulator.workload.conversations import THINK_S_MAX, answer_of
from simulator.workload.segments import SegmentIds


@dataclass(frozen=True)
class AgentSettings(ArrivalSettings):
    """Trees of agent requests: siblings that share a parent's context, then joined."""

    rate: float = option(1.0, "1/s", "mean new trees per second")
    trees: int = option(100, "trees", "in the workload")
    rounds: int = option(2, "rounds", "of fanning out and joining in a tree")
    fan_out: int = option(4, "requests", "siblings that share one parent's context")
    system_tokens: int = option(2_000, "tokens", "instructions and tools, which all trees share")
    task_tokens: int = option(500, "tokens", "mean length of a tree's task")
    instruction_tokens: int = option(100, "tokens", "mean length of what a sibling is told")
    output_tokens: int = option(200, "tokens", "mean length of an answer")
    length_cv: float = option(
        0.5, "", "standard deviation / mean of the lengths, lognormal; 0: all equal"
    )
    tool_s: float = option(1.0, "s", "mean time of the tools that run before a join, exponential")

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("trees", "rounds", "fan_out"):
            check_range(self, name, 1, COUNT_MAX)
        for name in ("system_tokens", "task_tokens", "instruction_tokens", "output_tokens"):
            check_range(self, name, 1, TOKENS_MAX)
        check_range(self, "length_cv", 0, CV_MAX)
        check_range(self, "tool_s", 0, THINK_S_MAX)


def agent_requests(settings: AgentSettings, seed: str) -> Iterator[SimRequest]:
    """Yield trees in the order of their arrival, each with all of its requests."""
    ids = SegmentIds()
    draws = Draws(seed, "agents")
    system = ids.fresh(settings.system_tokens)
    times = arrivals_us(settings, Draws(seed, "arrivals"))
    for number, arrival_us in enumerate(islice(times, settings.trees)):
        yield from _Tree(f"tree-{number}", settings, ids, draws).requests(system, arrival_us)


@dataclass(slots=True)
class _Tree:
    session: str
    settings: AgentSettings
    ids: SegmentIds
    draws: Draws

    def requests(self, system: Segment, arrival_us: int) -> Iterator[SimRequest]:
        task = self._text(self.settings.task_tokens)
        parent = self._request("plan", (system, task), None, arrival_us=arrival_us)
        yield parent
        for round_index in range(self.settings.rounds):
            context = (*parent.segments, answer_of(parent))
            siblings = [
                self._request(
                    f"round-{round_index}-worker-{index}",
                    (*context, self._text(self.settings.instruction_tokens)),
                    parent.request_id,
                )
                for index in range(self.settings.fan_out)
            ]
            yield from siblings
            last = max(siblings, key=lambda request: request.output_tokens)
            joined = (*context, *map(answer_of, siblings))
            tool_us = round(self.draws.exponential(self.settings.tool_s) * 1_000_000)
            parent = self._request(
                f"round-{round_index}-join", joined, last.request_id, think_us=tool_us
            )
            yield parent

    def _request(
        self,
        name: str,
        segments: tuple[Segment, ...],
        after: str | None,
        *,
        arrival_us: int = 0,
        think_us: int = 0,
    ) -> SimRequest:
        settings, draws = self.settings, self.draws
        return SimRequest(
            request_id=f"{self.session}-{name}",
            segments=segments,
            output_tokens=length_of(settings.output_tokens, settings.length_cv, draws),
            output_id=self.ids.new(),
            arrival_us=arrival_us,
            after=after,
            think_us=think_us,
            session=self.session,
        )

    def _text(self, mean_tokens: int) -> Segment:
        length = length_of(mean_tokens, self.settings.length_cv, self.draws)
        return self.ids.fresh(length)
