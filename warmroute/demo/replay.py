"""Open-loop replay of a trace through gateways: requests leave on time, answered or not.

Each answer is checked token by token against the text that the replicas are known to generate,
so a lost, doubled or foreign token counts as an error like a refused request does.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import cycle
from typing import Any

import aiohttp
import msgspec

from contract.openai_api import Usage, decode_usage
from contract.sse import DONE_PAYLOAD, SseReader
from replicas.core.text import expected_text
from warmroute.demo.workload import TraceRequest

ANSWER_TIMEOUT_S = 120.0
"""No answer of the demo takes longer than a few seconds; a hang must end the demo, not hang it."""


class _Choice(msgspec.Struct):
    text: str = ""


class _Chunk(msgspec.Struct):
    choices: list[_Choice] = []
    usage: msgspec.Raw = msgspec.Raw(b"null")


_decode_chunk = msgspec.json.Decoder(_Chunk).decode


@dataclass(frozen=True)
class Answer:
    """What came back for one request. Times in seconds, None where it failed before."""

    request: TraceRequest
    error: str | None = None
    replica_id: str = "-"
    ttft_s: float | None = None
    e2e_s: float | None = None
    prompt_tokens: int = 0
    cached_tokens: int = 0
    predicted_tokens: int = 0
    url: str = ""  # of the gateway that was asked


@dataclass
class ReplayResult:
    """All answers of one run."""

    answers: list[Answer]
    wall_s: float
    late_s_max: float  # how far the client itself fell behind its schedule
    errors: Counter[str] = field(default_factory=Counter)

    def through(self, url: str) -> "ReplayResult":
        """Return what came back through one of the gateways."""
        answers = [answer for answer in self.answers if answer.url == url]
        return replace(self, answers=answers, errors=_errors_of(answers))


async def replay(
    urls: Sequence[str],
    model: str,
    requests: Sequence[TraceRequest],
    time_compression: float,
    progress: Callable[[int], None],
) -> ReplayResult:
    """Send ``requests`` to ``urls`` in turn, at their arrival times over ``time_compression``."""
    started = time.monotonic()
    late_s_max = 0.0
    answers: list[Answer] = []
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=30)
    timeout = aiohttp.ClientTimeout(total=ANSWER_TIMEOUT_S)

    async def one(session: aiohttp.ClientSession, url: str, request: TraceRequest) -> None:
        answer = await _ask(session, url, model, request)
        answers.append(replace(answer, url=url))
        progress(len(answers))

    async with (
        aiohttp.ClientSession(connector=connector, timeout=timeout) as session,
        asyncio.TaskGroup() as tasks,
    ):
        for url, request in zip(cycle(urls), requests, strict=False):
            due = started + request.arrival_s / time_compression
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            late_s_max = max(late_s_max, time.monotonic() - due)
            tasks.create_task(one(session, url, request))
    return ReplayResult(answers, time.monotonic() - started, late_s_max, _errors_of(answers))


def _errors_of(answers: Sequence[Answer]) -> Counter[str]:
    return Counter(answer.error for answer in answers if answer.error is not None)


async def _ask(
    session: aiohttp.ClientSession, url: str, model: str, request: TraceRequest
) -> Answer:
    body = {
        "model": model,
        "prompt": request.prompt,
        "max_tokens": request.output_tokens,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    headers = {"content-type": "application/json", "x-request-id": request.request_id}
    sent = time.monotonic()
    try:
        async with session.post(
            f"{url}/v1/completions", data=msgspec.json.encode(body), headers=headers
        ) as response:
            if response.status != 200:
                return Answer(request, error=f"status {response.status}")
            return await _read_stream(request, response, sent)
    except (aiohttp.ClientError, TimeoutError, msgspec.MsgspecError) as error:
        return Answer(request, error=type(error).__name__)


async def _read_stream(
    request: TraceRequest, response: aiohttp.ClientResponse, sent: float
) -> Answer:
    reader = SseReader()
    payloads: list[bytes] = []
    ttft_s: float | None = None
    async for data in response.content.iter_any():
        payloads += reader.feed(data)
        if ttft_s is None and payloads:
            ttft_s = time.monotonic() - sent
    e2e_s = time.monotonic() - sent
    if not payloads or payloads.pop() != DONE_PAYLOAD:
        return Answer(request, error="stream without [DONE]")
    text, usage = _join(payloads)
    if text != expected_text(request.prompt.encode(), request.output_tokens):
        return Answer(request, error="wrong text")
    headers: Any = response.headers
    return Answer(
        request=request,
        replica_id=headers.get("x-warmroute-replica", "-"),
        ttft_s=ttft_s,
        e2e_s=e2e_s,
        prompt_tokens=usage.prompt_tokens,
        cached_tokens=usage.cached_tokens or 0,
        predicted_tokens=int(headers.get("x-warmroute-matched-tokens", 0)),
    )


def _join(payloads: Sequence[bytes]) -> tuple[str, Usage]:
    pieces: list[str] = []
    usage = Usage()
    for payload in payloads:
        chunk = _decode_chunk(payload)
        pieces += (choice.text for choice in chunk.choices)
        if bytes(chunk.usage) != b"null":
            usage = decode_usage(chunk.usage)
    return "".join(pieces), usage
