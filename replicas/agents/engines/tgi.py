"""Text Generation Inference's metrics, by its documentation; not run against a real one.

It tells how many requests wait and run, and nothing of its cache: neither its size nor its hits.
"""

from replicas.agents.engines.exposition import Samples
from replicas.agents.engines.figures import Figures

RUNNING = "tgi_batch_current_size"
WAITING = "tgi_queue_size"

NAMES = frozenset((RUNNING, WAITING))


def read_tgi(samples: Samples) -> Figures:
    """Return what one page tells."""
    return Figures(waiting_requests=samples.count(WAITING), running_requests=samples.count(RUNNING))
