"""What a live page is told: each window once, in a message that makes of the page what a new page would be."""

import dataclasses
import datetime
import gzip
import json

import pytest

from dp_transforms.errors import UserError
from dp_transforms.monitor.window_report import HeavyHitter, RunEnded
from dp_transforms.reports import write_report_file
from dp_transforms.reports.report_folder import ReportFolder
from dp_transforms.views.page.report_columns import plan_of, report_columns
from dp_transforms.views.serving.live_report import LiveReport
from dp_transforms.views.serving.report_source import FileSource, Found, source_of
from tests.helpers.page_reports import STORIES, header_of, hourly_plan, reports_of
from tests.helpers.pages import Page, told

PLAN = hourly_plan(400)
HEADER = header_of(PLAN)
WITHOUT_PLAN = dataclasses.replace(HEADER, plan={})
MANY = reports_of(PLAN, {f"item-{number}": {w: 5 * w + number for w in range(number, 400, 3)} for number in range(3)})


class Given:
    """A source that finds what it is given."""

    def __init__(self, *found):
        self.found = list(found)

    def poll(self):
        first = self.found.pop(0) if self.found else None
        if isinstance(first, UserError):
            raise first
        return first


def first(reports, header=HEADER):
    return Found(header, reports, None, True)


def more(reports, header=HEADER):
    return Found(header, reports, None, False)


def live(*found, most_windows=10_000):
    return LiveReport(Given(*found), datetime.UTC, {"item-1": "The <first>"}, most_windows)


def messages(report, after=0):
    found = []
    for each in report.view.messages[after - report.view.first :]:
        event_id, kind, data = each.decode().rstrip("\n").split("\n")
        assert kind == "event: window"
        found.append({"id": event_id.removeprefix("id: "), **json.loads(data.removeprefix("data: "))})
    return found


def shown(report):
    """(start, end, label, words) of the page and of the messages after it."""
    page = Page(report.view.page.decode())
    later = {
        (each["start"], each["end"], label, text)
        for each in messages(report, report.view.shown)
        for label, _, text, _ in each["entries"]
    }
    return told(page.data["columns"]) | later


def expected(reports):
    return told(report_columns(reports, PLAN).as_json())


@pytest.mark.parametrize("header", [HEADER, WITHOUT_PLAN], ids=["on the grid of a plan", "without a plan"])
@pytest.mark.parametrize("at_once", [1, 7, 200])
def test_page_and_messages_together_tell_all_windows(header, at_once):
    later = [more(MANY[begin : begin + at_once], header) for begin in range(4, 400, at_once)]
    report = live(first(MANY[:4], header), *later)
    epoch = report.view.epoch
    for _ in later:
        assert report.poll()
    assert not report.poll()
    assert shown(report) == expected(MANY)
    assert report.view.epoch == epoch, "no page that was open had to load again"
    assert report.view.last == 396
    assert [each["id"] for each in messages(report, report.view.first)] == [
        f"{epoch}.{number}" for number in range(report.view.first + 1, 397)
    ]


def test_a_message_names_sizes_as_a_new_page_would():
    report = live(first(MANY[:40]), more(MANY[40:60]), more(MANY[60:65]))
    assert report.poll()
    assert report.poll()
    whole = report_columns(MANY[:65], plan_of(HEADER))
    last = messages(report)[-1]
    assert last["classes"] == whole.classes
    sizes = {state.text: state.size_class for state in whole.states}
    for _, _, text, strength in last["entries"]:
        assert sum(bound <= strength for bound in last["bounds"]) == sizes[text]
    assert last["strength"] == "users, at least"
    assert {tuple(entry[:2]) for entry in last["entries"]} <= {
        ("item-0", ""),
        ("item-1", "The <first>"),
        ("item-2", ""),
    }


def test_the_page_is_made_anew_a_tenth_later_and_what_came_since_stays_for_others():
    report = live(first(MANY[:300]), *(more([each]) for each in MANY[300:]))
    pages = {report.view.page}
    for _ in range(100):
        report.poll()
        pages.add(report.view.page)
        assert report.view.last - report.view.shown < 40
        assert report.view.number_of(f"{report.view.epoch}.{report.view.shown}") == report.view.shown
    assert len(pages) == 3
    assert report.view.first == 32, "those of the page before are kept, and older ones are not"
    assert gzip.decompress(report.view.packed) == report.view.page


def test_a_new_page_and_the_sentences_of_an_old_one_say_the_same():
    report = live(first(MANY[:10]), more(MANY[10:30]))
    report.poll()
    whole = live(first(MANY[:30]))
    assert report.view.status == whole.view.status == messages(report)[-1]["summary"]
    assert "3 items were named in 30 windows" in report.view.status


def test_windows_without_an_item_are_not_counted():
    report = live(first(MANY[:10]), more(MANY[20:30]))
    report.poll()
    assert report.view.status == live(first([*MANY[:10], *MANY[20:30]])).view.status
    assert "3 items were named in 20 windows" in report.view.status
    assert "has 400 windows" in report.view.status


def off_grid(report):
    return report._replace(window_start=report.window_start + 1)


