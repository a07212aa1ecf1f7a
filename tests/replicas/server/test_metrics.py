"""The scraped page: vLLM's names with vLLM's meanings, one series each, and sums that agree."""

from typing import Any

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from replicas.server.metrics import Histogram
from replicas.server.replica import Replica
from tests.replicas.server.conftest import FOREVER_MS, MODEL, Start
from tests.waiting import until

VLLM_NAMES = {
    *("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc"),
    *("vllm:prefix_cache_queries_total", "vllm:prefix_cache_hits_total"),
    *("vllm:num_preemptions_total", "vllm:prompt_tokens_total", "vllm:generation_tokens_total"),
    *("vllm:request_success_total", "vllm:cache_config_info"),
    *("vllm:time_to_first_token_seconds_bucket", "vllm:inter_token_latency_seconds_bucket"),
    *("vllm:e2e_request_latency_seconds_bucket", "vllm:request_queue_time_seconds_bucket"),
}


async def scrape(http: aiohttp.ClientSession, replica: Replica) -> dict[str, float]:
    """Return the values by name, and by name{reason} where there is one; labels are checked."""
    async with http.get(f"{replica.url}/metrics") as response:
        page = await response.text()
    values: dict[str, float] = {}
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            assert sample.labels["model_name"] == MODEL
            own = {name: sample.labels[name] for name in sample.labels if name != "model_name"}
            key = sample.name + "".join(f"{{{value}}}" for value in own.values())
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

    values = await scrape(http, replica)

    names = {key.partition("{")[0] for key in values}
    assert names >= VLLM_NAMES
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
    histogram = Histogram((0.001, 0.01))
    for duration_us in (999, 1_000, 1_001, 10_000, 10_001, 0):
        histogram.observe_us(duration_us)

    samples = {
        (sample.name, sample.labels.get("le")): sample.value
        for sample in histogram.family("h", "help", {"model_name": "m"}).samples
    }

    assert samples["h_bucket", "0.001"] == 3
    assert samples["h_bucket", "0.01"] == 5
    assert samples["h_bucket", "+Inf"] == 6
    assert samples["h_count", None] == 6
    assert samples["h_sum", None] == 0.023001
