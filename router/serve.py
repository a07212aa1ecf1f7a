"""Runs one gateway: puts its parts together, says when it is ready, and ends it in order.

    SIGHUP                    changed settings are taken in, if all of them are right
    first SIGTERM or SIGINT   not ready, new requests get 503, running ones have drain_s to finish
    second signal             what still runs is cut, visibly
    then                      this gateway's load leaves the store, and the process ends

Neither a missing Redis nor a missing replica keeps it from starting; a busy port does.
"""

import asyncio
import gc
import logging
import os
import secrets
import signal
import socket
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial

import uvloop
from aiohttp import web

from contract.load_report import GatewayReport
from contract.options import SettingError
from router.config import RouterConfig
from router.core.fleet import FleetState
from router.discovery import Discovery
from router.gateway.acceptor import UNIX_PREFIX
from router.gateway.admin import AdminParts, admin_app
from router.gateway.data_plane import DataPlane
from router.logs import log_request, logging_to
from router.loop_lag import LoopLag
from router.metrics import RouterMetrics
from router.probes import Prober
from router.reload import LiveSettings, Reread, Settings, take_replicas
from router.standings import Standings
from router.store.config import StoreConfig
from router.store.memory import MemoryStore
from router.store.redis import RedisStore
from router.store.seam import Store
from router.store.sync import FleetSync

EXIT_DONE = 0
EXIT_CUT_SHORT = 1
EXIT_CANNOT_START = 3
RESTART_PAUSE_S = 1.0
ADMIN_CLOSING_S = 1.0
STORE_CLOSING_S = 2.0
GC_THRESHOLDS = (10_000, 5, 5)
"""Requests leave no cycles behind, but those under way are more objects than Python's 700: they
would be looked through again and again.
"""

log = logging.getLogger(__name__)


class CannotStartError(Exception):
    """What keeps the gateway from starting, in one line."""


@dataclass
class Gateway:
    """The parts of one gateway, put together and not yet running."""

    config: RouterConfig
    fleet: FleetState
    metrics: RouterMetrics
    plane: DataPlane
    store: Store
    sync: FleetSync
    discovery: Discovery
    prober: Prober
    lag: LoopLag
    settings: LiveSettings


class StopSignals:
    """Counts the wishes to stop: the first begins the drain, the second ends it."""

    def __init__(self) -> None:
        self.first = asyncio.Event()
        self.second = asyncio.Event()
        self.hangup = asyncio.Event()

    def on_signal(self) -> None:
        """Take in one signal."""
        (self.second if self.first.is_set() else self.first).set()


def clock_us() -> int:
    """Return the monotonic time in microseconds: a changed wall clock moves nothing."""
    return time.monotonic_ns() // 1000


def run(config: RouterConfig, reread: Reread | None = None) -> int:
    """Serve until told to stop; return the exit status (0, 1 cut short, 3 could not start).

    ``reread`` reads the settings again, for a reload.
    """
    with logging_to(level=_log_level(config)):
        try:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                return runner.run(serve(config, reread))
        except (CannotStartError, SettingError) as error:
            sys.stderr.write(f"warmroute: {error}\n")
            return EXIT_CANNOT_START


async def serve(config: RouterConfig, reread: Reread | None = None) -> int:
    """Serve on the running loop, whose signal handlers it takes. Raises CannotStartError."""
    signals = StopSignals()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, signals.on_signal)
    loop.add_signal_handler(signal.SIGHUP, signals.hangup.set)
    gateway = build_gateway(config, reread)
    # A full collection of what the imports made stops the loop for 50 ms, and finds nothing there.
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
    return await run_gateway(gateway, signals, _announce)


def build_gateway(config: RouterConfig, reread: Reread | None = None) -> Gateway:
    """Put the parts together. Raises SettingError for a Redis URL or a file that is of no use."""
    fleet = FleetState(config.routing, config.policy)
    for entry in config.replicas:
        fleet.add_static(entry.url, entry.replica_id, entry.model, now_us=clock_us())
    metrics = RouterMetrics()
    settings = LiveSettings(Settings.read(config), reread, metrics)
    plane = DataPlane(
        config.gateway,
        fleet,
        config.routing,
        metrics,
        clock_us,
        policy=config.policy.name,
        log=log_request if config.log.log_requests else None,
        credentials=settings.now.credentials,
    )
    store = _store(config.store)
    report = GatewayReport(_gateway_id(config.store), secrets.token_hex(8), 0, {})
    sync = FleetSync(store, fleet, config.store, report, clock_us, plane.pump)
    admin = config.admin
    discovery = Discovery(
        fleet,
        admin.models_interval_s,
        admin.models_timeout_s,
        tls=plane.context.pools.tls,
        authorization=plane.context.pools.authorization,
    )
    lag = LoopLag()
    metrics.attach(fleet, sync, lag, plane.stats)
    context = plane.context
    prober = Prober(
        *(fleet, metrics, lambda: context.config, clock_us, context.pools.tls),
        patience_s=config.routing.probe_silence_s,
        num_gateways=lambda: sync.num_gateways,
    )
    gateway = Gateway(config, fleet, metrics, plane, store, sync, discovery, prober, lag, settings)
    settings.take = partial(_take_settings, gateway)
    return gateway


