"""The scraped page: vLLM's names with vLLM's meanings, one series each, and sums that agree."""

from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families

from replicas.server.histogram import Histogram, histogram_family, token_bounds
from replicas.server.replica import Replica
from tests.replicas.server.conftest import FOREVER_MS, MODEL, Start
from tests.waiting import until

RECORDED = Path(__file__).parents[2] / "data/wire/vllm/metric_names.txt"

LEFT_OUT = {  # no such thing is imitated; docs/engine.md says why
    *("vllm:estimated_flops_per_gpu", "vllm:estimated_read_bytes_per_gpu"),
    *("vllm:estimated_write_bytes_per_gpu", "vllm:external_prefix_cache_hits"),
    *("vllm:external_prefix_cache_queries", "vllm:mm_cache_hits", "vllm:mm_cache_queries"),
}
NOT_OF_AN_ENGINE = {"vllm:admission_rejections_total", "vllm:lora_requests_info"}


async def page_of(http: aiohttp.ClientSession, replica: Replica) -> list[Metric]:
    async with http.get(f"{replica.url}/metrics") as response:
        return list(text_string_to_metric_families(await response.text()))


async def scrape(http: aiohttp.ClientSession, replica: Replica) -> dict[str, float]:
    """Return the values of engine 0 by name, and by name{label} where there are other labels."""
    values: dict[str, float] = {}
    for family in await page_of(http, replica):
        for sample in family.samples:
            labels = dict(sample.labels)
            assert labels.pop("model_name", MODEL) == MODEL
            if labels.pop("engine", "0") == "0":
                key = sample.name + "".join(f"{{{value}}}" for value in labels.values())
                assert key not in values, f"{key} twice"
                values[key] = sample.value
    return values


async def complete(http: aiohttp.ClientSession, replica: Replica, body: dict[str, Any]) -> None:
    async with http.post(f"{replica.url}/v1/completions", json=body) as response:
        await response.read()


async def test_the_names_that_dashboards_and_routers_read_are_there(
    start: Start, http: aiohttp.ClientSession
) -> None:
    replica = await start()

    families = await page_of(http, replica)

    recorded = dict(line.split() for line in RECORDED.read_text().splitlines())
    expected = {
        name.removesuffix("_total") if kind == "counter" else name: kind
        for name, kind in recorded.items()
        if not name.endswith("_created")
    }
    as_vllm = {family.name: family.type for family in families if family.name.startswith("vllm:")}
    assert as_vllm == {name: kind for name, kind in expected.items() if name not in LEFT_OUT}
    assert expected.keys() >= LEFT_OUT
    names = {sample.name for family in families for sample in family.samples}
    own = ("kv_blocks_used", "waiting_prefill_tokens", "stalled_seconds", "lag_seconds_total")
    assert names >= {f"warmroute_engine_{name}" for name in own}
    assert {name for name in names if not name.startswith(("vllm:", "warmroute_engine_"))} == set()


async def test_counts_are_those_of_the_requests(start: Start, http: aiohttp.ClientSession) -> None:
    replica = await start()
    prompt = list(range(100))

    await complete(http, replica, {"prompt": prompt, "max_tokens": 5})
    await complete(http, replica, {"prompt": prompt, "max_tokens": 7, "n": 2, "stream": True})
    await complete(http, replica, {"prompt": prompt})
    await complete(http, replica, {"prompt": prompt, "model": "nope"})
    values = await scrape(http, replica)

    assert values["vllm:request_success_total{length}"] == 3
    assert values["vllm:request_success_total{stop}"] == 1
    assert values["vllm:prompt_tokens_total"] == 400
    assert values["vllm:prefix_cache_queries_total"] == 400
    assert values["vllm:prefix_cache_hits_total"] == 3 * 96
    generated = values["vllm:generation_tokens_total"]
    assert generated > 19
    assert values["vllm:time_to_first_token_seconds_count"] == 4
    assert values["vllm:request_queue_time_seconds_count"] == 4
    assert values["vllm:e2e_request_latency_seconds_count"] == 4
    assert values["vllm:inter_token_latency_seconds_count"] == generated - 4
    assert values["vllm:request_prompt_tokens_sum"] == 400
    assert values["vllm:request_prefill_kv_computed_tokens_sum"] == 400 - 3 * 96
    assert values["vllm:request_generation_tokens_sum"] == generated
    assert values["vllm:iteration_tokens_total_sum"] == 400 - 3 * 96 + generated
    assert values["vllm:request_params_n_count"] == 3
    assert values["vllm:request_params_n_sum"] == 1 + 2 + 1
    assert values["vllm:request_max_num_generation_tokens_count"] == 3
    assert values["vllm:request_max_num_generation_tokens_sum"] == generated - 7
    assert values["vllm:request_num_preemptions_sum"] == 0
    assert values["vllm:prompt_tokens_by_source_total{local_cache_hit}"] == 3 * 96
    assert values["vllm:prompt_tokens_by_source_total{local_compute}"] == 400 - 3 * 96
    assert values["vllm:engine_sleep_state{awake}"] == 1
    assert values["warmroute_engine_refused_total{model_not_found}"] == 1
    assert values["vllm:kv_cache_usage_perc"] == 0
    assert values["warmroute_engine_stalled_seconds"] == 0


