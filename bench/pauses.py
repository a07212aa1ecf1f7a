"""The longest that one operation of the prefix index holds up everything else.

Each line sends millions of blocks through a fleet, and notes the longest single call: what an event
loop could not do anything else in. CPU time, so that other programs on the machine do not count.
The garbage collector is on; what the program itself is made of is frozen, as it is for good.
"""

import gc
from collections.abc import Callable, Iterable, Iterator
from time import thread_time_ns

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
_ODD = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1


class Stopwatch:
    """The longest of the calls that it was given."""

    def __init__(self) -> None:
        self.longest_ms = 0.0

    def __call__(self, call: Callable[[], object]) -> None:
        """Make a call."""
        began_ns = thread_time_ns()
        call()
        self.longest_ms = max(self.longest_ms, (thread_time_ns() - began_ns) / 1e6)

    def each(self, steps: Iterable[object]) -> None:
        """Take every step of an operation that is done in steps."""
        iterator = iter(steps)
        while True:
            began_ns = thread_time_ns()
            is_over = next(iterator, self) is self
            self.longest_ms = max(self.longest_ms, (thread_time_ns() - began_ns) / 1e6)
            if is_over:
                return


def longest_pauses(num_blocks: int = 10_000_000) -> Iterator[str]:
    """Yield a line for each way to move blocks."""
    yield f"longest call, {num_blocks:,} blocks a line; CPU time, budget {BUDGET_MS:.0f} ms"
    gc.collect()
    gc.freeze()
    for name, run in (
        ("flood of unique prompts of 64 blocks, index full", _flood(64)),
        ("flood of unique prompts of 2 blocks, index full", _flood(2)),
        ("10 million blocks held, prompts of 64", _fill),
        ("events, prompts of 64 blocks, caches full", _events),
        ("snapshots of 64,000 blocks in slices", _snapshots),
        ("caches of 30,000 prompts of 2 blocks cleared", _clears),
    ):
        gc.collect()  # of the line before
        watch = Stopwatch()
        held = run(watch, num_blocks)
        yield f"{name:<50} {watch.longest_ms:6.2f} ms, {held:,} blocks held at most"


def _fleet(config: RoutingConfig) -> FleetState:
    fleet = FleetState(config, build_policy("prefix_load"))
    for number in range(NUM_REPLICAS):
        fleet.add_static(f"http://r{number}", f"replica-{number}", MODEL, now_us=0)
    return fleet


def _telling_fleet() -> FleetState:
    fleet = FleetState(RoutingConfig(), build_policy("prefix_load"))
    for number in range(NUM_REPLICAS):
        report = LoadReport(
            replica_id=f"replica-{number}",
            url="http://r",
            model=MODEL,
            incarnation="",
            sequence=0,
            hash_scheme=HASH_SCHEME,
            block_bytes=64,
            block_size=16,
        )
        fleet.on_report(report, 0, 0)
    return fleet


def _chain(number: int, length: int) -> list[BlockHash]:
    first = number * 1_000_003
    return [BlockHash((first + index) * _ODD & _MASK) for index in range(1, length + 1)]


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


def _flood(length: int) -> Callable[[Stopwatch, int], int]:
    def run(watch: Stopwatch, num_blocks: int) -> int:
        fleet = _fleet(RoutingConfig(learned_tokens_max=10**9, index_bytes_max=64 << 20))
        most = 0
        for number in range(num_blocks // length // (1 if length > 8 else 8)):
            _send(fleet, watch, number, length)
            most = max(most, fleet.index.num_entries)
        return most

    return run


def _fill(watch: Stopwatch, num_blocks: int) -> int:
    many = 10**12
    fleet = _fleet(
        RoutingConfig(learned_tokens_max=many, index_bytes_max=many, index_entries_max=many)
    )
    for number in range(num_blocks // 64):
        _send(fleet, watch, number, 64)
    return fleet.index.num_entries


def _events(watch: Stopwatch, num_blocks: int) -> int:
    fleet = _telling_fleet()
    most = 0
    for number in range(num_blocks // 64):
        chain = _chain(number, 64)
        stored = [BlockStored(chain[:32]), BlockStored(chain[32:], chain[31])]
        removed = [BlockRemoved(_chain(number - 8_000, 64)[::-1])] if number >= 8_000 else []
        batch = KvEventBatch("", number // NUM_REPLICAS, [*stored, *removed])
        replica_id = f"replica-{number % NUM_REPLICAS}"
        watch(lambda: fleet.on_kv_batch(replica_id, batch, number))  # noqa: B023  # called here
        most = max(most, fleet.index.num_entries)
    return most


def _snapshots(watch: Stopwatch, num_blocks: int) -> int:
    fleet = _telling_fleet()
    most = 0
    for number in range(num_blocks // 64_000 // 8):
        blocks = _chain(number, 64_000)
        snapshot = KvSnapshot("", number * 10, blocks)
        watch.each(fleet.load_kv_snapshot(f"replica-{number % NUM_REPLICAS}", snapshot, number))
        watch(lambda: fleet.tick(number))  # noqa: B023  # called here
        most = max(most, fleet.index.num_entries)
    return most


def _clears(watch: Stopwatch, num_blocks: int) -> int:
    fleet = _fleet(RoutingConfig(learned_tokens_max=10**9, index_bytes_max=10**12))
    most = 0
    for number in range(num_blocks // 16):
        _send(fleet, watch, number, 2)
        if number % 240_000 == 239_999:
            most = max(most, fleet.index.num_entries)
            for slot in range(NUM_REPLICAS):
                watch(lambda: fleet.index.clear(slot))  # noqa: B023  # called here
    return most
