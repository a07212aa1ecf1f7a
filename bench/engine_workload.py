"""The workload of bench.engine: shared prefixes, and always enough that waits.

Imports nothing but the standard library, so that the interpreter of another engine can run it.
"""

import random
from dataclasses import dataclass

NUM_BLOCKS = 20_000
BLOCK_SIZE = 16
MAX_NUM_BATCHED_TOKENS = 8_192
MAX_NUM_SEQS = 256
NUM_REQUESTS = 2_000  # all there at the start
GROUPS = 50
PREFIX_TOKENS = 1_024
SUFFIX_TOKENS = 100
OUTPUT_TOKENS = (64, 256)  # uniform; 2,000 requests take about 1,440 steps
VOCABULARY = 30_000


@dataclass(frozen=True, slots=True)
class Request:
    """The prompt is the prefix of one of the groups and tokens of its own."""

    prompt: list[int]
    max_tokens: int


def requests(num_requests: int, seed: int) -> list[Request]:
    """Return the requests in order of arrival."""
    rng = random.Random(seed)
    prefixes = [_tokens(rng, PREFIX_TOKENS) for _ in range(GROUPS)]
    return [
        Request(rng.choice(prefixes) + _tokens(rng, SUFFIX_TOKENS), rng.randint(*OUTPUT_TOKENS))
        for _ in range(num_requests)
    ]


def _tokens(rng: random.Random, num_tokens: int) -> list[int]:
    return [rng.randrange(1, VOCABULARY) for _ in range(num_tokens)]
