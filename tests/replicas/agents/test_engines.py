"""What each kind of engine's metrics mean: captured pages of real ones, and hand-made pages.

SGLang's and TGI's pages here are made after their documentation.
"""

from pathlib import Path

import pytest

from replicas.agents.engines.engine import ENGINES, EngineKind, read_metrics
from replicas.agents.engines.exposition import MetricsPageError
from replicas.agents.engines.figures import Figures

PAGES = Path(__file__).parents[2] / "data" / "wire" / "metrics"
VLLM = (PAGES / "vllm.txt").read_text()
LLAMACPP = (PAGES / "llamacpp.txt").read_text()

VLLM_OLD = """
vllm:num_requests_running{model_name="m"} 3.0
vllm:num_requests_waiting{model_name="m"} 1.0
vllm:gpu_cache_usage_perc{model_name="m"} 0.25
vllm:gpu_prefix_cache_hits_total{model_name="m"} 640.0
vllm:prompt_tokens_total{model_name="m"} 1000.0
vllm:cache_config_info{block_size="16",num_gpu_blocks="4000"} 1.0
"""

VLLM_TWO_RANKS = """
vllm:num_requests_running{engine="0",model_name="m"} 3.0
vllm:num_requests_running{engine="1",model_name="m"} 5.0
vllm:num_requests_waiting{engine="0",model_name="m"} 0.0
vllm:num_requests_waiting{engine="1",model_name="m"} 2.0
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.5
vllm:kv_cache_usage_perc{engine="1",model_name="m"} 0.25
vllm:cache_config_info{engine="0",block_size="16",num_gpu_blocks="1000"} 1.0
vllm:cache_config_info{engine="1",block_size="16",num_gpu_blocks="3000"} 1.0
"""

SGLANG = """
sglang:num_running_reqs{engine_type="unified",model_name="m",tp_rank="0"} 4.0
sglang:num_running_reqs{engine_type="unified",model_name="m",tp_rank="1"} 4.0
sglang:num_queue_reqs{engine_type="unified",model_name="m",tp_rank="0"} 2.0
sglang:num_queue_reqs{engine_type="unified",model_name="m",tp_rank="1"} 2.0
sglang:num_used_tokens{engine_type="unified",model_name="m",tp_rank="0"} 1200.0
sglang:num_used_tokens{engine_type="unified",model_name="m",tp_rank="1"} 1200.0
sglang:max_total_num_tokens{engine_type="unified",model_name="m",tp_rank="0"} 40000.0
sglang:max_total_num_tokens{engine_type="unified",model_name="m",tp_rank="1"} 40000.0
sglang:prompt_tokens_total{model_name="m"} 9000.0
sglang:cached_tokens_total{cache_source="device",model_name="m"} 500.0
sglang:cached_tokens_total{cache_source="host",model_name="m"} 100.0
"""

SGLANG_OLD = """
sglang:num_running_reqs{model_name="m"} 4.0
sglang:cache_config_info{page_size="64",num_pages="100"} 1.0
"""

TGI = """
tgi_queue_size 5
tgi_batch_current_size 8
tgi_batch_current_max_tokens 2048
"""


def test_vllm_s_own_page() -> None:
    assert read_metrics(EngineKind.VLLM, VLLM) == Figures(
        waiting_requests=0,
        running_requests=0,
        block_size=32,
        kv_blocks_total=32_768,
        kv_blocks_used=0,
        prompt_tokens_total=8_486,
        cached_tokens_total=6_048,
        prefilled_tokens_total=2_438,
        prefill_seconds_total=0.17886088899990682,
        started_s=1_796_007_122.71,
    )


def test_vllm_s_old_names() -> None:
    assert read_metrics(EngineKind.VLLM, VLLM_OLD) == Figures(
        waiting_requests=1,
        running_requests=3,
        block_size=16,
        kv_blocks_total=4_000,
        kv_blocks_used=1_000,
        prompt_tokens_total=1_000,
        cached_tokens_total=640,
    )


def test_vllm_s_data_parallel_ranks_are_one_replica() -> None:
    figures = read_metrics(EngineKind.VLLM, VLLM_TWO_RANKS)

    assert (figures.running_requests, figures.waiting_requests) == (8, 2)
    assert figures.kv_blocks_total == 1_000 + 3_000
    assert figures.kv_blocks_used == 500 + 750


