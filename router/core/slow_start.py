"""A replica that comes back gets its share of the requests by and by, not all at once.

    share of requests it may be chosen for = max(slow_start_share, time since / slow_start_s)

It is cold and its load is unknown, so to every policy that looks at load it is the best there is.
Which requests may go there is drawn by the request's id: any run can be replayed.
"""

from router.core.config import RoutingConfig, micros
from router.core.policy import draw
from router.core.roster import Pool
from router.core.view import ReplicaView, RouteRequest

_DRAWS = 2**64


def spared(
    request: RouteRequest, pool: Pool, now_us: int, config: RoutingConfig
) -> list[ReplicaView]:
    """Return whom ``request`` may go to: all of ``pool`` where nobody would be left."""
    out: set[int] = set()
    for belief in pool.recovering:
        since_us = belief.recovering_since_us
        assert since_us is not None
        share = max(config.slow_start_share, (now_us - since_us) / micros(config.slow_start_s))
        if draw(request.request_id, f"slow start {belief.view.replica_id}") >= share * _DRAWS:
            out.add(belief.view.slot)
    return [view for view in pool.views if view.slot not in out] or pool.views
