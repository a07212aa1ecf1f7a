"""Real processes to be maltreated: replicas, one watched gateway and a Redis, all on loopback."""

import asyncio
import gzip
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from bench.processes import process_tree, resident_bytes
from bench.reliability.traffic import MODEL
from bench.reliability.watchdog import Line, longest_stop, read_lines
from warmroute.demo.processes import Child, free_port, stop_all
from warmroute.demo.redis_server import READY, find_redis

NUM_REPLICAS = 3
STATE_DEADLINE_S = 30.0
POLL_S = 0.05
BELIEF_S = 0.1
ADMIN_TIMEOUT = aiohttp.ClientTimeout(total=10)
_REPLICA_FLAGS = {
    "--model": MODEL,
    "--kv-blocks": "5000",
    "--fixed-prefill-ms": "20",
    "--fixed-decode-ms": "20",
    "--snapshot-interval-ms": "1000",
}
GATEWAY_SETTINGS: Mapping[str, object] = {
    # Shorter than the freezes, so that some are waited for and some are not.
    "gateway.connect_timeout_s": 1.0,
    "gateway.first_byte_timeout_s": 5.0,
    "gateway.answer_timeout_s": 6.0,
    "gateway.between_bytes_timeout_s": 4.0,
    "gateway.replica_idle_s": 1.0,
    # It limits on purpose what is to be counted here: requests that could have been saved.
    "routing.retry_budget": 1.0,
    "routing.retry_floor_per_s": 1000.0,
}


class StateError(Exception):
    """The fleet did not come to a state in time; the message says how it was instead."""


