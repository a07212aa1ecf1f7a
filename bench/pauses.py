"""The longest that one operation of the prefix index holds up everything else.

Each line sends millions of blocks through a fleet, and notes the longest single call: what an event
loop could not do anything else in. The budget is for CPU time, as other programs on the machine add
to the time by the clock, which is shown beside it. They share its caches too, so a line that is
over the budget is measured again, and its best round counts. The garbage collector is on; what the
program itself is made of is frozen, as it is for good.
"""

import gc
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from time import perf_counter_ns, thread_time_ns

from xxhash import xxh3_64_intdigest

from contract.blocks import HASH_SCHEME, BlockHash, root_hash
from contract.kv_events import BlockRemoved, BlockStored, KvEventBatch, KvSnapshot
from contract.load_report import LoadReport
from router.core.config import RoutingConfig
from router.core.fleet import FleetState
from router.core.health import AttemptOutcome
from router.core.policy import build_policy
from router.core.view import RouteRequest

NUM_REPLICAS = 8
BUDGET_MS = 5.0
MODEL = "m"
ROOT = root_hash(MODEL)
ROUNDS_MAX = 3
SNAPSHOT_BLOCKS = 64_000


class Stopwatch:
    """The longest of the calls that it was given, and how many blocks they sent."""

    def __init__(self) -> None:
        self.cpu_ms = 0.0
        self.wall_ms = 0.0
        self.sent = 0
        self.held = 0  # at most

    def __call__(self, call: Callable[[], object]) -> None:
        """Make a call."""
        began_ns, cpu_began_ns = perf_counter_ns(), thread_time_ns()
        call()
        self.cpu_ms = max(self.cpu_ms, (thread_time_ns() - cpu_began_ns) / 1e6)
        self.wall_ms = max(self.wall_ms, (perf_counter_ns() - began_ns) / 1e6)

    def each(self, steps: Iterable[object]) -> None:
        """Take every step of an operation that is done in steps."""
        iterator = iter(steps)
        is_over = False

        def step() -> None:
            nonlocal is_over
            is_over = next(iterator, self) is self

        while not is_over:
            self(step)

    def count(self, num_sent: int, fleet: FleetState) -> None:
        """Note that so many blocks were sent."""
        self.sent += num_sent
        self.held = max(self.held, fleet.index.num_entries)


Run = Callable[[Stopwatch, int], None]


@dataclass(frozen=True, slots=True)
class Case:
    """One line."""

    name: str
    run: Run


def longest_pauses(num_blocks: int = 10_000_000) -> Iterator[str]:
    """Yield a line for each way to move blocks."""
    yield f"longest call, ms; budget {BUDGET_MS:.0f} of CPU time"
    yield f"{'':<50}    CPU    wall  blocks sent  held at most"
    gc.collect()
    gc.freeze()
    for case in CASES:
        best = _watch(case.run, num_blocks)
        for _ in range(ROUNDS_MAX - 1):
            if best.cpu_ms <= BUDGET_MS:
                break
            best = min(best, _watch(case.run, num_blocks), key=lambda watch: watch.cpu_ms)
        yield (
            f"{case.name:<50} {best.cpu_ms:6.2f}  {best.wall_ms:6.2f}  {best.sent:>11,}"
            f"  {best.held:>12,}"
        )


def _watch(run: Run, num_blocks: int) -> Stopwatch:
    gc.collect()  # of the run before
    watch = Stopwatch()
    run(watch, num_blocks)
    return watch


def _fleet(config: RoutingConfig) -> FleetState:
    fleet = FleetState(config, build_policy("prefix_load"))
    for number in range(NUM_REPLICAS):
        fleet.add_static(f"http://r{number}", f"replica-{number}", MODEL, now_us=0)
    return fleet


def telling_fleet(config: RoutingConfig, block_bytes: int) -> FleetState:
    """Return a fleet of idle replicas that tell of their blocks, which have so many bytes."""
    fleet = FleetState(config, build_policy("prefix_load"))
    for number in range(NUM_REPLICAS):
        report = LoadReport(
            replica_id=f"replica-{number}",
            url="http://r",
            model=MODEL,
            incarnation="",
            sequence=0,
            hash_scheme=HASH_SCHEME,
            block_bytes=block_bytes,
            block_size=block_bytes // 4,
        )
        fleet.on_report(report, 0, 0)
    return fleet


def _chain(number: int, length: int) -> list[BlockHash]:
    name = number.to_bytes(8)
    return [BlockHash(xxh3_64_intdigest(name, index)) for index in range(length)]


