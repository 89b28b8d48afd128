import re
from datetime import datetime

import polars as pl
import pytest

from jointensor.data.expressions import ModeExpression, as_labels
from jointensor.errors import DataError

TABLE = pl.DataFrame(
    {
        "fips": ["01001", "36061"],
        "zip": ["1001", "36061"],
        "Lat": ["40.7690", "40.72674"],
        "n": ["1", "12"],
        "mixed": ["1", "x"],
        "Date/Time": ["4/1/2014 0:11:00", "4/30/2014 23:59:00"],
        "Pick Up": ["2014-04-01", "2014-04-02"],
    }
)


def labels(text, table=TABLE):
    return ModeExpression("m", text).evaluate(table)[0].to_list()


@pytest.mark.parametrize(
    ("text", "name", "expression"),
    [
        ("user", "user", "user"),
        (" user ", "user", "user"),
        ("lat=ROUND(Lat, 3)", "lat", "ROUND(Lat, 3)"),
        ("date = day(Date/Time)", "date", "day(Date/Time)"),
        ("big=n >= 3", "big", "n >= 3"),
    ],
)
def test_parse_names_an_expression(text, name, expression):
    assert ModeExpression.parse(text) == ModeExpression(name, expression)


@pytest.mark.parametrize("text", ["", "=x", "a=", " = "])
def test_parse_refuses_what_has_no_name_or_no_expression(text):
    with pytest.raises(DataError, match=re.escape(f"mode '{text}': write NAME=EXPRESSION")):
        ModeExpression.parse(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("fips", ["01001", "36061"]),
        ("Lat", ["40.7690", "40.72674"]),
        ("Date/Time", ["4/1/2014 0:11:00", "4/30/2014 23:59:00"]),
        ("Pick Up", ["2014-04-01", "2014-04-02"]),
        ("ROUND(Lat, 3)", ["40.769", "40.727"]),
        ("ROUND(Lat, 0)", ["41", "41"]),
        ("FLOOR(Lat)", ["40", "40"]),
        ("n + 1", ["2", "13"]),
        ("n * 0.5", ["0.5", "6"]),
        ("CASE WHEN n > 9 THEN 'many' ELSE 'few' END", ["few", "many"]),
        ("SUBSTR(fips, 1, 2)", ["01", "36"]),
        ("LEFT(zip, 2)", ["10", "36"]),
        ("fips || '-' || n", ["01001-1", "36061-12"]),
        ("UPPER(mixed)", ["1", "X"]),
        ("\"Pick Up\" || '!'", ["2014-04-01!", "2014-04-02!"]),
        ("day(Date/Time)", ["2014-04-01", "2014-04-30"]),
        ('day("Date/Time")', ["2014-04-01", "2014-04-30"]),
        ("HOUR( Date/Time )", ["0", "23"]),
        ("weekday(Pick Up)", ["2", "3"]),
    ],
)
def test_labels_of_columns_short_forms_and_sql(text, expected):
    assert labels(text) == expected


def test_a_column_named_like_a_short_form_wins():
    table = pl.DataFrame({"day(x)": ["a"], "x": ["2014-04-01"]})
    assert labels("day(x)", table) == ["a"]


@pytest.mark.parametrize(
    ("text", "columns"),
    [
        ("user", ["user"]),
        ("day(Date/Time)", ["Date/Time"]),
        ("ROUND(Lat, 3)", ["Lat"]),
        ("a + b * a", ["a", "b"]),
        ("no sql (", ["no sql ("]),
    ],
)
def test_columns_that_an_expression_reads(text, columns):
    assert ModeExpression("m", text).columns() == columns


def test_columns_may_be_words_of_sql():
    table = pl.DataFrame({"user": ["10", "25"], "date": ["a", "b"], "value": ["user", "x"]})
    assert labels("user || '-user-' || date", table) == ["10-user-a", "25-user-b"]
    assert ModeExpression("m", "user || date").columns(table.columns) == ["user", "date"]


