"""A client that keeps every byte of a stream and says how it ended."""

import asyncio
from dataclasses import dataclass, field

import aiohttp
import msgspec

from contract.openai_api import CompletionFields, render_completion
from contract.sse import DONE_PAYLOAD, SseReader
from replicas.core.text import expected_text


@dataclass
class Stream:
    """One streamed completion in progress or ended."""

    prompt: str
    num_tokens: int
    replica_id: str = "-"
    status: int = 0
    payloads: list[bytes] = field(default_factory=list)
    transport_error: Exception | None = None

    @property
    def text(self) -> str:
        pieces = []
        for payload in self.payloads:
            if payload != DONE_PAYLOAD:
                pieces += [c["text"] for c in msgspec.json.decode(payload).get("choices", ())]
        return "".join(pieces)

    @property
    def expected(self) -> str:
        (rendered,) = render_completion(CompletionFields(prompt=self.prompt))
        return expected_text(rendered, self.num_tokens)

    @property
    def is_whole(self) -> bool:
        """The stream says that it is complete."""
        return self.transport_error is None and self.payloads[-1:] == [DONE_PAYLOAD]

    @property
    def is_visibly_broken(self) -> bool:
        """No client can take this for an answer: an error event, or a cut transport."""
        errors = [p for p in self.payloads if b'"error"' in p]
        finished = any(b'"finish_reason":"' in p for p in self.payloads)
        return not finished and not self.is_whole and bool(errors or self.transport_error)


class Streams:
    """Many streams at once; `begun` is set when each has had its first tokens."""

    def __init__(self, url: str, model: str, first_tokens: int = 3) -> None:
        self.all: list[Stream] = []
        self._url = url
        self._model = model
        self._first_tokens = first_tokens
        self._num_begun = 0
        self.begun = asyncio.Event()
        self._wanted = 0

    async def run(self, prompts: list[str], num_tokens: int) -> None:
        self._wanted = len(prompts)
        connector = aiohttp.TCPConnector(limit=0)
        async with (
            aiohttp.ClientSession(connector=connector) as session,
            asyncio.TaskGroup() as tasks,
        ):
            for prompt in prompts:
                stream = Stream(prompt, num_tokens)
                self.all.append(stream)
                tasks.create_task(self._one(session, stream))

    async def _one(self, session: aiohttp.ClientSession, stream: Stream) -> None:
        body = {
            "model": self._model,
            "prompt": stream.prompt,
            "max_tokens": stream.num_tokens,
            "stream": True,
        }
        reader = SseReader()
        counted = False
        try:
            async with session.post(f"{self._url}/v1/completions", json=body) as response:
                stream.status = response.status
                stream.replica_id = response.headers.get("x-warmroute-replica", "-")
                async for data in response.content.iter_any():
                    stream.payloads += reader.feed(data)
                    if not counted and len(stream.payloads) >= self._first_tokens:
                        counted = True
                        self._count()
        except aiohttp.ClientError as error:
            stream.transport_error = error
        if not counted:
            self._count()

    def _count(self) -> None:
        self._num_begun += 1
        if self._num_begun == self._wanted:
            self.begun.set()
