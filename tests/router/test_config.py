"""The configuration: which value wins, where it came from, and what each mistake is told.

Tables are given as Python values, as TOML would give them; one test reads a real file.
"""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from contract.options import SettingError, option_rows
from router.config import (
    SECTIONS,
    LogLevel,
    Origin,
    RouterConfig,
    load_router_config,
    read_toml,
)
from router.core.policy import POLICIES
from router.replica_entry import ReplicaEntry, is_host_allowed, read_entry, url_complaint

URL = "http://127.0.0.1:9000"


def origin_of(config: RouterConfig, name: str) -> Origin:
    return next(row.origin for row in config.effective() if f"{row.section}.{row.name}" == name)


def shown(config: RouterConfig, name: str) -> str:
    return next(row.value for row in config.effective() if f"{row.section}.{row.name}" == name)


def test_nothing_given_is_all_defaults() -> None:
    config = load_router_config()

    assert config.policy.name == "min_ttft"
    assert config.admin.admin_host == "127.0.0.1"
    assert {row.origin for row in config.effective()} == {Origin.DEFAULT}


def test_a_flag_beats_the_environment_beats_the_file_beats_the_default() -> None:
    file = {"store": {"redis_url": "redis://file:1/0"}}
    environ = {"WARMROUTE_REDIS_URL": "redis://environment:1/0"}
    flags = {"redis_url": "redis://flag:1/0"}

    layers = [
        load_router_config(),
        load_router_config(file),
        load_router_config(file, None, environ),
        load_router_config(file, flags, environ),
    ]

    assert [config.store.redis_url for config in layers] == [
        "",
        "redis://file:1/0",
        "redis://environment:1/0",
        "redis://flag:1/0",
    ]
    assert [origin_of(config, "store.redis_url") for config in layers] == [
        Origin.DEFAULT,
        Origin.FILE,
        Origin.ENVIRONMENT,
        Origin.FLAG,
    ]


def test_a_whole_file_is_taken_in(tmp_path: Path) -> None:
    path = tmp_path / "router.toml"
    path.write_text(
        """
        [gateway]
        port = 9999
        [routing]
        in_flight_max = 7
        [log]
        log_level = "warning"
        [policy]
        name = "prefix_hash"
        [policy.prefix_load]
        [[replicas]]
        url = "http://127.0.0.1:9000"
        id = "a"
        model = "m"
        """
    )

    config = load_router_config(read_toml(path))

    assert config.gateway.port == 9999
    assert config.routing.in_flight_max == 7
    assert config.log.log_level is LogLevel.WARNING
    assert config.policy.name == "prefix_hash"
    assert config.replicas == (ReplicaEntry(URL, "a", "m"),)


def test_set_flags_reach_every_section_and_policy() -> None:
    name, setting = next(
        (name, row) for name in sorted(POLICIES) for row in option_rows(POLICIES[name])
    )
    given = [
        "routing.in_flight_max=9",
        "log.log_requests=false",
        f"policy.name={name}",
        f"policy.{name}.{setting.name}={setting.default}",
    ]

    config = load_router_config(None, {"set": given})

    assert config.routing.in_flight_max == 9
    assert config.log.log_requests is False
    assert config.policy.name == name
    assert origin_of(config, f"policy.{name}.{setting.name}") is Origin.FLAG


def test_replicas_may_be_urls() -> None:
    config = load_router_config({"replicas": [URL + "/"]}, {})

    assert config.replicas == (ReplicaEntry(URL),)
    assert origin_of(config, ".replicas") is Origin.FILE


def test_flags_with_replicas_replace_those_of_the_file() -> None:
    config = load_router_config({"replicas": [URL]}, {"replicas": ["http://127.0.0.1:9001"]})

    assert [replica.url for replica in config.replicas] == ["http://127.0.0.1:9001"]


def test_no_setting_has_the_same_name_in_two_sections() -> None:
    names = Counter(row.name for section in SECTIONS.values() for row in option_rows(section))

    assert [name for name, count in names.items() if count > 1] == []


def test_every_setting_is_shown_once() -> None:
    rows = load_router_config().effective()

    names = Counter((row.section, row.name) for row in rows)
    assert max(names.values()) == 1
    for section, kind in SECTIONS.items():
        assert {(section, row.name) for row in option_rows(kind)} <= names.keys()


