"""One replica as its reports tell, and how far they can be trusted: a belief with an age.

What others have under way is expected by ``router.core.foreign_load``. Unknown is not idle: what a
report leaves out is taken to be as at its peers.

A belief is about one process. A restarted replica gets a new one, on the same slot.
"""

from enum import Enum
from math import ceil

from contract.blocks import HASH_SCHEME, TOKEN_BYTES
from contract.load_report import LOAD_REPORT_SCHEMA, InFlight, LoadReport
from router.core.config import RoutingConfig, micros
from router.core.foreign_load import IDLE, ForeignLoad
from router.core.health import Breaker
from router.core.kv_mirror import KvCursor
from router.core.ledger import Lease
from router.core.probing import ProbeRow
from router.core.rates import ReplicaRates
from router.core.reason import Ineligible
from router.core.view import ChainKey, ReplicaView, pressure_of

ANSWERS_MISSED_IN_A_ROW_MAX = 8
"""From so many on, a replica is taken for one that never finds the text of an answer again."""

UNCACHED_IN_A_ROW_MAX = 3
SHORT_IN_A_ROW_MAX = 8
"""From so many answers on that had nothing, or less, cached of what we believed, a replica is taken
for one that does not cache prefixes, or not as we think."""

RETIRED_MAX = 4  # a report is late by seconds, not by several restarts


class Freshness(Enum):
    """How old a replica's last report is."""

    SILENT = "silent"  # it has never reported: a static replica, judged by its answers alone
    FRESH = "fresh"
    STALE = "stale"  # no credit for a cache that its events tell of; its last known load stays
    DEAD = "dead"  # no traffic, unless all are dead: then by our own requests alone


