"""Receivers of an answer that is cut or stalled, fed token by token without an engine."""

import asyncio
from typing import Any

from contract.blocks import root_hash
from replicas.core.sequence import FinishReason
from replicas.server.fault_injector import FaultInjector
from replicas.server.fault_receivers import Cutting, Stalling
from replicas.server.faults import CloseMidStream, Stall
from replicas.server.generation import Generation, Prompt, SamplingRules
from replicas.server.metrics import ReplicaMetrics
from replicas.server.openai_answers import Envelope
from replicas.server.openai_requests import Route
from replicas.server.receivers import EventStream


class Recorder:
    def __init__(self) -> None:
        self.pieces: list[bytes] = []

    def take(self, generation: Generation, piece: bytes) -> None:
        self.pieces.append(piece)


class FakeTransport(asyncio.Transport):
    """Keeps what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""

    def is_closing(self) -> bool:
        return False

    def get_write_buffer_size(self) -> int:
        return 0

    def write(self, data: Any) -> None:
        self.written += data


def injector(fault: Stall | CloseMidStream) -> FaultInjector:
    faults = FaultInjector(ReplicaMetrics(), 0, "r1")
    faults.set([fault])
    return faults


def generation(number: int = 0) -> Generation:
    prompt, rules = Prompt(b"word" * 8, root_hash("m")), SamplingRules(20, open_ended=False)
    return Generation(str(number), number, prompt, 0, rules, Recorder())


def cutting(num_early: int) -> tuple[Cutting, list[bytes]]:
    """Return what cuts after 2 tokens and has taken ``num_early`` of them before the head went out.

    Beside it, a list that gets what is written at the moment of the cut.
    """
    fault = CloseMidStream(after_tokens=2)
    envelope = Envelope.of(Route.COMPLETION, "1", 0, "m")
    stream = EventStream(envelope, [""], 1_000, ReplicaMetrics())
    transport, at_cut = FakeTransport(), list[bytes]()
    receiver = Cutting(
        stream, stream, fault, lambda: at_cut.append(transport.written), injector(fault)
    )
    sequence = generation()
    for number in range(num_early):
        receiver.take(sequence, b"early%d" % number)
    assert at_cut == []
    stream.attach(transport, chunked=False)
    return receiver, at_cut


def test_a_cut_waits_until_what_came_before_the_head_is_written() -> None:
    _, at_cut = cutting(num_early=5)

    (written,) = at_cut
    assert b"early1" in written
    assert b"early2" not in written


def test_a_cut_of_a_stream_under_way_comes_in_place_of_a_token_and_once() -> None:
    receiver, at_cut = cutting(num_early=1)
    sequence = generation()

    receiver.take(sequence, b"second")
    assert at_cut == []
    receiver.take(sequence, b"third")
    receiver.take(sequence, b"fourth")

    (written,) = at_cut
    assert written.endswith(b"\n\n")
    assert b"second" in written
    assert b"third" not in written


def test_a_stall_over_many_choices_holds_each_choice_s_text_apart() -> None:
    fault, taken = Stall(after_tokens=1), Recorder()
    faults = injector(fault)
    receiver = Stalling(taken, fault, faults)
    one, other = generation(0), generation(1)

    for sequence, piece in ((one, b"a"), (one, b"b"), (other, b"x"), (one, b"c"), (other, b"y")):
        receiver.take(sequence, piece)
    held = list(taken.pieces)
    faults.clear()
    receiver.take(one, b"d")

    assert held == [b"a"]
    assert taken.pieces == [b"a", b"bc", b"xy", b"d"]
    assert faults.num_struck(Stall) == 1


def test_what_was_held_back_for_a_client_that_left_goes_nowhere() -> None:
    fault, taken = Stall(after_tokens=0), Recorder()
    faults = injector(fault)
    receiver, gone = Stalling(taken, fault, faults), generation()
    receiver.take(gone, b"a")

    gone.sequence.finish_reason = FinishReason.ABORT
    faults.clear()

    assert taken.pieces == []


def test_a_stall_that_was_cleared_before_it_began_holds_nothing() -> None:
    fault, taken = Stall(after_tokens=1), Recorder()
    faults = injector(fault)
    receiver, sequence = Stalling(taken, fault, faults), generation()
    faults.clear()

    for piece in (b"a", b"b", b"c"):
        receiver.take(sequence, piece)

    assert taken.pieces == [b"a", b"b", b"c"]
