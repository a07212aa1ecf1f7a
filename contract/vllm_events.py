"""The KV events of vLLM on the wire: ZeroMQ messages of three frames.

    live     [topic, number, payload]           number: 8 bytes, big-endian, from 0 in each engine
    asked    ["", first number wanted]          of the replay socket, by a DEALER
    replayed ["", topic, number, payload]...    then number -1 and an empty payload

A payload is a msgpack array [seconds since 1970, [events], data-parallel rank]. An event is a map
with its type under "type"; before June 2026 it was an array that began with its type. Both are
read, and older replays without a topic; maps are written, as vLLM 0.32 does.

Block hashes are opaque: 64-bit numbers or bytes, by an algorithm and a seed of the engine's own.
"""

from collections.abc import Sequence
from typing import Any

import msgspec

BlockId = int | bytes

END_OF_REPLAY = b"\xff" * 8
"""-1: the number of the message that ends a replay."""

GPU_MEDIUM = "GPU"
FULL_ATTENTION = "full_attention"

_NUMBER_BYTES = 8


class BlockStored(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag=True, tag_field="type"
):
    """These blocks, each the child of the one before, can now be shared.

    ``token_ids`` are those of all the blocks, one after the other. ``extra_keys`` has, for each
    block, what identifies it beside its tokens: an adapter's name, a cache salt, a picture.
    """

    block_hashes: list[BlockId]
    parent_block_hash: BlockId | None
    token_ids: list[int]
    block_size: int  # tokens
    lora_id: int | None
    medium: str | None
    lora_name: str | None
    extra_keys: list[list[Any] | None] | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None
    kv_cache_spec_sliding_window: int | None = None


class BlockRemoved(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag=True, tag_field="type"
):
    """These blocks are no longer in ``medium``."""

    block_hashes: list[BlockId]
    medium: str | None
    group_idx: int | None = None


class AllBlocksCleared(msgspec.Struct, frozen=True, tag=True, tag_field="type"):
    """The whole cache was reset."""


class UnknownEvent(msgspec.Struct, frozen=True):
    """An event of a type that this version does not know: what it changed is not known either."""

    type: str


Event = BlockStored | BlockRemoved | AllBlocksCleared | UnknownEvent


class EventBatch(msgspec.Struct, frozen=True):
    """The events of one step, in the order in which they happened."""

    at_s: float  # since 1970
    events: list[Event]
    data_parallel_rank: int | None = None


class Message(msgspec.Struct, frozen=True):
    """One live or replayed message; without a batch it is the end of a replay."""

    topic: str
    number: int
    batch: EventBatch | None


class EventError(ValueError):
    """Frames that are no message of vLLM: found and expected are in the message."""


_FIELDS_OF_ARRAYS = {
    "BlockStored": (
        *("block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium"),
        *("lora_name", "extra_keys", "group_idx", "kv_cache_spec_kind"),
        "kv_cache_spec_sliding_window",
    ),
    "BlockRemoved": ("block_hashes", "medium", "group_idx"),
}

_encode = msgspec.msgpack.Encoder().encode


def encode_message(topic: bytes, number: int, payload: bytes) -> list[bytes]:
    """Return the frames of a live message."""
    return [topic, number.to_bytes(_NUMBER_BYTES, "big"), payload]


def encode_payload(batch: EventBatch) -> bytes:
    """Return the payload of a message. It must have no unknown event."""
    return _encode([batch.at_s, batch.events, batch.data_parallel_rank])


def decode_replay_request(frames: Sequence[bytes]) -> int | None:
    """Return the first number wanted, None for what is not a request."""
    if len(frames) != 2 or frames[0] or len(frames[1]) != _NUMBER_BYTES:
        return None
    return int.from_bytes(frames[1], "big")


def decode_message(frames: Sequence[bytes]) -> Message:
    """Read the frames of a message, live or replayed, of any version. Raises EventError."""
    if len(frames) < 3 or len(frames[-2]) != _NUMBER_BYTES:
        lengths = [len(frame) for frame in frames]
        raise EventError(
            f"frames of {lengths} bytes, expected a topic, a number of {_NUMBER_BYTES} bytes and "
            "a payload"
        )
    # Read from the end: what stands before the number changed with the versions.
    topic, number, payload = frames[-3:]
    if number == END_OF_REPLAY:
        return Message(_text(topic), -1, None)
    return Message(_text(topic), int.from_bytes(number, "big"), decode_payload(payload))


def decode_payload(payload: bytes) -> EventBatch:
    """Read a payload. Raises EventError."""
    try:
        found = msgspec.msgpack.decode(payload)
    except msgspec.DecodeError as error:
        raise EventError(f"the payload is not msgpack: {error}") from error
    if isinstance(found, dict):  # a few versions between the two encodings sent a map
        found = [found.get("ts"), found.get("events"), found.get("data_parallel_rank")]
    match found:
        case [int() | float() as at_s, list() as events, *rest]:
            rank = rest[0] if rest else None
            if rank is not None and not isinstance(rank, int):
                raise EventError(f"data-parallel rank {rank!r}, expected a whole number or null")
            return EventBatch(float(at_s), [_event(each) for each in events], rank)
    raise EventError(f"a payload of {type(found).__name__}, expected [time, [events], rank]")


def _event(found: Any) -> Event:
    match found:
        case {"type": str() as name}:
            values = found
        case [str() as name, *listed]:
            values = dict(zip(_FIELDS_OF_ARRAYS.get(name, ()), listed, strict=False))
        case _:
            raise EventError(f"an event that is {found!r:.80}, expected a map or array with a type")
    try:
        match name:
            case "BlockStored":
                # The first versions had no such fields.
                absent = {"lora_id": None, "medium": None, "lora_name": None}
                return msgspec.convert(absent | values | {"type": name}, BlockStored)
            case "BlockRemoved":
                return msgspec.convert({"medium": None} | values | {"type": name}, BlockRemoved)
            case "AllBlocksCleared":
                return AllBlocksCleared()
    except msgspec.ValidationError as error:
        raise EventError(f"a {name} that cannot be read: {error}") from error
    return UnknownEvent(name)


def _text(topic: bytes) -> str:
    return topic.decode("utf-8", "replace")


def binds(endpoint: str) -> bool:
    """Say whether a publisher binds ``endpoint``; else it connects, and the reader must bind."""
    return "*" in endpoint or "::" in endpoint or endpoint.startswith(("ipc://", "inproc://"))


def endpoint_of_rank(endpoint: str, rank: int) -> str:
    """Return the endpoint of one data-parallel rank: its port, or its name, is counted up.

    A port that the system chooses (0 or *) stays. Raises ValueError for ipc beyond rank 0, which
    vLLM does not know either, and for a port that is not one.
    """
    if not rank:
        return endpoint
    if endpoint.startswith("inproc://"):
        return f"{endpoint}_dp{rank}"
    if not endpoint.startswith("tcp://"):
        raise ValueError(f"{endpoint!r} has one place for {rank + 1} ranks; use a tcp:// endpoint")
    host, _, port = endpoint.rpartition(":")
    if port in ("*", "0"):
        return endpoint
    if not port.isdecimal():
        raise ValueError(f"{endpoint!r} has the port {port!r}, expected a number or *")
    return f"{host}:{int(port) + rank}"
