import re
from datetime import UTC, date, datetime, timedelta, timezone

import numpy as np
import pandas as pd
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jointensor.data.expressions import ModeExpression
from jointensor.data.times import SHORT_FORMS, also_day_first, read_times
from jointensor.errors import DataError

AT = datetime(2014, 4, 1, 0, 11)
DAY = datetime(2014, 4, 1)


def times_of(values, **options):
    return read_times(pl.Series("when", values, **options))[0].to_list()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("4/1/2014 0:11:00", AT),
        ("04/01/2014 00:11", AT),
        ("4/1/14 0:11", AT),
        ("4/1/2014 12:11 AM", AT),
        ("4/1/2014 12:11:00 am", AT),
        ("4/1/2014", DAY),
        ("4/1/14", DAY),
        ("2014-04-01", DAY),
        ("2014/04/01", DAY),
        ("2014-04", DAY),
        ("20140401", DAY),
        ("01.04.2014", DAY),
        ("1.4.14", DAY),
        ("04-01-2014", DAY),
        ("1 Apr 2014", DAY),
        ("01-Apr-2014", DAY),
        ("Apr 1, 2014", DAY),
        ("1 April 2014", DAY),
        ("April 1, 2014", DAY),
        ("2014-04-01 00:11:00", AT),
        ("2014-04-01 00:11", AT),
        ("2014-04-01T00:11:00", AT),
        ("2014-04-01T00:11", AT),
        ("2014-04-01T00:11:00Z", AT),
        ("2014-04-01T00:11Z", AT),
        ("2014-04-01T02:11:00+02:00", AT),
        ("2014-03-31T19:11:00-0500", AT),
        ("2014-04-01 00:11:00+00:00", AT),
        ("2014-04-01 00:11:00 UTC", AT),
        ("2014-04-01T00:11:00.5", AT + timedelta(milliseconds=500)),
        ("2014-04-01T02:11:00.250001+02:00", AT + timedelta(microseconds=250_001)),
        ("2014-04-01 00:11:00.123", AT + timedelta(milliseconds=123)),
        ("13/4/2014", datetime(2014, 4, 13)),
        ("13/4/14", datetime(2014, 4, 13)),
        ("13-04-2014", datetime(2014, 4, 13)),
        ("1396311060", AT),
        ("1396311060.5", AT + timedelta(milliseconds=500)),
        ("1396311060000", AT),
        ("1396311060000000", AT),
        ("1396311060000000000", AT),
    ],
)
def test_text_as_people_write_it(text, expected):
    assert times_of([text]) == [expected]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([1396311060], AT),
        ([1396311060000], AT),
        ([1396311060.0], AT),
        ([20140401], DAY),
        ([date(2014, 4, 1)], DAY),
        ([AT], AT),
        ([AT.replace(tzinfo=UTC)], AT),
        ([(AT + timedelta(hours=2)).replace(tzinfo=timezone(timedelta(hours=2)))], AT),
        (pd.to_datetime(["2014-04-01 00:11:00"]), AT),
        (pd.to_datetime(["2014-04-01 02:11:00"]).tz_localize("Europe/Berlin"), AT),
        (np.array(["2014-04-01T00:11"], dtype="datetime64[ms]"), AT),
    ],
)
def test_columns_that_are_numbers_or_times_already(values, expected):
    assert times_of(values) == [expected]


def test_categories_are_read_by_their_text():
    assert times_of(["2014-04-01", "2014-04-02"], dtype=pl.Categorical) == [DAY, DAY + timedelta(days=1)]


@pytest.mark.parametrize(
    ("format_", "written"),
    [
        ("%Y-%m-%d %H:%M:%S%.f", "%Y-%m-%d %H:%M:%S.%f"),
        ("%d.%m.%Y %H:%M:%S%.f", "%d.%m.%Y %H:%M:%S.%f"),
        ("%Y-%m-%dT%H:%M:%S%.f%#z", "%Y-%m-%dT%H:%M:%S.%fZ"),
    ],
)
@settings(max_examples=30, deadline=None)
@given(when=st.lists(st.datetimes(datetime(1900, 1, 1), datetime(2100, 1, 1)), min_size=1, max_size=20))
def test_what_python_writes_is_read_back(format_, written, when):
    column = pl.Series("when", [t.strftime(written) for t in when])
    times, found = read_times(column)
    assert found == format_
    assert times.to_list() == when


@settings(max_examples=30, deadline=None)
@given(st.lists(st.datetimes(datetime(1980, 1, 1), datetime(2100, 1, 1)), min_size=1, max_size=20))
def test_short_forms_agree_with_python(when):
    frame = pl.DataFrame({"t": [t.isoformat(sep=" ", timespec="seconds") for t in when]})
    expected = {
        "day": [t.strftime("%Y-%m-%d") for t in when],
        "week": ["{}-W{:02}".format(*t.isocalendar()[:2]) for t in when],
        "month": [t.strftime("%Y-%m") for t in when],
        "quarter": [f"{t.year}-Q{(t.month + 2) // 3}" for t in when],
        "year": [str(t.year) for t in when],
        "hour": [str(t.hour) for t in when],
        "minute": [str(t.minute) for t in when],
        "weekday": [str(t.isoweekday()) for t in when],
    }
    made = {name: ModeExpression("m", f"{name}(t)").evaluate(frame)[0].to_list() for name in SHORT_FORMS}
    assert made == expected


