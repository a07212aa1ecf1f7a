"""What a decision costs: microseconds by fleet size, bytes of index per block, longest pause.

    python -m bench.decide            # decisions and memory; about a minute
    python -m bench.decide --pauses   # and 10 million blocks a line through the index; ten minutes

A decision is `FleetState.decide()`: the look-up of the prompt, the choice, the lease, and what the
index learns. Its prompt has 32 KB, which the request cuts and hashes once, before; that is shown
apart. Every replica has some requests under way, each with an own number of tokens ahead.
"""

import argparse
import gc
import sys
import tracemalloc
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import inf
from time import process_time_ns

import router.policies  # noqa: F401  # registers every policy by its name
from bench.pauses import longest_pauses, telling_fleet
from contract.blocks import BlockHash, root_hash
from contract.kv_events import BlockStored, KvEventBatch, KvSnapshot
from router.core.config import RoutingConfig
from router.core.fleet import FleetState
from router.core.health import AttemptOutcome
from router.core.ledger import Lease
from router.core.policy import build_policy
from router.core.view import RouteRequest

PROMPT_BYTES = 32_768
BLOCK_BYTES = 512
MODEL = "m"
ROOT = root_hash(MODEL)
POLICIES = ("prefix_load", "min_ttft")
FLEETS = (8, 64, 512, 1_000)
BUDGET_US = {8: 40, 64: 80, 512: 200}
OPEN_PER_REPLICA = 4
ROOMY = RoutingConfig(index_entries_max=10**9, index_bytes_max=10**12)
DECISIONS = 400
"""Of each kind, in turn, so that what one leaves in the cache the others feel too."""

ROUNDS = 3
"""The least of their means is shown, as other programs on the machine can only add to it."""


@dataclass(frozen=True, slots=True)
class Row:
    """Mean microseconds of a decision, by kind of prompt, and of hashing one prompt."""

    policy: str
    num_replicas: int
    us: dict[str, float]
    hashing_us: float


