"""Where a sequence ends, what is refused at the door, and which configs cannot run."""

from dataclasses import replace

import pytest

from replicas.core.scheduler import NeverFitsError
from replicas.core.scheduler_config import Admission, SchedulerConfig
from replicas.core.sequence import FinishReason, Sequence
from tests.replicas.core import drive

CONFIG = SchedulerConfig(
    num_blocks=64, block_size=16, max_num_batched_tokens=8_192, max_num_seqs=16
)


def test_a_stop_token_ends_a_sequence_and_is_part_of_its_output() -> None:
    driven = drive.engine(CONFIG)
    stopping = Sequence("0", [1, 2], 9, drive.ROOT, stop_token_ids=frozenset({1_003}))
    driven.add(stopping, now_us=0)

    drive.run(driven)

    assert stopping.finish_reason is FinishReason.STOP
    assert list(stopping.output_tokens) == [1_002, 1_003]


@pytest.mark.parametrize(
    ("prompt_tokens", "max_tokens", "message"),
    [
        (90, 11, r"90 prompt tokens and 11 output tokens make 101, the context is 100; shorten"),
        (70, 12, r"82 tokens need 6 KV blocks of 16, the engine has 5; shorten the prompt or"),
    ],
)
def test_a_sequence_that_never_fits_is_refused_with_nothing_changed(
    prompt_tokens: int, max_tokens: int, message: str
) -> None:
    driven = drive.engine(replace(CONFIG, num_blocks=6, max_model_len=100))
    before = driven.stats()

    with pytest.raises(NeverFitsError, match=message):
        driven.add(drive.sequence("0", range(prompt_tokens), max_tokens), now_us=0)

    assert driven.stats() == before
    assert driven.plan_step(now_us=0) is None


def test_a_sequence_that_just_fits_is_served_alone() -> None:
    driven = drive.engine(replace(CONFIG, num_blocks=6, max_model_len=100))
    driven.add(drive.sequence("0", range(70), 11), now_us=0)
    driven.add(drive.sequence("1", range(70), 11), now_us=0)

    ended = drive.run(driven)  # 81 tokens, of which the last needs no place: 5 blocks of 16

    assert ended.keys() == {"0", "1"}


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"block_size": 0}, "block_size is 0, must be at least 1"),
        ({"max_num_seqs": 0}, "max_num_seqs is 0, must be at least 1"),
        ({"num_blocks": 1}, "num_blocks is 1, must be at least 2"),
        (
            {"num_blocks": 10, "max_model_len": 160, "admission": Admission.RESERVE},
            "needs 10 blocks for one sequence, num_blocks 10 leaves 9; lower max_model_len",
        ),
    ],
)
def test_a_config_that_cannot_run_is_refused(setting: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(CONFIG, **setting)  # type: ignore[arg-type]  # the name is a parameter


def test_a_pooling_sequence_may_fill_the_whole_context() -> None:
    driven = drive.engine(replace(CONFIG, max_model_len=16))

    driven.add(Sequence("fits", range(16), 1, drive.ROOT, pooling=True), now_us=0)
    with pytest.raises(NeverFitsError):
        driven.add(Sequence("does not", range(17), 1, drive.ROOT, pooling=True), now_us=0)
