"""The settings of an agent: what is refused, and that the refusal helps."""

from typing import Any

import pytest

from contract.options import SettingError, build_section
from replicas.agents.config import AgentConfig
from replicas.agents.engines.engine import EngineKind

LEAST: dict[str, Any] = {"urls": ["http://engine:8000"], "redis_url": "redis://r:6379/0"}


def build(**settings: Any) -> AgentConfig:
    return build_section(AgentConfig, LEAST | settings, "agent")


def test_a_url_and_a_redis_are_enough() -> None:
    config = build()

    assert config.engine is EngineKind.VLLM
    assert config.urls == ("http://engine:8000",)


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"urls": []}, "expected at least one --url"),
        ({"redis_url": None}, "WARMROUTE_REDIS_URL"),
        ({"engine": "vlllm"}, "expected one of vllm, llamacpp, sglang, tgi"),
        ({"urls": ["engine:8000"]}, "expected http://host:port"),
        ({"urls": ["http://engine"]}, "expected http://host:port"),
        ({"urls": ["http://engine:70000"]}, "expected http://host:port"),
        ({"urls": ["http://engine:8000/v1"]}, "more than host and port"),
        ({"advertise_url": "https://engine:8000"}, "expected http://host:port"),
        ({"urls": ["http://a:1", "http://a:1"]}, "the same URL twice"),
        ({"urls": ["http://a:1", "http://b:1"], "replica_id": "r"}, "replica_id is for a single"),
        ({"urls": ["http://a:1", "http://b:1"], "advertise_url": "http://c:1"}, "advertise_url"),
        ({"aliases": "a,b"}, "without a model"),
        ({"model": ""}, "model is empty"),
        ({"kv_tokens": 0}, "at least 1"),
        ({"scrape_interval_ms": 0}, "at least 1"),
    ],
    ids=str,
)
def test_what_cannot_be_is_refused_with_what_was_expected(
    settings: dict[str, Any], told: str
) -> None:
    with pytest.raises(SettingError, match=told):
        build(**settings)


def test_a_password_in_a_url_is_refused_and_not_repeated() -> None:
    with pytest.raises(SettingError, match="user or a password") as error:
        build(urls=["http://me:hunter2@engine:8000"])

    assert "hunter2" not in str(error.value)