def test_format_is_found_once_and_reused():
    training = pl.DataFrame({"t": ["1/2/2014", "13/2/2014"]})
    _, resolved, notes = ModeExpression("d", "day(t)").evaluate(training)
    assert resolved.format == "%d/%m/%Y"
    assert notes == []
    assert resolved.evaluate(pl.DataFrame({"t": ["1/2/2014"]}))[0].to_list() == ["2014-02-01"]
    assert ModeExpression("d", "day(t)").evaluate(pl.DataFrame({"t": ["1/2/2014"]}))[0].to_list() == ["2014-01-02"]


def test_ambiguous_dates_come_with_a_note_but_only_once():
    _, resolved, notes = ModeExpression("d", "day(t)").evaluate(pl.DataFrame({"t": ["1/2/2014"]}))
    assert len(notes) == 1
    assert "column 't' was read month first" in notes[0]
    assert resolved.evaluate(pl.DataFrame({"t": ["1/2/2014"]}))[2] == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("ROUND(nope, 1)", 'unable to find column "nope"'),
        ("day(nope)", "there is no column 'nope'; the columns are fips, zip, Lat"),
        ("ROUND(", "nor an expression that can be evaluated"),
        ("a b c", "nor an expression that can be evaluated"),
        ("SELECT 1", "nor an expression that can be evaluated"),
        ("'abc", "nor an expression that can be evaluated"),
        ("n, Lat", "nor an expression that can be evaluated"),
        ("foo(n)", "unsupported function 'foo'"),
        ("n; DROP TABLE x", "nor an expression that can be evaluated"),
        ("*", "nor an expression that can be evaluated"),
        ("\0", "nor an expression that can be evaluated"),
        ("ROUND(mixed, 1)", "row 2: 'x' in column 'mixed' is not a number"),
        ("MAX(Lat)", "unsupported function 'max'; a label is made of its own row"),
        ("Lat - AVG(Lat)", "unsupported function 'avg'"),
        ("RANK() OVER (ORDER BY n)", "unsupported function 'over'"),
        ("5", "gives 1 labels for 2 rows"),
        ("day(mixed)", "row 2: 'x' in column 'mixed' is not a date"),
    ],
)
def test_bad_expressions_are_refused_in_one_line(text, message):
    with pytest.raises(DataError, match=re.escape(message)) as caught:
        labels(text)
    assert "\n" not in str(caught.value)


def test_absent_column_is_named_with_those_there_are():
    with pytest.raises(DataError, match="mode 'user': there is no column 'user'; the columns are fips"):
        ModeExpression.parse("user").evaluate(TABLE)


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        (pl.Series([1, 20]), ["1", "20"]),
        (pl.Series([1.0, 2.5, -0.0, 1e20]), ["1", "2.5", "0", "1e+20"]),
        (pl.Series([0.1], dtype=pl.Float32), ["0.1"]),
        (pl.Series([float("nan"), float("inf"), None, 1.0]), [None, None, None, "1"]),
        (pl.Series([True, False]), ["true", "false"]),
        (pl.Series(["b", "a"], dtype=pl.Categorical), ["b", "a"]),
        (pl.Series([datetime(2014, 4, 1).date()]), ["2014-04-01"]),
        (pl.Series([datetime(2014, 4, 1, 0, 11)], dtype=pl.Datetime("us")), ["2014-04-01 00:11:00"]),
        (pl.Series([datetime(2014, 4, 1, 0, 11)], dtype=pl.Datetime("ns")), ["2014-04-01 00:11:00"]),
        (pl.Series([2**60]), [str(2**60)]),
    ],
)
def test_columns_become_label_text(column, expected):
    assert as_labels(column).to_list() == expected


@pytest.mark.parametrize("column", [pl.Series("c", [[1]]), pl.Series("c", [{"a": 1}]), pl.Series("c", [b"\xff"])])
def test_columns_without_text_are_refused(column):
    with pytest.raises(DataError, match=r"column 'c' of type .* cannot be used as labels"):
        as_labels(column)