def _send(fleet: FleetState, watch: Stopwatch, number: int, length: int) -> None:
    """Send a prompt of which nothing is known, and end it."""
    request = RouteRequest(f"{number}", MODEL, length * 128, ROOT, b"prompt")
    request.chains[512, None] = _chain(number, length)

    def exchange() -> None:
        lease = fleet.decide(request, number).lease
        assert lease is not None
        lease.end(AttemptOutcome.OK, number)

    watch(exchange)
    if number % 100 == 0:
        watch(lambda: fleet.tick(number))
    watch.count(length, fleet)


def _flood(length: int) -> Run:
    def run(watch: Stopwatch, num_blocks: int) -> None:
        fleet = _fleet(RoutingConfig(learned_tokens_max=10**9, index_bytes_max=64 << 20))
        for number in range(num_blocks // length):
            _send(fleet, watch, number, length)

    return run


def _fill(watch: Stopwatch, num_blocks: int) -> None:
    many = 10**12
    fleet = _fleet(
        RoutingConfig(learned_tokens_max=many, index_bytes_max=many, index_entries_max=many)
    )
    for number in range(num_blocks // 64):
        _send(fleet, watch, number, 64)


def _events(watch: Stopwatch, num_blocks: int) -> None:
    fleet = telling_fleet(RoutingConfig(), 64)
    for number in range(num_blocks // 64):
        chain = _chain(number, 64)
        stored = [BlockStored(chain[:32]), BlockStored(chain[32:], chain[31])]
        removed = [BlockRemoved(_chain(number - 8_000, 64)[::-1])] if number >= 8_000 else []
        batch = KvEventBatch("", number // NUM_REPLICAS, [*stored, *removed])
        replica_id = f"replica-{number % NUM_REPLICAS}"
        watch(lambda: fleet.on_kv_batch(replica_id, batch, number))  # noqa: B023  # called here
        watch.count(64, fleet)


def _untold(watch: Stopwatch, num_blocks: int) -> None:
    """Tell, too, that blocks are gone of which nothing was told: they are searched for."""
    fleet = telling_fleet(RoutingConfig(), 64)
    for number in range(num_blocks // 64):
        stored = BlockStored(_chain(number, 64))
        removed = [BlockRemoved(_chain(number - 40_000, 65)[::-1])] if number >= 40_000 else []
        batch = KvEventBatch("", number // NUM_REPLICAS, [stored, *removed])
        replica_id = f"replica-{number % NUM_REPLICAS}"
        watch(lambda: fleet.on_kv_batch(replica_id, batch, number))  # noqa: B023  # called here
        if number % 100 == 0:
            watch(lambda: fleet.tick(number))  # noqa: B023  # called here
        watch.count(64, fleet)


def _snapshots(run_blocks: int) -> Run:
    def run(watch: Stopwatch, num_blocks: int) -> None:
        fleet = telling_fleet(RoutingConfig(), 64)
        num_runs = SNAPSHOT_BLOCKS // run_blocks
        for number in range(num_blocks // SNAPSHOT_BLOCKS):
            first = number * num_runs
            blocks = [b for n in range(first, first + num_runs) for b in _chain(n, run_blocks)]
            lengths = [run_blocks] * num_runs if run_blocks > 1 else []
            snapshot = KvSnapshot("", number * 10, blocks, lengths)
            replica_id = f"replica-{number % NUM_REPLICAS}"
            watch.each(fleet.load_kv_snapshot(replica_id, snapshot, number))
            watch(lambda: fleet.tick(number))  # noqa: B023  # called here
            watch.count(SNAPSHOT_BLOCKS, fleet)

    return run


def _clears(watch: Stopwatch, num_blocks: int) -> None:
    fleet = _fleet(RoutingConfig(learned_tokens_max=10**9, index_bytes_max=10**12))
    for number in range(num_blocks // 2):
        _send(fleet, watch, number, 2)
        if number % 240_000 == 239_999:
            for slot in range(NUM_REPLICAS):
                watch(lambda: fleet.index.clear(slot))  # noqa: B023  # called here


CASES = (
    Case("flood of unique prompts of 64 blocks, index full", _flood(64)),
    Case("flood of unique prompts of 2 blocks, index full", _flood(2)),
    Case("all held, prompts of 64", _fill),
    Case("events, prompts of 64 blocks, caches full", _events),
    Case("events that remove what was never told", _untold),
    Case("snapshots in slices, runs of 64 blocks", _snapshots(64)),
    Case("snapshots in slices, no order known", _snapshots(1)),
    Case("caches of 30,000 prompts of 2 blocks cleared", _clears),
)
