"""docs/engine.md names every route of a replica and every metric of vLLM, there or left out."""

from pathlib import Path

from tests.replicas.server.conftest import Start
from tests.replicas.server.test_metrics import LEFT_OUT, RECORDED

PAGE = (Path(__file__).parents[3] / "docs/engine.md").read_text()


async def test_every_route_is_listed(start: Start) -> None:
    replica = await start()

    for resource in replica.api.app().router.resources():
        if not resource.canonical.startswith("/admin/faults"):
            for route in resource:
                if route.method != "HEAD":
                    assert f"`{route.method} {resource.canonical}`" in PAGE


def test_every_metric_of_vllm_is_listed() -> None:
    there, left_out = PAGE.split("These are left out:")
    for line in RECORDED.read_text().splitlines():
        name = line.split()[0]
        if name.endswith("_created"):
            continue
        is_out = name.removesuffix("_total") in LEFT_OUT
        bare = name.removeprefix("vllm:").removesuffix("_total" if is_out else "")
        assert f"`{bare}`" in (left_out if is_out else there), name
