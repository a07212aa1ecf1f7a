"""The settings in force, and the taking in of changed ones while requests run: all, or none.

    1. read     the file, the environment, the flags, and every file that these name, on a thread;
                the settings twice, for a file that is just being written may look whole
    2. compare  what differs and needs a restart is refused, by its name
    3. take     in one turn of the event loop; nothing in it can fail

A step that fails leaves everything as it was; the reason is in the answer, the log and a metric.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from contract.options import SettingError, option_rows
from router.config import SECTIONS, RouterConfig
from router.core.fleet import FleetState
from router.gateway.api_keys import ApiKeys, read_api_keys
from router.gateway.credentials import Credentials, read_credentials
from router.metrics import RouterMetrics

NEEDS_RESTART = frozenset(
    {"gateway.host", "gateway.port", "gateway.backlog", "gateway.dns_ttl_s"}
    | {"admin.admin_host", "admin.admin_port"}
    | {"admin.models_interval_s", "admin.models_timeout_s"}
)
"""Settings that are read once, beside those of ``SECTIONS_NEED_RESTART``."""

SECTIONS_NEED_RESTART = frozenset({"routing", "store"})

SETTLED_S = 0.05
"""How long settings must read the same: a file that is just being written may lack its replicas."""

READINGS_MAX = 20

Reread = Callable[[], RouterConfig]
"""Reads all settings again from where they came. Raises SettingError."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Settings:
    """All settings, with what was read from the files that they name."""

    config: RouterConfig
    credentials: Credentials
    admin_keys: ApiKeys | None

    @classmethod
    def read(cls, config: RouterConfig) -> "Settings":
        """Read the files. Raises SettingError."""
        admin = config.admin
        keys = read_api_keys(admin.admin_keys, admin.admin_keys_file, "[admin] admin_keys")
        own = {entry.url: entry.authorization for entry in config.replicas if entry.authorization}
        return cls(config, replace(read_credentials(config.gateway), of_replicas=own), keys)


class LiveSettings:
    """Holds what is in force; ``take`` is called with what was, and with what is from then on."""

    def __init__(
        self, settings: Settings, reread: Reread | None = None, metrics: RouterMetrics | None = None
    ) -> None:
        self.now = settings
        self.generation = 1
        self.take: Callable[[RouterConfig, Settings], None] = lambda _before, _after: None
        self._reread = reread
        self._metrics = metrics
        self._one_at_a_time = asyncio.Lock()

    async def reload(self) -> list[str]:
        """Take in what has changed; return its names. Raises SettingError, with nothing changed."""
        async with self._one_at_a_time:
            try:
                settings = await asyncio.to_thread(self._read)
                changed = _changes(self.now.config, settings.config)
                _refuse_restarts(changed)
                _refuse_emptiness(self.now.config, settings.config)
            except SettingError as error:
                if self._metrics is not None:
                    self._metrics.config_refused()
                log.error("settings stay as they were: %s", error)
                raise
            before, self.now = self.now.config, settings
            self.take(before, settings)
            self.generation += 1
            if self._metrics is not None:
                self._metrics.config_generation = self.generation
            names = ", ".join(changed) or "none, files read again"
            log.info("settings of generation %d are in force; changed: %s", self.generation, names)
            return changed

    def _read(self) -> Settings:
        if self._reread is None:
            raise SettingError("this gateway was started in a way that cannot be repeated")
        before: RouterConfig | None = None
        for _ in range(READINGS_MAX):
            config = self._reread()
            if config == before:
                return Settings.read(config)
            before = config
            time.sleep(SETTLED_S)
        raise SettingError("they change while they are read; try again when they are written")


def take_replicas(
    fleet: FleetState, before: RouterConfig, after: RouterConfig, now_us: int
) -> None:
    """Bring the fleet from one list of replicas to the next; those in both are not touched.

    What runs on one that goes is not touched either. Replicas that report stay, whatever is listed.
    """
    for entry in before.replicas:
        if entry not in after.replicas:
            fleet.drop_static(entry.url, entry.replica_id)
    for entry in after.replicas:
        if entry not in before.replicas:
            fleet.add_static(entry.url, entry.replica_id, entry.model, now_us=now_us)


def _changes(before: RouterConfig, after: RouterConfig) -> list[str]:
    was, is_now = _values(before), _values(after)
    return [name for name in was | is_now if was.get(name) != is_now.get(name)]


def _values(config: RouterConfig) -> dict[str, Any]:
    values = {
        f"{name}.{row.name}": getattr(getattr(config, name), row.name)
        for name, section in SECTIONS.items()
        for row in option_rows(section)
    }
    policy = config.policy
    values["policy.name"] = policy.name
    values |= {
        f"policy.{policy.name}.{row.name}": getattr(policy, row.name)
        for row in option_rows(type(policy))
    }
    return values | {"replicas": [(entry, entry.authorization) for entry in config.replicas]}


def _refuse_emptiness(before: RouterConfig, after: RouterConfig) -> None:
    """Refuse a file that somebody has emptied, which is as right as any other."""
    if before.replicas and not after.replicas and not after.store.redis_url:
        raise SettingError("they name no replica any more, and no store where some could report")


def _refuse_restarts(changed: list[str]) -> None:
    fixed = [
        name
        for name in changed
        if name in NEEDS_RESTART or name.partition(".")[0] in SECTIONS_NEED_RESTART
    ]
    if fixed:
        raise SettingError(f"these need a restart: {', '.join(fixed)}; nothing was changed")
