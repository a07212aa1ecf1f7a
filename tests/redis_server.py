"""A real Redis server on a free port that a test may freeze, kill and start again."""

import asyncio
import contextlib
import signal
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from warmroute.demo.processes import free_port
from warmroute.demo.redis_server import NoRedisServerError, find_redis

START_TIMEOUT_S = 20.0


class RedisServer:
    """One server process on loopback; ``client`` speaks to it as a replica would."""

    def __init__(self, binary: str, folder: Path, *settings: str) -> None:
        self.port = free_port()
        self._argv = [binary, "--port", str(self.port), "--bind", "127.0.0.1", "--save", ""]
        self._argv += ["--appendonly", "no", "--dir", str(folder), *settings]
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    async def start(self) -> None:
        """Start it and wait until it answers. Raises TimeoutError."""
        self._spawn()
        async with asyncio.timeout(START_TIMEOUT_S):
            while not await self._answers():  # noqa: ASYNC110  # another process has no Event
                await asyncio.sleep(0.01)

    def _spawn(self) -> None:
        assert self._process is None
        self._process = subprocess.Popen(
            self._argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )

    def freeze(self) -> None:
        """Stop it without closing anything: it accepts connections and never answers."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """End it at once; all its data is gone."""
        if self._process is not None:
            self._process.send_signal(signal.SIGCONT)
            self._process.kill()
            self._process.wait()
            self._process = None

    @contextlib.asynccontextmanager
    async def client(self) -> AsyncIterator[Redis]:
        """Yield a client that never retries by itself, and whose calls can be cancelled.

        With a ``socket_timeout`` it would use asyncio.wait_for(), which in Python 3.11 may lose a
        cancellation (https://github.com/python/cpython/issues/86296).
        """
        retry = Retry(NoBackoff(), 0)
        redis = Redis(host="127.0.0.1", port=self.port, retry=retry, socket_timeout=None)
        try:
            yield redis
        finally:
            await redis.aclose()

    async def _answers(self) -> bool:
        async with self.client() as redis:
            try:
                return bool(await redis.ping())
            except (RedisError, OSError):
                return False


@pytest.fixture
def redis_stopped(tmp_path: Path) -> Iterator[RedisServer]:
    """A server that the test starts itself."""
    try:
        binary = find_redis()
    except NoRedisServerError as error:
        pytest.skip(str(error))
    server = RedisServer(binary.path, tmp_path)
    try:
        yield server
    finally:
        server.kill()


@pytest.fixture
async def redis_server(redis_stopped: RedisServer) -> RedisServer:
    await redis_stopped.start()
    return redis_stopped
