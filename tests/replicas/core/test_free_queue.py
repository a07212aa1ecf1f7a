"""The queue of free blocks against the plain one that it stands for: a list with two ends."""

from hypothesis import given, settings
from hypothesis import strategies as st

from replicas.core.free_queue import FreeQueue

NUM_BLOCKS = 9


@settings(deadline=None)
@given(st.data())
def test_it_is_a_list_whose_blank_blocks_come_first(data: st.DataObject) -> None:
    queue = FreeQueue(NUM_BLOCKS)
    plain, cached, held = list(range(1, NUM_BLOCKS)), set[int](), list[int]()
    for _ in range(data.draw(st.integers(0, 60))):
        match data.draw(st.sampled_from(["take", "cache", "blank", "share", "reset"])):
            case "take":
                num_blocks = data.draw(st.integers(0, len(plain)))
                taken, plain = plain[:num_blocks], plain[num_blocks:]
                assert queue.take(num_blocks) == taken
                cached -= {*taken}
                held += taken
            case "cache" if held:
                back = held[: data.draw(st.integers(1, len(held)))]
                held = held[len(back) :]
                queue.put_cached(list(back))
                plain += reversed(back)
                cached |= {*back}
            case "blank" if held:
                block = held.pop()
                queue.put_blank([block])
                plain.insert(0, block)
            case "share" if cached:
                block = data.draw(st.sampled_from(sorted(cached)))
                queue.remove(block)
                plain.remove(block)
                cached.remove(block)
                held.append(block)
            case "reset":
                queue.reset()
                cached.clear()
        queue.check()
        assert queue.blocks() == plain
        assert queue.num_held(range(1, NUM_BLOCKS)) == len(held)


def test_what_is_shared_and_given_back_for_ever_leaves_nothing_behind() -> None:
    queue = FreeQueue(NUM_BLOCKS)
    blocks = queue.take(NUM_BLOCKS - 1)
    queue.put_cached(list(blocks))

    for _ in range(1_000):
        for block in blocks[:4]:
            queue.remove(block)
        queue.put_cached(blocks[:4])

    assert queue.num_places <= 2 * NUM_BLOCKS
    assert queue.blocks() == [8, 7, 6, 5, 4, 3, 2, 1]