@pytest.mark.parametrize(
    "url",
    [
        "redis://user:LEAKED@127.0.0.1:1/0",
        "redis://:LEAKED@127.0.0.1:1/0",
        "rediss://127.0.0.1:1/0?password=LEAKED",
    ],
)
def test_a_secret_is_masked_where_it_is_shown(url: str) -> None:
    config = load_router_config(None, None, {"WARMROUTE_REDIS_URL": url})

    assert config.store.redis_url == url
    assert "LEAKED" not in str(config.effective())
    assert shown(config, "store.redis_url").endswith("://127.0.0.1:1/0")


@pytest.mark.parametrize(
    ("file", "found", "expected"),
    [
        ({"gatewai": {}}, "'gatewai'", "known: gateway, routing, store"),
        ({"gateway": {"prot": 1}}, "'prot'", "known: host, port"),
        ({"gateway": 5}, "[gateway] is 5", "expected a table"),
        ({"gateway": {"port": "many"}}, "'many'", "expected whole number"),
        ({"routing": {"retry_budget": 2.0}}, "2.0", "from 0 to 1"),
        ({"store": {"redis_url": "http://x"}}, "'http'", "expected one of redis://"),
        ({"store": {"redis_url": "nonsense"}}, "no scheme", "expected one of redis://"),
        ({"store": {"command_timeout_s": 0}}, "command_timeout_s is 0", "above 0"),
        ({"store": {"kv_block_s": 1.0}}, "kv_block_s is 1.0", "at most 0.1"),
        ({"store": {"fleet": "a{b}"}}, "'a{b}'", "without braces"),
        ({"admin": {"admin_port": 70000}}, "70000", "from 0 to 65535"),
        ({"log": {"log_level": "loud"}}, "'loud'", "expected one of debug, info"),
        ({"log": {"log_requests": "perhaps"}}, "'perhaps'", "expected true or false"),
        ({"policy": "prefix_load"}, "[policy] is 'prefix_load'", "expected a table"),
        ({"policy": {"name": "best"}}, "no policy 'best'", "known: cache_aware"),
        ({"policy": {"best": {}}}, "no setting 'best'", "known: name, cache_aware"),
        ({"policy": {"round_robin": {"x": 1}}}, "no setting 'x'", "[policy.round_robin]"),
        ({"policy": {"prefix_load": 3}}, "is 3", "expected a table"),
        ({"replicas": URL}, repr(URL), "expected a list"),
        ({"replicas": [5]}, "replica 1 is a int", "expected a URL or an object"),
        ({"replicas": [URL, URL]}, "replica 2", "is there twice"),
        ({"replicas": [{"id": "a"}]}, "replica 1 has no url", "expected http://host:port"),
        ({"replicas": [{"url": URL, "weight": 1}]}, "'weight'", "known: url, id, model"),
    ],
)
def test_a_mistake_in_the_file_says_what_was_found_and_expected(
    file: dict[str, Any], found: str, expected: str
) -> None:
    with pytest.raises(SettingError) as caught:
        load_router_config(file)

    assert found in str(caught.value)
    assert expected in str(caught.value)


@pytest.mark.parametrize(
    ("flags", "found", "expected"),
    [
        ({"prot": "1"}, "'prot'", "known: host, port"),
        ({"policy": "best"}, "no policy 'best'", "known: cache_aware"),
        ({"port": "many"}, "'many'", "expected whole number"),
        ({"set": ["port=1"]}, "'port=1'", "expected SECTION.SETTING=VALUE"),
        ({"set": ["gateway.port"]}, "'gateway.port'", "expected SECTION.SETTING=VALUE"),
        ({"set": ["gate.port=1"]}, "no section 'gate'", "known: gateway, routing"),
        ({"set": ["gateway.prot=1"]}, "no setting 'prot'", "known: host, port"),
        ({"set": ["policy.best.x=1"]}, "no section 'policy.best'", "policy.prefix_load"),
        ({"set": ["policy.name=best"]}, "no policy 'best'", "known: cache_aware"),
    ],
)
def test_a_mistake_in_a_flag_says_what_was_found_and_expected(
    flags: dict[str, Any], found: str, expected: str
) -> None:
    with pytest.raises(SettingError) as caught:
        load_router_config(None, flags)

    assert found in str(caught.value)
    assert expected in str(caught.value)


