"""One gateway between scripted clients and scripted replicas, without sockets, in virtual time.

The connections, exchanges, pools and the fleet are those that serve traffic; only the transports
and the clock are not. What each side sent and got is kept for the judge.
"""

import asyncio
import errno
import socket
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from random import Random
from typing import cast

import router.policies  # noqa: F401  # registers the policies
from bench.reliability import http_grammar as grammar
from bench.reliability.http_oracle import Request, read_requests
from bench.reliability.virtual_loop import VirtualLoop
from bench.reliability.virtual_wire import VirtualSocket, VirtualTransport
from router.core.config import RoutingConfig
from router.core.fleet import FleetState
from router.core.policy import build_policy
from router.core.record import ExchangeRecord
from router.gateway.body_reader import BodyReader
from router.gateway.body_worker import Answer, Question, answer_of
from router.gateway.client_connection import ClientConnection
from router.gateway.config import Failover, GatewayConfig
from router.gateway.data_plane import DataPlane
from router.metrics import RouterMetrics

NUM_REPLICAS = 2
GAPS_S = (0.0, 0.0, 0.0, 0.0, 0.001, 0.001, 0.03, 0.3, 1.2, 6.0)
"""Between two deeds of a script; the last outlasts every limit of the settings below."""

TICK_S = 1e-6
REST_S_MAX = 200.0
"""After the last deed; by then every limit has struck, for each of the requests in a row."""

SWEEP_S = 1.0


class Tally(RouterMetrics):
    """Counts beginnings and ends, and drops the rest: one serves all cases of a process."""

    def __init__(self) -> None:
        super().__init__()
        self.num_started = 0
        self.ended: list[ExchangeRecord] = []

    def exchange_started(self) -> None:
        self.num_started += 1

    def exchange_ended(self, record: ExchangeRecord) -> None:
        self.ended.append(record)

    def clear(self) -> None:
        """Forget the case before."""
        self.num_started = 0
        self.ended = []


@dataclass
class Attempt:
    """One request as a replica got it, and what the replica sent in return."""

    request: Request
    sent: bytes = b""
    has_ended: bool = False  # in order, behind what was sent


class ReplicaEnd:
    """One connection at a replica: reads requests with h11, answers each by a script."""

    def __init__(self, world: "World", protocol: asyncio.Protocol) -> None:
        self._world = world
        self._rng = world.rng
        self._got = b""
        self._attempt: Attempt | None = None
        self._has_ended = False
        self.transport = world.transport(protocol, self._on_write)
        self.faults: list[str] = []

    def begin(self) -> None:
        """Do what a bad replica does before it has been asked."""
        way = self._rng.random()
        if way < 0.02:
            self.transport.set_far_end_reads(False)
        elif way < 0.04:
            self._play(grammar.answer(self._rng, "early", is_chat=False))

    def _on_write(self, data: bytes) -> None:
        self._got += data
        requests, unread = read_requests(self._got)
        if not requests:
            if unread.why not in ("", "unfinished"):
                self.faults.append(f"a replica cannot read {self._got!r}: {unread.why}")
            return
        if len(requests) > 1 or unread.data:
            self.faults.append(f"more than one request at a time: {self._got!r}")
        self._got = b""
        self._attempt = Attempt(requests[0])
        self._world.attempts.append(self._attempt)
        is_chat = b"/chat/" in requests[0].target
        mark = f"a{len(self._world.attempts)}"
        style = self._world.answer_style
        rng = self._rng if style is None else Random(style)
        self._play(grammar.answer(rng, mark, is_chat=is_chat))

    def _play(self, data: bytes) -> None:
        rng = self._rng
        if rng.random() < 0.2:
            data = data[: rng.randrange(len(data) + 1)]
        ending = rng.choice(("open", "open", "eof", "eof", "reset"))
        at_s = 0.0
        for piece in grammar.split(rng, data):
            at_s += rng.choice(GAPS_S)
            self._world.later(at_s, self._send, piece)
        at_s += rng.choice(GAPS_S)
        if ending == "eof":
            self._world.later(at_s, self._end)
        elif ending == "reset":
            self._world.later(at_s, self.transport.reset)

    def _send(self, piece: bytes) -> None:
        if self._has_ended:
            return
        if self._attempt is not None:
            self._attempt.sent += piece
        self.transport.arrive(piece)

    def _end(self) -> None:
        if self._has_ended:
            return
        self._has_ended = True
        if self._attempt is not None:
            self._attempt.has_ended = True
        self.transport.arrive(None)


