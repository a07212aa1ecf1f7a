"""Rows of traces: what is wrong is named by file, line, field, found and expected."""

from collections.abc import Callable

import pytest

from simulator.workload.rows import Row, TraceError, TraceFile, csv_rows, json_rows


def row(**values: object) -> Row:
    return Row("a.jsonl", 7, values)


@pytest.mark.parametrize(
    ("read", "message"),
    [
        (lambda: row(n=0).tokens("n"), "a.jsonl line 7: n is 0, expected a whole number from 1"),
        (lambda: row(n="1.5").tokens("n"), "n is '1.5', expected a whole number"),
        (lambda: row(n=True).tokens("n"), "n is True, expected a whole number"),
        (lambda: row(n="-3").tokens("n"), "n is '-3', expected a whole number"),
        (lambda: row(n=10**9).tokens("n"), "n is 1000000000, expected a whole number from 1 to"),
        (lambda: row(n=5).tokens("m"), "a.jsonl line 7: no field m, expected one; found n"),
        (lambda: row(t=-1).number("t"), "t is -1, expected a number from 0"),
        (lambda: row(t="nan").number("t"), "t is 'nan', expected a number"),
        (lambda: row(t=None).number("t"), "t is None, expected a number"),
        (lambda: row(t=1e30).number("t"), "t is 1e\\+30, expected a number from 0 to"),
        (lambda: row(ids=[1, "2"]).ids("ids"), "ids is .*, expected a list of whole numbers"),
        (lambda: row(ids=3).ids("ids"), "ids is 3, expected a list"),
        (lambda: row(at="noon").moment_us("at"), "at is 'noon', expected a date and time"),
        (lambda: row(at=5).moment_us("at"), "at is 5, expected a date and time"),
    ],
)
def test_a_bad_field_is_named_with_what_was_expected(
    read: Callable[[], object], message: str
) -> None:
    with pytest.raises(TraceError, match=message):
        read()


def test_a_long_value_is_shown_by_its_beginning() -> None:
    with pytest.raises(TraceError, match=r"ids is '1{59}\.\.\., expected"):
        row(ids="1" * 1_000).ids("ids")


def test_numbers_are_read_from_json_and_from_text() -> None:
    assert row(n=3).tokens("n") == row(n=" 3 ").tokens("n") == 3
    assert row(t=1.5).number("t") == row(t="1.5").number("t") == 1.5


def test_moments_count_from_1970_and_keep_their_microseconds() -> None:
    assert row(at="1970-01-01 00:00:01.0000025").moment_us("at") == 1_000_002
    assert row(at="1970-01-01T01:00:00+01:00").moment_us("at") == 0


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "a.jsonl line 2: '{' is not JSON"),
        ("[1]", "a.jsonl line 2: found '\\[1\\]', expected an object"),
    ],
)
def test_a_line_that_is_no_object_is_named(line: str, message: str) -> None:
    file = TraceFile("a.jsonl", ["", line])

    with pytest.raises(TraceError, match=message):
        list(json_rows(file))


def test_a_missing_column_is_named_with_those_that_are_there() -> None:
    with pytest.raises(TraceError, match="line 1: found columns a, b; expected also c"):
        list(csv_rows(TraceFile("a.csv", ["a,b", "1,2"]), ("a", "c")))


def test_a_row_of_another_width_is_named_by_its_line() -> None:
    with pytest.raises(TraceError, match="line 3: found 1 fields, expected 2: a, b"):
        list(csv_rows(TraceFile("a.csv", ["a,b", "1,2", "3"]), ("a",)))


def test_an_empty_csv_has_no_columns() -> None:
    with pytest.raises(TraceError, match="found columns none; expected also a"):
        list(csv_rows(TraceFile("a.csv", []), ("a",)))
