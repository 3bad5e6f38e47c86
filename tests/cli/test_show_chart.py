"""``shh show --chart``: the picture of the whole run as a file, with its axis, its legend and its times."""

import datetime
import zoneinfo
from xml.etree import ElementTree

import pytest

from dp_transforms.views.page import picture
from dp_transforms.views.page.report_columns import report_columns
from tests.helpers.page_reports import STORIES, header_of, hourly_plan, reports_of

pytestmark = pytest.mark.usefixtures("terminal")
PLAN = hourly_plan()


def texts(path):
    """All texts of the picture, through an XML parser."""
    tags = ("}text", "}tspan")
    return [element.text for element in ElementTree.parse(path).getroot().iter() if element.tag.endswith(tags)]


def drawn(reports, plan=PLAN, most_items=40):
    """The items from top to bottom, and the rectangles: item, first and end hour, share, size."""
    columns = report_columns(reports, plan)
    items = picture.largest_items(columns, most_items)
    joined = picture.joined_windows(columns.windows.count, columns.windows.step)
    begin, hour = int(columns.windows.starts.min()), 3_600_000_000
    found = [
        (columns.names[items[row]], (start - begin) / hour, (end - begin) / hour, share, columns.classes[size])
        for row, start, end, share, size in picture.cells(columns, items, joined)
    ]
    return [columns.names[item] for item in items], found


def test_a_chart_has_items_times_a_legend_and_the_guarantee(show, tmp_path):
    path = tmp_path / "chart.svg"
    zone = "Europe/Berlin"
    words = ["--chart", str(path), "--tz", zone]
    out, err, code = show(reports_of(PLAN, STORIES), *words, header=header_of(PLAN))
    assert (err, code) == ("", 0)
    assert out == f"Chart written to {path}.\n"
    found = texts(path)
    assert set(STORIES) <= set(found)
    assert f"start of the window ({zone})" in found
    assert "at least 100 users" in found
    assert "All 4 items." in found
    assert PLAN.guarantee in found
    start = datetime.datetime.fromtimestamp(PLAN.schedule.start_seconds, zoneinfo.ZoneInfo(zone))
    hours = {f"{start + datetime.timedelta(hours=1) * n:%H}:00" for n in range(6)}
    assert hours & set(found)


def test_a_rectangle_stands_where_the_item_was_named_and_says_how_strong():
    items, found = drawn(reports_of(PLAN, STORIES))
    assert items == ["first", "second", "fourth", "third"], "in the order in which they appeared"
    of_200, of_500 = "at least 200 users", "at least 500 users"
    assert [each for each in found if each[0] == "first"] == [
        ("first", 0, 1, 1.0, of_200),
        ("first", 1, 2, 1.0, of_500),
        ("first", 2, 3, 1.0, of_200),
    ]
    assert [each[:3] for each in found if each[0] != "first"] == [
        ("second", 1, 4),  # 60, 60 and 90 users are of one class
        ("fourth", 2, 3),
        ("fourth", 4, 5),
        ("third", 4, 5),
    ]


def test_of_windows_that_share_a_column_the_share_is_shown_and_the_strongest():
    plan = hourly_plan(3000)
    reports = reports_of(plan, {"a": {0: 10, 1: 900, 2: 10}, "b": {2999: 10}, "c": dict.fromkeys(range(48), 10)})
    _, found = drawn(reports, plan)
    assert found == [
        ("c", 0, 48, 1.0, "at least 10 users"),
        ("a", 0, 24, 3 / 24, "at least 500 users"),
        ("b", 2976, 3000, 1 / 24, "at least 10 users"),
    ]
