"""Request bodies for a load: chat prompts in groups that share the beginning of their prompt.

A prompt of a group is the group's shared text, as the system message, and a text of its own, as the
user's message. The shared text starts with the marker `[[g=N]]`, by which the fake replica counts
the requests of each group. Equal arguments give equal bytes.
"""

from __future__ import annotations

import json
import random
import string
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

# Own texts are slices of one long text: drawing every word anew would take longer than the load.
_POOL_BYTES = 250_000


@dataclass(frozen=True, slots=True)
class PromptGroups:
    """What the requests of one load look like."""

    num_requests: int
    prompt_bytes: int
    stream: bool
    num_groups: int = 50
    shared_fraction: float = 0.75
    model: str = "fake-model"
    seed: int = 1

    def __post_init__(self) -> None:
        assert 0.0 <= self.shared_fraction <= 1.0
        assert self.prompt_bytes < _POOL_BYTES // 2


def _words(source: random.Random, num_bytes: int) -> str:
    words: list[str] = []
    length = 0
    while length < num_bytes:
        word = "".join(source.choices(string.ascii_lowercase, k=source.randint(3, 9)))
        words.append(word)
        length += len(word) + 1
    return " ".join(words)[:num_bytes]


def chat_requests(groups: PromptGroups) -> Iterator[bytes]:
    """Give the JSON bodies, the group of each drawn at random."""
    source = random.Random(groups.seed)
    shared_bytes = int(groups.prompt_bytes * groups.shared_fraction)
    own_bytes = groups.prompt_bytes - shared_bytes
    shared = [f"[[g={n}]] {_words(source, shared_bytes)}" for n in range(groups.num_groups)]
    pool = _words(source, _POOL_BYTES)
    for number in range(groups.num_requests):
        start = source.randrange(_POOL_BYTES - own_bytes)
        own = f"Question {number}: {pool[start : start + own_bytes]}"
        yield _chat_body(groups, source.choice(shared), own)


def _chat_body(groups: PromptGroups, shared: str, own: str) -> bytes:
    body = {
        "model": groups.model,
        "messages": [
            {"role": "system", "content": shared},
            {"role": "user", "content": own},
        ],
        "max_tokens": 100,
        "temperature": 0.7,
        "stream": groups.stream,
    }
    return json.dumps(body, separators=(",", ":")).encode()


def write_bodies(path: Path, bodies: Iterable[bytes]) -> None:
    """Write the file that `load_client --bodies` reads."""
    with path.open("wb") as file:
        for body in bodies:
            file.write(struct.pack("<I", len(body)))
            file.write(body)
