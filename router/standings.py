"""Says in the log how replicas stand, once for every change."""

import asyncio
import logging

from router.core.fleet import FleetState

LOOK_S = 1.0
ELIGIBLE = "eligible"

log = logging.getLogger(__name__)


class Standings:
    """Looks at the fleet every ``LOOK_S``; a change that is undone meanwhile is none."""

    def __init__(self, fleet: FleetState) -> None:
        self._fleet = fleet
        self._known: dict[str, str] = {}

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            self.look()
            await asyncio.sleep(LOOK_S)

    def look(self) -> None:
        """Log what is not as it was the last time."""
        standings = {
            status.view.replica_id: ELIGIBLE if status.standing is None else status.standing.value
            for status in self._fleet.views()
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
