"""The worked example: one model, one load, figures that can be checked on paper.

Its model and GPUs are round numbers on purpose, and not the catalogue's: 70e9 parameters where
Llama-3.1-70B has 70.55e9. The settings of the other parts are their defaults.
"""

from dataclasses import dataclass

from simulator.admission import AdmissionPlan, AdmissionSettings, plan_admission
from simulator.batching import BatchingRun, BatchingSettings, plan_batching
from simulator.capacity import CapacityPlan, CapacitySettings, Node, plan_capacity
from simulator.routing import DEFAULT_CHOICES, RoutingRun, RoutingSettings, plan_routing

WEIGHT_BYTES = 70e9 * 2
NODE = Node(
    gpus=8,
    gpu_memory_bytes=80e9,
    gpu_memory_bytes_per_s=3.35e12,
    weight_bytes=WEIGHT_BYTES,
    read_bytes=WEIGHT_BYTES,
    least_read_bytes=WEIGHT_BYTES,
    kv_bytes_per_token=2 * 80 * 8 * 128 * 2,
    kv_heads=8,
)
CAPACITY = CapacitySettings(
    model="70e9 parameters, 80 layers, 8 KV heads of 128",
    gpu="80 GB, 3.35 TB/s",
    step_ms=25.0,
)


@dataclass(frozen=True)
class Example:
    """All parts of the worked example, computed."""

    capacity: CapacityPlan
    batching: dict[str, BatchingRun]
    admission: AdmissionPlan
    routing: list[RoutingRun]


def compute_example() -> Example:
    """Compute every part; the KV cache of the admission part is that of the capacity part."""
    capacity = plan_capacity(NODE, CAPACITY)
    admission = AdmissionSettings(kv_tokens=capacity.kv_tokens)
    return Example(
        capacity=capacity,
        batching=plan_batching(BatchingSettings()),
        admission=plan_admission(admission),
        routing=[plan_routing(RoutingSettings(), choice) for choice in DEFAULT_CHOICES],
    )
