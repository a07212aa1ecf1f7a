"""The gateway's whole configuration, and where each value of it came from.

    default < TOML file < environment < flag

A file has a table per section, ``[policy]`` with ``name`` and a table per policy, and
``replicas``: a list of URLs, or tables ``[[replicas]]`` with ``url``, ``id``, ``model`` and
``authorization``. Here, and nowhere else, a URL may be ``unix:///path/of/socket``.
Anything unknown or impossible stops the start: SettingError says what was found and is known.
"""

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import router.policies  # noqa: F401  # fills POLICIES
from contract.options import (
    OptionRow,
    SettingError,
    build_section,
    check_numbers,
    option,
    option_rows,
)
from router.core.config import RoutingConfig
from router.core.policy import DEFAULT_POLICY, POLICIES, Policy, build_policy
from router.gateway.config import GatewayConfig
from router.replica_entry import ReplicaEntry, read_entry
from router.store.config import StoreConfig
from router.store.link import safe_url

REDIS_URL_VARIABLE = "WARMROUTE_REDIS_URL"
SET_FLAG = "set"
"""Flag whose value is a list of SECTION.SETTING=VALUE."""


class Origin(Enum):
    """Where a value came from, weakest first."""

    DEFAULT = "default"
    FILE = "file"
    ENVIRONMENT = "environment"
    FLAG = "flag"


@dataclass(frozen=True)
class AdminConfig:
    """`[admin]`."""

    admin_host: str = option(
        "127.0.0.1", "", "address of metrics and admin; whoever reaches it can change the fleet"
    )
    admin_port: int = option(8081, "TCP port", "of metrics and admin; 0 takes a free one")
    admin_keys: tuple[str, ...] = option(
        (),
        "",
        "sha-256 of the keys that this port asks for, as api_keys of [gateway] are; /health needs "
        "none; empty, and no file: no key is needed",
        secret=True,
    )
    admin_keys_file: str = option("", "", "file of such hashes, one a line")
    replica_hosts_allowed: tuple[str, ...] = option(
        ("localhost", "127.0.0.0/8", "::1"),
        "",
        "hosts at which POST /admin/replicas may add a replica: names, with * for any part, or "
        "networks; those of the configuration and of reports need not be listed",
    )
    models_interval_s: float = option(
        5.0, "s", "how often replicas that do not report are asked for their models"
    )
    models_timeout_s: float = option(2.0, "s", "longest wait for such an answer")

    def __post_init__(self) -> None:
        if not 0 <= self.admin_port <= 65535:
            raise ValueError(f"admin_port is {self.admin_port}, must be from 0 to 65535")
        for pattern in self.replica_hosts_allowed:
            if "/" in pattern:
                ip_network(pattern, strict=False)
        check_numbers(self, may_be_zero={"admin_port"})


class LogLevel(Enum):
    """The least grave entry that is logged."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True)
class LogConfig:
    """`[log]`. One JSON object a line, on standard error."""

    log_level: LogLevel = option(LogLevel.INFO, "", "least grave entry that is written")
    log_requests: bool = option(True, "", "write one line per request when it has ended")


SECTIONS: dict[str, type] = {
    "gateway": GatewayConfig,
    "routing": RoutingConfig,
    "store": StoreConfig,
    "admin": AdminConfig,
    "log": LogConfig,
}
"""Every section by its name in the file; no setting has the same name in two of them."""


@dataclass(frozen=True)
class EffectiveSetting:
    """One value in force, as it may be shown: secrets are masked."""

    section: str
    name: str
    value: str
    origin: Origin
    unit: str
    meaning: str


@dataclass(frozen=True)
class RouterConfig:
    """All that a gateway is started with."""

    gateway: GatewayConfig
    routing: RoutingConfig
    store: StoreConfig
    admin: AdminConfig
    log: LogConfig
    policy: Policy
    replicas: tuple[ReplicaEntry, ...] = ()
    origins: Mapping[str, Origin] = field(default_factory=dict)  # by "section.setting"

    def effective(self) -> list[EffectiveSetting]:
        """Return every setting with its value and origin, in the order of their declaration."""
        rows = [
            self._row(name, row, getattr(getattr(self, name), row.name))
            for name, section in SECTIONS.items()
            for row in option_rows(section)
        ]
        origin = self.origins.get("policy.name", Origin.DEFAULT)
        meaning = "how a replica is chosen"
        rows.append(EffectiveSetting("policy", "name", self.policy.name, origin, "", meaning))
        section = f"policy.{self.policy.name}"
        rows += [
            self._row(section, row, getattr(self.policy, row.name))
            for row in option_rows(type(self.policy))
        ]
        replicas = ", ".join(replica.url for replica in self.replicas) or "(empty)"
        origin = self.origins.get("replicas", Origin.DEFAULT)
        meaning = "known from the start; others report in the store or come by the admin port"
        return [*rows, EffectiveSetting("", "replicas", replicas, origin, "", meaning)]

    def _row(self, section: str, row: OptionRow, value: Any) -> EffectiveSetting:
        origin = self.origins.get(f"{section}.{row.name}", Origin.DEFAULT)
        shown = _shown(value, row.secret)
        return EffectiveSetting(section, row.name, shown, origin, row.unit, row.meaning)


def read_toml(path: Path) -> dict[str, Any]:
    """Return the tables of a TOML file. Raises SettingError if it cannot be read."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingError(f"{path}: {error.strerror or 'cannot be read'}") from error
    except UnicodeDecodeError as error:
        raise SettingError(f"{path}: not UTF-8: {error.reason} at byte {error.start}") from error
    except tomllib.TOMLDecodeError as error:
        raise SettingError(f"{path}: not TOML: {error}") from error


