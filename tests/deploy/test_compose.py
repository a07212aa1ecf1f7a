"""docker-compose.yml, the image and what is mounted, read as text: no Docker is needed.

`make compose-test` runs them.
"""

import re
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]
from packaging.requirements import Requirement

from warmroute.cli import main

ROOT = Path(__file__).parents[2]
COMPOSE = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
SERVICES: Mapping[str, Any] = COMPOSE["services"]
OURS = [name for name, service in SERVICES.items() if "build" in service]
MARGIN_S = 5.0
"""What a process may need between the end of its drain and its own end."""

every_service = pytest.mark.parametrize("service", SERVICES.values(), ids=list(SERVICES))


@pytest.fixture
def started_with(monkeypatch: pytest.MonkeyPatch) -> Callable[[list[str]], Any]:
    """Return what gives the settings with which a command line would start its process."""
    configs: list[Any] = []

    def record(config: Any, *_: Any) -> int:
        configs.append(config)
        return 0

    monkeypatch.setattr("warmroute.cli.run_gateway", record)
    monkeypatch.setattr("warmroute.cli.run_replica_worker", record)
    monkeypatch.setattr("warmroute.load.run_load", record)

    def start(command: list[str]) -> Any:
        assert main(command) == 0, command
        return configs[-1]

    return start


def published(service: Mapping[str, Any]) -> list[str]:
    return [str(port) for port in service.get("ports", ())]


def test_the_stack_is_two_gateways_three_replicas_and_what_watches_them() -> None:
    assert set(SERVICES) == {
        *("gateway-1", "gateway-2", "replica", "redis", "prometheus", "grafana", "load")
    }
    assert SERVICES["replica"]["scale"] == 3
    assert SERVICES["load"]["profiles"] == ["load"]


@every_service
def test_every_image_is_built_here_or_pinned_to_a_version(service: Mapping[str, Any]) -> None:
    image = service["image"]

    assert image == "warmroute:local" or re.fullmatch(r"[\w/]+:v?\d+\.\d+\.\d+[\w.-]*", image)


def test_the_image_is_built_from_a_pinned_one_and_does_not_run_as_root() -> None:
    lines = (ROOT / "Dockerfile").read_text().splitlines()

    bases = {line.split()[1] for line in lines if line.startswith("FROM ")}
    users = [line.split()[1] for line in lines if line.startswith("USER ")]
    assert [bool(re.fullmatch(r"python:\d+\.\d+\.\d+-slim-\w+", base)) for base in bases] == [True]
    assert [user.split(":")[0].isdigit() and int(user.split(":")[0]) > 0 for user in users] == [
        True
    ]


@every_service
def test_every_service_says_when_it_is_healthy_or_ends_by_itself(
    service: Mapping[str, Any],
) -> None:
    health = service["healthcheck"]

    assert health.get("test") or (health == {"disable": True} and service["restart"] == "no")


@every_service
def test_every_service_is_hardened(service: Mapping[str, Any]) -> None:
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["mem_limit"]
    assert "privileged" not in service
    assert "env_file" not in service


def test_ports_are_published_on_loopback_only_and_each_once() -> None:
    ports = [port for service in SERVICES.values() for port in published(service)]

    assert [port for port in ports if not port.startswith("127.0.0.1:")] == []
    assert len({port.split(":")[1] for port in ports}) == len(ports)
    assert {"127.0.0.1:8080:8080", "127.0.0.1:8090:8080"} <= set(ports)


@every_service
def test_every_mounted_path_exists_and_is_mounted_read_only(service: Mapping[str, Any]) -> None:
    for volume in service.get("volumes", ()):
        source, *rest = volume.split(":")
        if source.startswith("."):
            assert (ROOT / source).exists(), source
            assert rest[-1] == "ro", volume
        else:
            assert source in COMPOSE["volumes"]


