"""Views and requests for policies, without a fleet around them."""

from router.core.view import ReplicaView, RouteRequest


def view(
    replica_id: str, requests: int = 0, *, slot: int | None = None, ahead_tokens: int = 0
) -> ReplicaView:
    """Return a replica with so many requests; its slot is its letter's place in the alphabet."""
    place = ord(replica_id[0]) - ord("a") if slot is None else slot
    replica = ReplicaView(replica_id, place, f"http://{replica_id}", "m")
    replica.own_requests = requests
    replica.own_ahead_tokens = ahead_tokens
    replica.prefill_tokens_per_s = 8000.0
    return replica


def request(
    request_id: str = "r", tokens: int = 100, key: int | None = None, **matched: int
) -> RouteRequest:
    """Return a request; ``matched`` names replicas that hold so many of its tokens."""
    route_request = RouteRequest(request_id, "m", tokens, prefix_key=key)
    route_request.matched_tokens = {ord(name) - ord("a"): n for name, n in matched.items()}
    return route_request
