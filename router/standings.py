"""Says in the log how replicas stand, what they do not tell and how policies fail, once each."""

import asyncio
import logging

from router.core.fleet import FleetState
from router.core.status import ReplicaStatus

LOOK_S = 1.0
ELIGIBLE = "eligible"

log = logging.getLogger(__name__)


class Standings:
    """Looks at the fleet every ``LOOK_S``; a change that is undone meanwhile is none."""

    def __init__(self, fleet: FleetState) -> None:
        self._fleet = fleet
        self._known: dict[str, str] = {}
        self._untold: dict[str, str] = {}  # by replicas that report
        self._num_failures_said = 0  # of policies

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            self.look()
            await asyncio.sleep(LOOK_S)

    def look(self) -> None:
        """Log what is not as it was the last time."""
        for failure in list(self._fleet.policy_failures.first.values())[self._num_failures_said :]:
            self._num_failures_said += 1
            log.error("%s; until it is mended such requests draw their replica", failure)
        statuses = self._fleet.views()
        self._look_for_untold(statuses)
        standings = {
            status.view.replica_id: ELIGIBLE if status.standing is None else status.standing.value
            for status in statuses
        }
        for replica_id, standing in standings.items():
            before = self._known.get(replica_id)
            if before != standing:
                level = logging.INFO if standing == ELIGIBLE else logging.WARNING
                was = "new" if before is None else before
                log.log(level, "replica %r is %s, was %s", replica_id, standing, was)
        for replica_id in self._known.keys() - standings.keys():
            log.warning("replica %r is gone", replica_id)
        self._known = standings

    def _look_for_untold(self, statuses: list[ReplicaStatus]) -> None:
        untold = {status.view.replica_id: _untold_by(status) for status in statuses}
        for replica_id, what in untold.items():
            if what and self._untold.get(replica_id) != what:
                message = "replica %r does not report %s, which is taken to be as at its peers"
                log.warning(message, replica_id, what)
        self._untold = untold


def _untold_by(status: ReplicaStatus) -> str:
    """Return what a replica leaves out of its reports that choices rest on; empty if nothing."""
    report, view = status.report, status.view
    if report is None:
        return ""
    has_requests = view.waiting_requests is not None or view.running_requests is not None
    parts = (("its requests", has_requests), ("its KV usage", view.kv_usage is not None))
    return " and ".join(name for name, is_told in parts if not is_told)
