"""Memory: every table has a bound, and nothing is left of what has gone."""

import asyncio
import gc
import tracemalloc
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from router.core.config import RoutingConfig
from router.core.fleet import FleetState
from router.core.health import AttemptOutcome
from router.core.policy import build_policy
from router.core.request import route_request
from tests.field.harness import Fake, FieldGateway, gateway_of, resetting, saying, silent
from tests.router.gateway.running import RawClient
from tests.router.gateway.wire import chat, post
from tests.waiting import until

PATH = "/v1/chat/completions"


class Brain:
    """The gateway's beliefs without its sockets, for numbers of requests that a socket forbids."""

    def __init__(self, num_replicas: int = 4, **settings: Any) -> None:
        self.config = RoutingConfig(**settings)
        self.fleet = FleetState(self.config, build_policy("prefix_load"))
        for index in range(num_replicas):
            self.fleet.add_static(f"http://r{index}", f"r{index}", "m", now_us=0)
        self.now_us = 0
        self._count = 0

    def ask(self, prompt: str, session: str | None = None) -> str:
        """Send a prompt to where it belongs and let it be answered; return who answered."""
        self.now_us += 1_000
        self._count += 1
        request = route_request(PATH, chat(prompt), f"id-{self._count}", self.config, session)
        decision = self.fleet.decide(request, self.now_us)
        assert decision.lease is not None
        assert decision.replica is not None
        failed = self._count % 10 == 0
        decision.lease.first_byte(self.now_us)
        outcome = AttemptOutcome.CLIENT_ERROR if failed else AttemptOutcome.OK
        decision.lease.end(outcome, self.now_us, None)
        if self._count % 100 == 0:
            self.fleet.tick(self.now_us)
        return decision.replica.replica_id


@contextmanager
def growth(allowed_bytes: int) -> Iterator[None]:
    """Assert that what is allocated within the block and kept is at most so much."""
    tracemalloc.start()
    try:
        yield
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept <= allowed_bytes


def test_mem_01_the_index_stays_within_its_bound_and_goes_on_being_right() -> None:
    brain = Brain(index_entries_max=2_000)
    hot = "a hot prompt " * 200
    home = brain.ask(hot)
    for index in range(1_500):
        brain.ask(f"{index} unique " * 300)
        assert brain.ask(hot) == home or index % 2

    entries = sum(s.believed_blocks for s in brain.fleet.views())
    assert entries <= 2_000
    brain.fleet.check()


def test_mem_01_a_flood_of_unique_prompts_grows_no_memory() -> None:
    brain = Brain(index_entries_max=1_000)
    for index in range(400):
        brain.ask(f"{index} fill " * 200)

    with growth(256 * 1024):
        for index in range(400, 1_200):
            brain.ask(f"{index} more " * 200)


def test_mem_02_the_index_is_empty_when_all_replicas_have_left() -> None:
    brain = Brain()
    for cycle in range(3):
        for index in range(100):
            brain.ask("shared " * (100 * (index % 5)) + f"{cycle} {index} own " * 50)
        for index in range(4):
            brain.fleet.remove(f"r{index}")
        brain.fleet.check()
        for _ in range(100):  # what is gone is cleared away bit by bit
            brain.now_us += 100_000
            brain.fleet.tick(brain.now_us)
        brain.fleet.check()
        assert brain.fleet.index.num_entries == 0
        for index in range(4):
            brain.fleet.add_static(f"http://r{index}", f"r{index}", "m", now_us=brain.now_us)


def test_mem_03_sessions_and_ids_leave_nothing_behind() -> None:
    brain = Brain(index_entries_max=500)
    for index in range(500):
        brain.ask("the same prompt " * 40, f"session-{index}")

    with growth(64 * 1024):
        for index in range(500, 1_500):
            brain.ask("the same prompt " * 40, f"session-{index}")
    assert len(brain.fleet.ledger) == 0


async def test_mem_03_requests_leave_nothing_behind_in_a_whole_gateway() -> None:
    async with Fake() as a, gateway_of(a, policy="session", breaker_failures=1000) as gateway:
        gateway.parts.plane.context.log = None
        client = await gateway.connect()

        async def ask(first: int, count: int) -> None:
            for index in range(first, first + count):
                a.play = resetting if index % 10 == 0 else saying("a")
                lines = [f"x-session-id: s{index}", f"x-request-id: r{index}"]
                await client.ask(post(chat(user=f"u{index}"), *lines))

        await ask(0, 30)
        before = survivors()
        await ask(30, 200)
        left = survivors() - before

    # Heads that were read are kept for those that are alike, up to a bound.
    assert {name: count for name, count in left.items() if count > 5} in (
        {},
        {"RequestHead": left["RequestHead"]},
    )


def survivors() -> Counter[str]:
    """Return how many objects of the gateway's own classes are alive, by class."""
    gc.collect()
    kinds = (type(one) for one in gc.get_objects())
    return Counter(kind.__name__ for kind in kinds if str(kind.__module__).startswith("router."))


async def test_mem_05_concurrency_has_no_bound_that_nobody_set() -> None:
    async with Fake(silent) as a, gateway_of(a) as gateway:
        clients = []
        for number in range(1, 401):
            clients.append(await gateway.connect())
            await clients[-1].send(post(chat(stream=True)))
            if number % 50 == 0:  # a listening queue of the replica takes no more at once
                await a.is_asked(number)
        assert gateway.load_of() == 400
        a.play = saying("a")
        answer = await gateway.chat()
        for client in clients:
            client.close()
        await gateway.rests()

    assert answer.status == 200


async def test_mem_05_a_bound_that_was_set_refuses_and_says_so() -> None:
    async with Fake(silent) as a, gateway_of(a, in_flight_max=5, queue_max=1) as gateway:
        clients = await _begin(gateway, 6)
        await a.is_asked(5)
        await until(lambda: gateway.plane.stats().queued == 1)
        answer = await asyncio.wait_for(gateway.chat(), 20)
        for client in clients:
            client.close()
        await gateway.rests()

    assert (answer.status, answer.code) == (503, "overloaded")
    assert answer.value("retry-after")


async def _begin(gateway: FieldGateway, count: int) -> list[RawClient]:
    clients: list[RawClient] = []
    for _ in range(count):
        client = await gateway.connect()
        await client.send(post(chat()))
        clients.append(client)
    return clients


async def test_mem_05_more_connections_than_allowed_get_a_503() -> None:
    async with Fake() as a, gateway_of(a, connections_max=3) as gateway:
        held = [await gateway.connect() for _ in range(3)]
        for client in held:
            assert (await client.ask(post(chat()))).status == 200
        refused = await gateway.connect()
        head = await refused.line()
        held[0].close()
        await until(lambda: gateway.plane.stats().clients < 3)

        assert (await gateway.chat()).status == 200

    assert head.startswith(b"HTTP/1.1 503")