class Prompts:
    """Prompts of each kind; cold ones never come twice."""

    def __init__(self) -> None:
        self._number = 0
        self._shared = b"shared. " * (PROMPT_BYTES // 16)

    def cold(self) -> RouteRequest:
        """Return a prompt that begins like no other."""
        self._number += 1
        return self._request(b"%08d" % self._number * (PROMPT_BYTES // 8))

    def warm(self, index: int) -> RouteRequest:
        """Return the prompt of that number: the same again each time."""
        return self._request(b"w%07d" % index * (PROMPT_BYTES // 8))

    def shared(self) -> RouteRequest:
        """Return a prompt whose first half all have, and whose second half no other has."""
        self._number += 1
        return self._request(self._shared + b"%08d" % self._number * (PROMPT_BYTES // 16))

    def _request(self, prompt: bytes) -> RouteRequest:
        self._number += 1
        return RouteRequest(f"request-{self._number}", MODEL, len(prompt) // 4, ROOT, prompt)


class LoadedFleet:
    """A fleet whose replicas have requests under way, as many as a lease each time ends one."""

    def __init__(self, policy: str, num_replicas: int) -> None:
        config = RoutingConfig(lease_ttl_s=1e6)
        self.fleet = FleetState(config, build_policy(policy))
        for number in range(num_replicas):
            self.fleet.add_static(f"http://r{number}", f"replica-{number:04}", MODEL, now_us=0)
        self.prompts = Prompts()
        self._open: deque[Lease] = deque()
        self._limit = OPEN_PER_REPLICA * num_replicas
        self._now_us = 0
        for _ in range(self._limit):
            self.decide_us(self.prompts.cold())
        replica_ids = {status.view.replica_id for status in self.fleet.views()}
        for replica_id in sorted(replica_ids):  # all of them hold the shared half
            request = self.prompts.shared()
            self._keep(self.fleet.decide(request, 0, replica_ids - {replica_id}).lease)

    def decide_us(self, request: RouteRequest) -> float:
        """Return what one decision takes."""
        request.chain((BLOCK_BYTES, None))
        self._now_us += 1_000
        began_ns = process_time_ns()
        decision = self.fleet.decide(request, self._now_us)
        took_ns = process_time_ns() - began_ns
        self._keep(decision.lease)
        return took_ns / 1_000

    def _keep(self, lease: Lease | None) -> None:
        assert lease is not None
        self._open.append(lease)
        if len(self._open) > self._limit // 2:
            self._open[len(self._open) // 2].first_byte(self._now_us)
        if len(self._open) > self._limit:
            self._open.popleft().end(AttemptOutcome.OK, self._now_us)


def measure(policy: str, num_replicas: int) -> Row:
    """Return a row of the table of decisions."""
    loaded = LoadedFleet(policy, num_replicas)
    prompts = loaded.prompts
    for index in range(64):
        loaded.decide_us(prompts.warm(index))
    least = dict.fromkeys(("cold", "warm", "shared", "hashing"), inf)
    for _ in range(ROUNDS):
        taken = dict.fromkeys(("cold", "warm", "shared"), 0.0)
        for number in range(DECISIONS):
            taken["cold"] += loaded.decide_us(prompts.cold())
            taken["warm"] += loaded.decide_us(prompts.warm(number % 64))
            taken["shared"] += loaded.decide_us(prompts.shared())
        for kind, total in taken.items():
            least[kind] = min(least[kind], total / DECISIONS)
        least["hashing"] = min(least["hashing"], _hashing_us(prompts))
    return Row(policy, num_replicas, least, least.pop("hashing"))


def _hashing_us(prompts: Prompts) -> float:
    requests = [prompts.cold() for _ in range(DECISIONS)]
    began_ns = process_time_ns()
    for request in requests:
        request.chain((BLOCK_BYTES, None))
    return (process_time_ns() - began_ns) / 1_000 / DECISIONS


def learned_blocks(num_prompts: int) -> FleetState:
    """Return a fleet that has learned prompts of 64 blocks, each sent to one of 8 replicas."""
    config = RoutingConfig(
        learned_tokens_max=10**9, index_entries_max=10**9, index_bytes_max=10**12
    )
    fleet = FleetState(config, build_policy("prefix_load"))
    for number in range(8):
        fleet.add_static(f"http://r{number}", f"replica-{number}", MODEL, now_us=0)
    prompts = Prompts()
    for _ in range(num_prompts):
        lease = fleet.decide(prompts.cold(), 0).lease
        assert lease is not None
        lease.end(AttemptOutcome.OK, 0)
    return fleet


def told_blocks(num_prompts: int) -> FleetState:
    """Return a fleet of 8 replicas whose events told of prompts and answers.

    Each prompt comes in two steps of 32 blocks, and its answer in 16 blocks one by one.
    """
    fleet = telling_fleet(ROOMY, BLOCK_BYTES)
    prompts = Prompts()
    for number in range(num_prompts):
        chain = prompts.cold().chain((BLOCK_BYTES, None))
        stored = [BlockStored(chain[:32]), BlockStored(chain[32:48], chain[31])]
        stored += [BlockStored(chain[i : i + 1], chain[i - 1]) for i in range(48, 64)]
        batch = KvEventBatch("", number // 8, list(stored))
        assert fleet.on_kv_batch(f"replica-{number % 8}", batch, 0)
    return fleet


def snapshot_blocks(num_prompts: int) -> FleetState:
    """Return a fleet of 8 replicas that told of the same in snapshots, in runs."""
    return _from_snapshots(num_prompts, are_in_runs=True)


def flat_snapshot_blocks(num_prompts: int) -> FleetState:
    """Return a fleet of 8 replicas that told of the same in snapshots without an order."""
    return _from_snapshots(num_prompts, are_in_runs=False)


def _from_snapshots(num_prompts: int, *, are_in_runs: bool) -> FleetState:
    fleet = telling_fleet(ROOMY, BLOCK_BYTES)
    prompts = Prompts()
    for number in range(8):
        blocks: list[BlockHash] = []
        lengths: list[int] = []
        parents: list[BlockHash | None] = []
        for _ in range(num_prompts // 8):
            chain = prompts.cold().chain((BLOCK_BYTES, None))
            blocks += chain
            lengths += [48, *[1] * 16]
            parents += [None, *chain[47:63]]
        snapshot = KvSnapshot("", 0, blocks)
        if are_in_runs:
            snapshot = KvSnapshot("", 0, blocks, lengths, parents)
        assert fleet.on_kv_snapshot(f"replica-{number}", snapshot, 0)
    return fleet


def bytes_per_block(make: Callable[[int], FleetState], num_prompts: int = 8_000) -> float:
    """Return what Python allocates for each block of what ``make`` leaves behind."""
    gc.collect()
    tracemalloc.start()
    fleet = make(num_prompts)
    gc.collect()
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return used / fleet.index.num_entries


def report(*, pauses: bool) -> Iterator[str]:
    """Yield the lines of all tables."""
    yield f"us per decision, prompts of {PROMPT_BYTES // 1_024} KB; CPU time"
    yield "policy       replicas    cold    warm  shared  budget  hashing beside it"
    for policy in POLICIES:
        for num_replicas in FLEETS:
            row = measure(policy, num_replicas)
            cells = "".join(f"{us:8.1f}" for us in row.us.values())
            budget = BUDGET_US.get(num_replicas, "-")
            yield f"{policy:<12} {num_replicas:>8}{cells}{budget:>8}{row.hashing_us:8.1f}"
    yield ""
    yield "bytes of index per block, all that tracemalloc sees of the fleet; budget 120"
    yield f"learned, prompts of 64 blocks               {bytes_per_block(learned_blocks):6.0f}"
    yield f"told by events, answers block by block      {bytes_per_block(told_blocks):6.0f}"
    yield f"told by snapshots in runs, the same         {bytes_per_block(snapshot_blocks):6.0f}"
    flat = bytes_per_block(flat_snapshot_blocks)
    yield f"told by snapshots that know no order        {flat:6.0f}"
    if pauses:
        yield ""
        yield from longest_pauses()


def main() -> int:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--pauses", action="store_true", help="also the longest pauses")
    for line in report(pauses=parser.parse_args().pauses):
        print(line, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