@pytest.mark.parametrize("num_blocks", ["None", "0", "", "many"])
def test_a_cache_of_unknown_size_is_unknown(num_blocks: str) -> None:
    page = VLLM_OLD.replace('"4000"', f'"{num_blocks}"')

    figures = read_metrics(EngineKind.VLLM, page)

    assert (figures.kv_blocks_total, figures.kv_blocks_used) == (None, None)


def test_vllm_s_cache_is_measured_in_tokens_where_it_says_them() -> None:
    page = VLLM_OLD.replace(
        'num_gpu_blocks="4000"', 'num_gpu_blocks="9",kv_cache_size_tokens="320"'
    )

    assert read_metrics(EngineKind.VLLM, page).kv_blocks_total == 20


@pytest.mark.parametrize("usage", ["NaN", "1.5", "-0.1"])
def test_a_kv_usage_that_cannot_be_is_unknown(usage: str) -> None:
    figures = read_metrics(EngineKind.VLLM, VLLM_OLD.replace("0.25", usage))

    assert (figures.kv_blocks_total, figures.kv_blocks_used) == (4_000, None)


@pytest.mark.parametrize(("awake", "is_asleep"), [("1.0", False), ("0.0", True)])
def test_vllm_s_sleep_is_seen(awake: str, is_asleep: bool) -> None:
    page = VLLM.replace('sleep_state="awake"} 1.0', f'sleep_state="awake"}} {awake}')

    assert read_metrics(EngineKind.VLLM, page).is_asleep is is_asleep


def test_llama_cpp_s_own_page() -> None:
    assert read_metrics(EngineKind.LLAMACPP, LLAMACPP) == Figures(
        waiting_requests=0,
        running_requests=0,
        prompt_tokens_total=2_396 + 6_964,
        cached_tokens_total=6_964,
        prefilled_tokens_total=2_396,
        prefill_seconds_total=0.213874,
    )


def test_an_older_llama_cpp_does_not_tell_what_was_cached() -> None:
    page = LLAMACPP.replace("llamacpp:prompt_tokens_cached_total 6964", "")

    figures = read_metrics(EngineKind.LLAMACPP, page)

    assert (figures.cached_tokens_total, figures.prompt_tokens_total) == (None, None)
    assert figures.prefilled_tokens_total == 2_396


def test_sglang_s_tensor_parallel_ranks_tell_the_same() -> None:
    assert read_metrics(EngineKind.SGLANG, SGLANG) == Figures(
        waiting_requests=2,
        running_requests=4,
        block_size=1,
        kv_blocks_total=40_000,
        kv_blocks_used=1_200,
        prompt_tokens_total=9_000,
        cached_tokens_total=600,
    )


def test_an_older_sglang_tells_its_cache_in_pages() -> None:
    figures = read_metrics(EngineKind.SGLANG, SGLANG_OLD)

    assert (figures.block_size, figures.kv_blocks_total) == (1, 6_400)
    assert figures.waiting_requests is None


def test_tgi_tells_its_queue_and_batch() -> None:
    assert read_metrics(EngineKind.TGI, TGI) == Figures(waiting_requests=5, running_requests=8)


def test_tgi_before_its_first_request_tells_nothing() -> None:
    assert read_metrics(EngineKind.TGI, "") == Figures()


def test_another_engine_s_page_is_told_by_its_name() -> None:
    with pytest.raises(MetricsPageError, match="has metrics of llamacpp") as error:
        read_metrics(EngineKind.VLLM, LLAMACPP)

    assert "expected vllm's, which begin with 'vllm:'" in str(error.value)
    assert str(error.value).endswith("give --engine llamacpp")


@pytest.mark.parametrize("kind", [EngineKind.VLLM, EngineKind.LLAMACPP, EngineKind.SGLANG])
@pytest.mark.parametrize("page", ["", "<html>\n<body>hello</body>\n</html>", "go_goroutines 7\n"])
def test_a_page_of_something_else_says_what_the_engine_needs(kind: EngineKind, page: str) -> None:
    with pytest.raises(MetricsPageError) as error:
        read_metrics(kind, page)

    assert ENGINES[kind].metrics_hint in str(error.value)
    assert ("go_goroutines" in page) == ("go_goroutines" in str(error.value))


def test_an_engine_whose_figures_are_missing_is_read_as_unknown() -> None:
    page = 'vllm:something_new{engine="0"} 1.0\n'

    assert read_metrics(EngineKind.VLLM, page) == Figures()
