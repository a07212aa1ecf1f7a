"""Steps the scheduler of an installed vLLM: to record what it does, or to see how fast it is.

Run by the interpreter of an environment that has vLLM, from the root of this repository:

    .../python -m bench.vllm_scheduler record --first-seed 1 --count 40 fresh.jsonl.gz
    .../python -m bench.vllm_scheduler speed

The scheduler and the KV-cache manager are real; there is no model, and sampling is faked: when all
known tokens of a request are computed, the next one's id is 1000 plus how many they are. The
format is described in tests/data/vllm/README.md, and was written with vLLM 0.32.
"""

# mypy: disable-error-code="import-not-found, no-any-unimported"
# vLLM is installed elsewhere, so nothing of it has a type here.

import argparse
import gzip
import json
import os
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

# Both variables are read when vLLM is imported.
import torch
from vllm.config import (
    CacheConfig,
    LoRAConfig,
    ModelConfig,
    ParallelConfig,
    SchedulerConfig,
    VllmConfig,
)
from vllm.lora.request import LoRARequest
from vllm.pooling_params import PoolingParams
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import (
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
)
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus
from vllm.v1.structured_output import StructuredOutputManager

from bench import engine_workload
from bench.random_workloads import workload

STEPS_MAX = 4_000
MAX_MODEL_LEN = 131_072
MODEL = {  # vLLM wants one; nothing of it but the context length matters here
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "vocab_size": 32_000,
    "max_position_embeddings": MAX_MODEL_LEN,
}


def make_scheduler(load: Mapping[str, Any], model: str) -> Any:
    """Return a fresh scheduler with the limits of a workload."""
    scheduling = SchedulerConfig(
        max_num_seqs=load["max_num_seqs"],
        max_num_batched_tokens=load["max_num_batched_tokens"],
        max_model_len=MAX_MODEL_LEN,
        policy=load["policy"],
        enable_chunked_prefill=True,
        async_scheduling=False,
        is_encoder_decoder=False,
    )
    caching = load.get("enable_prefix_caching", True)
    cache = CacheConfig(block_size=load["block_size"], enable_prefix_caching=caching)
    max_loras = load.get("max_loras")
    config = VllmConfig(
        model_config=ModelConfig(
            model=model, skip_tokenizer_init=True, dtype="bfloat16", max_model_len=MAX_MODEL_LEN
        ),
        scheduler_config=scheduling,
        cache_config=cache,
        parallel_config=ParallelConfig(),
        lora_config=LoRAConfig(max_loras=max_loras) if max_loras else None,
    )
    cache.num_gpu_blocks = load["num_blocks"]
    attention = FullAttentionSpec(
        block_size=load["block_size"], num_kv_heads=1, head_size=1, dtype=torch.float32
    )
    return Scheduler(
        vllm_config=config,
        kv_cache_config=KVCacheConfig(
            num_blocks=load["num_blocks"],
            kv_cache_tensors=[],
            kv_cache_groups=[KVCacheGroupSpec(["layer"], attention)],
        ),
        block_size=load["block_size"],
        log_stats=True,
        structured_output_manager=StructuredOutputManager(config),
    )


def make_request(recorded: Mapping[str, Any], hasher: Any) -> Any:
    """Return vLLM's form of a request; its arrival time is its id."""
    adapter = recorded.get("adapter")
    pooling = recorded.get("pooling", False)
    sampling = SamplingParams(max_tokens=recorded["max_tokens"], ignore_eos=True)
    return Request(
        request_id=recorded["id"],
        prompt_token_ids=recorded["prompt"],
        sampling_params=None if pooling else sampling,
        pooling_params=PoolingParams(task="embed") if pooling else None,
        arrival_time=float(recorded["id"]),
        priority=recorded["priority"],
        lora_request=LoRARequest(adapter, 1 + ord(adapter), adapter) if adapter else None,
        block_hasher=hasher,
    )


def step(scheduler: Any) -> tuple[Any, list[list[str]]]:
    """Take one step; return the scheduler's plan, and who finished with which reason."""
    plan = scheduler.schedule()
    tokens: list[list[int]] = []
    pooled: list[Any] = []
    for request_id in plan.num_scheduled_tokens:
        request = scheduler.requests[request_id]
        done = request.num_computed_tokens >= request.num_tokens
        pools = request.pooling_params is not None
        tokens.append([1_000 + request.num_tokens] if done and not pools else [])
        pooled.append(torch.zeros(1) if done and pools else None)
    output = ModelRunnerOutput(
        req_ids=list(plan.num_scheduled_tokens),
        req_id_to_index={each: index for index, each in enumerate(plan.num_scheduled_tokens)},
        sampled_token_ids=tokens,
        pooler_output=pooled,
    )
    outputs = scheduler.update_from_output(plan, output)
    finished = [
        [each.request_id, str(each.finish_reason)]
        for client in outputs.values()
        for each in client.outputs
        if each.finish_reason is not None
    ]
    return plan, finished


