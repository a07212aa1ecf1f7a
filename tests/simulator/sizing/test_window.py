"""Which part of a workload is judged."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from simulator.request import Segment, SimRequest
from simulator.sizing.window import Cut, find_cut, take


def request(number: int, arrival_us: int, tokens: int = 10) -> SimRequest:
    return SimRequest(
        request_id=f"q{number}",
        segments=(Segment(number + 1, tokens),),
        output_tokens=1,
        output_id=10_000 + number,
        arrival_us=arrival_us,
    )


def test_the_busiest_window_is_that_of_most_tokens_not_of_most_requests() -> None:
    many = [request(n, n * 100) for n in range(10)]
    large = [request(20, 50_000, tokens=5_000), request(21, 50_500)]
    last = [request(30, 100_000)]

    cut = find_cut([*many, *large, *last], warm_up_us=2_000, window_us=1_000, requests_max=100)

    assert cut == Cut(start_us=48_000, warm_up_us=2_000, window_us=1_000)


@given(
    gaps=st.lists(st.integers(0, 5_000), min_size=2, max_size=60),
    window_us=st.integers(2, 100_000),
    warm_up_us=st.integers(0, 50_000),
    requests_max=st.integers(1, 60),
    rate_scale=st.sampled_from([0.5, 1.0, 2.0]),
)
def test_a_cut_lies_in_the_trace_and_has_no_more_requests_than_allowed(
    gaps: list[int], window_us: int, warm_up_us: int, requests_max: int, rate_scale: float
) -> None:
    arrivals, now_us = [], 0
    for gap in gaps:
        arrivals.append(now_us)
        now_us += gap
    requests = [request(n, at) for n, at in enumerate(arrivals)]

    cut = find_cut(requests, warm_up_us, window_us, requests_max, rate_scale)
    window = take(requests, cut, requests_max)

    assert cut.start_us >= 0
    assert cut.window_us <= window_us
    judged = [each for each in window.requests if each.arrival_us >= window.judged_us]
    assert judged
    assert len(window.requests) <= requests_max or cut.window_us < 2
    assert cut.warm_up_us <= window.peak_us <= cut.warm_up_us + cut.window_us // 2


def test_arrivals_of_a_window_count_from_its_start() -> None:
    requests = [request(n, 1_000 * n) for n in range(10)]

    window = take(requests, Cut(4_000, 1_000, 3_000), 100)

    assert [each.request_id for each in window.requests] == ["q4", "q5", "q6", "q7"]
    assert [each.arrival_us for each in window.requests] == [0, 1_000, 2_000, 3_000]
    assert window.judged_us == 1_000


def test_twice_the_rate_brings_twice_the_requests() -> None:
    requests = [request(n, 1_000 * n) for n in range(40)]

    once = take(requests, Cut(0, 0, 10_000), 100)
    twice = take(requests, Cut(0, 0, 10_000, rate_scale=2.0), 100)

    assert (len(once.requests), len(twice.requests)) == (10, 20)


def test_the_peak_is_where_a_tenth_of_the_window_is_busiest_in_its_first_half() -> None:
    calm = [request(n, 1_000 * n) for n in range(100)]
    burst = [request(200 + n, 30_000 + n, tokens=50) for n in range(20)]
    later = [request(300 + n, 90_000 + n, tokens=500) for n in range(20)]
    ordered = sorted([*calm, *burst, *later], key=lambda each: each.arrival_us)

    window = take(ordered, Cut(0, 0, 100_000), 1_000)

    assert 20_000 <= window.peak_us <= 30_000


def test_a_closed_loop_is_cut_at_its_beginning() -> None:
    first = request(0, 0)
    loop = [first, *(replace(request(n, 0), after=f"q{n - 1}") for n in range(1, 30))]

    cut = find_cut(loop, 1_000, 5_000, 10)

    assert cut == Cut(0, 1_000, 5_000)
    assert len(take(loop, cut, 10).requests) == 10
