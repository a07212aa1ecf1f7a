"""What a replica's answers to `GET /health` say: whether it is there at all.

    in   --failures in a row-->   out
    out  --answers in a row-->    in, with a share of the traffic that grows

An answer below 500 is an answer, whatever it says: some engines have no such path. One that is
late proves nothing against a replica that works, since engines that compute a long prompt may not
get to their health path for a while. So it counts only against one that has nothing of ours to do
and does not report, or that has sent no byte for a long time: neither to a probe nor to a request,
the first of which was sent so long ago, whether or not its client still waits. A byte of an answer
since the probe before is as good as an answer to the probe; a dispatch says nothing.
"""

from enum import Enum

from router.core.config import RoutingConfig, micros
from router.core.view import ReplicaView


class ProbeResult(Enum):
    """How one probe ended."""

    ANSWERED = "answered"
    FAILED = "failed"  # refused, reset, or a status of 500 or more
    LATE = "late"


class ProbeRow:
    """The last probes of one replica, in a row of equal meaning."""

    def __init__(self, config: RoutingConfig) -> None:
        self.is_out = False
        self._config = config
        self._silence_us = micros(config.probe_silence_s)
        self._failures = 0
        self._answers = 0
        self._heard_us = 0  # when a byte of it had last come, as of the last probe

    def beside_bytes(self, result: ProbeResult, view: ReplicaView, now_us: int) -> ProbeResult:
        """Return what ``result`` comes to beside the bytes that came since the probe before."""
        if result is ProbeResult.ANSWERED:
            view.heard_us = now_us
        elif result is ProbeResult.LATE and view.heard_us > self._heard_us:
            result = ProbeResult.ANSWERED  # to somebody else
        self._heard_us = view.heard_us
        return result

    def take(self, result: ProbeResult, *, is_idle: bool, silent_us: int) -> bool:
        """Take in one result; return whether it changed ``is_out``.

        ``is_idle``: it has nothing to do for us, and no report says that it lives; ``silent_us``:
        how long no byte has come from it, where one was due.
        """
        if result is ProbeResult.ANSWERED:
            self._failures = 0
            self._answers += 1
            if self.is_out and self._answers >= self._config.probe_answers:
                self.is_out = False
                return True
            return False
        if result is ProbeResult.LATE and not (is_idle or silent_us >= self._silence_us):
            return False
        self._answers = 0
        self._failures += 1
        if not self.is_out and self._failures >= self._config.probe_failures:
            self.is_out = True
            return True
        return False
