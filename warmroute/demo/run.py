"""The demo from start to end: a fresh fleet and the same trace for each policy, then the table."""

import asyncio
import json
import signal
import sys
import tempfile
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

from router.core.policy import build_policy
from warmroute.demo.fleet import DemoConfig, Fleet, running_fleet, start_redis
from warmroute.demo.processes import Child, StartError, stop_all
from warmroute.demo.redis_server import NoRedisServerError, find_redis
from warmroute.demo.replay import replay
from warmroute.demo.report import (
    RunRow,
    as_json,
    progress_bar,
    summarise,
    table,
    verdict,
    worked_decision,
)
from warmroute.demo.workload import (
    BLOCK_TOKENS,
    SHRINK,
    TRACE_BLOCK_TOKENS,
    TraceRequest,
    demo_trace,
)

EXIT_INTERRUPTED = 130
EXIT_START_FAILED = 3
EXPLAIN_EVERY = 20
"""Every so many requests of the last run the gateway is asked to explain its next decision."""


def run_demo(config: DemoConfig, json_file: Path | None, keep: bool) -> int:
    """Run the demo; return the exit status (0, 3 when something did not start, 130 on Ctrl-C)."""
    try:
        return asyncio.run(_demo(config, json_file, keep))
    except (KeyboardInterrupt, asyncio.CancelledError):
        print("\ninterrupted; all processes ended", file=sys.stderr)
        return EXIT_INTERRUPTED
    except (StartError, NoRedisServerError) as failure:
        print(f"demo: {failure}", file=sys.stderr)
    except ExceptionGroup as group:
        failures, others = group.split((StartError, aiohttp.ClientError))
        if others is not None or failures is None:
            raise
        print(f"demo: {_first(failures)}", file=sys.stderr)
    return EXIT_START_FAILED


def _first(group: ExceptionGroup) -> BaseException:
    first = group.exceptions[0]
    return _first(first) if isinstance(first, ExceptionGroup) else first


async def _demo(config: DemoConfig, json_file: Path | None, keep: bool) -> int:
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    requests = demo_trace(config.requests)
    binary = find_redis()
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="warmroute-demo-")))
        children: list[Child] = []
        stack.push_async_callback(stop_all, children)
        redis_url = await start_redis(binary, folder, children)
        print(_introduction(config, requests, binary.description), flush=True)
        rows: list[RunRow] = []
        explanation: dict[str, Any] | None = None
        for policy in config.policies:
            last = policy == config.policies[-1]
            async with AsyncExitStack() as run:
                fleet = await run.enter_async_context(
                    running_fleet(config, policy, redis_url, folder)
                )
                row, explanation = await _one_policy(config, policy, fleet, requests, last)
                rows.append(row)
                if last:
                    _print_results(rows, explanation)
                    _write_json(json_file, config, rows, explanation)
                if last and keep:
                    await _keep(fleet, config, redis_url)
    return 0 if not any(row.errors for row in rows) else 1


async def _one_policy(
    config: DemoConfig,
    policy: str,
    fleet: Fleet,
    requests: Sequence[TraceRequest],
    explain: bool,
) -> tuple[RunRow, dict[str, Any] | None]:
    progress = progress_bar(policy, len(requests))
    explanations: list[dict[str, Any]] = []
    async with asyncio.TaskGroup() as tasks:
        replaying = tasks.create_task(
            replay([fleet.url], config.model, requests, config.time_compression, progress)
        )
        if explain:
            watcher = tasks.create_task(_collect(fleet, config, requests, explanations))
            replaying.add_done_callback(lambda _: watcher.cancel())
    return summarise(policy, replaying.result()), _most_telling(explanations)


async def _collect(
    fleet: Fleet,
    config: DemoConfig,
    requests: Sequence[TraceRequest],
    explanations: list[dict[str, Any]],
) -> None:
    """Ask the gateway, at the times of some requests, how it would route them."""
    loop = asyncio.get_running_loop()
    started = loop.time()
    async with aiohttp.ClientSession() as session:
        for request in requests[EXPLAIN_EVERY::EXPLAIN_EVERY]:
            due = started + request.arrival_s / config.time_compression
            await asyncio.sleep(max(0.0, due - loop.time()))
            body = msgspec.json.encode({"model": config.model, "prompt": request.prompt})
            async with session.post(
                f"{fleet.admin_url}/admin/explain?path=/v1/completions",
                data=body,
                headers={"content-type": "application/json", "x-request-id": request.request_id},
            ) as response:
                if response.status == 200:
                    explanations.append(await response.json())


def _most_telling(explanations: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """Prefer a decision in which work ahead and cached tokens both mattered."""

    def telling(explanation: dict[str, Any]) -> tuple[bool, int]:
        candidates = explanation["candidates"]
        matched = [candidate["matched_tokens"] for candidate in candidates]
        ahead = [candidate["ahead_tokens"] for candidate in candidates]
        return explanation["reason"] == "spread", min(max(matched) - min(matched), max(ahead))

    return max(explanations, key=telling, default=None)


def _introduction(config: DemoConfig, requests: Sequence[TraceRequest], redis: str) -> str:
    span_s = requests[-1].arrival_s
    tokens = sum(request.prompt_tokens for request in requests)
    capacity = config.kv_blocks * 16 // BLOCK_TOKENS
    return (
        f"store     {redis}\n"
        f"fleet     1 gateway and {config.replicas} replicas of {config.model} on {config.gpu}, "
        f"{config.speedup:g} x real speed, {config.kv_blocks:,} KV blocks of 16 tokens each\n"
        f"trace     Mooncake conversation, first {len(requests):,} requests over {span_s:.0f} s, "
        f"sent {config.time_compression:g} x faster, open loop\n"
        f"shrunk    every {TRACE_BLOCK_TOKENS}-token block of a prompt is {BLOCK_TOKENS} tokens "
        f"here and every output 1/{SHRINK}: {tokens:,} prompt tokens in all;\n"
        f"          a replica's KV holds {capacity:,} such blocks\n"
        f"runs      {', '.join(config.policies)}; each with a fresh fleet and empty caches\n"
    )


def _print_results(rows: Sequence[RunRow], explanation: dict[str, Any] | None) -> None:
    print(f"\n{table(rows)}\n\n{verdict(rows)}")
    if explanation is not None:
        policy = build_policy(explanation["policy"])
        print(f"\n{worked_decision(explanation, policy)}")
    for row in rows:
        if row.errors:
            print(f"errors of {row.name}: {row.errors_by_kind}")
    sys.stdout.flush()


def _write_json(
    json_file: Path | None, config: DemoConfig, rows: Sequence[RunRow], explanation: Any
) -> None:
    if json_file is not None:
        report = as_json(rows, asdict(config), explanation)
        json_file.write_text(json.dumps(report, indent=2) + "\n")


async def _keep(fleet: Fleet, config: DemoConfig, redis_url: str) -> None:
    print(
        f"\nkept running (Ctrl-C ends everything): gateway {fleet.url}, admin {fleet.admin_url}, "
        f"replicas {' '.join(fleet.replica_urls)}, {redis_url}\n"
        f"  curl -N {fleet.url}/v1/chat/completions -H 'content-type: application/json' -d "
        f'\'{{"model": "{config.model}", "stream": true, "max_tokens": 8, '
        f'"messages": [{{"role": "user", "content": "hello"}}]}}\'\n'
        f"  curl {fleet.admin_url}/admin/replicas\n"
        f"  curl {fleet.admin_url}/metrics",
        flush=True,
    )
    await asyncio.Event().wait()
