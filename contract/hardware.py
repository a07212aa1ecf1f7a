"""GPUs and models in plain numbers: what a planner and an imitated engine compute with.

GPU figures are those of the vendors' data sheets: decimal units, dense FLOP/s (a figure "with
sparsity" halved), FP32 accumulation, links per direction. A driver shows a little more memory
than the name of a card says and an engine can use a little less; both are left out.

No matrix multiplication reaches the data sheet's peak, and GPUs differ in how near it comes. The
shares are the fastest ones that Stas Bekman's mamf-finder found ("ml-engineering", compute/
accelerator, "Maximum Achievable Matmul FLOPS", 2026), or where a source says so, the share of a
layer of 2,048 tokens in an engine's profile. Where nobody measured, a GPU has MATMUL_SHARE.

A model is its architecture; every number of parameters is counted from it, and the counts equal
those of the published weights, to the last one.
"""

from dataclasses import dataclass
from enum import Enum
from typing import TypeVar


class HardwareError(ValueError):
    """A name that is not in the catalogue, or a model description that cannot be counted."""


class Precision(Enum):
    """How an element of the weights, or of the KV cache, is stored."""

    BF16 = "bf16"
    FP8 = "fp8"

    @property
    def element_bytes(self) -> int:
        """Bytes of one element."""
        return 2 if self is Precision.BF16 else 1


MATMUL_SHARE = 0.8
"""About the middle of the NVIDIA GPUs measured in BF16: 0.73 to 0.87."""

NVLINK_SHARE = 0.7
"""Part of a link's data sheet rate that all-reduces of a few MB get, chosen before any fit."""

PCIE_SHARE = 0.25
PCIE_LATENCY_US = 20
"""Of GPUs without peer-to-peer links, whose all-reduces pass through the host's memory: the
16 GB/s and 20 us that LLMServingSim (5daddb2, bench/examples/RTXPRO6000) gives of a PCIe Gen5
machine. One machine's figures; another's topology may give twice that or half."""


@dataclass(frozen=True, kw_only=True)
class GpuSpec:
    """One GPU. ``link`` is to the other GPUs of its node: NVLink, Infinity Fabric or PCIe."""

    name: str
    memory_bytes: float
    memory_bytes_per_s: float
    bf16_flops_per_s: float
    fp8_flops_per_s: float | None  # None: it has no FP8 units
    bf16_matmul_share: float = MATMUL_SHARE
    fp8_matmul_share: float = MATMUL_SHARE
    link_bytes_per_s: float
    link_share: float = NVLINK_SHARE
    link_latency_us: float = 0  # of one collective; with NVLink it is part of EngineSpeed.layer_us
    source: str

    def matmul_flops_per_s(self, precision: Precision) -> float:
        """Return the fastest measured; without FP8 units such weights are multiplied as BF16."""
        if precision is Precision.FP8 and self.fp8_flops_per_s is not None:
            return self.fp8_flops_per_s * self.fp8_matmul_share
        return self.bf16_flops_per_s * self.bf16_matmul_share

    @property
    def allreduce_bytes_per_s(self) -> float:
        """What each GPU sends per second while all of a node reduce."""
        return self.link_bytes_per_s * self.link_share


@dataclass(frozen=True, kw_only=True)
class ModelSpec:
    """A decoder-only transformer with grouped-query attention, RMS norms and gated MLPs.

    ``intermediate`` is the width of the MLP, of one expert where ``experts`` is above zero; then
    every layer has a router and that many experts, of which a token uses ``experts_per_token``.
    """

    name: str
    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    context_tokens_max: int
    experts: int = 0  # 0: a dense model
    experts_per_token: int = 0
    tied_embeddings: bool = False  # one matrix is both the input embedding and the head
    qkv_bias: bool = False
    output_bias: bool = False  # of the attention's output projection
    mlp_bias: bool = False
    qk_norm: bool = False  # RMS norms over the head dimension of queries and keys
    source: str

    @property
    def parameters(self) -> int:
        """All parameters, as stored."""
        return self._count(self.experts)

    @property
    def active_parameters(self) -> int:
        """Parameters that one token uses, the input embedding included as model cards do."""
        return self._count(self.experts_per_token)

    @property
    def linear_parameters(self) -> int:
        """Parameters that one token is multiplied by: the active ones less the look-up table."""
        return self.active_parameters - self._lookup_parameters

    @property
    def read_parameters(self) -> int:
        """Parameters that a step with many tokens reads: all less the look-up table.

        For experts this supposes a batch that touches each of them: of 128 experts with 8 per
        token, 64 tokens leave 2 in expectation untouched.
        """
        return self.parameters - self._lookup_parameters

    @property
    def expert_parameters(self) -> int:
        """Parameters of all experts of all layers, of which a step reads those that it uses."""
        return self.layers * self.experts * 3 * self.hidden * self.intermediate

    @property
    def always_read_parameters(self) -> int:
        """Parameters that every step reads, whatever it computes."""
        return self.read_parameters - self.expert_parameters

    def kv_bytes_per_token(self, precision: Precision = Precision.BF16) -> int:
        """Return the bytes of keys and values of one token, over all layers and heads."""
        return 2 * self.layers * self.kv_heads * self.head_dim * precision.element_bytes

    def weight_bytes(self, precision: Precision = Precision.BF16) -> int:
        """Return the bytes of all weights."""
        return self.parameters * precision.element_bytes

    @property
    def _lookup_parameters(self) -> int:
        """Of the input embedding, of which a token reads one row; none where it is the head."""
        return 0 if self.tied_embeddings else self.vocab * self.hidden

    def _count(self, experts: int) -> int:
        embeddings = self.vocab * self.hidden * (1 if self.tied_embeddings else 2)
        norms = 2 * self.hidden
        per_layer = self._attention_parameters + self._mlp_parameters(experts) + norms
        return embeddings + self.layers * per_layer + self.hidden

    @property
    def _attention_parameters(self) -> int:
        queries = self.heads * self.head_dim
        keys_and_values = 2 * self.kv_heads * self.head_dim
        matrices = self.hidden * (queries + keys_and_values) + queries * self.hidden
        biases = (queries + keys_and_values) * self.qkv_bias + self.hidden * self.output_bias
        return matrices + biases + 2 * self.head_dim * self.qk_norm

    def _mlp_parameters(self, experts: int) -> int:
        gate_up_down = 3 * self.hidden * self.intermediate
        if self.experts:
            return self.hidden * self.experts + experts * gate_up_down
        return gate_up_down + (2 * self.intermediate + self.hidden) * self.mlp_bias


