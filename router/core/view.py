"""What a policy may know: one request, and the believed state of each replica.

Both live for speed as plain slotted objects: a ReplicaView is kept for the life of the replica
and only FleetState writes to it; a RouteRequest is made once and only `decide()` fills in the
match. A policy reads.

A belief is the last report plus what was sent since: ``own_*`` is this gateway's ledger (exact),
``foreign_*`` what the report or the other gateways show beyond it.
"""

from dataclasses import dataclass, field

from contract.blocks import BlockHash, chain_bytes, root_hash

NO_ROOT = BlockHash(0)
PRESSURE_STEPS = 32

ChainKey = tuple[int, str | None]
"""Bytes of a block, and the model's name in the root; None: the name that the request has.

A plain pair, because it is looked up for every decision.
"""


@dataclass(slots=True)
class ReplicaView:
    """One replica as this gateway believes it to be. ``slot`` indexes bit sets and matches."""

    replica_id: str
    slot: int
    url: str
    model: str | None = None  # None: not known yet, accepts any
    own_requests: int = 0  # leases held by this gateway
    own_ahead_tokens: int = 0  # uncached prompt tokens of own leases before their first byte
    heard_us: int = 0  # when a byte of it last came, as far as leases and probes tell
    asked_us: int = 0  # when it was sent the first request since
    last_sent: int = 0  # which of this gateway's dispatches was its last; 0: none was
    foreign_requests: int = 0
    foreign_ahead_tokens: int = 0
    room_blocks: int = (
        0  # what its cache takes in before it forgets any, as last sent to; 0 if full
    )
    cache_blocks: int = 0  # what it takes in at all; 0: not known
    tells_of_cache: bool = False  # by KV events, to all gateways; else this one learns by sending
    kv_usage: float | None = None  # 0..1 as reported, as are the next five; None: not told
    kv_pressure: float = 0.0  # usage / (1 - usage) as reported, in steps; see ``pressure_of``
    kv_blocks_used: int | None = None  # held by sequences
    kv_blocks_total: int | None = None
    kv_block_tokens: int | None = None
    running_requests: int | None = None  # of all gateways, at the time of the report
    waiting_requests: int | None = None
    step_tokens: int | None = None  # as reported: that one step computes at most
    step_share: float | None = None  # 0..1 of a full step's time, taken whatever it computes
    prefill_tokens_per_s: float = 1.0  # reported or configured, over the slowdown; never zero
    prefill_slowdown: float = 1.0  # times as long as its peers for as much prefill, as learned
    decode_slowdown: float = 1.0  # times as long as its peers for a token beside as many streams
    token_us: float | None = None  # between two tokens of a stream, as learned; None: not known

    @property
    def requests(self) -> int:
        """Requests believed to be on the replica, waiting or running."""
        return self.own_requests + self.foreign_requests

    @property
    def ahead_tokens(self) -> int:
        """Prompt tokens believed accepted and not yet computed."""
        return self.own_ahead_tokens + self.foreign_ahead_tokens


def pressure_of(kv_usage: float | None) -> float:
    """Return usage / (1 - usage), for a usage rounded down to a step below 1: 0 to 31.

    Steps, so that replicas in nearly equal states look alike (``router.core.frontier``).
    """
    step = min(int((kv_usage or 0.0) * PRESSURE_STEPS), PRESSURE_STEPS - 1)
    return step / (PRESSURE_STEPS - step)


@dataclass(slots=True)
class RouteRequest:
    """One request as routing sees it.

    ``arrival_index`` counts the decisions for its model; ``decide()`` sets it. ``prefix_key``
    names the beginning of the prompt for hash policies, None where there is no prompt (then
    balance by load alone). ``matched_tokens[slot]`` is filled by ``decide()``; it is never more
    than ``prompt_tokens - 1``, because an engine computes at least the last token.
    """

    request_id: str
    model: str | None
    prompt_tokens: int
    root: BlockHash = NO_ROOT  # by the name that the request has for its model
    prompt: bytes = b""  # rendered, padded; chains are cut from it
    cache_salt: str = ""
    tenant: str = ""
    prefix_key: int | None = None
    session_key: str | None = None
    stream: bool = False
    num_choices: int = 1  # texts that its answer consists of
    answer_at: int | None = None  # byte of the prompt at which its answer would come again
    is_explained: bool = False  # its decisions say how they were made
    arrival_index: int = 0
    matched_tokens: dict[int, int] = field(default_factory=dict)  # slot -> tokens; absent is 0
    chains: dict[ChainKey, list[BlockHash]] = field(default_factory=dict)

    def chain(self, key: ChainKey) -> list[BlockHash]:
        """Return the prompt's chain in such blocks; cut once, then kept."""
        chain = self.chains.get(key)
        if chain is None:
            block_bytes, name = key
            root = self.root
            if name is not None and name != self.model:
                root = root_hash(name, "", self.cache_salt, self.tenant)
            chain = self.chains[key] = chain_bytes(self.prompt, block_bytes, root)
        return chain

    def uncached_tokens(self, replica: ReplicaView) -> int:
        """Prompt tokens that ``replica`` would have to compute."""
        return self.prompt_tokens - self.matched_tokens.get(replica.slot, 0)