class RealFleet:
    """The processes by name, and what can be done to them."""

    def __init__(self, folder: Path, settings: Mapping[str, object]) -> None:
        self._folder = folder
        self._settings = {**GATEWAY_SETTINGS, **settings}
        self._children: dict[str, Child] = {}
        self._all: list[Child] = []
        self._beliefs: list[tuple[float, dict[str, str]]] = []
        self._began_s = time.monotonic()
        self._redis_port, self._port, self._admin_port = free_port(), free_port(), free_port()
        self._replica_ports = {f"replica-{index}": free_port() for index in range(NUM_REPLICAS)}
        # What asks must not be counted as a connection of the gateway's that is left.
        connector = aiohttp.TCPConnector(force_close=True)
        self._http = aiohttp.ClientSession(timeout=ADMIN_TIMEOUT, connector=connector)
        self.url = f"http://127.0.0.1:{self._port}"
        self.admin_url = f"http://127.0.0.1:{self._admin_port}"

    def clock(self) -> float:
        """Return the seconds since this fleet was made."""
        return time.monotonic() - self._began_s

    @property
    def replica_ids(self) -> list[str]:
        """The replicas' ids."""
        return list(self._replica_ports)

    @property
    def gateway_pid(self) -> int:
        """The gateway's process."""
        return self._children["gateway"].pid

    # ---- what can be done to them

    async def start(self, name: str) -> None:
        """Start a process and wait for its ready line."""
        argv, ready = self._argv(name)
        log = self._folder / f"{name}-{len(self._all)}.log"
        self._children[name] = await Child.start(name, argv, log, ready, self._all)

    async def end(self, name: str, number: signal.Signals) -> None:
        """Send a signal that ends a process, and wait for its end."""
        child = self._children[name]
        child.signal(number)
        await child.process.wait()

    def freeze(self, name: str) -> None:
        """Stop a process without closing anything."""
        self._children[name].signal(signal.SIGSTOP)

    def thaw(self, name: str) -> None:
        """Let a frozen process go on."""
        self._children[name].signal(signal.SIGCONT)

    async def set_fault(self, replica_id: str, name: str, parameters: dict[str, object]) -> None:
        """Tell a replica to fail."""
        url = f"{self._replica_url(replica_id)}/admin/faults"
        async with self._http.put(url, json={name: parameters}) as response:
            response.raise_for_status()

    async def clear_faults(self, replica_id: str) -> None:
        """Tell a replica to fail no more."""
        url = f"{self._replica_url(replica_id)}/admin/faults"
        async with self._http.delete(url) as response:
            response.raise_for_status()

    async def set_draining(self, replica_id: str, *, draining: bool) -> None:
        """Tell the gateway to give a replica nothing new, or to take it back."""
        verb = "drain" if draining else "undrain"
        url = f"{self.admin_url}/admin/replicas/{replica_id}/{verb}"
        async with self._http.post(url) as response:
            response.raise_for_status()

    async def until_healthy(self, replica_id: str) -> None:
        """Wait until a replica says of itself that it is well."""
        async with asyncio.timeout(STATE_DEADLINE_S):
            while not await self._is_healthy(replica_id):  # noqa: ASYNC110  # another process
                await asyncio.sleep(POLL_S)

    async def _is_healthy(self, replica_id: str) -> bool:
        try:
            async with self._http.get(f"{self._replica_url(replica_id)}/health") as response:
                return response.status == 200
        except (aiohttp.ClientError, TimeoutError):
            return False

    # ---- what can be seen of them

    async def believed(self) -> list[dict[str, Any]]:
        """Return what the gateway believes of each replica."""
        async with self._http.get(f"{self.admin_url}/admin/replicas") as response:
            rows: list[dict[str, Any]] = (await response.json())["replicas"]
            return rows

    async def watch_beliefs(self) -> None:
        """Write down, until cancelled, what the gateway holds of each replica: for complaints."""
        while True:
            rows = await self.believed()
            told = {row["replica_id"]: f"{row['standing']} ({row['breaker']})" for row in rows}
            self._beliefs.append((self.clock(), told))
            await asyncio.sleep(BELIEF_S)

    async def warm_up(self) -> None:
        """Let the gateway start what it starts when first needed: its reader of long bodies."""
        headers = {"Content-Encoding": "gzip", "Content-Type": "application/json"}
        body = gzip.compress(
            b'{"model": "%b", "prompt": "hello", "max_tokens": 1}' % MODEL.encode()
        )
        url = f"{self.url}/v1/completions"
        async with self._http.post(url, data=body, headers=headers) as response:
            await response.read()  # an engine that does not decompress says so: all the same here

    def belief_at(self, time_s: float) -> dict[str, str]:
        """Return what was last written down before that time."""
        before = [told for when_s, told in self._beliefs if when_s <= time_s]
        return before[-1] if before else {}

    def log_of(self, request_id: str) -> str:
        """Return what the gateway logged of a request, nothing if that is nothing."""
        (log,) = self._folder.glob("gateway-*.log")
        lines = [line for line in log.read_text().splitlines() if request_id in line]
        return "".join(lines[-1:])

    async def until_known(self) -> None:
        """Wait until the gateway would choose any replica. Raises StateError."""
        standings: dict[str, str] = {}
        try:
            async with asyncio.timeout(STATE_DEADLINE_S):
                while list(standings.values()) != ["eligible"] * NUM_REPLICAS:
                    standings = {
                        row["replica_id"]: row["standing"] for row in await self.believed()
                    }
                    await asyncio.sleep(POLL_S)
        except TimeoutError as error:
            raise StateError(f"the gateway's standings of the replicas: {standings}") from error

    async def held(self) -> dict[str, float]:
        """Return everything that a request holds while it lives, by what and where."""
        held: dict[str, float] = {}
        for replica_id in self.replica_ids:
            values = await self._metrics(self._replica_url(replica_id))
            for name in ("warmroute_engine_kv_blocks_used", "vllm:num_requests_running"):
                held[f"{name} of {replica_id}"] = values.get(name, 0.0)
        values = await self._metrics(self.admin_url)
        for name in ("warmroute_open_leases", "warmroute_in_flight_requests"):
            held[name] = values[name]
        held["warmroute_leases_expired_total"] = values["warmroute_leases_expired_total"]
        held["warmroute_background_restarts_total"] = values.get(
            "warmroute_background_restarts_total", 0.0
        )
        return {name: value for name, value in held.items() if value}

    async def until_at_rest(self, baseline: "Footprint") -> dict[str, float]:
        """Wait until nothing is held and the gateway is as small as at ``baseline``.

        Returns what is left over at the deadline, in the best case nothing.
        """
        left: dict[str, float] = {}
        deadline_s = time.monotonic() + STATE_DEADLINE_S
        while time.monotonic() < deadline_s:
            left = await self.held()
            now = await self.footprint()
            for name in ("tasks", "descriptors"):
                more = getattr(now, name) - getattr(baseline, name)
                if more > 0:
                    left[f"{name} of the gateway more than at first"] = more
            if not left:
                break
            await asyncio.sleep(POLL_S)
        return left

    async def footprint(self) -> "Footprint":
        """Return the gateway's size, as of the next line of its watchdog."""
        before = len(self.watched())
        async with asyncio.timeout(STATE_DEADLINE_S):
            while len(self.watched()) <= before:  # noqa: ASYNC110  # another process
                await asyncio.sleep(POLL_S)
        pid = self.gateway_pid
        return Footprint(self.watched()[-1].tasks, num_descriptors(pid), resident_bytes(pid))

    def watched(self) -> list[Line]:
        """Return all that the gateway's watchdog has written."""
        return read_lines(self._folder / "gateway.jsonl")

    def longest_stop(self) -> Line:
        """Return the longest stop of the gateway's event loop, the machine's own taken off."""
        return longest_stop(self.watched(), read_lines(self._folder / "idle.jsonl"))

    async def _metrics(self, url: str) -> dict[str, float]:
        """Return each metric, summed over its labels."""
        async with self._http.get(f"{url}/metrics") as response:
            lines = (await response.text()).splitlines()
        values: dict[str, float] = {}
        for line in lines:
            if not line.startswith("#"):
                name, _, value = line.rpartition(" ")
                name = name.partition("{")[0]
                values[name] = values.get(name, 0.0) + float(value)
        return values

    # ---- how they are started

    def _replica_url(self, replica_id: str) -> str:
        return f"http://127.0.0.1:{self._replica_ports[replica_id]}"

    def _argv(self, name: str) -> tuple[list[str], str]:
        redis_url = f"redis://127.0.0.1:{self._redis_port}/0"
        if name == "redis":
            return find_redis().argv(self._redis_port, self._folder), READY
        if name == "idle":
            watched = str(self._folder / "idle.jsonl")
            return [sys.executable, "-m", "bench.reliability.watchdog", watched], "ready:"
        if name == "gateway":
            ports = ("--port", str(self._port), "--admin-port", str(self._admin_port))
            watched = str(self._folder / "gateway.jsonl")
            pairs = (("--set", f"{key}={value}") for key, value in self._settings.items())
            return [
                *(sys.executable, "-m", "bench.reliability.watched_gateway", watched),
                *("--redis-url", redis_url, *ports, *(word for pair in pairs for word in pair)),
            ], "ready:"
        port = str(self._replica_ports[name])
        flags = _REPLICA_FLAGS | {"--replica-id": name, "--port": port, "--redis-url": redis_url}
        words = [word for pair in flags.items() for word in pair]
        return [sys.executable, "-m", "warmroute", "replica", *words], "ready:"

    async def close(self) -> None:
        """End all processes."""
        for child in self._all:
            child.signal(signal.SIGCONT)  # a frozen one would not hear that it is to end
        await stop_all(self._all)
        await self._http.close()


@dataclass(frozen=True, slots=True)
class Footprint:
    """How large the gateway is, its children included where it has some."""

    tasks: int
    descriptors: int
    resident_bytes: int


def num_descriptors(pid: int) -> int:
    """Return how many files and sockets a process and its children have open."""
    return sum(len(os.listdir(f"/proc/{member}/fd")) for member in process_tree(pid))


@asynccontextmanager
async def running(folder: Path, settings: Mapping[str, object]) -> AsyncIterator[RealFleet]:
    """Run a fleet inside the block; every replica is known to the gateway at its beginning."""
    fleet = RealFleet(folder, settings)
    try:
        await fleet.start("redis")
        names = [*fleet.replica_ids, "gateway", "idle"]
        await asyncio.gather(*(fleet.start(name) for name in names))
        await fleet.until_known()
        await fleet.warm_up()
        yield fleet
    finally:
        await fleet.close()
