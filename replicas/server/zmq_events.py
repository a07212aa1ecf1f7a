"""Publishes KV events as vLLM does: a PUB socket, and a ROUTER that replays what was missed.

Beside Redis, not instead of it: readers that know vLLM need not know warmroute. Publishing never
waits. A reader that is too slow loses messages, sees the gap in their numbers, and asks for them.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from contract.kv_events import KvEvent
from contract.options import SettingError
from contract.vllm_events import (
    END_OF_REPLAY,
    EventBatch,
    binds,
    decode_replay_request,
    encode_message,
    encode_payload,
    endpoint_of_rank,
)
from replicas.core.scheduler import StepPlan
from replicas.server.config import ReplicaConfig
from replicas.server.driver import show_nobody
from replicas.server.metrics import ReplicaMetrics
from replicas.server.ranks import Ranks
from replicas.server.vllm_batches import translated

try:
    import zmq
    import zmq.asyncio
except ImportError as absence:
    _ABSENCE: ImportError | None = absence
else:
    _ABSENCE = None

log = logging.getLogger(__name__)


class EventPublisher:
    """The events of one engine, numbered from 0."""

    def __init__(
        self,
        config: ReplicaConfig,
        topic: str,
        rank: int,
        publishing: "zmq.Socket[bytes]",
        metrics: ReplicaMetrics,
    ) -> None:
        self._topic = topic.encode()
        self._rank = rank
        self._block_size = config.block_size
        self._socket = publishing
        self._metrics = metrics
        self._number = 0  # of the next message
        self._sent = deque[list[bytes]](maxlen=config.zmq_replay_batches_max)

    def publish(self, events: Sequence[KvEvent], plan: StepPlan | None) -> None:
        """Send the events that the step of ``plan`` caused. Never waits."""
        batch = EventBatch(time.time(), translated(events, plan, self._block_size), self._rank)
        frames = encode_message(self._topic, self._number, encode_payload(batch))
        self._number += 1
        self._sent.append(frames)
        self._metrics.zmq_batches += 1
        # A PUB socket drops for those who are too slow rather than wait.
        self._socket.send_multipart(frames, zmq.NOBLOCK)

    async def answer_replays(self, replaying: "zmq.asyncio.Socket") -> None:
        """Answer requests for past messages until cancelled."""
        while True:
            reader, *asked = await replaying.recv_multipart()
            first = decode_replay_request(asked)
            if first is None:
                log.warning("a replay request of %d frames, expected '' and a number", len(asked))
                continue
            for frames in list(self._sent):
                if int.from_bytes(frames[1], "big") >= first:
                    await replaying.send_multipart([reader, b"", *frames])
                    # Sending does not wait, and steps must not wait for a long replay.
                    await asyncio.sleep(0)
            await replaying.send_multipart([reader, b"", b"", END_OF_REPLAY, b""])


@asynccontextmanager
async def publishing_as_vllm(
    config: ReplicaConfig, host: str, port: int, ranks: Ranks, metrics: ReplicaMetrics
) -> AsyncIterator[list[dict[str, Any]]]:
    """Publish the events of every rank inside the block, from a replica at ``host:port``.

    Yields what ``/kv_event_sources`` says of each. Raises SettingError for an endpoint that cannot
    be used, or if the library is missing.
    """
    if config.zmq_endpoint is None:
        yield []
        return
    if _ABSENCE is not None:
        raise SettingError(
            f"[replica] zmq_endpoint needs a library that is missing ({_ABSENCE}); "
            "pip install 'warmroute[zmq]'"
        )
    topic = config.zmq_topic
    if topic is None:
        topic = f"kv@{host}:{port}@{config.model}"
    context = zmq.Context()
    try:
        # Before the task group, which would wrap a SettingError.
        sockets = [_Sockets(context, config, rank) for rank in range(len(ranks.drivers))]
        async with asyncio.TaskGroup() as tasks:
            answering: list[asyncio.Task[None]] = []
            for rank, (driver, pair) in enumerate(zip(ranks.drivers, sockets, strict=True)):
                publisher = EventPublisher(config, topic, rank, pair.publishing, metrics)
                driver.show = publisher.publish
                if pair.replaying is not None:
                    answers = publisher.answer_replays(pair.replaying)
                    answering.append(tasks.create_task(answers))
            try:
                yield [
                    {"data_parallel_rank": rank, **pair.endpoints(host), "topic": topic}
                    for rank, pair in enumerate(sockets)
                ]
            finally:
                for driver in ranks.drivers:
                    driver.show = show_nobody
                for task in answering:
                    task.cancel()
    finally:
        context.destroy(linger=0)


class _Sockets:
    """The sockets of one rank. Raises SettingError for an endpoint that cannot be used."""

    def __init__(self, context: "zmq.Context[Any]", config: ReplicaConfig, rank: int) -> None:
        assert config.zmq_endpoint is not None
        self.publishing: zmq.Socket[bytes] = context.socket(zmq.PUB)
        self.publishing.set_hwm(config.zmq_unsent_batches_max)
        with _usable("zmq_endpoint", config.zmq_endpoint):
            self._endpoint = endpoint_of_rank(config.zmq_endpoint, rank)
            if binds(self._endpoint):
                self.publishing.bind(self._endpoint)
            else:
                self.publishing.connect(self._endpoint)
        self.replaying: zmq.asyncio.Socket | None = None
        if config.zmq_replay_endpoint is not None:
            self.replaying = context.socket(zmq.ROUTER, socket_class=zmq.asyncio.Socket)
            # A ROUTER drops what a reader has no room for: there must be room for all and the end.
            self.replaying.set_hwm(config.zmq_replay_batches_max + 1)
            with _usable("zmq_replay_endpoint", config.zmq_replay_endpoint):
                self.replaying.bind(endpoint_of_rank(config.zmq_replay_endpoint, rank))

    def endpoints(self, host: str) -> dict[str, str | None]:
        """Return where the sockets are reached, with the ports that the system chose."""
        publishing, replaying = self.publishing, self.replaying
        return {
            "endpoint": _bound_to(publishing, host) if binds(self._endpoint) else self._endpoint,
            "replay_endpoint": None if replaying is None else _bound_to(replaying, host),
        }


@contextmanager
def _usable(setting: str, endpoint: str) -> Iterator[None]:
    try:
        yield
    except (zmq.ZMQError, ValueError) as error:
        raise SettingError(f"[replica] {setting} {endpoint!r} cannot be used: {error}") from error


def _bound_to(bound: "zmq.Socket[Any] | zmq.asyncio.Socket", host: str) -> str:
    found = bound.getsockopt(zmq.LAST_ENDPOINT)
    assert isinstance(found, bytes)
    endpoint = found.rstrip(b"\0").decode()
    for anywhere in ("tcp://0.0.0.0:", "tcp://[::]:"):
        endpoint = endpoint.replace(anywhere, f"tcp://{host}:")
    return endpoint
