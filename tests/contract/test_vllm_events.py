"""vLLM's KV events: real frames are written to the byte, older and newer forms are read."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from contract.vllm_events import (
    END_OF_REPLAY,
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    Event,
    EventBatch,
    EventError,
    UnknownEvent,
    binds,
    decode_message,
    decode_payload,
    decode_replay_request,
    encode_message,
    encode_payload,
    endpoint_of_rank,
)

RECORDED = Path(__file__).parent.parent / "data/wire/vllm/kv_events"
LIVE = ("salted", "cleared", "sha256_cbor")


def frames(name: str) -> list[bytes]:
    return [path.read_bytes() for path in sorted(RECORDED.glob(f"{name}_frame*.bin"))]


def payload(events: list[Any], *rest: Any) -> bytes:
    return msgspec.msgpack.encode([1.5, events, *rest])


def only_event(event: Any) -> Event:
    (found,) = decode_payload(payload([event], 0)).events
    return found


@pytest.mark.parametrize("name", LIVE)
def test_real_messages_are_written_again_to_the_byte(name: str) -> None:
    message = decode_message(frames(name))

    assert message.batch is not None
    written = encode_message(message.topic.encode(), message.number, encode_payload(message.batch))
    assert written == frames(name)


def test_a_real_batch_says_what_is_in_the_blocks() -> None:
    batch = decode_message(frames("salted")).batch

    assert batch is not None
    assert batch.data_parallel_rank == 0
    *removed, stored = batch.events
    assert len(removed) == 3
    assert all(isinstance(event, BlockRemoved) and event.medium == "GPU" for event in removed)
    assert isinstance(stored, BlockStored)
    assert len(stored.token_ids) == len(stored.block_hashes) * stored.block_size
    assert stored.parent_block_hash is None
    assert stored.extra_keys is not None
    assert stored.extra_keys[0] == ["tenant-a"]
    assert not any(stored.extra_keys[1:])


def test_a_reset_comes_before_what_is_stored_after_it() -> None:
    batch = decode_message(frames("cleared")).batch

    assert batch is not None
    assert [type(event) for event in batch.events] == [AllBlocksCleared, BlockStored]


def test_a_replayed_message_reads_like_a_live_one_and_the_end_has_no_batch() -> None:
    replayed, end = decode_message(frames("replayed")), decode_message(frames("replay_end"))

    assert (replayed.topic, replayed.number) == ("kv@127.0.0.1:8001@tiny-llama", 2)
    assert replayed.batch is not None
    assert (end.number, end.batch) == (-1, None)


def test_a_replay_of_before_the_topic_is_read_too() -> None:
    _, _, number, body = frames("replayed")

    message = decode_message([b"", number, body])

    assert (message.topic, message.number) == ("", 2)


STORED = {
    "block_hashes": [7, 8],
    "parent_block_hash": 6,
    "token_ids": [1, 2, 3, 4],
    "block_size": 2,
    "lora_id": None,
}


def test_events_as_arrays_are_those_as_maps() -> None:
    as_array = only_event(["BlockStored", *STORED.values()])
    as_map = only_event({"type": "BlockStored"} | STORED)

    assert as_array == as_map
    assert isinstance(as_map, BlockStored)
    assert (as_map.block_hashes, as_map.parent_block_hash) == ([7, 8], 6)
    assert only_event(["BlockRemoved", [7], None]) == BlockRemoved(block_hashes=[7], medium=None)
    assert only_event(["AllBlocksCleared"]) == AllBlocksCleared()


def test_fields_of_the_future_are_passed_over() -> None:
    plain = only_event({"type": "BlockRemoved", "block_hashes": [7], "medium": "CPU"})

    longer = only_event(["BlockRemoved", [7], "CPU", None, "what", "ever"])
    richer = only_event(
        {"type": "BlockRemoved", "block_hashes": [7], "medium": "CPU", "locality": "remote"}
    )

    assert plain == longer == richer


@pytest.mark.parametrize("event", [{"type": "BlockMoved", "to": "disk"}, ["BlockMoved", "disk"]])
def test_an_unknown_event_is_said_to_be_unknown(event: Any) -> None:
    assert only_event(event) == UnknownEvent("BlockMoved")


@pytest.mark.parametrize("rest", [(), (None,), (3,), (3, "future")])
def test_the_rank_may_be_missing(rest: tuple[Any, ...]) -> None:
    batch = decode_payload(payload([], *rest))

    assert batch.data_parallel_rank == (rest[0] if rest else None)


def test_a_batch_that_is_a_map_is_read_too() -> None:
    batch = decode_payload(msgspec.msgpack.encode({"ts": 2, "events": [["AllBlocksCleared"]]}))

    assert batch == EventBatch(2.0, [AllBlocksCleared()])


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (b"\xc1", "msgpack"),
        (b"", "msgpack"),
        (msgspec.msgpack.encode(3), "int"),
        (msgspec.msgpack.encode([1.0]), "list"),
        (msgspec.msgpack.encode(["now", []]), "list"),
        (payload([3]), "a map or array"),
        (payload([[]]), "a map or array"),
        (payload([{"type": 3}]), "a map or array"),
        (payload([["BlockStored", [7]]]), "BlockStored"),
        (payload([{"type": "BlockRemoved", "block_hashes": "x"}]), "block_hashes"),
        (payload([], "zero"), "rank"),
    ],
)
def test_what_is_no_batch_is_an_error_that_says_so(body: bytes, told: str) -> None:
    with pytest.raises(EventError, match=told):
        decode_payload(body)


@pytest.mark.parametrize("wrong", [[], [b""], [b"t", b"123"], [b"t", b"1234567", b""]])
def test_frames_that_are_no_message_are_an_error(wrong: list[bytes]) -> None:
    with pytest.raises(EventError, match="a number of 8 bytes"):
        decode_message(wrong)


@given(st.binary(max_size=60))
def test_any_bytes_are_a_batch_or_an_error(body: bytes) -> None:
    try:
        decode_payload(body)
    except EventError:
        pass


IDS = st.integers(0, 2**64 - 1) | st.binary(min_size=1, max_size=32)
EVENTS = st.one_of(
    st.builds(
        BlockStored,
        block_hashes=st.lists(IDS, max_size=3),
        parent_block_hash=st.none() | IDS,
        token_ids=st.lists(st.integers(0, 2**32 - 1), max_size=6),
        block_size=st.integers(1, 64),
        lora_id=st.none() | st.integers(0, 9),
        medium=st.sampled_from([None, "GPU", "CPU"]),
        lora_name=st.none() | st.text(max_size=3),
        extra_keys=st.none() | st.lists(st.none() | st.lists(st.text(max_size=3)), max_size=3),
    ),
    st.builds(
        BlockRemoved,
        block_hashes=st.lists(IDS, max_size=3),
        medium=st.none() | st.just("GPU"),
        group_idx=st.none() | st.just(0),
    ),
    st.just(AllBlocksCleared()),
)


@given(st.lists(EVENTS, max_size=4), st.none() | st.integers(0, 7), st.floats(0, 2e9))
def test_what_is_written_is_read(events: list[Event], rank: int | None, at_s: float) -> None:
    batch = EventBatch(at_s, events, rank)

    assert decode_payload(encode_payload(batch)) == batch


def test_a_replay_request_is_an_empty_frame_and_a_number() -> None:
    assert decode_replay_request([b"", (5).to_bytes(8, "big")]) == 5
    assert decode_replay_request([b"", b"5"]) is None
    assert decode_replay_request([b"x", bytes(8)]) is None
    assert decode_replay_request([bytes(8)]) is None
    assert int.from_bytes(END_OF_REPLAY, "big", signed=True) == -1


@pytest.mark.parametrize(
    ("endpoint", "expected"),
    [
        ("tcp://*:5557", True),
        ("tcp://[::]:5557", True),
        ("ipc:///tmp/kv", True),
        ("inproc://kv", True),
        ("tcp://127.0.0.1:5557", False),
        ("tcp://router:5557", False),
    ],
)
def test_a_publisher_binds_a_wildcard_and_connects_to_a_name(endpoint: str, expected: bool) -> None:
    assert binds(endpoint) is expected


def test_each_rank_has_an_endpoint_of_its_own() -> None:
    assert endpoint_of_rank("tcp://*:5557", 0) == "tcp://*:5557"
    assert endpoint_of_rank("tcp://*:5557", 3) == "tcp://*:5560"
    assert endpoint_of_rank("tcp://host:5557", 1) == "tcp://host:5558"
    assert endpoint_of_rank("tcp://127.0.0.1:*", 2) == "tcp://127.0.0.1:*"
    assert endpoint_of_rank("tcp://*:0", 2) == "tcp://*:0"
    assert endpoint_of_rank("inproc://kv", 2) == "inproc://kv_dp2"
    assert endpoint_of_rank("ipc:///tmp/kv", 0) == "ipc:///tmp/kv"


@pytest.mark.parametrize("endpoint", ["ipc:///tmp/kv", "tcp://host:port"])
def test_an_endpoint_that_cannot_be_counted_up_is_refused(endpoint: str) -> None:
    with pytest.raises(ValueError, match="tcp"):
        endpoint_of_rank(endpoint, 1)
