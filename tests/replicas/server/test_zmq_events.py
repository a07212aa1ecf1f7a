"""KV events over ZeroMQ, as a reader written for vLLM sees them."""

import asyncio
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from typing import Any

import aiohttp
import pytest
import zmq
import zmq.asyncio

from contract.options import SettingError
from contract.vllm_events import (
    AllBlocksCleared,
    BlockId,
    BlockRemoved,
    BlockStored,
    Message,
    decode_message,
)
from replicas.server import zmq_events
from replicas.server.replica import Replica, running_replica
from tests.replicas.server.conftest import CONFIG, MODEL, Start
from tests.waiting import until

ANYWHERE = "tcp://127.0.0.1:*"
COMPLETION = "/v1/completions"


class Reader:
    """Subscribes to one replica and keeps what it hears."""

    def __init__(self, context: zmq.asyncio.Context) -> None:
        self._context = context
        self.socket = context.socket(zmq.SUB)
        self.socket.subscribe(b"")
        self.messages: list[Message] = []

    async def listen(self) -> None:
        while True:
            self.messages.append(decode_message(await self.socket.recv_multipart()))

    async def replay(self, endpoint: str, first: int) -> list[Message]:
        """Ask for what came from ``first`` on; return it without the end."""
        asking = self._context.socket(zmq.DEALER)
        asking.connect(endpoint)
        await asking.send_multipart([b"", first.to_bytes(8, "big")])
        replayed: list[Message] = []
        while True:
            frames = await asking.recv_multipart()
            message = decode_message(frames)
            if message.batch is None:
                assert frames == [b"", b"", b"\xff" * 8, b""]  # as vLLM 0.32 ends a replay
                return replayed
            replayed.append(message)


@pytest.fixture
async def reader() -> AsyncIterator[Reader]:
    context = zmq.asyncio.Context()
    reader = Reader(context)
    listening = asyncio.create_task(reader.listen())
    yield reader
    listening.cancel()
    await asyncio.wait([listening])
    context.destroy(linger=0)


def blocks_after(messages: Sequence[Message]) -> set[BlockId]:
    known: set[BlockId] = set()
    for message in messages:
        assert message.batch is not None
        for event in message.batch.events:
            match event:
                case BlockStored(block_hashes=hashes):
                    known |= set(hashes)
                case BlockRemoved(block_hashes=hashes):
                    known -= set(hashes)
                case AllBlocksCleared():
                    known.clear()
    return known


async def complete(http: aiohttp.ClientSession, replica: Replica, **body: Any) -> dict[str, Any]:
    async with http.post(replica.url + COMPLETION, json=body) as response:
        assert response.status == 200, await response.text()
        answer: dict[str, Any] = await response.json()
        return answer


async def sources_of(http: aiohttp.ClientSession, replica: Replica) -> list[dict[str, Any]]:
    async with http.get(f"{replica.url}/kv_event_sources") as response:
        sources: list[dict[str, Any]] = await response.json()
        return sources


async def subscribed(http: aiohttp.ClientSession, replica: Replica, reader: Reader) -> None:
    """Connect ``reader`` and return when it hears the replica.

    A subscription takes effect some time after it is made, so messages are sent until one comes.
    """
    (source,) = await sources_of(http, replica)
    reader.socket.connect(source["endpoint"])
    prompt = 0
    while not reader.messages:
        prompt += 1
        await complete(http, replica, prompt=[prompt] * 40, max_tokens=1)


async def test_every_batch_is_heard_and_the_blocks_are_the_engine_s(
    start: Start, http: aiohttp.ClientSession, reader: Reader
) -> None:
    replica = await start(kv_blocks=40, zmq_endpoint=ANYWHERE)
    await subscribed(http, replica, reader)
    await http.post(f"{replica.url}/reset_prefix_cache")

    for index in range(12):
        await complete(http, replica, prompt=[index % 5] * 150 + [index] * 30, max_tokens=20)
    number_sent = replica.metrics.zmq_batches - 1
    await until(lambda: reader.messages[-1].number == number_sent)

    numbers = [message.number for message in reader.messages]
    assert numbers == list(range(numbers[0], number_sent + 1))
    cleared = next(
        index
        for index, message in enumerate(reader.messages)
        if message.batch is not None and AllBlocksCleared() in message.batch.events
    )
    blocks = blocks_after(reader.messages[cleared:])
    assert blocks == set(replica.driver.engine.cached_hashes())
    assert blocks
    port = replica.url.rpartition(":")[2]
    assert {message.topic for message in reader.messages} == {f"kv@127.0.0.1:{port}@{MODEL}"}


async def test_what_was_missed_can_be_replayed_and_numbers_go_on(
    start: Start, http: aiohttp.ClientSession, reader: Reader
) -> None:
    replica = await start(zmq_endpoint=ANYWHERE, zmq_replay_endpoint=ANYWHERE)
    for index in range(5):
        await complete(http, replica, prompt=[index] * 64, max_tokens=1)
    await subscribed(http, replica, reader)
    (source,) = await sources_of(http, replica)

    first_heard = reader.messages[0].number
    whole = await reader.replay(source["replay_endpoint"], 0)
    part = await reader.replay(source["replay_endpoint"], first_heard - 2)

    assert first_heard >= 5
    assert [message.number for message in whole[: first_heard + 1]] == list(range(first_heard + 1))
    assert whole[first_heard] == reader.messages[0]
    assert part == whole[first_heard - 2 :]
    assert blocks_after(whole) == set(replica.driver.engine.cached_hashes())


