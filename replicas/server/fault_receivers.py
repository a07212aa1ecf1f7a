"""Faults in the middle of an answer: receivers that stand before the one that writes it.

A token is one call of ``take()``, so tokens are counted over all choices of a request.
"""

import asyncio
import socket
import struct
from collections.abc import Callable

from replicas.core.sequence import FinishReason
from replicas.server.fault_injector import FaultInjector
from replicas.server.faults import CloseMidStream, ResetMidStream, Stall
from replicas.server.generation import Generation, Receiver
from replicas.server.receivers import Collector, EventStream

NO_LINGER = struct.pack("ii", 1, 0)
"""The SO_LINGER with which closing a socket resets its connection (socket(7))."""


def with_faults(
    answer: Collector | EventStream,
    transport: asyncio.Transport,
    faults: FaultInjector,
    key: str,
) -> Receiver:
    """Return who takes the tokens of request ``key``: ``answer`` itself if no fault strikes it."""
    receiver: Receiver = answer
    close, broken = faults.draw(CloseMidStream, key), faults.draw(ResetMidStream, key)
    if close is not None:
        receiver = Cutting(receiver, answer, close, transport.close, faults)
    if broken is not None:
        receiver = Cutting(receiver, answer, broken, lambda: reset(transport), faults)
    stall = faults.draw(Stall, key)
    if stall is not None:
        receiver = Stalling(receiver, stall, faults)
    return receiver


def reset(transport: asyncio.Transport) -> None:
    """End a connection with a RST."""
    connection = transport.get_extra_info("socket")
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, NO_LINGER)
    transport.abort()


class Cutting:
    """Lets some tokens pass, then cuts the connection in the place of the next one.

    An answer that has ended by then is whole.
    """

    def __init__(
        self,
        receiver: Receiver,
        answer: Collector | EventStream,
        fault: CloseMidStream | ResetMidStream,
        cut: Callable[[], None],
        faults: FaultInjector,
    ) -> None:
        self._receiver = receiver
        self._answer = answer
        self._fault = fault
        self._cut = cut
        self._faults = faults
        self._num_taken = 0

    def take(self, generation: Generation, piece: bytes) -> None:
        """See Receiver."""
        self._num_taken += 1
        if self._num_taken <= self._fault.after_tokens:
            self._receiver.take(generation, piece)
        elif self._num_taken == self._fault.after_tokens + 1:
            self._faults.count(type(self._fault))
            self._answer.when_written(self._cut)


class Stalling:
    """Lets some tokens pass, then holds back all text for a while."""

    def __init__(self, receiver: Receiver, fault: Stall, faults: FaultInjector) -> None:
        self._receiver = receiver
        self._fault = fault
        self._faults = faults
        self._num_left = fault.after_tokens
        self._held: dict[Generation, bytes] | None = {}  # None: the stall is over

    def take(self, generation: Generation, piece: bytes) -> None:
        """See Receiver."""
        if self._held is None or self._num_left > 0:
            self._num_left -= 1
            self._receiver.take(generation, piece)
            return
        begins = not self._held
        self._held[generation] = self._held.get(generation, b"") + piece
        if begins:
            self._faults.count(Stall)
            self._faults.hold(Stall, self, self._fault.duration_s)

    def release(self) -> None:
        """See Held. What was held of a choice comes as one piece, as if its tokens were one."""
        held, self._held = self._held or {}, None
        for generation, piece in held.items():
            if generation.finish_reason is not FinishReason.ABORT:
                self._receiver.take(generation, piece)