class ClientEnd:
    """One client: sends its bytes, perhaps reads slowly, perhaps leaves in the middle."""

    def __init__(self, world: "World", index: int) -> None:
        self._world = world
        self._index = index
        self.sent = b""
        self.got = b""
        self.has_reset = False
        self.sock = VirtualSocket()
        self.transport: VirtualTransport

    def begin(self) -> None:
        """Connect and play the script."""
        world, rng = self._world, self._world.rng
        connection = ClientConnection(world.plane, cast(socket.socket, self.sock))
        self.transport = world.transport(connection, self._on_write, self.sock)
        connection.connection_made(self.transport)
        at_s = 0.0
        for piece in grammar.split(rng, grammar.requests(rng, f"c{self._index}-")):
            world.later(at_s, self._send, piece)
            at_s += rng.choice(GAPS_S)
        if rng.random() < 0.2:
            until_s = rng.choice(GAPS_S)
            world.later(rng.choice(GAPS_S), self.transport.set_far_end_reads, False)
            world.later(at_s + until_s, self.transport.set_far_end_reads, rng.random() < 0.7)
        way = rng.random()
        at_s += rng.choice(GAPS_S)
        if way < 0.1:
            world.later(at_s, self._reset)
        elif way < 0.3:
            world.later(at_s, self.transport.arrive, None)
            if way < 0.2:  # a socket that is closed, not only half: what it is sent resets it
                world.later(at_s, self._leave)

    def _on_write(self, data: bytes) -> None:
        self.got += data

    def _send(self, piece: bytes) -> None:
        if not self.transport.is_closing():
            self.sent += piece
            self.transport.arrive(piece)

    def _reset(self) -> None:
        self.has_reset = True
        self.transport.reset()

    def _leave(self) -> None:
        self.has_reset = True
        self.sock.error = errno.ECONNRESET


class BodiesInTurn(BodyReader):
    """Reads long bodies in this process, late; what asks and waits for it is the real one."""

    def __init__(self, world: "World", routing: RoutingConfig) -> None:
        super().__init__(routing)
        self._world = world

    async def _ask(self, question: Question, body: bytes) -> Answer:
        await asyncio.sleep(self._world.rng.choice(GAPS_S))
        if self._world.rng.random() < 0.1:
            raise EOFError("the process has died")
        return answer_of(question, body, self._routing)


