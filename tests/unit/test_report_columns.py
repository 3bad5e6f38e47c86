"""Reports of names are checked column by column: with the same result as one heavy hitter after the other."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dp_transforms.monitor.window_report import HeavyHitter, WindowReport
from dp_transforms.reports import ReportFileError, records
from dp_transforms.reports.records import check_report, checked_report, json_bytes

LONG = (1 << 63) - 1
ITEM = st.text(max_size=6) | st.sampled_from(['"\\', "\n\x00é\u2028", "\ud800", "\udc00", None, 7, b"x"])
NUMBER = st.sampled_from([0, 1, 2, LONG, LONG + 1, -1, True, 1.5, None, "1"])
USUAL = st.fixed_dictionaries(
    {
        "item": st.text(max_size=6),
        "zone": st.none(),
        "noisy_count": st.none(),
        "level": st.integers(1, 3),
        "at_least_users": st.integers(0, 3),
    }
)
UNUSUAL = st.fixed_dictionaries(
    {
        "item": ITEM,
        "zone": st.sampled_from([None, "above", "between", "x"]),
        "noisy_count": st.none() | NUMBER,
        "level": NUMBER,
        "at_least_users": NUMBER,
    }
)
OTHER_KEYS = st.dictionaries(st.sampled_from(["item", "zone", "noisy_count", "level", "users"]), st.none(), max_size=5)
ENTRIES = st.lists(USUAL, max_size=4) | st.lists(USUAL | UNUSUAL | OTHER_KEYS | st.none(), max_size=4)


def fields(entries: list) -> dict:
    return {
        "stream": "s",
        "window_start": 0,
        "window_end": 1,
        "heavy_hitters": entries,
        "epsilon_total": 1.0,
        "delta": 0.1,
        "epsilon_spent": 1.0,
    }


def outcome(entries: list) -> tuple[object, ...]:
    try:
        report = check_report(fields(entries))
    except ReportFileError as error:
        return ("refused", str(error))
    return ("taken", report, [list(map(type, entry)) for entry in report.heavy_hitters])


ABOVE = {"item": "other", "zone": "above", "noisy_count": None, "level": None, "at_least_users": None}


@given(entries=ENTRIES)
def test_columns_say_what_single_entries_say(entries: list) -> None:
    """Beside an entry of another mode each is looked at by itself."""
    found, one_by_one = outcome(entries), outcome([*entries, ABOVE])
    if one_by_one[0] == "taken":
        _, report, types = one_by_one
        one_by_one = ("taken", report._replace(heavy_hitters=report.heavy_hitters[:-1]), types[:-1])
    assert found == one_by_one


@given(entries=st.lists(USUAL, min_size=1, max_size=5))
def test_names_are_checked_by_column_and_measured_alike(entries: list) -> None:
    """Else the test above would compare a thing with itself."""
    found = records._of_names(entries, json_bytes)
    assert found is not None
    assert found == records._of_names(entries, lambda text: json_bytes(text))
    assert found[1] >= sum(json_bytes(entry["item"]) for entry in entries)


def test_a_named_tuple_of_another_make_is_checked_as_ever() -> None:
    """Beam makes its own types from a schema; and a heavy hitter of ours may hold anything."""
    report = WindowReport("s", 0, 1, [HeavyHitter("a", None, None, 1, 5)], 1.0, 0.1, 1.0)
    assert checked_report(report) == report
    for wrong in (
        HeavyHitter("a", "above", None, 1, 5),
        HeavyHitter("a", None, None, 0, 5),
        HeavyHitter(5, None, None),
    ):
        with pytest.raises(ReportFileError):
            checked_report(report._replace(heavy_hitters=[HeavyHitter("b", None, None, 2, 9), wrong]))
