"""Small makers of fleets, requests and reports, so that a test states only what it is about."""

from typing import Any

import router.policies  # noqa: F401  # registers the policies
from contract.blocks import HASH_SCHEME, root_hash
from contract.load_report import LoadReport
from router.core.config import RoutingConfig
from router.core.decision import Decision
from router.core.fleet import FleetState
from router.core.ledger import Lease
from router.core.policy import build_policy
from router.core.view import ReplicaView, RouteRequest

MODEL = "m"
BLOCK = 256  # bytes of the index in these tests, whatever the default
SECOND = 1_000_000


def make_fleet(ids: str = "", policy: str = "prefix_load", **settings: Any) -> FleetState:
    """Return a fleet with one static replica of MODEL for each letter of ``ids``."""
    config = RoutingConfig(**({"index_block_bytes": BLOCK} | settings))
    fleet = FleetState(config, build_policy(policy))
    for replica_id in ids:
        fleet.add_static(f"http://{replica_id}:1", replica_id, MODEL, now_us=0)
    return fleet


def make_request(request_id: str, text: str = "", model: str | None = MODEL) -> RouteRequest:
    """Return a request whose prompt is one block for each letter of ``text``."""
    prompt = b"".join(letter.encode() * BLOCK for letter in text)
    tokens = max(1, len(prompt) // 4)
    return RouteRequest(request_id, model, tokens, root_hash(model or ""), prompt)


def make_report(replica_id: str, sequence: int = 1, **fields: Any) -> LoadReport:
    """Return an idle replica's report; ``fields`` change it."""
    idle: dict[str, Any] = {
        "url": f"http://{replica_id}:1",
        "model": MODEL,
        "incarnation": "first",
        "waiting_requests": 0,
        "running_requests": 0,
        "waiting_prefill_tokens": 0,
    }
    return LoadReport(replica_id=replica_id, sequence=sequence, **(idle | fields))


def with_events(replica_id: str, sequence: int = 1, **fields: Any) -> LoadReport:
    """Return the report of a replica that publishes KV events of this gateway's kind."""
    events = {"hash_scheme": HASH_SCHEME, "block_bytes": BLOCK, "block_size": BLOCK // 4}
    return make_report(replica_id, sequence, **(events | fields))


def lease_of(decision: Decision) -> Lease:
    """Return the lease of a decision that has one."""
    assert decision.lease is not None, decision.reason
    return decision.lease


def chosen(decision: Decision) -> str:
    """Return the id of the chosen replica."""
    assert decision.replica is not None, decision.reason
    return decision.replica.replica_id


def view_of(fleet: FleetState, replica_id: str) -> ReplicaView:
    """Return one replica's view."""
    return next(s.view for s in fleet.views() if s.view.replica_id == replica_id)