GPUS = (
    GpuSpec(
        name="A100-80",
        memory_bytes=80e9,
        memory_bytes_per_s=2.039e12,
        bf16_flops_per_s=312e12,
        fp8_flops_per_s=None,
        bf16_matmul_share=0.869,
        link_bytes_per_s=300e9,
        source="NVIDIA A100 80GB SXM data sheet; NVLink 600 GB/s both ways",
    ),
    GpuSpec(
        name="H100",
        memory_bytes=80e9,
        memory_bytes_per_s=3.35e12,
        bf16_flops_per_s=989e12,
        fp8_flops_per_s=1_979e12,
        bf16_matmul_share=0.803,
        fp8_matmul_share=0.709,
        link_bytes_per_s=450e9,
        source="NVIDIA H100 SXM data sheet; NVLink 900 GB/s both ways",
    ),
    GpuSpec(
        name="H200",
        memory_bytes=141e9,
        memory_bytes_per_s=4.8e12,
        bf16_flops_per_s=989e12,
        fp8_flops_per_s=1_979e12,
        bf16_matmul_share=0.803,
        fp8_matmul_share=0.734,
        link_bytes_per_s=450e9,
        source="NVIDIA H200 SXM data sheet; NVLink 900 GB/s both ways",
    ),
    GpuSpec(
        name="B200",
        memory_bytes=180e9,
        memory_bytes_per_s=8e12,
        bf16_flops_per_s=2_250e12,
        fp8_flops_per_s=4_500e12,
        bf16_matmul_share=0.776,
        fp8_matmul_share=0.763,
        link_bytes_per_s=900e9,
        source="NVIDIA DGX B200 data sheet, an eighth of it; NVLink 1.8 TB/s both ways",
    ),
    GpuSpec(
        name="GB200",
        memory_bytes=186e9,
        memory_bytes_per_s=8e12,
        bf16_flops_per_s=2_500e12,
        fp8_flops_per_s=5_000e12,
        bf16_matmul_share=0.729,
        fp8_matmul_share=0.723,
        link_bytes_per_s=900e9,
        source="NVIDIA GB200 NVL72 data sheet, one of its GPUs; NVLink 1.8 TB/s both ways",
    ),
    GpuSpec(
        name="RTX PRO 6000",
        memory_bytes=96e9,
        memory_bytes_per_s=1.792e12,
        bf16_flops_per_s=503.8e12,
        fp8_flops_per_s=1_007.6e12,
        bf16_matmul_share=0.78,
        fp8_matmul_share=0.78,
        link_bytes_per_s=64e9,
        link_share=PCIE_SHARE,
        link_latency_us=PCIE_LATENCY_US,
        source="NVIDIA RTX PRO 6000 Blackwell Workstation Edition, RTX Blackwell PRO whitepaper; "
        "PCIe Gen5 x16, 128 GB/s both ways; matmul share of the Server Edition",
    ),
    GpuSpec(
        name="RTX PRO 6000 Server",
        memory_bytes=96e9,
        memory_bytes_per_s=1.597e12,
        bf16_flops_per_s=500e12,
        fp8_flops_per_s=1_000e12,
        bf16_matmul_share=0.78,
        fp8_matmul_share=0.78,
        link_bytes_per_s=64e9,
        link_share=PCIE_SHARE,
        link_latency_us=PCIE_LATENCY_US,
        source="NVIDIA RTX PRO 6000 Blackwell Server Edition data sheet; PCIe Gen5 x16, 128 GB/s "
        "both ways; matmul share of LLMServingSim's profile (5daddb2), a layer of Qwen3-32B",
    ),
    GpuSpec(
        name="L40S",
        memory_bytes=48e9,
        memory_bytes_per_s=864e9,
        bf16_flops_per_s=362e12,
        fp8_flops_per_s=733e12,
        link_bytes_per_s=32e9,
        link_share=PCIE_SHARE,
        link_latency_us=PCIE_LATENCY_US,
        source="NVIDIA L40S data sheet; PCIe Gen4 x16, 64 GB/s both ways",
    ),
    GpuSpec(
        name="L4",
        memory_bytes=24e9,
        memory_bytes_per_s=300e9,
        bf16_flops_per_s=121e12,
        fp8_flops_per_s=242.5e12,
        link_bytes_per_s=32e9,
        link_share=PCIE_SHARE,
        link_latency_us=PCIE_LATENCY_US,
        source="NVIDIA L4 data sheet; PCIe Gen4 x16, 64 GB/s both ways",
    ),
    GpuSpec(
        name="RTX 4090",
        memory_bytes=24e9,
        memory_bytes_per_s=1.008e12,
        bf16_flops_per_s=165.2e12,
        fp8_flops_per_s=330.3e12,
        bf16_matmul_share=1.0,
        fp8_matmul_share=1.0,
        link_bytes_per_s=32e9,
        link_share=PCIE_SHARE,
        link_latency_us=PCIE_LATENCY_US,
        source="NVIDIA Ada architecture whitepaper; PCIe Gen4 x16, 64 GB/s both ways; matmul share "
        "of LLMServingSim's profile (5daddb2), whose clock is above the data sheet's",
    ),
    GpuSpec(
        name="MI300X",
        memory_bytes=192e9,
        memory_bytes_per_s=5.3e12,
        bf16_flops_per_s=1_307.4e12,
        fp8_flops_per_s=2_614.9e12,
        bf16_matmul_share=0.511,
        fp8_matmul_share=0.511,
        link_bytes_per_s=448e9,
        source="AMD Instinct MI300X data sheet; 7 Infinity Fabric links, 896 GB/s both ways",
    ),
)

