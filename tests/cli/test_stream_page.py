"""``shh stream --html``: the page of a run so far, anew at each window, whole or not at all, and never dearer."""

import datetime
import itertools
import os
import types

import pytest

from dp_transforms.cli import stream_watch
from dp_transforms.cli.stream_watch import StreamPage, StreamWatch
from dp_transforms.core.window_report import HeavyHitter
from dp_transforms.reports.report_folder import ReportFolder
from dp_transforms.reports.report_records import RunEnded
from dp_transforms.views.page import report_page
from tests.cli.stream_words import FOLDER, HISTORY, KEY, PLAN, run, write_log_and_key
from tests.helpers.page_reports import STORIES, header_of, hourly_plan, many_windows, reports_of
from tests.helpers.pages import Page, told
from tests.helpers.report_samples import write_all

PLAN_OF_STORIES = hourly_plan()
HEADER = header_of(PLAN_OF_STORIES)
REPORTS = reports_of(PLAN_OF_STORIES, STORIES)


def page_of(path, header=HEADER, titles=None):
    return StreamPage(str(path), header, datetime.UTC, titles or {})


def starts(path):
    """Of the windows on the page."""
    return {start for start, _, _, _ in told(Page(path.read_text()).data["columns"])}


def summary(path):
    page = Page(path.read_text())
    return next(text for text in page.texts if "named" in text)


def test_each_window_is_on_the_next_page_and_the_end_is_said(tmp_path):
    path = tmp_path / "page.html"
    path.write_text("of a run before")
    page = page_of(path, titles={"first": "The first"})
    page.update([], None)
    assert "No item was named." in summary(path)
    for number, report in enumerate(REPORTS, 1):
        page.update([report], None)
        assert len(starts(path)) == number
        page.update([], None)
    shown = Page(path.read_text())
    assert shown.data["goes_on"] is True
    assert "The first" in shown.data["columns"]["titles"]
    assert summary(path).endswith("The run goes on: further windows may follow.")
    page.update([], RunEnded("news", 12, len(REPORTS)))
    assert Page(path.read_text()).data["goes_on"] is False
    assert summary(path).endswith("The run has ended: all of its 12 windows are closed.")


def test_nothing_is_written_while_nothing_is_new(tmp_path):
    page = page_of(tmp_path / "page.html")
    page.update(REPORTS[:1], None)
    (tmp_path / "page.html").unlink()
    page.update([], None)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_command_that_is_killed_leaves_the_whole_page_before(tmp_path, monkeypatch, call):
    path = tmp_path / "page.html"
    page = page_of(path)
    page.update(REPORTS[:1], None)
    before = path.read_bytes()

    def killed(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as dying:
        dying.setattr(os, call, killed)
        with pytest.raises(KeyboardInterrupt):
            page.update(REPORTS[1:2], None)
    assert path.read_bytes() == before
    page.update([], None)
    assert len(starts(path)) == 2


def test_a_page_that_cannot_be_written_is_told_once_and_tried_again(tmp_path, monkeypatch):
    folder, said = tmp_path / "www", []
    monkeypatch.setattr(stream_watch, "tell", said.append)
    folder.mkdir()
    page = page_of(folder / "page.html")
    folder.rename(tmp_path / "away")
    for report in REPORTS[:3]:
        page.update([report], None)
    (tmp_path / "away").rename(folder)
    page.update([], None)
    assert len(starts(folder / "page.html")) == 3
    assert len(said) == 1
    assert said[0].startswith("Warning: --html: cannot write")


def test_a_page_after_ten_thousand_windows_costs_as_much_as_one_after_two_hundred(tmp_path, monkeypatch):
    """What is rendered, and what is kept of the run, by count: windows, and bytes of the page."""
    plan, reports = many_windows()
    rendered = []
    whole = report_page.data_block

    def counting(value):
        rendered.append(sum(len(part) for parts in value["columns"]["presence"] for part in parts[1::2]))
        return whole(value)

    monkeypatch.setattr("dp_transforms.views.page.report_page.data_block", counting)
    path = tmp_path / "page.html"
    page = page_of(path, header_of(plan))
    costs = []
    for first, last in itertools.pairwise((0, 199, 200, len(reports) - 1, len(reports))):
        page.update(reports[first:last], None)
        costs.append((path.stat().st_size, rendered[-1], len(page._newest)))
    (_, (early_bytes, early_items, early), _, (late_bytes, late_items, late)) = costs
    assert (early, late) == (200, 200)
    assert len(starts(path)) == 200
    assert late_items <= 1.2 * early_items
    assert late_bytes <= 1.2 * early_bytes
    assert f"{len(reports) - 200:,} earlier windows with heavy items: shh show --html has all." in summary(path)
    assert max(starts(path)) == reports[-1].window_start / 1000


def test_windows_of_many_items_are_fewer(tmp_path):
    """So no page has more sizes than it can hold, and one window is always there."""
    many = [HeavyHitter(f"item {number}", None, None, 1, number + 1) for number in range(15_000)]
    page = page_of(tmp_path / "page.html")
    page.update([report._replace(heavy_hitters=many) for report in REPORTS[:3]], None)
    assert len(starts(tmp_path / "page.html")) == 1
    assert "2 earlier windows" in summary(tmp_path / "page.html")


def test_who_watches_a_run_again_has_all_that_it_reported_on_the_page(tmp_path):
    sink, path = ReportFolder(str(tmp_path / "reports")), tmp_path / "page.html"
    write_all(sink, REPORTS[:3], None, HEADER)
    job = types.SimpleNamespace(sink=sink, run_id="run-1", plan=PLAN_OF_STORIES, stop_file=None)
    watch = StreamWatch(types.SimpleNamespace(job=job, resumes=True), page_of(path))
    watch.check()
    assert len(starts(path)) == 3
    write_all(sink, REPORTS[3:], RunEnded("news", 12, len(REPORTS)), HEADER)
    assert watch.check() is not None
    assert len(starts(path)) == len(REPORTS)


def test_the_command_writes_it(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write_log_and_key(tmp_path)
    (tmp_path / "titles.csv").write_text("item,title\nheavy-0,The first hour\n")
    words = [*FOLDER, *KEY, *PLAN, *HISTORY, "--output", "reports"]
    for wrong, says in ((["--html", "page.txt"], "must end in .html"), (["--titles", "t.csv"], "needs --html")):
        code, _, err = run([*words, *wrong], capsys)
        assert code != 0
        assert says in err
    code, _, err = run([*words, "--html", "page.html", "--titles", "titles.csv"], capsys)
    assert code == 0, err
    assert len(starts(tmp_path / "page.html")) == 4
    assert "The first hour" in Page((tmp_path / "page.html").read_text()).data["columns"]["titles"]
    assert "The run has ended" in summary(tmp_path / "page.html")
