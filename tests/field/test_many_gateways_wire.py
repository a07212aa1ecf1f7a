"""Several gateways before one fleet: each knows the others' load, and none costs a replica more."""

from contextlib import AsyncExitStack
from functools import partial
from typing import Any

import pytest

from tests.field.asking import PATIENT, Held, end_all, most_known, open_streams, untold
from tests.field.harness import Fake, FieldGateway, gateway_of, listening
from tests.field.redis_side import reporting
from tests.field.simulated import simulated
from tests.redis_server import RedisServer
from tests.waiting import until


@pytest.mark.parametrize("policy", ["prefix_load", "least_loaded"])
async def test_stl_10_a_gateway_sees_what_another_has_under_way(
    redis_server: RedisServer, policy: str
) -> None:
    held = Held()
    fakes = [Fake(held.play, name) for name in "abcd"]
    settings = {"redis_url": redis_server.url, "policy": policy, **PATIENT}
    async with (
        listening(fakes),
        reporting(redis_server, *fakes),
        gateway_of(**settings, gateway_id="first") as first,
        gateway_of(**settings, gateway_id="second") as second,
    ):
        await first.knows(*"abcd")
        await second.knows(*"abcd")
        clients = await open_streams(first, *["hi"] * 21, of=fakes)
        await until(lambda: foreign_load(second) == 21, "the second sees the first's load")
        clients += await open_streams(second, *["hi"] * 19, of=fakes)
        shares = [len(fake.asked) for fake in fakes]
        await end_all(held, clients)

    assert max(shares) <= 1.5 * min(shares)


def foreign_load(gateway: FieldGateway) -> float:
    """Return how many requests of others it believes under way."""
    return gateway.count("warmroute_replica_foreign_requests")


@pytest.mark.parametrize(
    ("policy", "header"),
    [
        ("prefix_hash", "x-other"),
        ("session", "x-session-id"),
        ("prefix_load", "x-session-id"),
        ("prefix_load", "x-other"),
        ("min_ttft", "x-other"),
    ],
)
async def test_stl_10_a_conversation_stays_put_by_whichever_gateway_it_comes(
    policy: str, header: str
) -> None:
    """Replicas without events: each gateway knows of a cache what it sent itself, and no more."""
    fakes = [Fake(untold, name) for name in "abcd"]
    async with (
        listening(fakes),
        gateway_of(*fakes, policy=policy) as first,
        gateway_of(*fakes, policy=policy) as second,
    ):
        for talk in range(10):
            for turn in range(1, 11):
                gateway = second if turn % 2 else first
                await gateway.chat(f"talk {talk} " * turn * 150, f"{header}: {talk}")
        homes = [[record.replica_id for record in each.records] for each in (first, second)]

    assert homes[0] == homes[1]
    assert len(set(homes[0])) > 1


async def test_stl_10_what_a_replica_caches_is_known_to_every_gateway(
    redis_server: RedisServer,
) -> None:
    redis = {"redis_url": redis_server.url}
    async with (
        simulated(replica_id="s", **redis),
        simulated(replica_id="t", **redis),
        gateway_of(**redis, **PATIENT, gateway_id="first") as first,
        gateway_of(**redis, **PATIENT, gateway_id="second") as second,
    ):
        await first.knows("s", "t")
        await second.knows("s", "t")
        for turn in range(1, 11):
            text = "one and the same beginning " * turn * 20
            num_blocks = len(text) // 64
            gateway, other = (first, second) if turn % 2 else (second, first)
            await gateway.chat(text, max_tokens=1)
            await until(partial(knows, other, num_blocks), "the other knows, too")
        homes = {record.replica_id for record in first.records + second.records}

    assert len(homes) == 1


def knows(gateway: FieldGateway, num_blocks: int) -> bool:
    """Say whether it believes so many blocks on one replica."""
    return most_known(gateway) >= num_blocks


async def test_stl_12_no_gateway_asks_a_replica_for_its_load(redis_server: RedisServer) -> None:
    """What grows with the gateways is only the probes of health, which a setting turns off."""
    settings = {"redis_url": redis_server.url, "probe_interval_s": 0.0}
    async with (
        Fake() as a,
        reporting(redis_server, a),
        gateway_of(**settings, gateway_id="first") as first,
        gateway_of(**settings, gateway_id="second") as second,
        gateway_of(**settings, gateway_id="third") as third,
    ):
        gateways = (first, second, third)
        for gateway in gateways:
            await gateway.knows("a")
        await until(lambda: min(map(reads_of, gateways)) >= 5)

        assert a.num_connections == 0


async def test_stl_12_gateways_share_the_probes_of_a_replica_that_reports(
    redis_server: RedisServer,
) -> None:
    settings = {"redis_url": redis_server.url, "probe_interval_s": 0.02}
    async with (
        Fake() as a,
        reporting(redis_server, a),
        gateway_of(**settings, gateway_id="g0") as one,
        AsyncExitStack() as others,
    ):
        for number in range(1, 4):
            await others.enter_async_context(gateway_of(**settings, gateway_id=f"g{number}"))
        await until(lambda: one.parts.sync.num_gateways == 4, "it knows of the others")
        reads, probes = reads_of(one), one.count("warmroute_probes_total")
        await until(lambda: reads_of(one) >= reads + 5, "half a second has gone by")

        assert one.count("warmroute_probes_total") - probes <= 15  # alone, it would make 25
        assert one.status_of().standing is None


def reads_of(gateway: FieldGateway) -> float:
    """Return how often it has read all reports."""
    return gateway.count("warmroute_store_reads_total")


async def test_stl_12_many_replicas_cost_redis_no_more_commands_than_one(
    redis_server: RedisServer,
) -> None:
    names = [f"r{number:02}" for number in range(20)]
    async with (
        reporting(redis_server) as say,
        gateway_of(redis_url=redis_server.url) as gateway,
    ):
        for name in names:
            say.say(name, url="http://127.0.0.1:9")
        await gateway.knows(*names)
        before, reads_before = await commands(say.redis), reads_of(gateway)
        await until(lambda: reads_of(gateway) >= reads_before + 5)
        after, reads = await commands(say.redis), reads_of(gateway) - reads_before

    asked = {name: calls - before.get(name, 0) for name, calls in after.items()}
    assert not [name for name in ("get", "scan", "keys") if asked.get(name)]
    assert asked["mget"] <= 2 * (reads + 2)  # of all replicas, and of all gateways


async def commands(redis: Any) -> dict[str, int]:
    """Return how often each command has been given to the server."""
    stats = await redis.info("commandstats")
    return {name.removeprefix("cmdstat_"): row["calls"] for name, row in stats.items()}