MODELS = (
    ModelSpec(
        name="Llama-3.1-8B",
        layers=32,
        hidden=4_096,
        intermediate=14_336,
        heads=32,
        kv_heads=8,
        head_dim=128,
        vocab=128_256,
        context_tokens_max=131_072,
        source="https://huggingface.co/meta-llama/Llama-3.1-8B config.json",
    ),
    ModelSpec(
        name="Llama-3.1-70B",
        layers=80,
        hidden=8_192,
        intermediate=28_672,
        heads=64,
        kv_heads=8,
        head_dim=128,
        vocab=128_256,
        context_tokens_max=131_072,
        source="https://huggingface.co/meta-llama/Llama-3.1-70B config.json",
    ),
    ModelSpec(
        name="Qwen3-32B",
        layers=64,
        hidden=5_120,
        intermediate=25_600,
        heads=64,
        kv_heads=8,
        head_dim=128,
        vocab=151_936,
        context_tokens_max=40_960,
        qk_norm=True,
        source="https://huggingface.co/Qwen/Qwen3-32B config.json",
    ),
    ModelSpec(
        name="Qwen3-30B-A3B",
        layers=48,
        hidden=2_048,
        intermediate=768,
        heads=32,
        kv_heads=4,
        head_dim=128,
        vocab=151_936,
        context_tokens_max=40_960,
        experts=128,
        experts_per_token=8,
        qk_norm=True,
        source="https://huggingface.co/Qwen/Qwen3-30B-A3B config.json",
    ),
)

Spec = TypeVar("Spec", GpuSpec, ModelSpec)


def find_gpu(name: str) -> GpuSpec:
    """Return the GPU of that name, whatever its case, spaces and dashes; "a100" is A100-80.

    A beginning that fits only one is enough.

    Raises HardwareError naming the known ones.
    """
    return _find(name, GPUS, "GPU")


def find_model(name: str) -> ModelSpec:
    """Return the model of that name, whatever its case, spaces, dashes and organisation.

    A beginning that fits only one is enough.

    Raises HardwareError naming the known ones.
    """
    return _find(name.rpartition("/")[2], MODELS, "model")


def _find(name: str, catalogue: tuple[Spec, ...], kind: str) -> Spec:
    wanted = _plain(name)
    begun = [spec for spec in catalogue if wanted and _plain(spec.name).startswith(wanted)]
    for spec in begun:
        if _plain(spec.name) == wanted:
            return spec
    if len(begun) == 1:
        return begun[0]
    known = ", ".join(spec.name for spec in catalogue)
    raise HardwareError(f"no {kind} {name!r}; known: {known}")


def _plain(name: str) -> str:
    """Only letters and digits tell names apart; a maker's or an edition's name is no part."""
    plain = "".join(char for char in name.lower() if char.isalnum())
    return plain.removeprefix("nvidia").removeprefix("amd").removesuffix("instruct")