class World:
    """Everything of one case; ``run`` plays it to its end."""

    def __init__(self, rng: Random, tally: Tally) -> None:
        self.rng = rng
        self.attempts: list[Attempt] = []
        self.transports: list[VirtualTransport] = []
        self.replica_ends: list[ReplicaEnd] = []
        self.tally = tally
        tally.clear()
        self.loop = VirtualLoop(self._connect)
        self.resumes = rng.random() < 0.25
        self.answer_style = rng.getrandbits(32) if rng.random() < 0.3 else None  # alike, if any
        routing, gateway = _routing(rng), _gateway(rng, resumes=self.resumes)
        self.fleet = FleetState(routing, build_policy(rng.choice(("round_robin", "prefix_load"))))
        for index in range(NUM_REPLICAS):
            self.fleet.add_static(f"http://127.0.0.1:{8000 + index}", f"r{index}", "m", now_us=0)
        self.plane = DataPlane(gateway, self.fleet, routing, tally, self.loop.now_us)
        # Ids decide ties and waits: a case must not depend on the random prefix of its gateway.
        self.plane.context._id_prefix = "wr"
        self.plane.context.bodies = BodiesInTurn(self, routing)
        self.clients = [ClientEnd(self, index) for index in range(rng.choice((1, 1, 1, 2, 3)))]
        self._end_s = 0.0
        self._num_deeds = 0

    def run(self) -> None:
        """Play all scripts, then wait until every limit has struck."""
        self.loop.call_soon(self.plane._schedule_sweep)
        for client in self.clients:
            self.later(self.rng.choice(GAPS_S), client.begin)
        while not self._is_at_rest() and self.loop.time() < self._end_s + REST_S_MAX:
            self.loop.run_until(max(self._end_s, self.loop.time()) + SWEEP_S)

    def _is_at_rest(self) -> bool:
        """Whether only the sweep, which never ends, is still to come."""
        is_over = self.loop.time() > self._end_s and self.loop.num_timers <= 1
        return is_over and all(transport.is_lost for transport in self.transports)

    def later(self, delay_s: float, deed: Callable[..., object], *args: object) -> None:
        """Do something after a while; the case lasts until then, and a while longer.

        What is asked for first is done first: of timers that are due together, asyncio runs any.
        """
        self._num_deeds += 1
        delay_s += self._num_deeds * TICK_S
        self._end_s = max(self._end_s, self.loop.time() + delay_s)
        self.loop.call_later(delay_s, deed, *args)

    def transport(
        self,
        protocol: asyncio.Protocol,
        on_write: Callable[[bytes], None],
        sock: VirtualSocket | None = None,
    ) -> VirtualTransport:
        """Return a new transport of this world."""
        made = VirtualTransport(self.loop, protocol, sock or VirtualSocket(), on_write)
        self.transports.append(made)
        return made

    async def _connect(self, protocol: asyncio.Protocol, _: str, __: int) -> asyncio.Transport:
        """Connect to a replica, or fail as a kernel does."""
        way = self.rng.random()
        await asyncio.sleep(self.rng.choice(GAPS_S) if way < 0.2 else 0.0)
        if way < 0.05:
            raise ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused")
        if way < 0.06:
            raise OSError(errno.EMFILE, "Too many open files")
        end = ReplicaEnd(self, protocol)
        self.replica_ends.append(end)
        protocol.connection_made(end.transport)
        end.begin()
        return end.transport


def _routing(rng: Random) -> RoutingConfig:
    return RoutingConfig(
        in_flight_max=rng.choice((0, 0, 0, 1)),
        queue_max=rng.choice((0, 1, 10)),
        queue_timeout_s=2.0,
        retry_max=rng.choice((0, 1, 2)),
        retry_budget=rng.choice((0.2, 1.0)),
        breaker_cooldown_s=0.5,
        breaker_cooldown_max_s=2.0,
        back_pressure_max_s=2.0,
    )


def _gateway(rng: Random, *, resumes: bool) -> GatewayConfig:
    return GatewayConfig(
        failover=Failover.RESUME if resumes else Failover.OFF,
        resume_bytes_max=rng.choice((400, 100_000)),
        body_in_turn_bytes_max=rng.choice((200, 100_000)),
        body_reading_timeout_s=1.0,
        header_bytes_max=rng.choice((512, 4096)),
        header_count_max=rng.choice((8, 64)),
        max_body_bytes=rng.choice((1000, 100_000)),
        buffered_bytes_max=rng.choice((2000, 1_000_000)),
        pipelined_max=rng.choice((1, 16)),
        write_buffer_bytes_max=rng.choice((300, 100_000)),
        held_answer_bytes_max=rng.choice((200, 100_000)),
        answer_tail_bytes=rng.choice((128, 16_384)),
        client_idle_timeout_s=5.0,
        client_header_timeout_s=2.0,
        client_body_timeout_s=2.0,
        client_write_timeout_s=3.0,
        linger_s=rng.choice((0.0, 1.0)),
        connect_timeout_s=2.0,
        first_byte_timeout_s=3.0,
        answer_timeout_s=4.0,
        between_bytes_timeout_s=2.0,
        replica_idle_s=4.0,
        sweep_s=SWEEP_S,
        cors_origins=rng.choice(((), (), (), ("http://o",), ("*",))),
        api_keys=rng.choice(((), (), (), (sha256(b"k").hexdigest(),))),
        forward_authorization=True,
    )