async def run_gateway(
    gateway: Gateway, signals: StopSignals, announce: Callable[[str], object]
) -> int:
    """Run from binding the ports to closing them; ``announce`` gets the ready line.

    Raises CannotStartError, with nothing left open, when a port cannot be had.
    """
    config = gateway.config
    host, admin_host = config.gateway.host, config.admin.admin_host
    settings = gateway.settings
    bodies = gateway.plane.context.bodies
    parts = AdminParts(settings, gateway.fleet, gateway.sync, gateway.metrics, clock_us, bodies)
    admin = web.AppRunner(admin_app(parts), access_log=None, shutdown_timeout=ADMIN_CLOSING_S)
    await admin.setup()
    is_cut = False
    try:
        admin_port = await _bound(_start_admin(admin, config), admin_host, config.admin.admin_port)
        port = await _bound(
            gateway.plane.start(host, config.gateway.port), host, config.gateway.port
        )
        async with asyncio.TaskGroup() as tasks:
            background = [
                tasks.create_task(_kept_running(name, task, gateway.metrics), name=name)
                for name, task in (
                    ("store", gateway.sync.run),
                    ("discovery", gateway.discovery.run),
                    ("probes", gateway.prober.run),
                    ("lag", gateway.lag.run),
                    ("standings", Standings(gateway.fleet).run),
                    ("reload", partial(_reload_on, signals.hangup, settings)),
                )
            ]
            is_tls = bool(config.gateway.tls_cert_file)
            data_url = _url(host, port, is_tls=is_tls)
            announce(f"ready: data {data_url} admin {_url(admin_host, admin_port)}")
            _warn_of_open_admin(config, settings)
            await signals.first.wait()
            drain_s = settings.now.config.gateway.drain_s
            log.info("stopping: running requests have %g s", drain_s)
            is_cut = await _drain(gateway.plane, drain_s, signals)
            for task in background:
                task.cancel()
    finally:
        await gateway.plane.stop(0)
        await _leave_store(gateway)
        await admin.cleanup()
    return EXIT_CUT_SHORT if is_cut else EXIT_DONE


async def _drain(plane: DataPlane, drain_s: float, signals: StopSignals) -> bool:
    """Let what runs finish; return whether a second signal came before."""
    draining = asyncio.create_task(plane.stop(drain_s))
    hurried = asyncio.create_task(signals.second.wait())
    await asyncio.wait((draining, hurried), return_when=asyncio.FIRST_COMPLETED)
    is_cut = not draining.done()
    for task in (draining, hurried):
        task.cancel()
    await asyncio.wait((draining, hurried))
    return is_cut


async def _reload_on(hangup: asyncio.Event, settings: LiveSettings) -> None:
    await hangup.wait()
    hangup.clear()
    try:
        await settings.reload()
    except SettingError:
        pass  # it is in the log and in a metric, and all goes on as it was


def _take_settings(gateway: Gateway, before: RouterConfig, after: Settings) -> None:
    config = after.config
    logging.getLogger().setLevel(_log_level(config))
    if config.policy != before.policy:
        gateway.fleet.policy = config.policy
    take_replicas(gateway.fleet, before, config, clock_us())
    gateway.plane.reconfigure(
        config.gateway,
        after.credentials,
        policy=config.policy.name,
        log=log_request if config.log.log_requests else None,
    )


def _log_level(config: RouterConfig) -> int:
    return logging.getLevelNamesMapping()[config.log.log_level.value.upper()]


def _warn_of_open_admin(config: RouterConfig, settings: LiveSettings) -> None:
    host = config.admin.admin_host
    is_loopback = host in ("localhost", "::1") or host.startswith("127.")
    if not is_loopback and settings.now.admin_keys is None:
        log.warning("whoever reaches %s can change the fleet: there are no admin_keys", host)


async def _kept_running(
    name: str, task: Callable[[], Awaitable[None]], metrics: RouterMetrics
) -> None:
    """Run a background loop for ever. A bug in it must not end the requests that are served."""
    while True:
        try:
            await task()
        except Exception:
            metrics.background_restarted(name)
            log.exception("background loop %r failed and begins again", name)
        await asyncio.sleep(RESTART_PAUSE_S)


async def _leave_store(gateway: Gateway) -> None:
    try:
        async with asyncio.timeout(STORE_CLOSING_S):
            await gateway.sync.retire()
            await gateway.store.close()
    except TimeoutError:
        pass  # our load in it expires by itself


async def _start_admin(admin: web.AppRunner, config: RouterConfig) -> int:
    site = web.TCPSite(admin, config.admin.admin_host, config.admin.admin_port)
    await site.start()
    port: int = admin.addresses[0][1]
    return port


async def _bound(starting: Awaitable[int], host: str, port: int) -> int:
    try:
        return await starting
    except OSError as error:
        # Not the error's own text: asyncio's repeats the address in another form.
        has_number = error.errno and not isinstance(error, socket.gaierror)
        why = os.strerror(error.errno or 0) if has_number else "no such address"
        place = host if host.startswith(UNIX_PREFIX) else f"{host}:{port}"
        raise CannotStartError(f"cannot listen on {place}: {why}") from error


def _store(config: StoreConfig) -> Store:
    return RedisStore(config, clock_us) if config.redis_url else MemoryStore(config, clock_us)


def _gateway_id(config: StoreConfig) -> str:
    return config.gateway_id or f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(3)}"


def _url(host: str, port: int, *, is_tls: bool = False) -> str:
    """Return where this machine reaches a port that is bound to ``host``, or the path of it."""
    if host.startswith(UNIX_PREFIX):
        return host
    scheme = "https" if is_tls else "http"
    reached = {"0.0.0.0": "127.0.0.1", "": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"{scheme}://[{reached}]:{port}" if ":" in reached else f"{scheme}://{reached}:{port}"


def _announce(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()
