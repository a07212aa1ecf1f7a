"""One replica as the admin, the log and the metrics show it."""

from dataclasses import dataclass

from contract.load_report import LoadReport
from router.core.belief import Belief, Freshness
from router.core.health import BreakerState
from router.core.reason import Ineligible
from router.core.view import ReplicaView


@dataclass(slots=True)  # not frozen, which would take twice as long to make
class ReplicaStatus:
    """What is believed of a replica at one moment; ``view`` goes on changing."""

    view: ReplicaView
    standing: Ineligible | None  # None: it may be chosen
    freshness: Freshness
    breaker: BreakerState
    is_static: bool
    is_draining: bool
    is_recovering: bool  # in its slow start
    mismatch: str | None
    report: LoadReport | None
    report_age_us: int | None
    believed_blocks: int


def status_of(belief: Belief, believed_blocks: int, now_us: int) -> ReplicaStatus:
    """Return how a replica stands."""
    has_report = belief.report is not None
    return ReplicaStatus(
        view=belief.view,
        standing=belief.standing(),
        freshness=belief.freshness,
        breaker=belief.breaker.state,
        is_static=belief.is_static,
        is_draining=belief.is_draining,
        is_recovering=belief.recovering_since_us is not None,
        mismatch=belief.mismatch,
        report=belief.report,
        report_age_us=max(0, now_us - belief.reported_us) if has_report else None,
        believed_blocks=believed_blocks,
    )
