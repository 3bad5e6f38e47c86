"""The command that watches a stream: signals are noted wherever they meet it, and its page is whole or not written at
all. How a job is looked at: tests/beam/test_jobs.py."""

import contextlib
import datetime
import signal
import types

import pytest

from dp_transforms.cli import stream_watch
from dp_transforms.cli.stream_watch import StreamPage, StreamWatch, operator_line
from dp_transforms.core.window_report import HeavyHitter, WindowReport
from dp_transforms.errors import StreamError, UserError
from dp_transforms.logs.streams.partition_progress import StreamClock
from dp_transforms.reports.report_records import RunEnded
from tests.helpers.page_reports import STORIES, header_of, hourly_plan, reports_of
from tests.helpers.pages import Page, told

HOUR = 3_600_000_000
REPORTS = [WindowReport("events", hour * HOUR, (hour + 1) * HOUR, [], 1.0, 1e-9, 0.5) for hour in range(2)]
END = RunEnded("events", 4, reports=2)
NOTHING = (None, [], None)


class Run:
    """Each look at it finds the next of these news; then it is over, or has failed. The sink and job of itself."""

    path, run_id, ends_by_itself = "reports", "run-1", False
    clock = StreamClock(out_of_order_seconds=10, idle_timeout_seconds=60)

    def __init__(self, *news, stop_file=None, error=None):
        self.sink, self.news, self.stop_file, self.error = self, [*news], stop_file and str(stop_file), error
        self.is_cancelled, self.known = False, []

    def follow(self, run_id):
        assert run_id == self.run_id
        return self

    @property
    def is_over(self):
        return not self.news

    def read_new(self):
        found = self.news.pop(0) if self.news else NOTHING
        self.known += found[1]
        return found

    def raise_error(self):
        if self.error is not None:
            raise self.error

    def counts_and_gauges(self):
        return {"events_read": 7}, {}

    def cancel(self):
        self.is_cancelled = True


def news_of(reports, ended=None):
    return None, list(reports), ended


@pytest.fixture
def status(monkeypatch):
    """What a person would see: lines. on_line: is called with each line."""
    seen = types.SimpleNamespace(lines=[], on_line=lambda text: None)

    def tell(text):
        if not text.startswith("[for the operator"):
            seen.lines.append(text)
            seen.on_line(text)

    monkeypatch.setattr(stream_watch, "tell", tell)
    return seen


def watched(run, *, recovers=False, drains=False):
    try:
        StreamWatch(run, recovers=recovers).to_the_end(run, drains=drains, pause_seconds=0.0)
    finally:
        assert run.is_cancelled, "no job is left behind"


def test_a_stop_stays_for_a_run_that_can_be_taken_up_again(tmp_path, status):
    """Its partitions must all find the same moment: the file goes away with the end of the run, and not before."""
    is_early = ("Ctrl-C drains it", "Draining")
    status.on_line = lambda text: signal.raise_signal(signal.SIGINT) if text.startswith(is_early) else None
    for number, recovers in enumerate((False, True)):
        stop_file = tmp_path / str(number)
        with pytest.raises(SystemExit, match="130"):
            watched(Run(*[NOTHING] * 9, stop_file=stop_file), recovers=recovers)
        assert stop_file.exists() == recovers
        assert ("leave it there" in status.lines[-1]) == ("--run-id run-1" in status.lines[-1]) == recovers
    came, status.on_line = stop_file.stat().st_ctime_ns, lambda text: None
    for news, error in ((NOTHING, StreamError("broken")), (news_of(REPORTS, END), None)):
        assert stop_file.stat().st_ctime_ns == came
        with contextlib.nullcontext() if error is None else pytest.raises(UserError, match="broken"):
            watched(Run(news, stop_file=stop_file, error=error), recovers=True, drains=True)
    assert not stop_file.exists()


def test_how_a_job_without_an_end_goes_on_is_said(status):
    watched(Run(news_of(REPORTS)), recovers=True)
    assert "ended the job before its last window. Resume it from the last checkpoint" in status.lines[-2]


def test_the_numbers_of_the_operator_have_the_names_of_metrics():
    line = "[for the operator, not covered by the guarantee: events_read 7,000, partitions_unread 1]"
    assert operator_line({"events_read": 7000, "events_late": 0}, {"partitions_unread": 1}) == line
    assert operator_line({}, {}) == ""


# The page of --html.

OF_STORIES = hourly_plan()
WINDOWS = reports_of(OF_STORIES, STORIES)


def page_of(path, plan=OF_STORIES):
    job = types.SimpleNamespace(header=header_of(plan), plan=plan)
    return StreamPage(str(path), job, datetime.UTC, {})


def starts(path):
    """Of the windows on the page."""
    return {start for start, _, _, _ in told(Page(path.read_text()).data["columns"])}


def summary(path):
    return next(text for text in Page(path.read_text()).texts if "named" in text)


def test_each_window_is_on_the_next_page_and_the_end_is_said(tmp_path, status):
    """Nothing is written while nothing is new. One that cannot be written is told, and the next window tries again."""
    path = tmp_path / "page.html"
    path.write_text("of a run before")
    page = page_of(path)
    page.update([], None)
    assert "No item was named." in summary(path)
    for number, report in enumerate(WINDOWS, 1):
        page.update([report], None)
        assert len(starts(path)) == number
    assert summary(path).endswith("The run goes on: further windows may follow.")
    path.unlink()
    path.mkdir()
    page.update(WINDOWS[:1], None)
    assert [line.partition(" /")[0] for line in status.lines] == ["Warning: --html:"]
    path.rmdir()
    page.update([], None)
    assert not path.exists()
    page.update([], RunEnded("news", 12, len(WINDOWS)))
    assert [Page(path.read_text()).data["goes_on"], len(starts(path))] == [False, len(WINDOWS)]
    assert summary(path).endswith("The run has ended: all of its 12 windows are closed.")


def test_a_page_has_the_latest_windows_that_it_can_hold(tmp_path):
    """Fewer where windows have many items: no page has more sizes than it can hold."""
    plan, path = hourly_plan(300), tmp_path / "page.html"
    reports = reports_of(plan, {"a": dict.fromkeys(range(300), 30)})
    page = page_of(path, plan)
    page.update(reports, None)
    assert starts(path) == {report.window_start / 1000 for report in reports[-200:]}
    assert "100 earlier windows with heavy items: shh show --html has all." in summary(path)
    many = [HeavyHitter(f"item {number}", None, None, 1, number + 1) for number in range(15_000)]
    page.update([report._replace(heavy_hitters=many) for report in reports[:3]], None)
    assert len(starts(path)) == 1
