"""What an agent believes of one engine: which process answers, and what to report of it.

Rules:

1. An engine that does not answer is not reported. Its last report expires, and until then is old.
2. Another process is another incarnation, whose cache is cold. It shows in the time at which it
   says it was started. For an engine that does not say so: in a counter that has gone back, or in
   that nobody listened for a while. One that is merely slow to answer has not restarted.
3. A process that tells its start keeps its incarnation when the agent is restarted; what gateways
   know of its cache stays good.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from contract.load_report import LoadReport
from replicas.agents.engines.figures import Figures
from replicas.agents.engines.prefill_rate import PrefillRate


@dataclass(frozen=True, slots=True)
class EngineIdentity:
    """What is reported of an engine that its metrics do not tell."""

    replica_id: str
    url: str  # where gateways reach it
    kv_tokens: int | None = None  # size of its cache, for an engine that does not tell


class EngineWatch:
    """Turns what one engine answers into its load reports.

    ``agent_id`` is new at every start of the agent, and ``first_sequence`` above all numbers of
    the agent before it: both go into reports that must not repeat older ones.
    """

    def __init__(self, identity: EngineIdentity, agent_id: str, first_sequence: int) -> None:
        self.identity = identity
        self._agent_id = agent_id
        self._sequence = first_sequence
        self._num_restarts = 0
        self._last: Figures | None = None
        self._was_gone = False
        self._prefill = PrefillRate()

    def gone(self) -> None:
        """Take in that nobody listens at its address any more."""
        self._was_gone = True

    def answered(self, figures: Figures, models: Sequence[str]) -> LoadReport:
        """Take in one scrape, and return its report. ``models``: the name, then its aliases."""
        if self._is_other_process(figures):
            self._num_restarts += 1
            self._prefill = PrefillRate()
        self._last = figures
        self._was_gone = False
        self._prefill.observe(figures)
        self._sequence += 1
        return self._report(figures, models)

    def _is_other_process(self, figures: Figures) -> bool:
        last = self._last
        if last is None:
            return False
        if figures.started_s is not None and last.started_s is not None:
            return figures.started_s != last.started_s
        return self._was_gone or figures.has_gone_back(last)

    def _incarnation(self, figures: Figures) -> str:
        if figures.started_s is not None:
            return f"started-{figures.started_s}"
        return f"{self._agent_id}-{self._num_restarts}"

    def _report(self, figures: Figures, models: Sequence[str]) -> LoadReport:
        block_size, blocks = figures.block_size, figures.kv_blocks_total
        used = figures.kv_blocks_used
        if blocks is None and self.identity.kv_tokens is not None:
            block_size, blocks, used = 1, self.identity.kv_tokens, None
        return LoadReport(
            replica_id=self.identity.replica_id,
            url=self.identity.url,
            model=models[0],
            aliases=list(models[1:]),
            incarnation=self._incarnation(figures),
            sequence=self._sequence,
            block_size=block_size,
            waiting_requests=figures.waiting_requests,
            running_requests=figures.running_requests,
            kv_blocks_total=blocks,
            kv_blocks_used=used,
            cached_tokens_total=figures.cached_tokens_total,
            prompt_tokens_total=figures.prompt_tokens_total,
            prefill_tokens_per_s=self._prefill.tokens_per_s,
            draining=figures.is_asleep,
        )
