"""Settings that cannot run are refused with what to do; those of the catalogue give numbers."""

from typing import Any

import pytest

from contract.options import SettingError, build_section, option_rows
from replicas.core.step_time import StepLoad
from replicas.server.config import ReplicaConfig
from replicas.server.engine_setup import engine_settings, prefill_tokens_per_s, step_time_of
from replicas.server.reporter import connect_redis


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"speedup": 0}, "speedup"),
        ({"speedup": "nan"}, "speedup"),
        ({"port": 65_536}, "port"),
        ({"block_size": 0}, "block_size"),
        ({"kv_blocks": 0}, "kv_blocks"),
        ({"max_model_len": -1}, "max_model_len"),
        ({"fixed_decode_ms": -1}, "fixed_decode_ms"),
        ({"gpu_memory_utilization": 1.5}, "gpu_memory_utilization"),
        ({"drain_s": -1}, "drain_s"),
        ({"report_interval_ms": 0}, "report_interval_ms"),
        ({"model": ""}, "model"),
        ({"scheduling": "random"}, "fcfs, priority"),
        ({"kvblocks": 3}, "kv_blocks"),
        ({"data_parallel_size": 0}, "data_parallel_size"),
        ({"max_queued_requests": 0}, "max_queued_requests"),
        ({"max_queued_tokens": 0}, "max_queued_tokens"),
        ({"max_loras": 0}, "max_loras"),
        ({"model": "m", "lora": "sql,m"}, "'m', which is a name of the model"),
        ({"aliases": "x", "lora": "x"}, "'x', which is a name of the model"),
        ({"lora": "a,b,c", "max_loaded_loras": 2}, "3 adapters"),
        ({"zmq_replay_endpoint": "tcp://*:5558"}, "zmq_endpoint"),
    ],
)
def test_a_value_out_of_range_is_named(settings: dict[str, Any], told: str) -> None:
    with pytest.raises(SettingError, match=told):
        build_section(ReplicaConfig, settings, "[replica]")


def build(config: ReplicaConfig) -> None:
    step_time_of(config)
    engine_settings(config)


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"model": "no-such"}, "fixed_prefill_ms"),
        ({"gpu": "no-such"}, "H100"),
        ({"tensor_parallel": 3}, "heads"),
        ({"model": "llama-3.1-70b", "gpu": "l4"}, "tensor_parallel"),
        ({"admission": "reserve", "kv_blocks": 10}, "max_model_len"),
    ],
)
def test_an_engine_that_cannot_be_built_says_what_to_change(
    settings: dict[str, Any], told: str
) -> None:
    config = build_section(ReplicaConfig, settings, "[replica]")

    with pytest.raises(SettingError, match=told):
        build(config)


@pytest.mark.parametrize("url", ["localhost:6379", "http://x", "redis://x:port"])
def test_a_redis_url_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(SettingError, match="redis_url"):
        connect_redis(ReplicaConfig(redis_url=url))


def test_the_gpu_s_memory_less_the_weights_is_kv_blocks() -> None:
    config = ReplicaConfig(model="meta-llama/Llama-3.1-8B", gpu="H100")

    engine = engine_settings(config)

    kv_bytes_per_token = 2 * 32 * 8 * 128 * 2
    expected = (0.9 * 80e9 - 2 * 8_030_261_248) / (16 * kv_bytes_per_token)
    assert engine.num_blocks == int(expected)
    assert engine.max_model_len == 131_072


def test_kv_blocks_are_those_that_sequences_can_hold() -> None:
    assert engine_settings(ReplicaConfig(kv_blocks=64)).num_blocks == 65


def test_prefill_speed_is_that_of_a_full_step_times_the_speedup() -> None:
    config = ReplicaConfig(speedup=5.0, max_num_batched_tokens=2_048)
    step_time = step_time_of(config)

    speed = prefill_tokens_per_s(config, step_time)

    load = StepLoad(prefill_tokens=2_048, prefill_attention_pairs=2_048 * 2_048 / 2)
    assert speed == pytest.approx(5 * 2_048 * 1e6 / step_time.step_time_us(load))
    assert 50_000 < speed < 500_000  # an 8B model on an H100 prefills some 30,000 tokens a second


def test_every_setting_has_a_meaning_that_says_more_than_its_name() -> None:
    rows = list(option_rows(ReplicaConfig))

    assert len(rows) > 30
    assert all(len(row.meaning) > 12 for row in rows)
    assert [row.name for row in rows if row.secret] == ["redis_url"]
