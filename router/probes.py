"""Asks every replica for its health path, at its own pace and beside all traffic.

Says to the fleet how each probe ended, and nothing else: what it means is decided in
``router.core.probing``. A hung replica holds up nobody but itself.
"""

import asyncio
import logging
import ssl
from collections.abc import Callable

import aiohttp

from router.core.fleet import FleetState
from router.core.probing import ProbeResult
from router.gateway.config import GatewayConfig
from router.metrics import RouterMetrics
from router.replica_http import answer_to_get

AT_ONCE_MAX = 32
"""Replicas asked at the same time."""

OFF_PAUSE_S = 5.0
"""How often it is looked whether probes have been switched on."""

_WORDS = {ProbeResult.FAILED: "refused, or answered with an error", ProbeResult.LATE: "late"}

log = logging.getLogger(__name__)


class Prober:
    """Probes all replicas every ``probe_interval_s``."""

    def __init__(
        self,
        fleet: FleetState,
        metrics: RouterMetrics,
        config: Callable[[], GatewayConfig],
        clock_us: Callable[[], int],
        tls: Callable[[], ssl.SSLContext] = ssl.create_default_context,
    ) -> None:
        self._fleet = fleet
        self._metrics = metrics
        self._config = config  # a reload may change it
        self._clock_us = clock_us
        self._tls = tls

    async def run(self) -> None:
        """Probe until cancelled."""
        connector = aiohttp.TCPConnector(limit=AT_ONCE_MAX, force_close=True)
        async with aiohttp.ClientSession(connector=connector) as session:
            while True:
                interval_s = self._config().probe_interval_s
                if interval_s:
                    await self.probe_all(session)
                await asyncio.sleep(interval_s or OFF_PAUSE_S)

    async def probe_all(self, session: aiohttp.ClientSession) -> None:
        """Probe every replica once."""
        places = asyncio.Semaphore(AT_ONCE_MAX)  # the time-out must not run while one waits

        async def probe(replica_id: str, url: str) -> None:
            async with places:
                result = await self._probe(session, url)
            self._take(replica_id, url, result)

        async with asyncio.TaskGroup() as probing:
            for status in self._fleet.views():
                probing.create_task(probe(status.view.replica_id, status.view.url))

    async def _probe(self, session: aiohttp.ClientSession, url: str) -> ProbeResult:
        config = self._config()
        timeout = aiohttp.ClientTimeout(total=config.probe_timeout_s)
        get = answer_to_get(session, url, config.probe_path, timeout=timeout, tls=self._tls)
        try:
            async with get as response:
                return ProbeResult.FAILED if response.status >= 500 else ProbeResult.ANSWERED
        except TimeoutError:
            return ProbeResult.LATE
        except (aiohttp.ClientError, OSError, ValueError):  # the last: a URL that is none
            return ProbeResult.FAILED

    def _take(self, replica_id: str, url: str, result: ProbeResult) -> None:
        self._metrics.probe(result)
        if not self._fleet.on_probe(replica_id, url, result, self._clock_us()):
            return
        if result is ProbeResult.ANSWERED:
            log.warning("replica %r answers its probes again", replica_id)
        else:
            log.warning("replica %r is out: its last probes were %s", replica_id, _WORDS[result])
