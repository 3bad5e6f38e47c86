"""Times in a time zone: ticks at round local times, also where the clock is put forward or back."""

import datetime
import zoneinfo

import pytest

from dp_transforms.views.report_words import local_text
from tests.helpers.time_axis import ticks

BERLIN = zoneinfo.ZoneInfo("Europe/Berlin")
UTC = datetime.UTC


def micros(*when, zone=UTC, fold=0):
    return round(datetime.datetime(*when, tzinfo=zone, fold=fold).timestamp() * 1_000_000)


@pytest.mark.parametrize(
    ("start", "end", "first", "count"),
    [
        ((2026, 1, 1, 0, 0, 0), (2026, 1, 1, 0, 0, 8), "1 Jan", 9),
        ((2026, 1, 1, 0, 2), (2026, 1, 1, 0, 40), "00:05", 8),
        ((2026, 1, 1, 5), (2026, 1, 2, 5), "06:00", 8),
        ((2026, 1, 1, 5), (2026, 1, 17, 5), "3 Jan", 8),
        ((2026, 1, 1), (2027, 1, 1), "", None),
        ((1900, 1, 1), (2026, 1, 1), "", None),
    ],
)
def test_a_range_has_a_few_ticks_at_round_times(start, end, first, count):
    found = ticks(micros(*start), micros(*end), UTC)
    assert 2 <= len(found) <= 10
    assert [place for place, _ in found] == sorted({place for place, _ in found})
    assert all(micros(*start) <= place <= micros(*end) for place, _ in found)
    if count is not None:
        assert (found[0][1], len(found)) == (first, count)


def test_days_begin_at_local_midnight_before_and_after_the_clock_changes():
    found = ticks(micros(2026, 10, 22, zone=BERLIN), micros(2026, 10, 28, 12, zone=BERLIN), BERLIN)
    assert found == [(micros(2026, 10, day, zone=BERLIN), f"{day} Oct") for day in range(22, 29)]
    assert found[4][0] - found[3][0] == 25 * 3_600_000_000


def test_hours_around_a_change_of_the_clock_stand_where_the_clock_shows_them():
    found = ticks(micros(2026, 3, 28, 22, zone=BERLIN), micros(2026, 3, 29, 6, zone=BERLIN), BERLIN)
    by_text = {text: place for place, text in found}
    assert by_text["01:00"] == micros(2026, 3, 29, 0, 0)
    assert by_text["03:00"] == micros(2026, 3, 29, 1, 0)


def test_a_time_is_written_with_seconds_only_if_it_has_them():
    assert local_text(micros(2026, 7, 1, 12), BERLIN) == "2026-07-01 14:00"
    assert local_text(micros(2026, 7, 1, 12, 0, 5), UTC) == "2026-07-01 12:00:05"
    assert local_text(micros(2026, 7, 1) + 500_000, UTC) == "2026-07-01 00:00:00.500000"


@pytest.mark.parametrize("edge", [-62_135_596_800_000_000, 253_402_300_799_999_999])
def test_the_ends_of_the_calendar_are_no_fault(edge):
    assert local_text(edge, BERLIN)
    step = 3_600_000_000 * (1 if edge < 0 else -1)
    ticks(min(edge, edge + step), max(edge, edge + step), BERLIN)
    ticks(-62_135_596_800_000_000, 253_402_300_799_999_999, zoneinfo.ZoneInfo("Pacific/Kiritimati"))
