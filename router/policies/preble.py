"""Preble: exploit what is cached if it is most of the prompt, else explore."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from contract.options import check_not_negative, check_shares, option
from router.core.policy import Policy, register
from router.core.view import ReplicaView, RouteRequest
from router.policies.picks import least_cost, warmest


@register
@dataclass(frozen=True)
class Preble(Policy):
    """Choose the least busy of the warmest, if they hold most of the prompt; else the least cost.

        load    = ahead / speed + answer_s * requests
        exploit = longest match > exploit_threshold * prompt
        replica = least load of the warmest, if exploit
                  least (load + uncached / speed) of all, if not

    Unit: seconds. A prompt of 1,000 tokens at 8,000 tokens/s; one replica holds 600 and has 2
    requests with 4,000 tokens ahead: it wins whatever the others do. Does it hold 400, it costs
    0.5 + 2 * 6.75 + 0.075 = 14.075 s, and an idle one 0.125 s.

    Failure mode: while it exploits it looks at nobody else, so a hot prefix queues on its replicas
    however idle the rest is; and while it explores, the time of an answer outweighs any prefix.
    Source: the E2 rule of Preble (V. Srivatsa et al., ICLR 2025); 45 tokens of 0.15 s each for an
    answer from AIBrix's version of it, ``prefix_cache_preble.go`` at 0338af7d. Preble's load is
    what was sent in the last 3 minutes; here it is what is under way, as a policy remembers
    nothing. Left out: the cost of evicting, as no report tells what a cache would evict, and the
    copies of hot prefixes that are made in the background.
    """

    name: ClassVar[str] = "preble"

    exploit_threshold: float = option(
        0.5, "0..1", "share of the prompt that must be cached; a half: more than is missing"
    )
    answer_s: float = option(6.75, "s", "work that one request on the replica stands for")

    def __post_init__(self) -> None:
        check_shares(self, "exploit_threshold")
        check_not_negative(self, "answer_s")

    def choose(self, request: RouteRequest, eligible: Sequence[ReplicaView]) -> ReplicaView:
        warm = warmest(request, eligible)
        if warm.matched_tokens > self.exploit_threshold * request.prompt_tokens:
            costs = [self.load_s(replica) for replica in warm.replicas]
            return least_cost(request, warm.replicas, costs)
        costs = [
            self.load_s(replica) + request.uncached_tokens(replica) / replica.prefill_tokens_per_s
            for replica in eligible
        ]
        return least_cost(request, eligible, costs)

    def load_s(self, replica: ReplicaView) -> float:
        """Return the work that is on ``replica``, in seconds."""
        prefill_s = replica.ahead_tokens / replica.prefill_tokens_per_s
        return prefill_s + self.answer_s * replica.requests
