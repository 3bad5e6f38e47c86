"""``shh show --chart``: the chart of the page as a file, with its axis, its legend and its times."""

from __future__ import annotations

import datetime
import zoneinfo
from xml.etree import ElementTree

import pytest

from dp_transforms.monitor.window_report import ABOVE, BETWEEN, HeavyHitter
from dp_transforms.views.page import picture
from dp_transforms.views.page.report_columns import report_columns
from tests.cli.shown_reports import LABELS, NAMES_HEADER, report
from tests.helpers.page_reports import STORIES, header_of, hourly_plan, reports_of

pytestmark = pytest.mark.usefixtures("terminal")
PLAN = hourly_plan()


@pytest.fixture(autouse=True)
def _library():
    pytest.importorskip("vl_convert", reason="the extra charts is missing")


def texts(path):
    """All texts of the picture, through an XML parser."""
    tags = ("}text", "}tspan")
    return [element.text for element in ElementTree.parse(path).getroot().iter() if element.tag.endswith(tags)]


def specification(reports, plan=PLAN, zone=datetime.UTC, most_items=40):
    return picture.chart_specification(report_columns(reports, plan), "Title", "Promise.", zone, most_items)


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


@pytest.mark.parametrize(("ending", "begin"), [("png", b"\x89PNG"), ("pdf", b"%PDF")])
def test_a_chart_can_be_a_picture_of_points_or_a_document(show, tmp_path, ending, begin):
    path = tmp_path / f"chart.{ending}"
    assert show(LABELS, "--chart", str(path))[1:] == ("", 0)
    assert path.read_bytes().startswith(begin)


def test_without_all_the_longest_lived_items_are_drawn_and_the_others_counted(show, tmp_path):
    held = {f"item {number:03}": dict.fromkeys(range(1 + number % 7), 50) for number in range(90)}
    few, whole = tmp_path / "few.svg", tmp_path / "whole.svg"
    reports = reports_of(PLAN, held)
    assert show(reports, "--chart", str(few), header=header_of(PLAN))[2] == 0
    assert show(reports, "--all", "--chart", str(whole), header=header_of(PLAN))[2] == 0
    assert len(set(held) & set(texts(few))) == 40
    assert "The 40 items that were heavy in most windows; 50 more are not drawn." in texts(few)
    assert set(held) <= set(texts(whole))
    drawn = specification(reports)["layer"][0]["encoding"]["y"]["scale"]["domain"]
    assert min(len(held[item]) for item in drawn) >= max(len(held[item]) for item in set(held) - set(drawn))


def test_a_rectangle_stands_where_the_item_was_named_and_says_how_strong():
    cells = specification(reports_of(PLAN, STORIES))["data"]["values"]
    begin, hour = PLAN.schedule.start_seconds * 1000, 3_600_000
    placed = [(cell["name"], (cell["start"] - begin) / hour, (cell["end"] - begin) / hour) for cell in cells]
    assert sorted(place for place in placed if place[0] != "first") == [
        ("fourth", 2, 3),
        ("fourth", 4, 5),
        ("second", 1, 4),  # 60, 60 and 90 users are of one class
        ("third", 4, 5),
    ]
    strong = {cell["start"]: cell["size"] for cell in cells if cell["name"] == "first"}
    assert strong == {
        begin: "at least 200 users",
        begin + hour: "at least 500 users",
        begin + 2 * hour: "at least 200 users",
    }


def test_items_stand_in_the_order_in_which_they_appeared():
    domain = specification(reports_of(PLAN, STORIES))["layer"][0]["encoding"]["y"]["scale"]["domain"]
    assert domain == ["first", "second", "fourth", "third"]


def test_of_windows_that_share_a_column_the_strongest_is_shown():
    plan = hourly_plan(3000)
    reports = reports_of(plan, {"a": {0: 10, 1: 900, 2: 10}, "b": {2999: 10}})
    cells = specification(reports, plan)["data"]["values"]
    ((start, end, size),) = [(cell["start"], cell["end"], cell["size"]) for cell in cells if cell["name"] == "a"]
    assert (start, end) == (plan.schedule.start_seconds * 1000, plan.schedule.start_seconds * 1000 + 4 * 3_600_000)
    assert size == "at least 500 users"


def test_windows_that_are_listed_have_their_own_rectangles():
    rows = [report(w, HeavyHitter("a", ABOVE, None), HeavyHitter("b", BETWEEN, 5)) for w in (0, 1, 99)]
    cells = specification(rows, None)["data"]["values"]
    assert [(cell["name"], cell["end"] - cell["start"]) for cell in cells] == [("a", 3_600_000)] * 3 + [
        ("b", 3_600_000)
    ] * 3
    assert {cell["size"] for cell in cells} == {"far above the threshold", "near the threshold"}


def test_a_chart_overwrites_nothing_and_may_be_empty(show, tmp_path):
    path = tmp_path / "chart.svg"
    assert show([], "--chart", str(path), header=NAMES_HEADER)[1:] == ("", 0)
    before = path.read_bytes()
    assert "exists. Replace it with --force" in show(LABELS, "--chart", str(path))[1]
    assert path.read_bytes() == before
    assert show(LABELS, "--chart", str(tmp_path / "none" / "chart.svg"))[2] == 1


def test_without_the_extra_the_command_says_what_to_install(show, tmp_path, monkeypatch):
    monkeypatch.setattr(picture.importlib.util, "find_spec", lambda name: None)
    _, err, code = show(LABELS, "--chart", str(tmp_path / "chart.svg"))
    assert code == 1
    assert "pip install '.[charts]', with the same after pipx install or uv tool install. Or use --html" in err


def test_page_and_picture_draw_with_one_version():
    import vl_convert

    package = picture._SPECIFICATION.parents[1] / "library" / "package.json"
    assert f'"vega": "{vl_convert.get_vega_version()}"' in package.read_text()
    assert f'"vega-lite": "{picture.VEGA_LITE}.' in package.read_text()
