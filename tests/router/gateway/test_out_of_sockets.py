"""A process without descriptors says so, blames no replica, and recovers."""

import asyncio
import errno
import resource
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from router.gateway.acceptor import Acceptor, listen
from tests.router.gateway.running import gateway_of
from tests.router.gateway.scripted_replica import ScriptedReplica, answering
from tests.router.gateway.wire import chat, completion, ok, post
from tests.waiting import until


@contextmanager
def no_descriptors() -> Iterator[None]:
    """Let this process open nothing more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with socket.socket() as last:
        lowest_free = last.fileno()
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def test_a_replica_is_not_blamed_for_the_gateways_lack_of_descriptors() -> None:
    async with (
        ScriptedReplica(answering(ok(completion()))) as replica,
        gateway_of(replica, routing={"breaker_failures": 1}) as gateway,
    ):
        client = await gateway.connect()
        await until(lambda: gateway.plane.stats().clients == 1)
        with no_descriptors():
            refused = await client.ask(post(chat()))
        served = await client.ask(post(chat()))
        (status,) = gateway.fleet.views()

    assert (refused.status, refused.code) == (503, "overloaded")
    assert served.status == 200
    assert status.standing is None


class Exhausted(socket.socket):
    """A listening socket of a process that has no descriptor left until ``is_over``."""

    num_calls = 0
    is_over = False

    def accept(self) -> tuple[socket.socket, object]:
        self.num_calls += 1
        if not self.is_over:
            raise OSError(errno.EMFILE, "too many open files")
        return super().accept()


async def test_connections_wait_until_there_are_descriptors_again() -> None:
    taken: list[socket.socket] = []
    with Exhausted() as listener, socket.socket() as client:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        acceptor = Acceptor(listener, taken.append)
        client.setblocking(False)
        client.connect_ex(("127.0.0.1", acceptor.port))
        await until(lambda: listener.num_calls > 0)
        for _ in range(100):
            await asyncio.sleep(0)
        num_calls = listener.num_calls
        listener.is_over = True
        await until(lambda: len(taken) == 1)
        acceptor.close()
        taken[0].close()

    assert num_calls < 5  # it does not ask in every turn of the loop


async def test_many_connections_are_accepted_in_few_turns_of_the_loop() -> None:
    taken: list[socket.socket] = []
    listener = listen("127.0.0.1", 0, 512)
    clients = [socket.create_connection(listener.getsockname()) for _ in range(200)]
    acceptor = Acceptor(listener, taken.append)
    num_turns = 0
    while len(taken) < 200:
        await asyncio.sleep(0)
        num_turns += 1
    acceptor.close()
    for sock in (*taken, *clients):
        sock.close()

    assert num_turns < 20


def test_a_port_in_use_is_an_error_and_leaves_nothing_open() -> None:
    with listen("127.0.0.1", 0, 1) as listener, pytest.raises(OSError, match="in use"):
        listen("127.0.0.1", listener.getsockname()[1], 1)
