"""What every test may use, and which tests are left out of the fast ones of `make check`."""

from pathlib import Path

import pytest
from hypothesis import settings

from tests.redis_server import redis_server, redis_stopped

__all__ = ["redis_server", "redis_stopped"]

# `make check` looks a little, `make test` at Hypothesis's own hundred examples.
# No deadline: how long an example takes is the machine's affair, and CI's may be busy.
settings.register_profile("whole", deadline=None)
settings.register_profile("fast", deadline=None, max_examples=25, stateful_step_count=25)
settings.load_profile("whole")

LIVE_FOLDERS = ("tests/replicas/server", "tests/router/gateway", "tests/router/store")
LIVE_FILES = ("tests/router/test_admin.py", "tests/router/test_serve.py")
LEFT_UNREAD = {  # where these are not wanted: reading them takes as long as many a test
    "not live": ("tests/field", *LIVE_FOLDERS),
    "not blackbox": ("tests/blackbox",),
}


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave folders unread of whose tests none would be left."""
    path = collection_path.relative_to(config.rootpath).as_posix()
    wanted = config.option.markexpr
    return any(words in wanted and path in LEFT_UNREAD[words] for words in LEFT_UNREAD) or None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark as live all tests of the shells: they use real sockets, Redis and time limits."""
    for item in items:
        path = item.path.relative_to(config.rootpath).as_posix()
        if path in LIVE_FILES or Path(path).parent.as_posix() in LIVE_FOLDERS:
            item.add_marker(pytest.mark.live)