async def test_only_the_last_batches_are_kept(
    start: Start, http: aiohttp.ClientSession, reader: Reader
) -> None:
    replica = await start(
        zmq_endpoint=ANYWHERE, zmq_replay_endpoint=ANYWHERE, zmq_replay_batches_max=3
    )
    for index in range(6):
        await complete(http, replica, prompt=[index] * 64, max_tokens=1)
    (source,) = await sources_of(http, replica)

    replayed = await reader.replay(source["replay_endpoint"], 0)
    nothing = await reader.replay(source["replay_endpoint"], 6)

    assert [message.number for message in replayed] == [3, 4, 5]
    assert nothing == []


async def test_a_request_that_is_none_does_not_stop_replays(
    start: Start, http: aiohttp.ClientSession, reader: Reader
) -> None:
    replica = await start(zmq_endpoint=ANYWHERE, zmq_replay_endpoint=ANYWHERE)
    await complete(http, replica, prompt=[1] * 64, max_tokens=1)
    (source,) = await sources_of(http, replica)
    with zmq.Context() as context, context.socket(zmq.DEALER) as rude:
        rude.connect(source["replay_endpoint"])
        rude.send_multipart([b"what", b"is", b"this"])

        replayed = await reader.replay(source["replay_endpoint"], 0)

    assert [message.number for message in replayed] == [0]


async def test_a_replica_connects_to_a_reader_that_binds(
    start: Start, http: aiohttp.ClientSession, reader: Reader
) -> None:
    port = reader.socket.bind_to_random_port("tcp://127.0.0.1")
    replica = await start(zmq_endpoint=f"tcp://127.0.0.1:{port}", zmq_topic="mine")

    prompt = 0
    while not reader.messages:
        prompt += 1
        await complete(http, replica, prompt=[prompt] * 40, max_tokens=1)

    assert reader.messages[0].topic == "mine"


async def test_each_rank_has_its_own_numbers_and_says_which_it_is(
    start: Start, http: aiohttp.ClientSession, reader: Reader
) -> None:
    replica = await start(data_parallel_size=2, zmq_endpoint=ANYWHERE, zmq_replay_endpoint=ANYWHERE)
    for sent_to in (0, 1, 1):
        async with http.post(
            replica.url + COMPLETION,
            json={"prompt": [sent_to, replica.metrics.zmq_batches] * 32, "max_tokens": 1},
            headers={"X-data-parallel-rank": str(sent_to)},
        ):
            pass

    sources = await sources_of(http, replica)
    heard = [await reader.replay(source["replay_endpoint"], 0) for source in sources]

    assert [source["data_parallel_rank"] for source in sources] == [0, 1]
    assert [[message.number for message in each] for each in heard] == [[0], [0, 1]]
    for rank, each in enumerate(heard):
        assert {m.batch.data_parallel_rank for m in each if m.batch is not None} == {rank}
        assert blocks_after(each) == set(replica.ranks.drivers[rank].engine.cached_hashes())


async def test_the_adapter_and_the_salt_are_told(
    start: Start, http: aiohttp.ClientSession, reader: Reader
) -> None:
    replica = await start(lora=("sql",), zmq_endpoint=ANYWHERE, zmq_replay_endpoint=ANYWHERE)
    await complete(http, replica, model="sql", prompt=[1] * 40, max_tokens=1, cache_salt="t")
    (source,) = await sources_of(http, replica)

    (message,) = await reader.replay(source["replay_endpoint"], 0)

    assert message.batch is not None
    (event,) = message.batch.events
    assert isinstance(event, BlockStored)
    assert (event.lora_name, event.extra_keys) == ("sql", [["sql", "t"], ["sql"]])
    assert event.token_ids == [1] * 32


async def test_a_wildcard_is_told_as_the_host_that_readers_can_reach(
    start: Start, http: aiohttp.ClientSession
) -> None:
    replica = await start(zmq_endpoint="tcp://*:0", zmq_replay_endpoint="tcp://*:0")

    (source,) = await sources_of(http, replica)

    for endpoint in (source["endpoint"], source["replay_endpoint"]):
        assert re.fullmatch(r"tcp://127\.0\.0\.1:[1-9]\d+", endpoint)


async def test_without_an_endpoint_there_is_no_source(
    start: Start, http: aiohttp.ClientSession
) -> None:
    assert await sources_of(http, await start()) == []


async def refused(**settings: Any) -> str:
    with pytest.raises(SettingError) as raised:
        async with running_replica(CONFIG.__class__(**{**vars(CONFIG), **settings})):
            pass
    return str(raised.value)


async def test_an_endpoint_that_cannot_be_used_is_named(start: Start) -> None:
    with zmq.Context() as context, context.socket(zmq.PUB) as taken:
        port = taken.bind_to_random_port("tcp://127.0.0.1")

        assert "zmq_endpoint 'tcp://nope'" in await refused(zmq_endpoint="tcp://nope")
        told = await refused(zmq_endpoint=ANYWHERE, zmq_replay_endpoint=f"tcp://127.0.0.1:{port}")
    assert "zmq_replay_endpoint" in told
    assert "in use" in told


async def test_a_missing_library_is_one_line_that_names_the_extra(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(zmq_events, "_ABSENCE", ImportError("No module named 'zmq'"))

    assert "pip install 'warmroute[zmq]'" in await refused(zmq_endpoint=ANYWHERE)


def test_the_replica_does_without_the_library() -> None:
    script = "import sys; sys.modules['zmq'] = None; import replicas.server.replica"

    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)

    assert (done.returncode, done.stderr) == (0, "")
