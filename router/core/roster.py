"""Who is in the fleet, and who of them may take a request for a model now.

The answer to the second question is kept until something changes it: a report, an ejection, a
drain, an age. Gravest reasons yield last: replicas that push back are used when no other is left,
then those that stopped reporting, then the ejected ones (when all are out, or more than
``max_ejected``, all are in). Another model, draining and a contract mismatch never yield; the last
two are a replica's own word and end with its reports.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from heapq import heappop, heappush

from contract.load_report import GatewayReport, InFlight, LoadReport
from router.core.belief import Belief, Freshness
from router.core.config import RoutingConfig, micros
from router.core.foreign_load import IDLE
from router.core.frontier import Frontier
from router.core.kv_mirror import restart
from router.core.lending import lend_loads, lend_pressures, lend_speeds
from router.core.prefix_index import PrefixIndex, slot_bit
from router.core.rates import Rates
from router.core.reason import Ineligible
from router.core.view import ChainKey, ReplicaView

_YIELDS_LAST = (None, Ineligible.BACKING_OFF, Ineligible.NOT_REPORTING, Ineligible.EJECTED)
_OUT = (Ineligible.NOT_REPORTING, Ineligible.EJECTED)
REPLICAS_PER_SLICE = 64
"""Whose beliefs grow old in one go, in less than a millisecond."""

_OTHER_NAMES = "\0"  # stands for every model name that no replica has given


@dataclass(frozen=True, slots=True)
class Pool:
    """The replicas that may take a request for one model, as things stand."""

    views: list[ReplicaView]
    credit: dict[ChainKey, int]  # `slot_bit`s of those whose cache counts, by their chains
    excluded: dict[str, Ineligible]  # by replica id: all others
    recovering: list[Belief]  # of those that may
    slots: int  # `slot_bit`s of the views
    members: frozenset[int]  # by ``id``: another view may look the same
    is_last_resort: bool  # they are all out, and better than nobody

    def is_last_resort_for(self, tried: Collection[str]) -> bool:
        """Say whether nobody is well but those ``tried``."""
        return self.is_last_resort or all(view.replica_id in tried for view in self.views)


class Roster:
    """The beliefs about all replicas, by id and by slot; keeps the index's slots with them."""

    def __init__(self, config: RoutingConfig, index: PrefixIndex) -> None:
        self._config = config
        self._index = index
        self._by_id: dict[str, Belief] = {}
        self._by_slot: dict[int, Belief] = {}
        self._free_slots: list[int] = []
        self._pools: dict[str | None, Pool] = {}
        self._lines: dict[str | None, int] = {}
        self._names: frozenset[str] | None = None
        self._frontier: Frontier | None = None
        self._have_all_changed = False  # what policies see of them
        self._others_until_us = 0
        self.rates = Rates(config) if config.learn_rates else None

    def __iter__(self) -> Iterator[Belief]:
        return iter(self._by_id.values())

    def __len__(self) -> int:
        return len(self._by_id)

    def get(self, replica_id: str) -> Belief | None:
        """Return what is believed of a replica, None if it is unknown."""
        return self._by_id.get(replica_id)

    def of(self, view: ReplicaView) -> Belief | None:
        """Return the belief behind ``view``, None if that process is no longer in the fleet."""
        belief = self._by_slot.get(view.slot)
        return belief if belief is not None and belief.view is view else None

    def names(self) -> frozenset[str]:
        """Every model name and alias that a replica has given."""
        if self._names is None:
            given = (name for b in self for name in (b.view.model, *b.aliases))
            self._names = frozenset(name for name in given if name is not None)
        return self._names

    def key_of(self, model: str | None) -> str | None:
        """Return a model's key: itself if known, so that clients cannot grow a table."""
        return model if model is None or model in self.names() else _OTHER_NAMES

    def line_of(self, model: str | None) -> int:
        """Return who could ever take a request for ``model``, as a bit set of slots.

        Names for which these are the same compete for the same replicas.
        """
        key = self.key_of(model)
        line = self._lines.get(key)
        if line is None:
            able = (belief.view.slot for belief in self if key is None or belief.serves(key))
            line = self._lines[key] = sum(map(slot_bit, able))
        return line

    def pool(self, model: str | None) -> Pool:
        """Return who may take a request for ``model`` (None: the request names none)."""
        pool = self._pools.get(model)
        if pool is None:
            key = self.key_of(model)
            pool = self._pools.get(key) or self._make_pool(key)
            self._pools[key] = pool
        return pool

    def pool_without(self, model: str | None, tried: Collection[str]) -> Pool:
        """Return who may take a request that those ``tried`` have failed, as in ``pool()``.

        They are left out before the gravest reasons yield, so a retry can reach a replica that
        pushes back where every other one has failed.
        """
        return self._make_pool(self.key_of(model), tried)

    def changed(self) -> None:
        """Forget the pools: someone's standing has changed."""
        self._pools.clear()
        self._lines.clear()
        self._names = None
        self._frontier = None

    def frontier(self, fields: tuple[str, ...], touched: set[int]) -> Frontier:
        """Return the replicas by what a policy looks at; ``touched``: slots with another load."""
        frontier = self._frontier
        if frontier is None or frontier.fields != fields:
            frontier = self._frontier = Frontier(fields, [belief.view for belief in self])
        else:
            for slot in self._by_slot if self._have_all_changed else touched:
                frontier.update(slot)
        self._have_all_changed = False
        touched.clear()
        return frontier

    def add_static(self, url: str, replica_id: str, model: str | None) -> ReplicaView:
        """Add a replica by hand. The same again, or one that reports already, changes nothing.

        Another url is a new replica, and so is another model of one that does not report its own.
        """
        belief = self._by_id.get(replica_id) or self._reporting_at(url)
        if belief is not None:
            is_its_model = belief.report is not None or model in (None, belief.view.model)
            if _are_same(belief.view.url, url) and is_its_model:
                belief.is_static = True
                return belief.view
            self.remove(replica_id)
        return self._add(replica_id, url, model, is_static=True).view

    def drop_static(self, url: str, replica_id: str) -> None:
        """Take a replica out that was added by hand; one that reports stays as long as it does."""
        belief = self._by_id.get(replica_id) or self._reporting_at(url)
        if belief is not None and belief.report is not None:
            belief.is_static = False
        else:
            self.remove(replica_id)

    def remove(self, replica_id: str) -> bool:
        """Take a replica out; its leases stay with its view. False if there is none."""
        belief = self._by_id.pop(replica_id, None)
        if belief is None:
            return False
        slot = belief.view.slot
        del self._by_slot[slot]
        self._index.close_slot(slot)
        restart(belief.kv, None)  # who is loading its snapshot stops
        heappush(self._free_slots, slot)
        self.changed()
        return True

    def take_report(self, report: LoadReport, counted_us: int, now_us: int) -> None:
        """Take in one report: of a new replica, of a known one, or of its next process."""
        belief = self._by_id.get(report.replica_id) or self._adopt(report)
        if belief is None:
            belief = self._add(report.replica_id, report.url, report.model, is_static=False)
        elif belief.notices_restart(report):
            belief = self._replace(belief, report.incarnation)
            belief.recover(now_us)
        elif belief.is_older(report):
            belief.absent_since_us = None  # still in the store, so it counts as before
            return
        before = _shape(belief)
        belief.accept(report, counted_us)
        self._have_all_changed = True
        self._open_slot(belief)
        if belief.age(now_us) or _shape(belief) != before:
            self.changed()

    def mark_absent(self, present: Collection[str], now_us: int) -> None:
        """Take in that the store answered, with reports of ``present`` only."""
        dead_us = micros(self._config.report_dead_s)
        forget_us = micros(self._config.report_forget_s)
        for belief in list(self):
            if not belief.has_spoken or belief.view.replica_id in present:
                belief.absent_since_us = None
            elif belief.absent_since_us is None:
                belief.absent_since_us = now_us
                if belief.age(now_us):
                    self.changed()
            elif not belief.is_static:
                if now_us - belief.absent_since_us >= forget_us:
                    self.remove(belief.view.replica_id)
            elif belief.mismatch is not None and now_us - belief.absent_since_us >= dead_us:
                self._forget_reports(belief, now_us)

    def take_gateway_reports(self, reports: list[GatewayReport], now_us: int) -> None:
        """Take in what all other gateways have under way, in sum."""
        requests: dict[str, int] = {}
        ahead_tokens: dict[str, int] = {}
        for report in reports:
            for replica_id, load in report.in_flight.items():
                requests[replica_id] = requests.get(replica_id, 0) + load.requests
                ahead_tokens[replica_id] = ahead_tokens.get(replica_id, 0) + load.ahead_tokens
        for belief in self:
            key = belief.view.replica_id
            belief.set_others(InFlight(requests.get(key, 0), ahead_tokens.get(key, 0)))
        self._have_all_changed = True
        self._others_until_us = now_us + micros(self._config.gateway_report_ttl_s)

    def tick(self, now_us: int) -> Iterator[None]:
        """Let reports, cooldowns and the other gateways' load grow old; in slices."""
        beliefs = list(self)
        for number, belief in enumerate(beliefs, start=1):
            before = belief.standing()
            belief.breaker.tick(now_us)
            has_recovered = belief.grow_well(now_us)
            if belief.age(now_us) or has_recovered or belief.standing() is not before:
                self.changed()
            if now_us >= self._others_until_us:
                belief.set_others(IDLE)
            if number % REPLICAS_PER_SLICE == 0:
                yield
        lend_speeds(beliefs, self._config.prefill_tokens_per_s)
        yield
        lend_loads(beliefs)
        lend_pressures(beliefs)
        yield
        if self.rates is not None:
            self._apply_rates(self.rates, now_us)
        self._have_all_changed = True  # since somebody looked between two slices

    def _apply_rates(self, rates: Rates, now_us: int) -> None:
        rates.compare()
        told = {belief.view.model for belief in self if belief.tells_prefill_speed}
        untold = {belief.view.model for belief in self} - told
        learned = {model: rates.speeds.of(model) for model in untold}
        for belief in self:
            speed = learned.get(belief.view.model) or belief.prior_tokens_per_s
            rates.apply(belief.rates, speed, belief.view, now_us)

    def _add(self, replica_id: str, url: str, model: str | None, *, is_static: bool) -> Belief:
        slot = heappop(self._free_slots) if self._free_slots else len(self._by_slot)
        view = ReplicaView(replica_id, slot, url, model)
        belief = Belief(view, self._config, is_static=is_static)
        self._by_id[replica_id] = self._by_slot[slot] = belief
        self._open_slot(belief)
        self.changed()
        return belief

    def _adopt(self, report: LoadReport) -> Belief | None:
        """Find the static replica of the same url that has not yet told its id: it is that one."""
        for belief in self:
            if belief.report is None and _are_same(belief.view.url, report.url):
                del self._by_id[belief.view.replica_id]
                belief.view.replica_id = report.replica_id
                self._by_id[report.replica_id] = belief
                self.changed()
                return belief
        return None

    def _reporting_at(self, url: str) -> Belief | None:
        """Find the replica that says of itself that it is there, if one does."""
        for belief in self:
            reports = belief.report is not None and belief.freshness is not Freshness.DEAD
            if reports and _are_same(belief.view.url, url):
                return belief
        return None

    def _replace(self, belief: Belief, incarnation: str) -> Belief:
        """Begin anew for a restarted process: no load, no failures, a cold cache."""
        successor = belief.successor(incarnation)
        slot = belief.view.slot
        self._by_id[belief.view.replica_id] = self._by_slot[slot] = successor
        assert belief.report is not None
        has_same_name = belief.report.incarnation == incarnation
        if has_same_name or belief.kv.incarnation != incarnation:  # else its events told of it
            self._index.clear(slot)
            restart(belief.kv, None)
        self.changed()
        return successor

    def _forget_reports(self, belief: Belief, now_us: int) -> None:
        """Begin anew with one that was given by hand and no longer says what cannot be used.

        It has most likely been replaced by a process that does not report. Whether that answers is
        for its breaker and its probes to say, so they stay.
        """
        self._index.clear(belief.view.slot)
        restart(belief.kv, None)
        belief.forget_reports()
        belief.recover(now_us)
        self._open_slot(belief)
        self.changed()

    def _open_slot(self, belief: Belief) -> None:
        slot, blocks_max = belief.view.slot, belief.learned_blocks_max
        cache_blocks = belief.view.kv_blocks_total if blocks_max is None else blocks_max
        self._index.open_slot(slot, belief.block_bytes, blocks_max, cache_blocks or 0)
        belief.view.room_blocks = self._index.room(slot)
        belief.view.cache_blocks = cache_blocks or 0
        belief.view.tells_of_cache = belief.publishes_events

    def _make_pool(self, key: str | None, tried: Collection[str] = ()) -> Pool:
        excluded: dict[str, Ineligible] = {}
        tiers: dict[Ineligible | None, list[Belief]] = {}
        for belief in self:
            if key is not None and not belief.serves(key):
                excluded[belief.view.replica_id] = Ineligible.OTHER_MODEL
                continue
            if belief.view.replica_id in tried:
                excluded[belief.view.replica_id] = Ineligible.ALREADY_TRIED
                continue
            standing = belief.standing_for(key)
            if standing is not None:
                excluded[belief.view.replica_id] = standing
            tiers.setdefault(standing, []).append(belief)
        self._panic(tiers)
        chosen = next((tiers[tier] for tier in _YIELDS_LAST if tier in tiers), [])
        for belief in chosen:
            excluded.pop(belief.view.replica_id, None)
        recovering = [belief for belief in chosen if belief.recovering_since_us is not None]
        views = [belief.view for belief in chosen]
        slots = sum(slot_bit(view.slot) for view in views)
        is_last_resort = all(belief.standing() in _OUT for belief in chosen)
        credit, members = _credit(chosen, key), frozenset(map(id, views))
        return Pool(views, credit, excluded, recovering, slots, members, is_last_resort)

    def _panic(self, tiers: dict[Ineligible | None, list[Belief]]) -> None:
        """Use the ejected replicas like all others where they are more than may be ejected."""
        num_live = sum(len(tiers.get(tier, ())) for tier in _YIELDS_LAST)
        ejected = tiers.get(Ineligible.EJECTED, [])
        if len(ejected) > self._config.max_ejected * num_live:
            del tiers[Ineligible.EJECTED]
            tiers.setdefault(None, []).extend(ejected)


def _credit(beliefs: list[Belief], model: str | None) -> dict[ChainKey, int]:
    """Return whose cache counts, by its chains: those with a current report, if any has one.

    Where all reports are old it is the store that went, and what the index knows is as good for
    one replica as for another: to drop it would cool every cache in the fleet at once.
    """
    current = [belief for belief in beliefs if belief.has_cache_credit]
    credit: dict[ChainKey, int] = {}
    for belief in current or beliefs:
        key = belief.chain_key(model)
        credit[key] = credit.get(key, 0) | slot_bit(belief.view.slot)
    return credit


def _are_same(url: str, other: str) -> bool:
    return url.rstrip("/") == other.rstrip("/")


def _shape(belief: Belief) -> tuple[object, ...]:
    """Return all of a belief that the pools depend on."""
    view = belief.view
    adapters = belief.report.adapters if belief.report else []
    names = (view.model, belief.aliases, adapters)
    return (view.url, names, belief.chain_key(None), belief.standing())
