"""Asks every replica for its health path, at its own pace and beside all traffic.

A probe that is late goes on: it is late again at the next round, until its answer has come or it
is given up after ``probe_silence_s``. So a slow health path is not taken for one that is dead.

Gateways share the probes of a replica that reports to them all: each leaves out so many rounds that
it is asked no more often than by one of them, as long as all is well.

Says to the fleet how each probe ended, and nothing else: what it means is decided in
``router.core.probing``. A hung replica holds up nobody but itself.
"""

import asyncio
import logging
import ssl
from collections.abc import Callable, Iterable
from random import randrange

import aiohttp

from router.core.belief import Freshness
from router.core.fleet import FleetState
from router.core.probing import ProbeResult
from router.core.status import ReplicaStatus
from router.gateway.config import GatewayConfig
from router.metrics import RouterMetrics
from router.replica_http import answer_to_get

AT_ONCE_MAX = 32
"""Replicas asked at the same time."""

OFF_PAUSE_S = 5.0
"""How often it is looked whether probes have been switched on."""

ROUNDS_APART = 1_000
"""Gateways begin to count in so many ways, so that those started together do not ask together."""

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
        patience_s: float = 30.0,
        num_gateways: Callable[[], int] = lambda: 1,
    ) -> None:
        """``patience_s``: how long a probe may be late before it is made anew."""
        self._fleet = fleet
        self._metrics = metrics
        self._config = config  # a reload may change it
        self._clock_us = clock_us
        self._tls = tls
        self._patience_s = patience_s
        self._num_gateways = num_gateways
        self._round = randrange(ROUNDS_APART)
        self._doubtful: set[str] = set()  # replicas whose last probe was not answered
        self._asked: dict[str, asyncio.Task[ProbeResult]] = {}  # by url, until they are answered

    @property
    def num_late(self) -> int:
        """Probes that wait for their answer."""
        return len(self._asked)

    async def run(self) -> None:
        """Probe until cancelled."""
        connector = aiohttp.TCPConnector(limit=0, force_close=True)  # late ones hold up nobody
        async with aiohttp.ClientSession(connector=connector) as session:
            try:
                while True:
                    interval_s = self._config().probe_interval_s
                    if interval_s:
                        await self.probe_all(session)
                    await asyncio.sleep(interval_s or OFF_PAUSE_S)
            finally:
                self._give_up(self._asked.keys())

    async def probe_all(self, session: aiohttp.ClientSession) -> None:
        """Probe every replica once, but for those that others probe."""
        places = asyncio.Semaphore(AT_ONCE_MAX)  # the time-out must not run while one waits

        async def probe(replica_id: str, url: str) -> None:
            async with places:
                result = await self._probe(session, url)
            self._take(replica_id, url, result)

        statuses = self._fleet.views()
        self._give_up(self._asked.keys() - {status.view.url for status in statuses})
        self._doubtful &= {status.view.replica_id for status in statuses}
        self._round += 1
        async with asyncio.TaskGroup() as probing:
            for status in statuses:
                if self._is_due(status):
                    probing.create_task(probe(status.view.replica_id, status.view.url))

    def _is_due(self, status: ReplicaStatus) -> bool:
        is_well = status.standing is None and status.view.replica_id not in self._doubtful
        if not is_well or status.freshness is not Freshness.FRESH:
            return True
        return self._round % self._num_gateways() == 0

    async def _probe(self, session: aiohttp.ClientSession, url: str) -> ProbeResult:
        asked = self._asked.get(url)
        if asked is None:
            asked = self._asked[url] = asyncio.create_task(self._ask(session, url))
        await asyncio.wait({asked}, timeout=self._config().probe_timeout_s)
        if not asked.done():
            return ProbeResult.LATE
        self._asked.pop(url, None)
        return asked.result()

    def _give_up(self, urls: Iterable[str]) -> None:
        for url in list(urls):
            self._asked.pop(url).cancel()

    async def _ask(self, session: aiohttp.ClientSession, url: str) -> ProbeResult:
        config = self._config()
        timeout = aiohttp.ClientTimeout(total=max(self._patience_s, config.probe_timeout_s))
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
        if result is ProbeResult.ANSWERED:
            self._doubtful.discard(replica_id)
        else:
            self._doubtful.add(replica_id)
        if not self._fleet.on_probe(replica_id, url, result, self._clock_us()):
            return
        if result is ProbeResult.ANSWERED:
            log.warning("replica %r answers its probes again", replica_id)
        else:
            log.warning("replica %r is out: its last probes were %s", replica_id, _WORDS[result])