@pytest.mark.parametrize(("name", "order"), [("day", "ordered"), ("hour", "cyclic"), ("weekday", "cyclic")])
def test_short_forms_know_their_order(name, order):
    assert ModeExpression("m", f"{name}(t)").order == order


def test_month_comes_first_where_both_fit_and_day_first_where_only_that_does():
    assert times_of(["1/2/2014", "3/4/2014"]) == [datetime(2014, 1, 2), datetime(2014, 3, 4)]
    assert times_of(["1/2/2014", "13/4/2014"]) == [datetime(2014, 2, 1), datetime(2014, 4, 13)]


def test_one_row_after_thousands_decides_between_day_and_month():
    column = pl.Series("when", ["1/2/2014"] * 5000 + ["31/1/2014"])
    times, format_ = read_times(column)
    assert format_ == "%d/%m/%Y"
    assert times[0] == datetime(2014, 2, 1)


def test_a_known_format_reads_what_would_be_read_otherwise_alone():
    column = pl.Series("when", ["1/2/2014"])
    assert read_times(column, "%d/%m/%Y")[0].to_list() == [datetime(2014, 2, 1)]
    assert read_times(pl.Series("when", ["20140401"]), "unix s")[0].to_list() == [datetime(1970, 8, 22, 2, 33, 21)]


@pytest.mark.parametrize("known", ["%m/%d/%Y", "unix s", "date", "time"])
def test_another_format_is_looked_for_where_the_known_one_does_not_fit(known):
    assert read_times(pl.Series("when", ["2014-04-01"]), known)[0].to_list() == [DAY]


@pytest.mark.parametrize(
    ("values", "format_", "both"),
    [
        (["1/2/2014"], "%m/%d/%Y", True),
        (["1/13/2014"], "%m/%d/%Y", False),
        (["1-2-2014 10:00"], "%m-%d-%Y %H:%M", True),
        (["2014-01-02"], "%Y-%m-%d", False),
    ],
)
def test_ambiguous_dates_are_noticed(values, format_, both):
    assert also_day_first(pl.Series("when", values), format_) is both


def test_missing_times_stay_missing():
    assert times_of(["2014-04-01", None]) == [DAY, None]
    assert times_of([1396311060.0, float("nan")]) == [AT, None]


@pytest.mark.parametrize(
    ("values", "row", "shown"),
    [
        (["abc"], 1, "abc"),
        ([None, "abc"], 2, "abc"),
        (["2014-04-01", "2014-04-02", "soon"], 3, "soon"),
        (["881250949", "soon"], 2, "soon"),
        (["2014-02-28", "2014-02-30"], 2, "2014-02-30"),
        (["4/1/2014 0:11:00", "4/1/2014 25:00:00"], 2, "4/1/2014 25:00:00"),
        ([True], 1, "True"),
    ],
)
def test_what_is_no_time_is_refused_with_its_row(values, row, shown):
    with pytest.raises(DataError, match=re.escape(f"row {row}: '{shown}' in column 'when' is not a date or time")):
        read_times(pl.Series("when", values))


YEARS = {"a": -62135596801, "b": 253402300800}
"""Unix times one second before the year 1, and at the beginning of the year 10000."""


@pytest.mark.parametrize("second", YEARS.values())
@pytest.mark.parametrize("text", ["t", *(f"{name}(t)" for name in SHORT_FORMS)])
@pytest.mark.parametrize(
    "make",
    [
        lambda second: pl.Series("t", [0, second * 10**3]).cast(pl.Datetime("ms")),
        lambda second: pl.Series("t", [0, second * 10**6]).cast(pl.Datetime("us")),
        lambda second: pl.Series("t", [0, second * 10**6]).cast(pl.Datetime("us", "Asia/Tokyo")),
        lambda second: pl.Series("t", [0, second // 86400], dtype=pl.Int32).cast(pl.Date),
        lambda second: pl.Series("t", [0, second * 10**7]).cast(pl.Datetime("ms")),
    ],
)
def test_dates_out_of_range_name_their_row_and_do_not_panic(make, text, second, capfd):
    with pytest.raises(DataError, match="row 2: the date or time in column 't' is not in the years 1 to 9999"):
        ModeExpression("m", text).evaluate(pl.DataFrame([make(second)]))
    assert not capfd.readouterr().err  # polars writes the trace of a panic before anybody can catch it


@pytest.mark.parametrize("text", [f"{name}(t)" for name in SHORT_FORMS])
@pytest.mark.parametrize("second", [*YEARS.values(), 2**62, -(2**62), 1e300])
def test_unix_times_out_of_range_name_their_row(text, second, capfd):
    for column in (pl.Series("t", ["0", "1", str(second)]), pl.Series("t", [0.0, 1.0, float(second)])):
        with pytest.raises(DataError, match=r"row 3: .* in column 't' is not a date or time that can be read"):
            ModeExpression("m", text, "unix s").evaluate(pl.DataFrame([column]))
    assert not capfd.readouterr().err


def test_the_first_and_the_last_day_of_the_calendar_are_dates():
    days = pl.Series("t", [date(1, 1, 1), date(9999, 12, 31)])
    late = pl.Series("t", [datetime(1, 1, 1), datetime(9999, 12, 31, 23, 59, 59)])
    for column in (days, late):
        labels = ModeExpression("m", "day(t)").evaluate(pl.DataFrame([column]))[0]
        assert [label.lstrip("0+") for label in labels] == ["1-01-01", "9999-12-31"]
