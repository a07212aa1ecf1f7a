"""Changed settings are taken in while requests run: all of them, or none and the reason."""

from hashlib import sha256
from pathlib import Path

import pytest

from contract.options import SettingError
from router.config import RouterConfig, load_router_config, read_toml
from router.core.fleet import FleetState
from router.reload import NEEDS_RESTART, LiveSettings, Settings, take_replicas
from tests.router.store.reports import report

GATEWAY = "[gateway]\nmax_body_bytes = 1000\n"


class File:
    """A file of settings that changes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.write(GATEWAY)

    def write(self, text: str) -> None:
        self.path.write_text(text)

    def read(self) -> RouterConfig:
        return load_router_config(read_toml(self.path))


@pytest.fixture
def file(tmp_path: Path) -> File:
    return File(tmp_path / "router.toml")


class Taken:
    """Live settings, and what was taken of them."""

    def __init__(self, file: File) -> None:
        self.live = LiveSettings(Settings.read(file.read()), file.read)
        self.taken: list[tuple[RouterConfig, Settings]] = []
        self.live.take = lambda before, after: self.taken.append((before, after))


@pytest.fixture
def taken(file: File) -> Taken:
    return Taken(file)


async def test_what_has_changed_is_taken_in_and_named(file: File, taken: Taken) -> None:
    file.write(
        "[gateway]\nmax_body_bytes = 2000\n[policy]\nname = 'round_robin'\n"
        "[log]\nlog_requests = false\n"
    )

    changed = await taken.live.reload()

    ((before, after),) = taken.taken
    assert changed[:3] == ["gateway.max_body_bytes", "log.log_requests", "policy.name"]
    assert before.gateway.max_body_bytes == 1000
    assert after.config.gateway.max_body_bytes == 2000
    assert taken.live.now is after
    assert taken.live.generation == 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[gateway", "not TOML"),
        ("[gateway]\nmax_body_bytes = 2000\n[gatewa", "not TOML"),
        ("[gateway]\nno_such = 1\n", "no setting 'no_such'"),
        ("[gateway]\nmax_body_bytes = -1\n", "max_body_bytes is -1"),
        ("[gateway]\nmax_body_bytes = 2000\n[policy]\nname = 'none'\n", "no policy 'none'"),
        ("[gateway]\nmax_body_bytes = 2000\napi_keys_file = '/nowhere'\n", "/nowhere"),
        ("[gateway]\ntls_cert_file = '/a'\ntls_key_file = '/b'\n", "tls_cert_file /a"),
        ("[admin]\nadmin_keys = ['short']\n", "admin_keys, entry 1"),
        ("[gateway]\nport = 1\nmax_body_bytes = 2000\n", "need a restart: gateway.port"),
        ("[store]\nfleet = 'other'\n[routing]\nqueue_max = 1\n", "routing.queue_max, store.fleet"),
    ],
)
async def test_a_mistake_changes_nothing_and_the_next_good_file_is_taken_whole(
    file: File, taken: Taken, text: str, message: str
) -> None:
    before = taken.live.now
    file.write(text)

    with pytest.raises(SettingError) as caught:
        await taken.live.reload()

    assert message in str(caught.value)
    assert taken.live.now is before
    assert (taken.taken, taken.live.generation) == ([], 1)

    file.write("[gateway]\nmax_body_bytes = 3000\n")
    await taken.live.reload()
    assert taken.live.now.config.gateway.max_body_bytes == 3000


async def test_a_file_that_is_gone_changes_nothing(file: File, taken: Taken) -> None:
    file.path.unlink()

    with pytest.raises(SettingError, match="No such file"):
        await taken.live.reload()

    assert taken.taken == []


async def test_files_that_are_named_are_read_again(file: File, taken: Taken) -> None:
    keys = file.path.with_name("keys")
    keys.write_text(sha256(b"one").hexdigest())
    file.write(f"[gateway]\napi_keys_file = '{keys}'\n")
    await taken.live.reload()

    keys.write_text(sha256(b"two").hexdigest())
    changed = await taken.live.reload()

    now = taken.live.now.credentials.keys
    assert changed == []
    assert now is not None
    assert (now.allow([b"one"]), now.allow([b"two"])) == (False, True)


def test_the_names_that_need_a_restart_are_settings() -> None:
    names = {f"{row.section}.{row.name}" for row in load_router_config().effective()}

    assert names >= NEEDS_RESTART


def fleet_of(config: RouterConfig) -> FleetState:
    fleet = FleetState(config.routing, config.policy)
    take_replicas(fleet, load_router_config(), config, now_us=1)
    return fleet


def ids(fleet: FleetState) -> dict[str, str | None]:
    return {status.view.replica_id: status.view.model for status in fleet.views()}


def test_replicas_come_go_and_stay() -> None:
    a, b, c = ({"url": f"http://127.0.0.1:{n}", "id": name} for n, name in enumerate("abc", 1))
    before = load_router_config({"replicas": [a, b]})
    after = load_router_config({"replicas": [b, c | {"model": "m"}]})
    fleet = fleet_of(before)
    kept = fleet.views()[1].view
    fleet.add_static("http://127.0.0.1:9", "by hand", now_us=1)

    take_replicas(fleet, before, after, now_us=2)

    assert ids(fleet) == {"b": None, "by hand": None, "c": "m"}
    assert any(status.view is kept for status in fleet.views())


def test_a_replica_whose_model_is_renamed_is_a_new_one() -> None:
    entry = {"url": "http://127.0.0.1:1", "id": "a"}
    before = load_router_config({"replicas": [entry | {"model": "old"}]})
    after = load_router_config({"replicas": [entry | {"model": "new"}]})
    fleet = fleet_of(before)

    take_replicas(fleet, before, after, now_us=2)

    assert ids(fleet) == {"a": "new"}


def test_a_replica_that_reports_stays_whatever_is_listed() -> None:
    before = load_router_config({"replicas": [{"url": "http://127.0.0.1:1", "id": "a"}]})
    fleet = fleet_of(before)
    fleet.on_report(report("a"), 0, 2)

    take_replicas(fleet, before, load_router_config(), now_us=3)

    assert "a" in ids(fleet)


async def test_a_file_that_is_being_written_is_read_when_it_is_whole() -> None:
    whole = load_router_config({"replicas": ["http://a:1"]}, {})
    half = load_router_config({}, {})
    readings = [half, whole, whole]
    live = LiveSettings(Settings.read(whole), lambda: readings.pop(0))
    live.take = lambda *_: None

    await live.reload()

    assert [entry.url for entry in live.now.config.replicas] == ["http://a:1"]
    assert readings == []


async def test_a_file_that_never_stays_as_it_is_changes_nothing() -> None:
    settings = (load_router_config({"replicas": [f"http://a:{n}"]}, {}) for n in range(1, 1000))
    live = LiveSettings(Settings.read(next(settings)), lambda: next(settings))

    with pytest.raises(SettingError, match="change while they are read"):
        await live.reload()
    assert live.generation == 1


@pytest.mark.parametrize(
    "text",
    [
        "[gateway]\nconnect_timeout_s = nan\n",
        "[gateway]\nmax_body_bytes = inf\n",
        "[store]\nread_interval_s = inf\n",
        "[routing]\nreport_stale_s = nan\n",
        "[policy]\nname = ['prefix_load']\n",
    ],
)
async def test_what_is_no_number_or_name_is_refused(file: File, taken: Taken, text: str) -> None:
    file.write(text)

    with pytest.raises(SettingError):
        await taken.live.reload()


@pytest.mark.parametrize(
    ("before", "after", "is_taken"),
    [
        ("replicas = ['http://a:1']\n", "", False),
        ("replicas = ['http://a:1']\n", "replicas = []\n", False),
        ("replicas = ['http://a:1']\n", "replicas = ['http://b:1']\n", True),
        ("", "", True),
    ],
)
async def test_an_emptied_file_leaves_the_replicas_as_they_are(
    file: File, taken: Taken, before: str, after: str, is_taken: bool
) -> None:
    file.write(before)
    await taken.live.reload()
    file.write(after)

    if is_taken:
        await taken.live.reload()
    else:
        with pytest.raises(SettingError, match="name no replica any more"):
            await taken.live.reload()

    assert taken.live.generation == 2 + is_taken
