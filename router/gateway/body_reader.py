"""Long bodies are read by another process: to decode one of 32 MiB takes up to a second, in calls
that no thread can interrupt, and every other stream would stand still meanwhile.

A process that is slow or dies costs its request the knowledge of its prompt, never the request:
its model is then looked for here, in slices.
"""

import asyncio
import logging
import os
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Callable

import msgspec

from contract.failures import Failure
from router.core.config import RoutingConfig
from router.core.request import BadRequestError
from router.core.view import RouteRequest
from router.gateway.body_worker import (
    LENGTH,
    LENGTHS,
    Answer,
    Question,
    decode_answer,
    encode_question,
    unread,
)
from router.gateway.unread_body import model_named

_FAULTS = (TimeoutError, OSError, EOFError, msgspec.MsgspecError, RuntimeError)
"""The last is what uvloop raises for a pipe that is closed already."""

log = logging.getLogger(__name__)

_READ_AHEAD_BYTES = 1024 * 1024


class BodyReader:
    """Asks one such process, one body at a time; it is started when the first is needed."""

    def __init__(self, routing: RoutingConfig) -> None:
        self._routing = routing
        self._process: Process | None = None
        self._starting: asyncio.Task[None] | None = None
        self._one_at_a_time = asyncio.Lock()
        self._asking: asyncio.Task[Answer] | None = None
        self._ending: set[asyncio.Task[None]] = set()

    async def read(
        self, question: Question, body: bytes, timeout_s: float, needs_model: Callable[[], bool]
    ) -> RouteRequest:
        """Return the request as routing sees it, without its id. Raises BadRequestError.

        ``needs_model`` says whether it may not be routed without its model.
        """
        answer = await self._asked(question, body, timeout_s)
        request = answer.request
        is_lacking = bool(answer.failure and question.encoding) and needs_model()
        if request is None or is_lacking:
            raise BadRequestError(Failure[answer.failure], answer.message, answer.param)
        if answer.failure and not question.encoding:
            request.model = await model_named(body)
        return request

    async def close(self) -> None:
        """End the process. It may be called again if it was cancelled."""
        # Not gather(): cancelled by a second signal, it would cancel what it waits for.
        if self._asking is not None:
            self._asking.cancel()
            await asyncio.wait({self._asking})
        if self._starting is not None:
            await asyncio.wait({self._starting})
        if self._process is not None:
            self._drop(self._process)
        if self._ending:
            await asyncio.wait(self._ending)

    async def _asked(self, question: Question, body: bytes, timeout_s: float) -> Answer:
        """Ask when it is this body's turn.

        Who leaves then only stops waiting: a process that was ended with each of them would have
        to be started for each of the others.
        """
        loop = asyncio.get_running_loop()
        until_s = loop.time() + timeout_s
        try:
            async with asyncio.timeout_at(until_s):
                await self._one_at_a_time.acquire()
        except TimeoutError as error:
            return self._unread(question, body, error)
        self._asking = loop.create_task(self._ask_until(until_s, question, body))
        self._asking.add_done_callback(lambda _: self._one_at_a_time.release())
        return await asyncio.shield(self._asking)

    async def _ask_until(self, until_s: float, question: Question, body: bytes) -> Answer:
        try:
            async with asyncio.timeout_at(until_s):
                return await self._ask(question, body)
        except _FAULTS as error:
            return self._unread(question, body, error)

    def _unread(self, question: Question, body: bytes, error: Exception) -> Answer:
        log.warning("a body of %d bytes was not read: %s", len(body), type(error).__name__)
        message = "the body could not be read in time; try again later"
        return unread(question, len(body), self._routing, Failure.OVERLOADED, message)

    async def _ask(self, question: Question, body: bytes) -> Answer:
        process = await self._running()
        assert process.stdin is not None
        assert process.stdout is not None
        is_answered = False
        try:
            asked = encode_question(question)
            process.stdin.writelines((LENGTHS.pack(len(asked), len(body)), asked, body))
            await process.stdin.drain()
            (length,) = LENGTH.unpack(await process.stdout.readexactly(LENGTH.size))
            answer = decode_answer(await process.stdout.readexactly(length))
            is_answered = True
        finally:
            if not is_answered:
                self._drop(process)  # what it still says would be taken for the next answer
        return answer

    async def _running(self) -> Process:
        """Return the process, started if need be. Raises OSError if it cannot be.

        Who waits no longer does not end the start: a process half started would be nobody's.
        """
        if self._process is None or self._process.returncode is not None:
            if self._starting is None:
                self._starting = asyncio.get_running_loop().create_task(self._start())
            await asyncio.shield(self._starting)
        if self._process is None:
            raise OSError("the process that reads long bodies cannot be started")
        return self._process

    async def _start(self) -> None:
        self._process = None
        try:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                *("-m", "router.gateway.body_worker", msgspec.json.encode(self._routing).decode()),
                stdin=PIPE,
                stdout=PIPE,
                stderr=DEVNULL,
                limit=_READ_AHEAD_BYTES,
                env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
                start_new_session=True,  # a Ctrl-C is for the gateway
            )
        except OSError:
            pass  # those who wait are told
        finally:
            self._starting = None

    def _drop(self, process: Process) -> None:
        self._process = None
        if process.returncode is None:
            process.kill()
        ending = asyncio.get_running_loop().create_task(_reap(process))
        self._ending.add(ending)
        ending.add_done_callback(self._ending.discard)


async def _reap(process: Process) -> None:
    """Wait for a killed process and for the end of its pipes."""
    try:
        await process.communicate()
    except OSError:
        pass  # it took no more