def load_router_config(
    file: Mapping[str, Any] | None = None,
    flags: Mapping[str, Any] | None = None,
    environ: Mapping[str, str] | None = None,
) -> RouterConfig:
    """Build the configuration from a file's tables, flags and the environment.

    ``flags`` has settings by their bare name (``admin_port``), ``policy`` (a name), ``replicas``
    (URLs) and ``set`` (a list of ``SECTION.SETTING=VALUE``). Raises SettingError.
    """
    layers = _Layers()
    layers.add_file(file or {})
    url = (environ or {}).get(REDIS_URL_VARIABLE)
    if url:
        layers.put("store", "redis_url", url, Origin.ENVIRONMENT)
    layers.add_flags(flags or {})
    sections: dict[str, Any] = {name: layers.build(name) for name in SECTIONS}
    return RouterConfig(
        **sections,
        policy=layers.build_policy(),
        replicas=tuple(_replicas(layers.replicas)),
        origins=layers.origins,
    )


class _Layers:
    """Values put on top of each other, with the origin of the one that is on top."""

    def __init__(self) -> None:
        self.origins: dict[str, Origin] = {}
        self.replicas: Sequence[Any] = ()
        self._values: dict[str, dict[str, Any]] = {}
        self._policy_name = DEFAULT_POLICY

    def put(self, section: str, name: str, value: Any, origin: Origin) -> None:
        self._values.setdefault(section, {})[name] = value
        self.origins[f"{section}.{name}"] = origin

    def add_file(self, file: Mapping[str, Any]) -> None:
        for key, value in file.items():
            if key == "replicas":
                self._put_replicas(value, Origin.FILE)
            elif key == "policy":
                self._add_policy_table(_table("[policy]", value))
            elif key in SECTIONS:
                for name, setting in _table(f"[{key}]", value).items():
                    self.put(key, name, setting, Origin.FILE)
            else:
                known = ", ".join([*SECTIONS, "policy", "replicas"])
                raise SettingError(f"the file has no section {key!r}; known: {known}")

    def add_flags(self, flags: Mapping[str, Any]) -> None:
        section_of = {row.name: name for name, s in SECTIONS.items() for row in option_rows(s)}
        for name, value in flags.items():
            if name == "policy":
                self._choose_policy(value, Origin.FLAG)
            elif name == "replicas":
                self._put_replicas(value, Origin.FLAG)
            elif name == SET_FLAG:
                for assignment in value:
                    self._set(assignment)
            elif name in section_of:
                self.put(section_of[name], name, value, Origin.FLAG)
            else:
                raise SettingError(f"no setting {name!r}; known: {', '.join(section_of)}")

    def build(self, name: str) -> Any:
        return build_section(SECTIONS[name], self._values.get(name, {}), f"[{name}]")

    def build_policy(self) -> Policy:
        """Build the chosen policy; the tables of the others must be right as well."""
        for section, settings in self._values.items():
            kind, _, policy = section.partition(".")
            if kind == "policy":
                build_policy(policy, settings)
        return build_policy(self._policy_name, self._values.get(f"policy.{self._policy_name}", {}))

    def _put_replicas(self, value: Any, origin: Origin) -> None:
        if not isinstance(value, list | tuple):
            raise SettingError(f"replicas is {value!r}, expected a list of URLs or of tables")
        self.replicas = value
        self.origins["replicas"] = origin

    def _add_policy_table(self, table: Mapping[str, Any]) -> None:
        for key, value in table.items():
            if key == "name":
                self._choose_policy(value, Origin.FILE)
            elif key in POLICIES:
                for name, setting in _table(f"[policy.{key}]", value).items():
                    self.put(f"policy.{key}", name, setting, Origin.FILE)
            else:
                known = ", ".join(["name", *sorted(POLICIES)])
                raise SettingError(f"[policy] has no setting {key!r}; known: {known}")

    def _choose_policy(self, name: Any, origin: Origin) -> None:
        if not isinstance(name, str) or name not in POLICIES:
            raise SettingError(f"no policy {name!r}; known: {', '.join(sorted(POLICIES))}")
        self._policy_name = name
        self.origins["policy.name"] = origin

    def _set(self, assignment: str) -> None:
        path, equals, value = assignment.partition("=")
        section, dot, name = path.strip().rpartition(".")
        if not equals or not dot:
            raise SettingError(f"{assignment!r}: expected SECTION.SETTING=VALUE")
        if section == "policy" and name == "name":
            self._choose_policy(value, Origin.FLAG)
            return
        kind, _, policy = section.partition(".")
        if section not in SECTIONS and not (kind == "policy" and policy in POLICIES):
            known = [*SECTIONS, *(f"policy.{policy}" for policy in sorted(POLICIES))]
            raise SettingError(f"{assignment!r}: no section {section!r}; known: {', '.join(known)}")
        self.put(section, name, value, Origin.FLAG)


def _table(where: str, value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise SettingError(f"{where} is {value!r}, expected a table")
    return value


def _replicas(entries: Sequence[Any]) -> Iterator[ReplicaEntry]:
    names: set[str] = set()
    for number, entry in enumerate(entries, start=1):
        replica = read_entry(
            {"url": entry} if isinstance(entry, str) else entry,
            f"replica {number}",
            is_in_file=True,
        )
        name = replica.replica_id or replica.url
        if name in names:
            raise SettingError(f"replica {number}: {name!r} is there twice")
        names.add(name)
        yield replica


def _shown(value: Any, secret: bool) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        shown = ["***"] * len(value) if secret else map(str, value)
        return ",".join(shown) or "(empty)"
    text = str(getattr(value, "value", value))
    if secret and text:
        return safe_url(text) if "://" in text else "***"
    return text or "(empty)"