async def test_gauges_show_what_runs_and_waits(start: Start, http: aiohttp.ClientSession) -> None:
    replica = await start(max_num_seqs=2, kv_blocks=10, fixed_decode_ms=FOREVER_MS)
    async with (
        aiohttp.ClientSession() as other,
        other.post(
            f"{replica.url}/v1/completions",
            json={"prompt": [7] * 30, "max_tokens": 9, "n": 3, "stream": True},
        ),
    ):
        await until(lambda: replica.driver.engine.stats().output_tokens_total == 2)
        values = await scrape(http, replica)

    assert values["vllm:num_requests_running"] == 2
    assert values["vllm:num_requests_waiting"] == 1
    assert values["vllm:kv_cache_usage_perc"] == 0.3  # one shared block, one more for each
    assert values["warmroute_engine_kv_blocks_used"] == 3
    assert values["warmroute_engine_stalled_seconds"] > 0


async def test_junk_adds_no_series(start: Start, http: aiohttp.ClientSession) -> None:
    replica = await start()
    junk = {"prompt": "x", "model": "junk-0"}
    await complete(http, replica, junk)
    async with http.get(f"{replica.url}/nothing-0"):
        before = await scrape(http, replica)

    for index in range(1, 30):
        await complete(http, replica, junk | {"model": f"junk-{index}"})
        async with http.get(f"{replica.url}/nothing-{index}"):
            pass

    assert (await scrape(http, replica)).keys() == before.keys()


def test_a_histogram_counts_each_duration_once_at_its_bound() -> None:
    histogram = Histogram.of_seconds((0.001, 0.01))
    for duration_us in (999, 1_000, 1_001, 10_000, 10_001, 0):
        histogram.observe(duration_us)

    samples = {
        (sample.name, sample.labels.get("le")): sample.value
        for sample in histogram_family("h", "help", ["model_name"], [(["m"], histogram)]).samples
    }

    assert samples["h_bucket", "0.001"] == 3
    assert samples["h_bucket", "0.01"] == 5
    assert samples["h_bucket", "+Inf"] == 6
    assert samples["h_count", None] == 6
    assert samples["h_sum", None] == 0.023001


async def test_the_times_of_a_request_add_up(start: Start, http: aiohttp.ClientSession) -> None:
    replica = await start(max_num_seqs=1, fixed_prefill_ms=2.0, fixed_decode_ms=1.0)

    await complete(http, replica, {"prompt": [[1] * 20, [2] * 20], "max_tokens": 6})
    values = await scrape(http, replica)

    seconds = {
        name: values[f"vllm:{name}_seconds_sum"]
        for name in (
            *("e2e_request_latency", "request_queue_time", "request_inference_time"),
            *("request_prefill_time", "request_decode_time", "request_time_per_output_token"),
            *("time_to_first_token", "inter_token_latency"),
        )
    }
    # No more can be said of lengths: steps that come late are made good by shorter waits.
    assert all(seconds.values())
    close = partial(pytest.approx, abs=2.5e-6)  # a mean per token is cut to whole microseconds
    assert seconds["e2e_request_latency"] == close(
        seconds["request_queue_time"] + seconds["request_inference_time"]
    )
    assert seconds["request_inference_time"] == close(
        seconds["request_prefill_time"] + seconds["request_decode_time"]
    )
    assert seconds["time_to_first_token"] == close(
        seconds["request_queue_time"] + seconds["request_prefill_time"]
    )
    assert seconds["request_decode_time"] == close(seconds["inter_token_latency"])
    assert seconds["request_time_per_output_token"] == close(seconds["request_decode_time"] / 5)


async def test_each_engine_has_its_own_series(start: Start, http: aiohttp.ClientSession) -> None:
    replica = await start(data_parallel_size=2)
    async with http.post(
        f"{replica.url}/v1/completions",
        json={"prompt": [1] * 50, "max_tokens": 3},
        headers={"X-data-parallel-rank": "1"},
    ):
        pass

    families = await page_of(http, replica)

    for family in families:
        engines = {sample.labels.get("engine") for sample in family.samples}
        if family.name.startswith("vllm:") and f"{family.name}_total" not in NOT_OF_AN_ENGINE:
            assert engines == {"0", "1"}, family.name
    tokens = {
        sample.labels["engine"]: sample.value
        for family in families
        for sample in family.samples
        if sample.name == "vllm:generation_tokens_total"
    }
    assert tokens == {"0": 0, "1": 3}


def test_buckets_of_tokens_are_those_of_vllm() -> None:
    assert token_bounds(2_048) == (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000)
    assert token_bounds(1) == (1,)