@pytest.mark.parametrize("name", OURS)
def test_every_command_is_accepted_and_has_time_to_drain(
    name: str, started_with: Callable[[list[str]], Any]
) -> None:
    config = started_with(SERVICES[name]["command"])

    drain_s = getattr(getattr(config, "gateway", config), "drain_s", 0.0)
    assert float(SERVICES[name]["stop_grace_period"].removesuffix("s")) >= drain_s + MARGIN_S


def test_what_is_asked_for_and_reported_is_reached(
    started_with: Callable[[list[str]], Any],
) -> None:
    gateway = started_with(SERVICES["gateway-1"]["command"])
    replica = started_with(SERVICES["replica"]["command"])
    load = started_with(SERVICES["load"]["command"])

    assert gateway.admin.admin_host == "0.0.0.0"
    assert replica.host == "0.0.0.0"
    assert gateway.store.redis_url == replica.redis_url == "redis://redis:6379/0"
    assert set(load.urls) == {"http://gateway-1:8080", "http://gateway-2:8080"}
    assert load.model == replica.model


def test_prometheus_scrapes_the_gateways_and_the_replicas(
    started_with: Callable[[list[str]], Any],
) -> None:
    gateway = started_with(SERVICES["gateway-1"]["command"])
    replica = started_with(SERVICES["replica"]["command"])

    config = yaml.safe_load((ROOT / "deploy/prometheus/prometheus.yml").read_text())

    jobs = {job["job_name"]: job for job in config["scrape_configs"]}
    assert jobs["warmroute-gateway"]["static_configs"] == [
        {"targets": [f"{name}:{gateway.admin.admin_port}" for name in ("gateway-1", "gateway-2")]}
    ]
    (found,) = jobs["warmroute-replica"]["dns_sd_configs"]
    assert (found["names"], found["port"]) == (["replica"], replica.port)
    assert config["rule_files"] == ["/etc/prometheus/rules/*.rules.yml"]


def test_grafana_finds_prometheus_and_the_dashboards_and_has_no_account() -> None:
    provisioning = ROOT / "deploy/grafana/provisioning"
    sources = yaml.safe_load((provisioning / "datasources/prometheus.yml").read_text())
    providers = yaml.safe_load((provisioning / "dashboards/warmroute.yml").read_text())
    grafana = SERVICES["grafana"]

    (source,) = sources["datasources"]
    (provider,) = providers["providers"]
    folder = provider["options"]["path"]
    home = grafana["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    assert (source["uid"], source["url"]) == ("prometheus", "http://prometheus:9090")
    assert source["isDefault"] is True
    assert f"./deploy/grafana:{folder}:ro" in grafana["volumes"]
    assert (ROOT / "deploy/grafana" / Path(home).relative_to(folder)).exists()
    assert grafana["environment"]["GF_SECURITY_DISABLE_INITIAL_ADMIN_CREATION"] == "true"
    assert [name for name in grafana["environment"] if "PASSWORD" in name] == []


def test_every_dependency_is_pinned_in_the_image_to_a_version_that_it_may_have() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = (ROOT / "deploy/constraints.txt").read_text().splitlines()

    pins = dict(line.split("==") for line in lines if not line.startswith("#"))

    needed = [Requirement(text) for text in project["dependencies"]]
    assert [need.name for need in needed if not need.specifier.contains(pins[need.name])] == []


def test_all_of_the_package_and_nothing_else_goes_to_the_builder() -> None:
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text())
    packages = pyproject["tool"]["setuptools"]["packages"]["find"]["include"]
    lines = (ROOT / ".dockerignore").read_text().splitlines()

    ignored = [line for line in lines if line and not line.startswith(("#", "!"))]
    sent = {line.removeprefix("!") for line in lines if line.startswith("!")}
    assert ignored[0] == "*"
    assert sent == {package.rstrip("*") for package in packages} | {
        *("pyproject.toml", "README.md", "LICENSE", "deploy/constraints.txt")
    }
