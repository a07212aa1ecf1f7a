"""What a routing policy saves: requests of tenants with a system prompt each, none of them ending.

The gateway's own `decide()` is asked, one request after the other, with the policy's own code,
the prefix index and the leases. A token is one 4-byte word of the prompt here and one block of
the index, so a match is exact to the token.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import router.policies  # noqa: F401  # registers every policy by its name
from contract.blocks import TOKEN_BYTES, root_hash, token_bytes
from contract.options import SettingError, option
from router.core.config import RoutingConfig
from router.core.fleet import FleetState
from router.core.policy import Policy, build_policy
from router.core.view import RouteRequest
from simulator.figures import check_above_zero, figure

PROMPT_TOKENS_MAX = 2_000_000
"""Prompt tokens of one run; each takes about 200 bytes in the index."""

REPLICAS_MAX = 1_000
FNV_OFFSET = 0x811C9DC5
FNV_PRIME = 0x01000193


@dataclass(frozen=True)
class RoutingSettings:
    """`plan routing`: who asks, in order, and how long the prompts are."""

    tenants: str = option(
        "AABAAACAABAC", "", "tenant of each request: a letter each, or names with commas between"
    )
    system_tokens: int = option(2_000, "tokens", "beginning that all requests of a tenant share")
    own_tokens: int = option(100, "tokens", "rest of a prompt, which no other request has")
    replicas: int = option(3, "replicas", "equal ones, all idle and cold at the start")

    def __post_init__(self) -> None:
        check_above_zero(self, may_be_zero=frozenset({"system_tokens"}))
        if not self.tenant_names or not all(self.tenant_names):
            raise ValueError(f"tenants is {self.tenants!r}, must name a tenant for each request")
        if self.replicas > REPLICAS_MAX:
            raise ValueError(f"replicas is {self.replicas}, must be at most {REPLICAS_MAX}")
        if self.prompt_tokens_total > PROMPT_TOKENS_MAX:
            raise ValueError(
                f"the prompts have {self.prompt_tokens_total} tokens, must be at most "
                f"{PROMPT_TOKENS_MAX}; lower system_tokens or own_tokens"
            )

    @property
    def tenant_names(self) -> list[str]:
        """The tenant of each request."""
        if "," in self.tenants:
            return [name.strip() for name in self.tenants.split(",")]
        return list(self.tenants.strip())

    @property
    def prompt_tokens_total(self) -> int:
        """Tokens of all prompts together."""
        return len(self.tenant_names) * (self.system_tokens + self.own_tokens)


@dataclass(frozen=True)
class PolicyChoice:
    """A policy by its name, with the settings that differ from its defaults."""

    name: str
    settings: Mapping[str, str] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """As `parse_choice` reads it."""
        settings = ",".join(f"{key}={value}" for key, value in self.settings.items())
        return f"{self.name}:{settings}" if settings else self.name


DEFAULT_CHOICES = (
    PolicyChoice("round_robin"),
    PolicyChoice("prefix_hash", {"placement": "modulo", "load_factor": "none"}),
    PolicyChoice("prefix_capped", {"ahead_max": "2", "tie": "lowest_slot"}),
)


@dataclass(frozen=True)
class RoutingRun:
    """What one policy did."""

    policy: str
    chosen_replicas: tuple[int, ...] = figure(
        "replica of each request", "list", "router.core.fleet decide() with the policy, in order"
    )
    requests_per_replica: tuple[int, ...] = figure(
        "requests per replica", "shares", "the list above, counted"
    )
    prompt_tokens: int = figure("prompt tokens", "tokens", "requests x (system + own tokens)")
    prefill_tokens: int = figure(
        "prefill tokens", "tokens", "uncached tokens of each request's lease, added up"
    )
    saved_share: float = figure("saved", "share", "1 - prefill tokens / prompt tokens")


def parse_choice(text: str) -> PolicyChoice:
    """Return the choice written as ``name`` or ``name:setting=value,setting=value``.

    Raises SettingError, which names the known ones, for an unknown policy or setting.
    """
    name, _, rest = text.partition(":")
    settings: dict[str, str] = {}
    for item in rest.split(",") if rest else ():
        key, equals, value = item.partition("=")
        if not equals:
            raise SettingError(f"policy {text!r} has {item!r}, expected setting=value")
        settings[key.strip()] = value.strip()
    build_policy(name, settings)
    return PolicyChoice(name, settings)


def plan_routing(settings: RoutingSettings, choice: PolicyChoice) -> RoutingRun:
    """Return where the policy sent each request, and what that left to compute."""
    fleet = _fleet(settings, build_policy(choice.name, choice.settings))
    chosen: list[int] = []
    prefill_tokens = 0
    for request in _requests(settings):
        decision = fleet.decide(request, now_us=0)
        assert decision.replica is not None
        assert decision.lease is not None
        chosen.append(decision.replica.slot)
        prefill_tokens += decision.lease.uncached_tokens
    prompt_tokens = settings.prompt_tokens_total
    return RoutingRun(
        policy=choice.text,
        chosen_replicas=tuple(chosen),
        requests_per_replica=tuple(chosen.count(slot) for slot in range(settings.replicas)),
        prompt_tokens=prompt_tokens,
        prefill_tokens=prefill_tokens,
        saved_share=1 - prefill_tokens / prompt_tokens,
    )


def fnv1a_32(data: bytes) -> int:
    """Return the 32-bit FNV-1a hash (http://www.isthe.com/chongo/tech/comp/fnv/)."""
    digest = FNV_OFFSET
    for byte in data:
        digest = (digest ^ byte) * FNV_PRIME & 0xFFFFFFFF
    return digest


def _fleet(settings: RoutingSettings, policy: Policy) -> FleetState:
    """Nothing is forgotten: the caches and the index hold all prompts."""
    config = RoutingConfig(
        index_block_bytes=TOKEN_BYTES,
        bytes_per_token=TOKEN_BYTES,
        learned_tokens_max=settings.prompt_tokens_total,
        index_entries_max=settings.prompt_tokens_total,
    )
    fleet = FleetState(config, policy)
    width = len(str(settings.replicas))
    for slot in range(settings.replicas):
        # Policies may sort by id, so that order is made that of the numbers.
        replica_id = f"replica-{slot:0{width}}"
        view = fleet.add_static(f"http://{replica_id}", replica_id, now_us=0)
        assert view.slot == slot
    return fleet


def _requests(settings: RoutingSettings) -> list[RouteRequest]:
    names = settings.tenant_names
    number_of = {name: number for number, name in enumerate(dict.fromkeys(names))}
    requests = []
    for index, name in enumerate(names):
        system = [number_of[name]] * settings.system_tokens
        own = [index] * settings.own_tokens
        requests.append(
            RouteRequest(
                request_id=f"request-{index}",
                model=None,
                prompt_tokens=settings.system_tokens + settings.own_tokens,
                root=root_hash("plan"),
                prompt=token_bytes(system + own),
                prefix_key=fnv1a_32(f"system-prompt-{name}".encode()),
            )
        )
    return requests
