"""Times in words, in any zone and at the ends of the calendar."""

import datetime
import zoneinfo

import pytest

from dp_transforms.views.report_words import local_text

BERLIN = zoneinfo.ZoneInfo("Europe/Berlin")
NOON = round(datetime.datetime(2026, 7, 1, 12, tzinfo=datetime.UTC).timestamp() * 1_000_000)


@pytest.mark.parametrize(
    ("micros", "zone", "text"),
    [
        (NOON, BERLIN, "2026-07-01 14:00"),
        (NOON + 5_000_000, datetime.UTC, "2026-07-01 12:00:05"),
        (NOON + 500_000, datetime.UTC, "2026-07-01 12:00:00.500000"),
        (-62_135_596_800_000_000, BERLIN, None),
        (253_402_300_799_999_999, BERLIN, None),
    ],
)
def test_a_time_has_seconds_in_its_text_only_if_it_has_them(micros, zone, text):
    assert local_text(micros, zone) == text or text is None
