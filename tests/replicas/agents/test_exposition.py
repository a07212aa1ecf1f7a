"""Pages in Prometheus' text format: what is wanted is read exactly, what is not cannot hurt."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replicas.agents.engines.exposition import MetricsPageError, Sample, names_on, read_page

LABEL_NAMES = st.from_regex(r"[a-z_][a-z0-9_]{0,5}", fullmatch=True)
LABEL_VALUES = st.text(st.characters(codec="utf-8"), max_size=8)
VALUES = st.floats(allow_nan=False, allow_infinity=False)
OTHER_LINES = st.text(st.characters(exclude_characters="\n", codec="utf-8"))


def escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


@given(st.lists(st.tuples(st.dictionaries(LABEL_NAMES, LABEL_VALUES, max_size=3), VALUES)))
def test_every_series_is_read_as_it_was_written(series: list[tuple[dict[str, str], float]]) -> None:
    lines = ["# HELP wanted a metric", "# TYPE wanted gauge"]
    for labels, value in series:
        inner = ",".join(f'{name}="{escaped(text)}"' for name, text in labels.items())
        lines.append(f"wanted{{{inner}}} {value!r}" if labels else f"wanted {value!r}")

    samples = read_page("\n".join(lines), {"wanted"})

    assert samples.of("wanted") == [Sample(labels, value) for labels, value in series]


@given(st.lists(OTHER_LINES))
def test_nothing_that_is_not_wanted_can_be_wrong(lines: list[str]) -> None:
    page = "\n".join([*(f"x{line}" for line in lines), "wanted 3"])

    assert read_page(page, {"wanted"}).total("wanted") == 3
    names_on(page)


@pytest.mark.parametrize(
    "line",
    [
        "wanted",
        "wanted x",
        "wanted{",
        'wanted{a="b} 1',
        "wanted{a=b} 1",
        "wanted 1 2 3",
        "wanted {",
    ],
)
def test_a_wanted_line_that_cannot_be_read_is_named(line: str) -> None:
    with pytest.raises(MetricsPageError, match="line 2 of the metrics page") as error:
        read_page(f"other 1\n{line}", {"wanted"})

    assert repr(line) in str(error.value)


@pytest.mark.parametrize(
    "line",
    [
        "wanted 7",
        "wanted\t7",
        "wanted 7 1700000000000",
        "wanted{} 7",
        'wanted{a="b",} 7.0\r',
        'wanted{ a = "}" , b="{ \\" }" } 7e0',
    ],
)
def test_lenient_where_exporters_differ(line: str) -> None:
    assert read_page(line, {"wanted"}).count("wanted") == 7


@pytest.mark.parametrize("value", ["NaN", "+Inf", "-1"])
def test_a_value_that_cannot_be_is_unknown_and_so_is_a_sum_with_it(value: str) -> None:
    samples = read_page(f'wanted{{rank="0"}} 4\nwanted{{rank="1"}} {value}', {"wanted"})

    assert samples.total("wanted") is None


def test_the_first_name_that_is_on_the_page_counts() -> None:
    samples = read_page("old 1\nnew 2", {"old", "new"})

    assert samples.total("new", "old") == 2
    assert samples.total("newest", "old") == 1
    assert samples.total("newest") is None


def test_copies_of_a_series_count_once() -> None:
    page = "\n".join(
        f'wanted{{dp_rank="{dp}",tp_rank="{tp}"}} {10 + dp}' for dp in range(2) for tp in range(4)
    )

    assert read_page(page, {"wanted"}).count("wanted", copies=("tp_rank",)) == 10 + 11
