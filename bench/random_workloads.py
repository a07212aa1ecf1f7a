"""Random workloads for an engine's scheduler, in the format of tests/data/vllm: tiny pools, shared
prefixes, priorities, aborts, adapters, embeddings.

Imports nothing but the standard library, so that the interpreter of another engine can run it.
"""

import random
from collections.abc import Callable
from typing import Any

Tokens = list[int]
VOCABULARY = 30_000
BLOCK_SIZES = (16, 16, 16, 8, 32)
POOL_BLOCKS = (8, 12, 20, 40, 100, 300)
BUDGETS = (32, 48, 100, 256, 1_024, 8_192)
SLOTS = (1, 2, 3, 5, 8, 16, 32)
PREFIX_TOKENS = (7, 16, 30, 32, 50, 64, 128, 200, 300)
OWN_TOKENS = (0, 1, 2, 15, 16, 17, 33, 64, 120)
OUTPUT_TOKENS = (1, 2, 4, 15, 16, 17, 32, 50, 100)
STEPS_BETWEEN = (0, 0, 0, 1, 1, 2, 4, 9, 30)


def workload(seed: int) -> dict[str, Any]:
    """Return the workload of ``seed``; each request of it fits the pool when it is alone."""
    rng = random.Random(seed)
    block_size = rng.choice(BLOCK_SIZES)
    num_blocks = rng.choice(POOL_BLOCKS)
    budget = rng.choice(BUDGETS)
    policy = rng.choice(("fcfs", "priority"))
    made: dict[str, Any] = {
        "seed": seed,
        "num_blocks": num_blocks,
        "block_size": block_size,
        "max_num_batched_tokens": budget,
        "max_num_seqs": min(budget, rng.choice(SLOTS)),
        "policy": policy,
    }
    if rng.random() < 0.1:
        made["enable_prefix_caching"] = False
    adapters = rng.random() < 0.35
    if adapters:
        made["max_loras"] = rng.choice((1, 1, 2, 3))
    made["requests"] = _requests(rng, (num_blocks - 1) * block_size, policy, adapters)
    made["aborts"] = _aborts(rng, made["requests"])
    return made


def _requests(
    rng: random.Random, num_tokens_max: int, policy: str, adapters: bool
) -> list[dict[str, Any]]:
    next_prompt = _prompts(rng)
    pooling_share = rng.choice((0, 0, 0.2, 0.7))
    requests: list[dict[str, Any]] = []
    step = 0
    for index in range(rng.choice((1, 3, 6, 12, 24, 40))):
        max_tokens = rng.choice(OUTPUT_TOKENS)
        prompt = next_prompt()[: max(1, num_tokens_max - max_tokens)]
        max_tokens = min(max_tokens, num_tokens_max - len(prompt))
        step += rng.choice(STEPS_BETWEEN)
        request = {"id": str(index), "at_step": step, "prompt": prompt, "max_tokens": max_tokens}
        request["priority"] = rng.choice((-1, 0, 0, 2, 7)) if policy == "priority" else 0
        if adapters and rng.random() < 0.8:
            request["adapter"] = rng.choice("abcd")
        if rng.random() < pooling_share:
            request |= {"pooling": True, "max_tokens": 1}
        requests.append(request)
    return requests


def _prompts(rng: random.Random) -> Callable[[], Tokens]:
    """Return a source of prompts, most of which begin as another one does."""
    prefixes = [_tokens(rng, rng.choice(PREFIX_TOKENS)) for _ in range(rng.choice((1, 2, 5)))]
    earlier: list[Tokens] = []

    def next_prompt() -> Tokens:
        kind = rng.random()
        begin: Tokens = []
        if kind < 0.55:
            begin = rng.choice(prefixes)
        elif kind < 0.8 and earlier:
            begin = rng.choice(earlier)
        prompt = begin + _tokens(rng, rng.choice(OWN_TOKENS)) or _tokens(rng, 1)
        earlier.append(prompt)
        return prompt

    return next_prompt


def _aborts(rng: random.Random, requests: list[dict[str, Any]]) -> list[dict[str, Any]]:
    aborted = rng.sample(requests, min(len(requests), rng.choice((0, 0, 1, 3, 8))))
    return [
        {"id": each["id"], "at_step": each["at_step"] + rng.choice((0, 1, 2, 5, 20, 60))}
        for each in aborted
    ]


def _tokens(rng: random.Random, num_tokens: int) -> Tokens:
    return [rng.randrange(1, VOCABULARY) for _ in range(num_tokens)]