def record(load: dict[str, Any], model: str) -> dict[str, Any]:
    """Run a workload; return it with what was observed of each step."""
    scheduler = make_scheduler(load, model)
    hasher = get_request_block_hasher(load["block_size"], sha256)
    pending = sorted(load["requests"], key=lambda each: (each["at_step"], int(each["id"])))
    steps: list[dict[str, Any]] = []
    index = 0
    while (pending or scheduler.has_unfinished_requests()) and index < STEPS_MAX:
        while pending and pending[0]["at_step"] <= index:
            scheduler.add_request(make_request(pending.pop(0), hasher))
        due = (each["id"] for each in load["aborts"] if each["at_step"] == index)
        aborted = [each for each in due if each in scheduler.requests]
        for each in aborted:
            scheduler.finish_requests([each], RequestStatus.FINISHED_ABORTED)
        if scheduler.has_unfinished_requests():
            plan, finished = step(scheduler)
            observed = {"step": index} | observe(scheduler, plan, finished)
            steps.append(observed | ({"aborted": aborted} if aborted else {}))
        index += 1
    complete = not pending and not scheduler.has_unfinished_requests()
    queue = free_queue(scheduler)
    return load | {"steps": steps, "complete": complete, "free_queue_at_end": queue}


def observe(scheduler: Any, plan: Any, finished: list[list[str]]) -> dict[str, Any]:
    """Return the fields of a recorded step."""
    cached = plan.scheduled_cached_reqs
    before = dict(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
    return {
        "scheduled": dict(plan.num_scheduled_tokens),
        "new": [
            {"id": each.req_id, "blocks": each.block_ids[0], "cached": each.num_computed_tokens}
            for each in plan.scheduled_new_reqs
        ],
        "more": [
            {"id": each, "blocks": blocks[0]}
            for each, blocks in zip(cached.req_ids, cached.new_block_ids, strict=True)
            if blocks
        ],
        "resumed": {each: n for each, n in before.items() if each in cached.resumed_req_ids},
        "preempted": sorted(plan.preempted_req_ids or ()),
        "finished": finished,
        "free": scheduler.kv_cache_manager.block_pool.get_num_free_blocks(),
        "running": [each.request_id for each in scheduler.running],
        "waiting": [each.request_id for each in scheduler.waiting],
    }


def free_queue(scheduler: Any) -> list[int]:
    """Return the ids of the free blocks, the next to be taken first."""
    queue = scheduler.kv_cache_manager.block_pool.free_block_queue
    return [block.block_id for block in queue.get_all_free_blocks()]


def run_record(args: argparse.Namespace, model: str) -> None:
    """Write ``--count`` recordings, one a line."""
    num_steps = num_preempted = 0
    with gzip.open(args.file, "wt", compresslevel=9) as file:
        for seed in range(args.first_seed, args.first_seed + args.count):
            recording = record(workload(seed), model)
            num_steps += len(recording["steps"])
            num_preempted += sum(len(each["preempted"]) for each in recording["steps"])
            file.write(json.dumps(recording, separators=(",", ":")) + "\n")
    print(f"recorded {args.count} workloads, {num_steps} steps, {num_preempted} preemptions")


def run_speed(args: argparse.Namespace, model: str) -> None:
    """Print how fast vLLM's scheduler takes the workload of bench.engine."""
    limits = {
        "policy": "fcfs",
        "num_blocks": engine_workload.NUM_BLOCKS,
        "block_size": engine_workload.BLOCK_SIZE,
        "max_num_batched_tokens": engine_workload.MAX_NUM_BATCHED_TOKENS,
        "max_num_seqs": engine_workload.MAX_NUM_SEQS,
    }
    scheduler = make_scheduler(limits, model)
    hasher = get_request_block_hasher(limits["block_size"], sha256)
    workload_requests = engine_workload.requests(args.requests, args.first_seed)
    began_s = time.process_time()
    made = [
        make_request(
            {
                "id": str(index),
                "prompt": each.prompt,
                "max_tokens": each.max_tokens,
                "priority": 0,
            },
            hasher,
        )
        for index, each in enumerate(workload_requests)
    ]
    hashing_s = time.process_time() - began_s
    num_steps = 0
    for each in made:
        scheduler.add_request(each)
    while scheduler.has_unfinished_requests():
        step(scheduler)
        num_steps += 1
    spent_s = time.process_time() - began_s - hashing_s
    print(
        f"{len(made)} requests, {num_steps} steps, {spent_s:.2f} CPU s, and {hashing_s:.2f} more "
        f"to make the requests and their hashes: {num_steps / spent_s:.0f} steps/s, "
        f"{len(made) / spent_s:.0f} requests/s without these, "
        f"{len(made) / (spent_s + hashing_s):.0f} with them"
    )


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="bench.vllm_scheduler")
    commands = parser.add_subparsers(required=True)
    recording = commands.add_parser("record", help="write random workloads and what vLLM did")
    recording.add_argument("--count", type=int, default=40)
    recording.add_argument("file", type=Path)
    recording.set_defaults(run=run_record)
    speed = commands.add_parser("speed", help="time the workload of bench.engine")
    speed.add_argument("--requests", type=int, default=engine_workload.NUM_REQUESTS)
    speed.set_defaults(run=run_speed)
    for each in (recording, speed):
        each.add_argument("--first-seed", type=int, default=1)
    args = parser.parse_args()
    init_none_hash(sha256)
    with tempfile.TemporaryDirectory() as model:
        (Path(model) / "config.json").write_text(json.dumps(MODEL))
        args.run(args, model)


if __name__ == "__main__":
    main()
