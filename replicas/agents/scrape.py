"""Asks one engine what it serves and how it is; every answer is bounded in time and size."""

import os

import aiohttp
import msgspec

from replicas.agents.config import AgentConfig
from replicas.agents.engines.engine import ENGINES, read_metrics
from replicas.agents.engines.exposition import MetricsPageError
from replicas.agents.engines.figures import Figures

MODELS_MAX = 64
NAME_LENGTH_MAX = 512
"""A gateway takes no longer names, and no more of them from one replica."""

_PIECE_BYTES = 64 * 1024


class ScrapeError(Exception):
    """The engine did not tell; the message says why, and what may help."""


class EngineGoneError(ScrapeError):
    """Nobody listens at the engine's address: what answers there next is another process."""


class _Model(msgspec.Struct):
    id: str
    aliases: list[str] = []  # llama.cpp's


class _Models(msgspec.Struct):
    data: list[_Model]


_decode_models = msgspec.json.Decoder(_Models).decode


class Scraper:
    """The HTTP side of one engine at ``url``. All calls raise ScrapeError."""

    def __init__(self, config: AgentConfig, url: str, session: aiohttp.ClientSession) -> None:
        self.url = url
        self._config = config
        self._session = session
        self._engine = ENGINES[config.engine]
        self._timeout = aiohttp.ClientTimeout(total=config.scrape_timeout_ms / 1e3)

    async def figures(self) -> Figures:
        """Return what the metrics tell now."""
        page = await self._get("/metrics", self._engine.metrics_hint)
        try:
            return read_metrics(self._config.engine, page.decode("utf-8", "replace"))
        except MetricsPageError as error:
            raise ScrapeError(f"cannot read /metrics: {error}") from error

    async def models(self) -> list[str]:
        """Return the name of the model and its aliases, of a healthy engine."""
        if self._engine.health_path is not None:
            await self._get(self._engine.health_path, "it is still loading, or has failed")
        if self._config.model is not None:
            return [self._config.model, *self._config.aliases]
        body = await self._get("/v1/models", "give --model, or --api-key if it wants one")
        try:
            models = _decode_models(body).data
        except msgspec.MsgspecError as error:
            raise ScrapeError(f"/v1/models is no list of models ({error}); give --model") from error
        names = [name for model in models for name in (model.id, *model.aliases)]
        sound = [n for n in names if 0 < len(n) <= NAME_LENGTH_MAX and n.isprintable()]
        if not sound:
            raise ScrapeError("/v1/models lists no model; give --model")
        return list(dict.fromkeys(sound))[:MODELS_MAX]

    async def _get(self, path: str, hint: str) -> bytes:
        bytes_max = self._config.page_bytes_max
        body = bytearray()
        try:
            async with self._session.get(
                self.url + path, timeout=self._timeout, allow_redirects=False
            ) as response:
                if response.status != 200:
                    raise ScrapeError(
                        f"{path} answered with status {response.status}, expected 200; {hint}"
                    )
                async for piece in response.content.iter_chunked(_PIECE_BYTES):
                    body += piece
                    if len(body) > bytes_max:
                        raise ScrapeError(f"{path} is longer than {bytes_max} bytes")
        except TimeoutError as error:
            limit_s = self._config.scrape_timeout_ms / 1e3
            raise ScrapeError(f"no whole answer within {limit_s:g} s") from error
        except aiohttp.ClientConnectorDNSError as error:
            raise ScrapeError("its host name has no address") from error
        except aiohttp.ClientConnectorError as error:
            raise EngineGoneError(f"cannot connect ({_why(error)})") from error
        except aiohttp.ClientError as error:
            # A connection that was closed under a request does not make the engine gone.
            raise ScrapeError(f"{path} had no whole answer ({type(error).__name__})") from error
        return bytes(body)


def _why(error: aiohttp.ClientConnectorError) -> str:
    # Not the error's own text: asyncio's repeats the address in another form.
    return os.strerror(error.errno) if error.errno else type(error).__name__
