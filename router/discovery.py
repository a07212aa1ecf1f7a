"""Asks replicas that do not report for the names of their models: ``GET /v1/models``.

Says nothing of their health: a replica that does not answer keeps what it had, and only the
answers to requests decide about its traffic.
"""

import asyncio
import logging
import ssl
from collections.abc import Callable, Sequence

import aiohttp
import msgspec

from router.core.fleet import FleetState
from router.replica_entry import TEXT_LENGTH_MAX
from router.replica_http import answer_to_get

ANSWER_BYTES_MAX = 1024 * 1024
MODELS_MAX = 1_024
"""Of one replica, its adapters included."""

AT_ONCE_MAX = 32
"""Replicas asked at the same time."""

NEW_AFTER_S = 0.2
"""How soon a replica that has come is asked for the first time."""

log = logging.getLogger(__name__)


class _Model(msgspec.Struct):
    id: str


class _Models(msgspec.Struct):
    data: list[_Model]


_decode = msgspec.json.Decoder(_Models).decode


class Discovery:
    """Learns model names every ``interval_s``; each replica is asked by itself and in bounded time.

    A hung replica holds up nobody but itself.
    """

    def __init__(
        self,
        fleet: FleetState,
        interval_s: float,
        timeout_s: float,
        tls: Callable[[], ssl.SSLContext] = ssl.create_default_context,
        authorization: Callable[[str], str] = lambda _url: "",
    ) -> None:
        self._fleet = fleet
        self._tls = tls
        self._authorization = authorization
        self._interval_s = interval_s
        self._timeout = aiohttp.ClientTimeout(total=timeout_s)
        self._complaints: dict[str, str] = {}  # as logged, by replica id
        self._asked: set[str] = set()

    async def run(self) -> None:
        """Ask until cancelled."""
        connector = aiohttp.TCPConnector(limit=AT_ONCE_MAX, force_close=True)
        async with aiohttp.ClientSession(connector=connector, timeout=self._timeout) as session:
            while True:
                await self.ask_all(session)
                left_s = self._interval_s
                while left_s > 0:
                    await asyncio.sleep(min(left_s, NEW_AFTER_S))
                    left_s -= NEW_AFTER_S
                    await self.ask_all(session, only_new=True)

    async def ask_all(self, session: aiohttp.ClientSession, *, only_new: bool = False) -> None:
        """Ask every replica that has never reported, once; perhaps only if it was never asked."""
        silent = self._fleet.silent()
        for gone in self._complaints.keys() - silent.keys():
            del self._complaints[gone]
        asked = self._asked & silent.keys() if only_new else set()
        self._asked = set(silent)
        places = asyncio.Semaphore(AT_ONCE_MAX)  # the time-out must not run while one waits

        async def ask(replica_id: str, url: str) -> None:
            async with places:
                await self._ask(session, replica_id, url)

        async with asyncio.TaskGroup() as asking:
            for replica_id, url in silent.items():
                if replica_id not in asked:
                    asking.create_task(ask(replica_id, url))

    async def _ask(self, session: aiohttp.ClientSession, replica_id: str, url: str) -> None:
        try:
            names = await self._model_names(session, url)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            self._complain(replica_id, f"did not answer ({type(error).__name__})")
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            self._complain(replica_id, f"answered with no list of models ({error})")
        else:
            self._complaints.pop(replica_id, None)
            self._fleet.set_models(replica_id, names)

    async def _model_names(self, session: aiohttp.ClientSession, url: str) -> Sequence[str]:
        """Return the names that a replica lists. Raises ValueError for any other answer."""
        key = self._authorization(url)
        headers = {"Authorization": key} if key else None
        get = answer_to_get(
            session, url, "/v1/models", timeout=self._timeout, tls=self._tls, headers=headers
        )
        async with get as response:
            if response.status != 200:
                raise ValueError(f"status {response.status}")
            body = bytearray()
            async for chunk in response.content.iter_chunked(64 * 1024):
                body += chunk
                if len(body) > ANSWER_BYTES_MAX:
                    raise ValueError(f"more than {ANSWER_BYTES_MAX} bytes")
        names = [model.id for model in _decode(body).data]
        sound = [name for name in names if 0 < len(name) <= TEXT_LENGTH_MAX and name.isprintable()]
        return sound[:MODELS_MAX]

    def _complain(self, replica_id: str, what: str) -> None:
        if self._complaints.get(replica_id) != what:
            self._complaints[replica_id] = what
            log.warning("replica %r was asked for its models and %s", replica_id, what)
