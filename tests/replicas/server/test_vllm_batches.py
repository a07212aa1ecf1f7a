"""Pool events in vLLM's words: a reader that knows only the tokens finds the same blocks."""

from hypothesis import given, settings
from hypothesis import strategies as st

from contract import vllm_events
from contract.blocks import BlockHash, chain_tokens, root_hash
from contract.kv_events import BlockRemoved
from replicas.core.engine import Engine
from replicas.core.scheduler import StepPlan
from replicas.core.scheduler_config import SchedulerConfig
from replicas.core.step_time import FixedStepTime
from replicas.server.generation import ServedSequence
from replicas.server.vllm_batches import translated

BLOCK_SIZE = 4
ROOT = root_hash("m")


def engine(num_blocks: int = 50, max_num_batched_tokens: int = 100) -> Engine:
    config = SchedulerConfig(
        num_blocks=num_blocks,
        block_size=BLOCK_SIZE,
        max_num_batched_tokens=max_num_batched_tokens,
        max_model_len=1_000,
    )
    return Engine(config, FixedStepTime(1, 1), lambda _sequence: 7)


def sequence(name: str, num_tokens: int, first: int = 0, **identity: str) -> ServedSequence:
    prompt = range(first, first + num_tokens)
    return ServedSequence(name, prompt, 20, ROOT, **identity)  # type: ignore[arg-type]


def step(driven: Engine) -> list[vllm_events.Event]:
    """Take one step and return its events as vLLM would send them after it."""
    plan = driven.plan_step(0)
    assert plan is not None
    driven.complete_step(plan, 1)
    return told(driven, plan)


def told(driven: Engine, plan: StepPlan) -> list[vllm_events.Event]:
    return translated(driven.drain_events(), plan, BLOCK_SIZE)


def stored_of(events: list[vllm_events.Event]) -> list[vllm_events.BlockStored]:
    return [event for event in events if isinstance(event, vllm_events.BlockStored)]


def test_a_stored_event_has_the_tokens_of_its_blocks() -> None:
    driven = engine()
    driven.add(sequence("a", 10), 0)

    (event,) = step(driven)

    assert event == vllm_events.BlockStored(
        block_hashes=[*chain_tokens(range(8), BLOCK_SIZE, ROOT)],
        parent_block_hash=None,
        token_ids=list(range(8)),
        block_size=BLOCK_SIZE,
        lora_id=None,
        medium="GPU",
        lora_name=None,
        extra_keys=[None, None],
        group_idx=0,
        kv_cache_spec_kind="full_attention",
    )


def test_chunks_and_generated_tokens_go_on_from_their_parent() -> None:
    driven = engine(max_num_batched_tokens=8)
    a = sequence("a", 20)
    driven.add(a, 0)

    events = [event for _ in range(12) for event in stored_of(step(driven))]

    hashes = chain_tokens(a.tokens[:28], BLOCK_SIZE, ROOT)
    assert [each for event in events for each in event.block_hashes] == hashes
    assert [token for event in events for token in event.token_ids] == a.tokens[:28].tolist()
    parents = [event.parent_block_hash for event in events]
    assert parents == [None, *(event.block_hashes[-1] for event in events[:-1])]


def test_an_adapter_is_in_every_block_and_a_salt_in_the_first() -> None:
    driven = engine(max_num_batched_tokens=8)
    driven.add(sequence("a", 16, adapter="sql", cache_salt="tenant"), 0)

    (first,), (second,) = stored_of(step(driven)), stored_of(step(driven))

    assert first.lora_name == second.lora_name == "sql"
    assert first.extra_keys == [["sql", "tenant"], ["sql"]]
    assert second.extra_keys == [["sql"], ["sql"]]


def test_what_an_aborted_sequence_has_stored_is_still_described() -> None:
    driven = engine()
    driven.add(sequence("a", 9), 0)
    plan = driven.plan_step(0)
    assert plan is not None
    driven.abort("a", 0)
    driven.complete_step(plan, 1)

    (aborted,) = stored_of(told(driven, plan))

    assert aborted.token_ids == list(range(8))


def test_two_sequences_of_one_step_may_share_a_beginning() -> None:
    driven = engine()
    driven.add(sequence("long", 8), 0)
    driven.add(sequence("short", 4), 0)

    (event,) = stored_of(step(driven))

    assert event.token_ids == list(range(8))


@settings(deadline=None)
@given(
    num_blocks=st.integers(10, 20),
    num_batched_tokens=st.integers(3, 40),
    arrivals=st.lists(st.tuples(st.integers(0, 30), st.integers(1, 14)), max_size=8),
    aborted=st.sets(st.integers(0, 7)),
)
def test_a_reader_can_chain_the_tokens_to_the_hashes_whatever_happens(
    num_blocks: int,
    num_batched_tokens: int,
    arrivals: list[tuple[int, int]],
    aborted: set[int],
) -> None:
    driven = engine(num_blocks, num_batched_tokens)
    known: set[vllm_events.BlockId] = set()

    for step_index in range(60):
        for name, (at, num_tokens) in enumerate(arrivals):
            if at == step_index:
                driven.add(sequence(str(name), num_tokens, first=at % 3), 0)
        plan = driven.plan_step(0)
        if plan is None:
            continue
        for name in aborted:
            if step_index == name * 3:
                driven.abort(str(name), 0)
        driven.complete_step(plan, 1)
        for event in told(driven, plan):
            match event:
                case vllm_events.BlockStored(block_hashes=hashes, parent_block_hash=parent):
                    assert parent is None or parent in known
                    root = ROOT if parent is None else BlockHash(int(parent))
                    assert chain_tokens(event.token_ids, BLOCK_SIZE, root) == hashes
                    known |= set(hashes)
                case vllm_events.BlockRemoved(block_hashes=hashes):
                    known -= set(hashes)

    assert known == set(driven.cached_hashes())


def test_removed_blocks_are_named_only() -> None:
    event = BlockRemoved(chain_tokens(range(8), BLOCK_SIZE, ROOT))

    (removed,) = translated([event], None, BLOCK_SIZE)

    assert removed == vllm_events.BlockRemoved(
        block_hashes=[*event.block_hashes], medium="GPU", group_idx=0
    )
