"""Gaps between tokens, by example; that they are those of stepping is checked in test_leaping."""

from replicas.core.token_gaps import TokenGaps


def test_a_step_is_one_gap_for_each_that_decodes_in_it() -> None:
    gaps = TokenGaps()
    gaps.note_steps((100,), 0)
    gaps.note_token("a")
    gaps.note_token("b")

    gaps.note_steps(range(110, 131, 10), 2)
    gaps.note_steps([145, 150], 2)
    gaps.note_whole("a")
    gaps.note_whole("b")

    assert gaps.take() == {10: 6, 15: 2, 5: 2}
    assert gaps.take() == {}


def test_an_answer_that_is_dropped_takes_its_gaps_with_it() -> None:
    gaps = TokenGaps()
    gaps.note_steps((100,), 0)
    gaps.note_token("stays")
    gaps.note_steps([107, 120], 1)
    gaps.note_token("leaves")
    gaps.note_steps([123, 130], 2)

    gaps.drop("leaves")
    gaps.note_whole("stays")

    assert gaps.take() == {7: 2, 13: 1, 3: 1}


def test_a_pause_is_one_gap_and_is_dropped_as_one() -> None:
    for is_whole in (True, False):
        gaps = TokenGaps()
        gaps.note_steps((100,), 0)
        gaps.note_token("a")
        gaps.note_steps((110,), 1)
        gaps.note_pause("a")
        gaps.note_steps([200, 300], 0)
        gaps.note_token("a")
        gaps.note_steps((305,), 1)

        (gaps.note_whole if is_whole else gaps.drop)("a")

        assert gaps.take() == ({10: 1, 190: 1, 5: 1} if is_whole else {})


def test_what_no_live_answer_has_lived_through_is_forgotten() -> None:
    gaps = TokenGaps()
    for step in range(1, 5_000):
        gaps.note_steps((10 * step,), int(step > 1))
        if step == 4_990:
            gaps.note_whole("early")
            gaps.note_token("late")
        elif step == 1:
            gaps.note_token("early")
    kept_while_live = gaps.num_runs

    for step in range(5_000, 10_000):
        gaps.note_steps((10 * step,), 1)
        if step == 7_000:
            gaps.note_token("last")
            gaps.note_whole("late")

    assert kept_while_live >= 4_989
    assert gaps.num_runs <= 6_000