@pytest.mark.parametrize(
    ("content", "expected"),
    [(b"port = = 1", "not TOML"), (b"\xff\xfe", "not UTF-8"), (None, "No such file")],
)
def test_a_file_that_cannot_be_read_is_named(
    tmp_path: Path, content: bytes | None, expected: str
) -> None:
    path = tmp_path / "router.toml"
    if content is not None:
        path.write_bytes(content)

    with pytest.raises(SettingError) as caught:
        read_toml(path)

    assert "router.toml" in str(caught.value)
    assert expected in str(caught.value)


@pytest.mark.parametrize(
    "url",
    [URL, URL + "/", "http://[::1]:80", "http://replica-1.fleet:8000", "https://a", "https://a:1"],
)
def test_these_urls_are_places_of_replicas(url: str) -> None:
    assert url_complaint(url) is None


@pytest.mark.parametrize(
    "url",
    [
        "",
        "127.0.0.1:80",
        "https://",
        "ftp://127.0.0.1:80",
        "http://127.0.0.1",
        "http://:80",
        "http://127.0.0.1:0",
        "http://127.0.0.1:70000",
        "http://127.0.0.1:eighty",
        "http://[::1:80",
        "http://127.0.0.1:80/v1",
        "http://127.0.0.1:80?x=1",
        "http://127.0.0.1:80#x",
        "http://127.0.0.1:80 ",
        "http://127.0.0.1:80\r\nX: y",
        "http://us\x00er@127.0.0.1:80",
        "http://user:LEAKED@127.0.0.1:80",
    ],
)
def test_these_urls_are_not_and_are_never_quoted(url: str) -> None:
    with pytest.raises(SettingError) as caught:
        read_entry({"url": url})

    complaint = url_complaint(url)
    assert complaint is not None
    assert "LEAKED" not in complaint + str(caught.value)


@pytest.mark.parametrize(
    ("pattern", "url", "allowed"),
    [
        ("10.0.0.0/8", "http://10.1.2.3:80", True),
        ("10.0.0.0/8", "http://11.1.2.3:80", False),
        ("10.0.0.0/8", "http://10.1.2.3.evil:80", False),
        ("10.1.2.3", "http://10.1.2.3:80", True),
        ("fd00::/8", "http://[fd00::1]:80", True),
        ("::1", "http://[0:0:0:0:0:0:0:1]:80", True),
        ("127.0.0.0/8", "http://[::ffff:127.0.0.1]:80", False),
        ("*.fleet", "http://Replica-1.FLEET:80", True),
        ("*.fleet", "http://fleet:80", False),
        ("replica-*", "http://replica-1:80", True),
        ("*", "http://any:80", True),
        ("*", "http://1.2.3.4:80", True),
        ("localhost", "http://127.0.0.1:80", False),
    ],
)
def test_a_host_is_allowed_by_its_name_or_its_network(
    pattern: str, url: str, allowed: bool
) -> None:
    assert is_host_allowed(url, ["unrelated", pattern]) is allowed


def test_an_allowed_network_that_is_none_is_refused() -> None:
    with pytest.raises(SettingError, match="0/99"):
        load_router_config({"admin": {"replica_hosts_allowed": ["10.0.0.0/99"]}})


def test_hashes_of_keys_are_masked_where_they_are_shown() -> None:
    config = load_router_config({"gateway": {"api_keys": ["LEAKED", "LEAKED"]}})

    shown = {row.name: row.value for row in config.effective()}

    assert shown["api_keys"] == "***,***"


@pytest.mark.parametrize("name", ["url", "id", "model"])
@pytest.mark.parametrize("value", [5, ["x"], "x" * 1000, "line\nbreak", "nul\0"])
def test_a_replicas_texts_are_short_and_printable(name: str, value: object) -> None:
    fields = {"url": URL} | {name: value}

    with pytest.raises(SettingError):
        read_entry(fields)