class Belief:
    """What is known of one replica process beyond its view; written by the fleet only."""

    def __init__(self, view: ReplicaView, config: RoutingConfig, *, is_static: bool) -> None:
        self.view = view
        self.is_static = is_static
        self.is_drained_by_admin = False
        self.kv = KvCursor()
        self.retired: tuple[str, ...] = ()  # incarnations before this one, newest last
        self.listed_models: tuple[str, ...] = ()  # by a replica that does not report
        self.uncached_in_a_row = 0  # answers that owed nothing to a prefix we believed cached
        self.short_in_a_row = 0  # answers that owed less to it than we believed
        self.running: dict[Lease, int] = {}  # own, where we learn: when kept, longest ago first
        self.answers_missed_in_a_row = 0  # prompts that were cached up to the last answer only
        self.breaker = Breaker(config)
        self.probes = ProbeRow(config)
        self.recovering_since_us: int | None = None
        self.missing_models: dict[str, int] = {}  # answered with 404, until when that counts
        self.rates = ReplicaRates()
        self.prior_tokens_per_s = config.prefill_tokens_per_s  # before what was learned
        view.prefill_tokens_per_s = self.prior_tokens_per_s
        self.report: LoadReport | None = None
        self.reported_us = 0  # when the last accepted report was counted
        self.overtaken: int | None = None  # number of one that came after it, but is older
        self.absent_since_us: int | None = None  # the store answered, without this replica
        self.mismatch: str | None = None  # why its reports cannot be used
        self.refused_us: int | None = None  # when one last could not even be decoded
        self.leaves_out_load = False  # in its last report, at least in part
        self.freshness = Freshness.SILENT
        self.block_bytes = config.index_block_bytes
        self._config = config
        self._adapters: frozenset[str] = frozenset()
        self._foreign = ForeignLoad(micros(config.load_trust_s))

    def serves(self, model: str) -> bool:
        """Say whether ``model`` is its name, one of its aliases, or could be: it has not said."""
        return self.view.model in (None, model) or model in self.aliases

    @property
    def aliases(self) -> list[str]:
        """Other names of its model."""
        return self.report.aliases if self.report else list(self.listed_models)

    @property
    def tells_prefill_speed(self) -> bool:
        """Whether its reports say how fast it computes prompts."""
        return self.report is not None and (self.report.prefill_tokens_per_s or 0) > 0

    @property
    def engine_block(self) -> int:
        """Blocks of the index, rounded up, in one of the engine: it may have so many fewer."""
        num_bytes = (self.view.kv_block_tokens or 1) * self._config.bytes_per_token
        return ceil(num_bytes / self.block_bytes)

    @property
    def is_taken_at_its_word(self) -> bool:
        """Whether no more is believed than it said last: it has had less again and again."""
        is_short = self.short_in_a_row >= SHORT_IN_A_ROW_MAX
        return is_short or self.uncached_in_a_row >= UNCACHED_IN_A_ROW_MAX

    @property
    def finds_answers(self) -> bool:
        """Whether it is worth knowing what it answered, for the prompts that will hold it."""
        is_lost = self.answers_missed_in_a_row >= ANSWERS_MISSED_IN_A_ROW_MAX
        return self._config.index_answers and not is_lost

    @property
    def publishes_events(self) -> bool:
        """Whether its own events tell what it caches."""
        return self.report is not None and self.report.hash_scheme is not None

    def chain_key(self, model: str | None) -> ChainKey:
        """Return how its cache names the blocks of a request for ``model``.

        A replica with events roots its chains by its own name for the model, whatever alias the
        request has; what is learned is rooted by the request's.
        """
        if not self.publishes_events or self.mismatch is not None:
            return (self.block_bytes, None)
        report = self.report
        assert report is not None
        return (self.block_bytes, model if model in self._adapters else report.model)

    @property
    def learned_blocks_max(self) -> int | None:
        """Blocks that its cache can hold, for one without events; else None."""
        if self.publishes_events:
            return None
        report = self.report
        tokens = self._config.learned_tokens_max
        if report is not None and report.kv_blocks_total is not None and report.block_size:
            tokens = report.kv_blocks_total * report.block_size
        return int(tokens * self._config.bytes_per_token // self.block_bytes)

    def is_older(self, report: LoadReport) -> bool:
        """Whether ``report`` says nothing new: seen before, overtaken, or of a dead process."""
        if report.incarnation in self.retired:
            return True
        last = self.report
        same_process = last is not None and last.incarnation == report.incarnation
        return last is not None and same_process and report.sequence <= last.sequence

    def notices_restart(self, report: LoadReport) -> bool:
        """Take in a report; return whether it comes from another process than the last one.

        Either it says so, or it counts anew: one that is older may have been overtaken, but not the
        next one that goes on from there.
        """
        last, before = self.report, self.overtaken
        if last is None or report.incarnation in self.retired:
            return False
        if report.incarnation != last.incarnation:
            return True
        if report.sequence >= last.sequence:
            return False
        self.overtaken = report.sequence
        return before is not None and before < report.sequence

    def successor(self, incarnation: str) -> "Belief":
        """Return the belief about the process that takes this one's place: cold, and idle."""
        assert self.report is not None
        old = self.view
        view = ReplicaView(old.replica_id, old.slot, old.url, old.model)
        belief = Belief(view, self._config, is_static=self.is_static)
        belief.is_drained_by_admin = self.is_drained_by_admin
        belief.kv = self.kv
        before = self.report.incarnation
        belief.retired = self.retired
        if before != incarnation:
            belief.retired = (*self.retired, before)[-RETIRED_MAX:]
        return belief

    def accept(self, report: LoadReport, counted_us: int) -> None:
        """Take in a newer report of the same process, counted at ``counted_us``."""
        self.report = report
        self._adapters = frozenset(report.adapters)
        self.reported_us = counted_us
        self.overtaken = None
        self.absent_since_us = None
        self.mismatch = mismatch_of(report)
        self.refused_us = None
        lacks_ahead = report.waiting_prefill_tokens is None
        self.leaves_out_load = lacks_ahead or _requests_in(report) is None
        self.view.url = report.url
        self.view.model = report.model
        self._copy_reported(report)
        if self.tells_prefill_speed:
            assert report.prefill_tokens_per_s is not None
            self.set_prior(report.prefill_tokens_per_s)
        if self.publishes_events and self.mismatch is None:
            assert report.block_bytes is not None
            self.block_bytes = report.block_bytes
        self._count_foreign(report)

    def refuse(self, why: str, now_us: int) -> None:
        """Take in that what it reports at ``now_us`` cannot be decoded."""
        self.mismatch = why
        self.refused_us = now_us
        self.absent_since_us = None

    def forget_reports(self) -> None:
        """Know no more of it than of a replica that has never reported."""
        self.report = self.mismatch = self.refused_us = self.absent_since_us = None
        self.reported_us = 0
        self.leaves_out_load = False
        self.freshness = Freshness.SILENT
        self.block_bytes = self._config.index_block_bytes
        view = self.view
        view.kv_usage = view.step_share = None
        view.kv_pressure = pressure_of(None)
        view.kv_blocks_used = view.kv_blocks_total = view.kv_block_tokens = None
        view.running_requests = view.waiting_requests = view.step_tokens = None
        self._foreign = ForeignLoad(micros(self._config.load_trust_s))
        self._write_foreign()

    def set_prior(self, tokens_per_s: float) -> None:
        """Take in a prefill speed that does not come from its answers."""
        self.prior_tokens_per_s = tokens_per_s
        self.view.prefill_tokens_per_s = tokens_per_s / self.view.prefill_slowdown

    def _copy_reported(self, report: LoadReport) -> None:
        """Let policies see what the report tells, as it is: not counted on since."""
        view = self.view
        view.kv_usage = report.kv_usage
        if report.kv_usage is not None:
            view.kv_pressure = pressure_of(report.kv_usage)
        view.kv_blocks_used = report.kv_blocks_used
        view.kv_blocks_total = report.kv_blocks_total
        view.kv_block_tokens = report.block_size
        view.running_requests = report.running_requests
        view.waiting_requests = report.waiting_requests
        view.step_tokens = report.step_tokens
        share = report.step_share
        view.step_share = None if share is None else min(1.0, share)

    def note_own_load(self) -> None:
        """Raise the peak; called whenever our own load has grown."""
        self._foreign.note_own(self.view)

    def set_others(self, others: InFlight) -> None:
        """Take in what the other gateways have under way here."""
        if self._foreign.set_others(others):
            self._write_foreign()

    @property
    def told_load(self) -> tuple[int | None, int | None]:
        """Others' requests and tokens ahead, each None where its report does not tell."""
        report = self.report
        if report is None or self.freshness is Freshness.DEAD:
            return (None, None)
        told = self._foreign.beyond_own
        return (
            None if _requests_in(report) is None else told.requests,
            None if report.waiting_prefill_tokens is None else told.ahead_tokens,
        )

    def lend_load(self, peers: InFlight) -> None:
        """Take in what its peers have, for what its own report leaves out."""
        requests, ahead_tokens = self.told_load
        lent = InFlight(
            peers.requests if requests is None else requests,
            peers.ahead_tokens if ahead_tokens is None else ahead_tokens,
        )
        if self._foreign.set_beyond_own(lent):
            self._write_foreign()

    def age(self, now_us: int) -> bool:
        """Let the report grow old. Returns whether the freshness changed."""
        freshness = self._freshness(now_us)
        if freshness is self.freshness:
            return False
        self.freshness = freshness
        self._write_foreign()
        return True

    def standing(self) -> Ineligible | None:
        """Why the replica should not be chosen, the gravest reason first; None if it may be.

        What it says of itself, its contract included, counts as long as it is believed.
        """
        if self.mismatch is not None and self.freshness is not Freshness.DEAD:
            return Ineligible.CONTRACT_MISMATCH
        if self.is_draining:
            return Ineligible.DRAINING
        if self.breaker.is_ejected or self.probes.is_out:
            return Ineligible.EJECTED
        if self.freshness is Freshness.DEAD:
            return Ineligible.NOT_REPORTING
        return Ineligible.BACKING_OFF if self.breaker.is_avoided else None

    def standing_for(self, model: str | None) -> Ineligible | None:
        """Likewise, for requests that name ``model``."""
        standing = self.standing()
        if standing is None and model in self.missing_models:
            return Ineligible.BACKING_OFF
        return standing

    def recover(self, now_us: int) -> None:
        """Let it regain its traffic by and by, from now on."""
        if self._config.slow_start_s:
            self.recovering_since_us = now_us

    def grow_well(self, now_us: int) -> bool:
        """Let time end a slow start, or a 404; return whether it did."""
        since_us = self.recovering_since_us
        ended = since_us is not None and now_us - since_us >= micros(self._config.slow_start_s)
        if ended:
            self.recovering_since_us = None
        for model, until_us in list(self.missing_models.items()):
            if now_us >= until_us:
                del self.missing_models[model]
                ended = True
        return ended

    @property
    def is_draining(self) -> bool:
        """Told to take no more requests, by itself or by the admin.

        Its own word counts as long as it is believed: who drained may have stopped and come back
        while the store was away.
        """
        report, is_dead = self.report, self.freshness is Freshness.DEAD
        return self.is_drained_by_admin or (report is not None and report.draining and not is_dead)

    @property
    def has_cache_credit(self) -> bool:
        """Whether what the index says of it may count.

        What was learned from our own requests did not come with a report, and an engine that
        computes a long prompt may be too busy to tell its load for a while.
        """
        if self.freshness is Freshness.STALE:
            return not self.publishes_events
        return self.freshness is not Freshness.DEAD

    @property
    def has_spoken(self) -> bool:
        """Whether it has reported, in whatever words."""
        return self.report is not None or self.refused_us is not None

    def _freshness(self, now_us: int) -> Freshness:
        if not self.has_spoken:
            return Freshness.SILENT
        if self.absent_since_us is not None:
            return Freshness.DEAD
        age_us = now_us - max(self.reported_us, self.refused_us or 0)
        if age_us >= micros(self._config.report_dead_s):
            return Freshness.DEAD
        is_stale = age_us >= micros(self._config.report_stale_s)
        return Freshness.STALE if is_stale else Freshness.FRESH

    def _count_foreign(self, report: LoadReport) -> None:
        requests, ahead_tokens = _requests_in(report), report.waiting_prefill_tokens
        self._foreign.report(requests, ahead_tokens, self.view, self.reported_us)
        self._write_foreign()

    def _write_foreign(self) -> None:
        # A dead replica is chosen only when all are: then nothing but our own count is current.
        foreign = IDLE if self.freshness is Freshness.DEAD else self._foreign.expected()
        self.view.foreign_requests = foreign.requests
        self.view.foreign_ahead_tokens = foreign.ahead_tokens


def mismatch_of(report: LoadReport) -> str | None:
    """Return why this gateway cannot work with ``report``, None if it can."""
    if report.schema != LOAD_REPORT_SCHEMA:
        return f"load report schema {report.schema}, this gateway reads {LOAD_REPORT_SCHEMA}"
    if report.hash_scheme is None:
        return None
    if report.hash_scheme != HASH_SCHEME:
        return f"hash scheme {report.hash_scheme!r}, this gateway reads {HASH_SCHEME!r}"
    if report.block_bytes is None or report.block_bytes <= 0 or report.block_bytes % TOKEN_BYTES:
        return f"KV events of blocks of {report.block_bytes} bytes; expected {TOKEN_BYTES} n"
    return None


def _requests_in(report: LoadReport) -> int | None:
    """Return how many requests it counts, waiting and running; None if it tells of neither."""
    known = [n for n in (report.waiting_requests, report.running_requests) if n is not None]
    return sum(known) if known else None
