"""A name server that is slow or silent about one host, and what the others notice of it."""

import asyncio
import threading

import pytest

from router.gateway.config import GatewayConfig
from router.gateway.resolver import HostAddresses, look_up

SECOND = 1_000_000


class NameServer:
    """Answers what it is told to, when it is told to."""

    def __init__(self, *answers: list[str] | OSError) -> None:
        self.answers = list(answers)
        self.asked: list[str] = []
        self.may_answer = threading.Event()
        self.may_answer.set()

    def look_up(self, host: str) -> list[str]:
        self.asked.append(host)
        assert self.may_answer.wait(30)
        answer = self.answers.pop(0)
        if isinstance(answer, OSError):
            raise answer
        return answer


class Clock:
    now_us = SECOND

    def __call__(self) -> int:
        return self.now_us


def addresses(server: NameServer, clock: Clock, host: str = "replica") -> HostAddresses:
    return HostAddresses(host, GatewayConfig(dns_ttl_s=5.0), clock, server.look_up)


async def settle(host: HostAddresses) -> None:
    """Wait for the look-up under way, if there is one."""
    under_way = host._under_way
    if under_way is not None:
        await asyncio.wait([under_way])


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
async def test_an_address_needs_no_look_up(host: str) -> None:
    server = NameServer()

    assert await addresses(server, Clock(), host).get() == [host]
    assert not server.asked


async def test_all_who_wait_for_one_name_wait_for_one_look_up() -> None:
    server = NameServer(["10.0.0.1"])
    host = addresses(server, Clock())

    found = await asyncio.gather(*(host.get() for _ in range(5)))

    assert found == [["10.0.0.1"]] * 5
    assert server.asked == ["replica"]


async def test_a_name_is_looked_up_again_when_its_time_is_over() -> None:
    server, clock = NameServer(["10.0.0.1"], ["10.0.0.2"]), Clock()
    host = addresses(server, clock)
    await host.get()

    clock.now_us += 5 * SECOND - 1
    await host.get()
    asked_within = len(server.asked)
    clock.now_us += 1
    await host.get()
    await settle(host)

    assert asked_within == 1
    assert await host.get() == ["10.0.0.2"]


async def test_while_the_name_server_is_silent_the_last_address_serves() -> None:
    server, clock = NameServer(["10.0.0.1"], ["10.0.0.2"]), Clock()
    host = addresses(server, clock)
    await host.get()
    server.may_answer.clear()
    clock.now_us += 60 * SECOND

    found = [await host.get() for _ in range(3)]

    server.may_answer.set()
    await settle(host)
    assert found == [["10.0.0.1"]] * 3
    assert len(server.asked) == 2


async def test_a_name_that_is_gone_keeps_its_last_address() -> None:
    server, clock = NameServer(["10.0.0.1"], OSError("no such name")), Clock()
    host = addresses(server, clock)
    await host.get()
    host.distrust()

    await host.get()
    await settle(host)

    server.answers.append(["10.0.0.3"])
    assert await host.get() == ["10.0.0.1"]
    await settle(host)
    assert await host.get() == ["10.0.0.3"]


async def test_a_name_that_never_was_is_an_error() -> None:
    server = NameServer(OSError("no such name"), ["10.0.0.1"])
    host = addresses(server, Clock())

    with pytest.raises(OSError, match="no such name"):
        await host.get()

    assert await host.get() == ["10.0.0.1"]


async def test_who_gives_up_waiting_does_not_take_the_answer_from_others() -> None:
    server = NameServer(["10.0.0.1"])
    server.may_answer.clear()
    host = addresses(server, Clock())
    impatient, patient = (asyncio.ensure_future(host.get()) for _ in range(2))
    await asyncio.sleep(0)

    impatient.cancel()
    await asyncio.wait([impatient])
    server.may_answer.set()

    assert await patient == ["10.0.0.1"]


def test_the_real_name_server_knows_this_machine() -> None:
    assert "127.0.0.1" in look_up("localhost") or "::1" in look_up("localhost")