LONG = "x" * 90
UNFIT = {
    "earlier than all": ([MANY[5]], [MANY[2]]),
    "off the grid": ([MANY[5]], [off_grid(MANY[7])]),
    "the first": ([], [MANY[0]]),
    "another stream": ([MANY[5]], [MANY[6]._replace(stream="other")]),
    "a label that looks like another": (
        [MANY[5]._replace(heavy_hitters=[HeavyHitter(LONG + "a", None, None, 1, 9)])],
        [MANY[6]._replace(heavy_hitters=[HeavyHitter(LONG + "b", None, None, 1, 9)])],
    ),
}


@pytest.mark.parametrize(("before", "after"), UNFIT.values(), ids=UNFIT)
def test_a_window_that_an_open_page_cannot_add_makes_it_load_anew(before, after):
    report = live(first(before), more(after))
    old = report.view
    assert report.poll()
    assert report.view.epoch != old.epoch
    assert report.view.number_of(f"{old.epoch}.0") is None
    assert shown(report) == expected(before + after)


def test_another_run_replaces_all():
    other = dataclasses.replace(header_of(hourly_plan(24)), run_id="run-2")
    report = live(first(MANY), first(reports_of(hourly_plan(24), STORIES), other))
    old = report.view
    report.poll()
    assert report.view.epoch != old.epoch
    assert report.header.run_id == "run-2"
    assert "The run has 24 windows." in report.view.status
    assert "item-0" not in report.view.page.decode()


def test_a_source_that_fails_is_told_and_what_was_read_stays():
    report = live(first(MANY[:5]), UserError("the disk is away"), UserError("the disk is away"), more(MANY[5:6]))
    page = report.view.page
    assert report.poll()
    assert report.view.problem == "the disk is away"
    assert report.view.page == page
    assert not report.poll()
    assert report.poll()
    assert report.view.problem == ""
    assert shown(report) == expected(MANY[:6])


def test_only_the_latest_windows_are_shown_and_kept():
    report = live(first(MANY[:200]), *(more([each]) for each in MANY[200:]), most_windows=20)
    assert shown(report) == expected(MANY[180:200])
    for _ in MANY[200:]:
        report.poll()
    assert expected(MANY[-20:]) <= shown(report) <= expected(MANY[-52:])


def test_more_sizes_than_a_page_can_hold_leave_the_latest_windows(monkeypatch):
    monkeypatch.setattr("dp_transforms.views.page.report_columns.MOST_STATES", 30)
    assert shown(live(first(MANY))) == expected(MANY[-25:])


@pytest.mark.parametrize("event_id", ["", "x", "x.1", "{}.", "{}.-1", "{}.999", "{}.²", "{}.1.1", "{}." + "9" * 30])
def test_an_event_that_was_never_sent_makes_a_page_load_anew(event_id):
    report = live(first(MANY[:5]), more(MANY[5:8]))
    report.poll()
    assert report.view.number_of(event_id.format(report.view.epoch)) is None
    assert report.view.number_of(f"{report.view.epoch}.2") == 2


def test_a_folder_is_read_file_by_file_and_each_file_once(tmp_path):
    folder = tmp_path / "reports"
    writer = ReportFolder(str(folder)).open(HEADER)
    writer.write(MANY[0])
    source = source_of([str(folder)])
    assert source.poll() == Found(HEADER, MANY[:1], None, True)
    assert source.poll() is None
    (name,) = (path for path in folder.iterdir() if path.name != "header.json")
    (folder / f".{name.name}.{'0' * 32}.tmp").write_text('{"half')  # as a writer has it before it is linked
    name.write_text("nobody reads this again")
    for each in MANY[1:4]:
        writer.write(each)
    assert source.poll() == Found(HEADER, MANY[1:4], None, False)
    ended = RunEnded("news", 400, 4)
    writer.end(ended)
    assert source.poll() == Found(HEADER, [], ended, False)
    assert source.poll() is None


def test_a_folder_with_a_file_that_is_no_report_is_read_again_once_it_is_mended(tmp_path):
    folder = tmp_path / "reports"
    writer = ReportFolder(str(folder)).open(HEADER)
    source = source_of([str(folder)])
    source.poll()
    for each in MANY[:2]:
        writer.write(each)
    broken = max(folder.glob("*Z-*.jsonl"))
    content = broken.read_text()
    broken.write_text(content[:-20])
    with pytest.raises(UserError, match="cannot be used"):
        source.poll()
    broken.write_text(content)
    assert source.poll() == Found(HEADER, MANY[:2], None, False)


def test_another_run_in_the_folder_is_read_as_a_whole(tmp_path):
    folder = tmp_path / "reports"
    writer = ReportFolder(str(folder)).open(HEADER)
    writer.write(MANY[0])
    source = source_of([str(folder)])
    source.poll()
    folder.rename(tmp_path / "old")
    with pytest.raises(UserError, match="holds no reports yet"):
        source.poll()
    other = dataclasses.replace(HEADER, run_id="run-2")
    ReportFolder(str(folder)).open(other).write(MANY[0])
    assert source.poll() == Found(other, MANY[:1], None, True)


def test_a_report_file_is_read_again_once_it_is_another(tmp_path):
    path = tmp_path / "report.avro"
    write_report_file(path, HEADER, MANY[:3])
    source = FileSource(lambda: [str(path)])
    assert source.poll() == Found(HEADER, MANY[:3], None, True, goes_on=False)
    assert source.poll() is None
    path.unlink()
    with pytest.raises(UserError, match=r"report\.avro"):
        source.poll()
    write_report_file(path, HEADER, MANY[:5])
    assert source.poll() == Found(HEADER, MANY[:5], None, True, goes_on=False)
