"""The order of use against a plain list, over several segments."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from router.core.use_order import SEGMENT_PARTS, UseOrder


class Ordered(RuleBasedStateMachine):
    """Parts are put in, used again, changed and taken out; the list has them oldest first."""

    def __init__(self) -> None:
        super().__init__()
        self.order = UseOrder()
        self.numbers: list[int] = []
        self.parts: dict[int, bytes] = {}
        self.now_us = 0

    @rule(count=st.sampled_from([1, 7, SEGMENT_PARTS]))
    def put_in(self, count: int) -> None:
        for _ in range(count):
            self.now_us += 1
            number = self.order.append(b"%d" % self.now_us, self.now_us)
            self.numbers.append(number)
            self.parts[number] = b"%d" % self.now_us

    @rule(data=st.data())
    def change(self, data: st.DataObject) -> None:
        if self.numbers:
            number = data.draw(st.sampled_from(self.numbers))
            self.parts[number] = b"changed"
            self.order.put(number, b"changed")

    @rule(data=st.data(), stride=st.sampled_from([1, 2, 5]))
    def take_out(self, data: st.DataObject, stride: int) -> None:
        if self.numbers:
            begin = data.draw(st.integers(0, len(self.numbers) - 1))
            for number in self.numbers[begin::stride]:
                assert self.order.remove(number) == self.parts.pop(number)
            del self.numbers[begin::stride]

    @invariant()
    def they_stand_in_the_order_of_the_list(self) -> None:
        assert list(self.order) == [self.parts[number] for number in self.numbers]
        assert len(self.order) == len(self.numbers)
        assert len(self.order._segments) <= len(self.numbers)  # nothing is left of what is gone
        assert self.order.oldest() == (self.numbers[0] if self.numbers else None)
        for number in self.numbers[:3]:
            assert self.order[number] == self.parts[number]
            assert self.order.used_us(number) <= self.now_us


TestOrdered = Ordered.TestCase
TestOrdered.settings = settings(max_examples=25)
