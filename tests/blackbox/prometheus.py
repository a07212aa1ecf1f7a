"""A real Prometheus that scrapes a fleet once a second, and what a panel or a rule asks it."""

import asyncio
import json
import math
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from tests.waiting import DEADLINE_S
from warmroute.demo.processes import Child, free_port

ROOT = Path(__file__).parent.parent.parent
RULES = ROOT / "deploy" / "prometheus" / "rules" / "warmroute.rules.yml"
MISSING = "no prometheus and promtool here: apt-get install --no-install-recommends prometheus"
READY = "Server is ready to receive web requests"
RATE_INTERVAL = "8s"
"""Of twice Grafana's rule (four scrape intervals), as a busy machine scrapes late."""


def is_installed() -> bool:
    return bool(shutil.which("prometheus") and shutil.which("promtool"))


@dataclass(frozen=True)
class Sample:
    """One series of an answer, with its finite values."""

    labels: Mapping[str, str]
    values: Sequence[float]

    @property
    def value(self) -> float:
        return self.values[-1]


class Prometheus:
    """A running server with the project's rules."""

    def __init__(self, url: str, session: aiohttp.ClientSession) -> None:
        self.url = url
        self._session = session

    @classmethod
    async def start(
        cls,
        folder: Path,
        targets: Mapping[str, Sequence[str]],
        session: aiohttp.ClientSession,
        children: list[Child],
    ) -> "Prometheus":
        """Start one that scrapes ``targets``, which are addresses by the name of their job."""
        address = f"127.0.0.1:{free_port()}"
        config = folder / "prometheus.yml"
        scrapes = [
            {"job_name": job, "static_configs": [{"targets": list(addresses)}]}
            for job, addresses in targets.items()
        ]
        every_second = {"scrape_interval": "1s", "evaluation_interval": "1s"}
        whole = {"global": every_second, "rule_files": [str(RULES)], "scrape_configs": scrapes}
        config.write_text(json.dumps(whole))  # JSON is YAML
        argv = [
            *("prometheus", f"--config.file={config}", f"--web.listen-address={address}"),
            f"--storage.tsdb.path={folder / 'tsdb'}",
        ]
        await Child.start("prometheus", argv, folder / "prometheus.log", READY, children)
        return cls(f"http://{address}", session)

    async def ask(self, expr: str, at: float | None = None) -> list[Sample]:
        """Return the series of ``expr``, as of now or ``at``. Raises AssertionError if refused."""
        moment = {} if at is None else {"time": str(at)}
        answer = await self._get("query", query=expr, **moment)
        return _samples((row["metric"], [row["value"]]) for row in answer["data"]["result"])

    async def ask_range(self, expr: str, start: float, end: float) -> list[Sample]:
        """Return the series of ``expr`` from ``start`` to ``end`` (seconds since the epoch)."""
        asked = {"query": expr, "start": str(start), "end": str(end), "step": "1"}
        answer = await self._get("query_range", **asked)
        return _samples((row["metric"], row["values"]) for row in answer["data"]["result"])

    async def until(self, condition: str) -> None:
        """Return as soon as ``condition``, a comparison, has a result. Fails at the deadline."""
        try:
            async with asyncio.timeout(DEADLINE_S):
                while not await self.ask(condition):  # noqa: ASYNC110  # Prometheus has no Event
                    await asyncio.sleep(0.1)
        except TimeoutError:
            raise AssertionError(f"not within {DEADLINE_S:g} s: {condition}") from None

    async def rules(self) -> list[dict[str, Any]]:
        """Return every loaded rule, with the health of its last evaluation."""
        answer = await self._get("rules")
        return [rule for group in answer["data"]["groups"] for rule in group["rules"]]

    async def _get(self, what: str, **parameters: str) -> Any:
        url = f"{self.url}/api/v1/{what}"
        async with self._session.get(url, params=parameters) as response:
            answer = await response.json()
        assert answer["status"] == "success", f"{answer.get('error')} in {parameters}"
        return answer


def _samples(rows: Any) -> list[Sample]:
    """Keep finite values only, as NaN draws nothing; a series without any is no series."""
    found = []
    for labels, pairs in rows:
        values = [value for _, text in pairs if math.isfinite(value := float(text))]
        if values:
            found.append(Sample(labels, values))
    return found


def substituted(expr: str, rate_interval: str = RATE_INTERVAL, **variables: str) -> str:
    """Return ``expr`` as Grafana would send it; variables left out stand for "All"."""
    values = {"__rate_interval": rate_interval, "__range": rate_interval, **variables}
    return re.sub(r"\$(\w+)", lambda found: values.get(found[1], ".*"), expr)
