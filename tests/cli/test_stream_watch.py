"""The command that watches a stream: an output that cannot be read for a while ends no run, one that never comes back
is named, signals are counted wherever they meet it, and its page is whole or not written at all."""

import contextlib
import datetime
import re
import signal
import threading
import time
import types

import pytest

from dp_transforms.cli import stream_watch
from dp_transforms.cli.stream_watch import StopSignals, StreamPage, StreamWatch, caught_stops
from dp_transforms.core.window_report import HeavyHitter, WindowReport
from dp_transforms.errors import StreamError, UserError
from dp_transforms.logs.streams.partition_progress import StreamClock
from dp_transforms.reports.report_records import RunEnded
from tests.helpers.page_reports import STORIES, header_of, hourly_plan, many_windows, reports_of
from tests.helpers.pages import Page, told
from tests.helpers.shh_process import run_python
from tests.helpers.small_runs import small_plan

HOUR = 3_600_000_000
REPORTS = [WindowReport("events", hour * HOUR, (hour + 1) * HOUR, [], 1.0, 1e-9, 0.5) for hour in range(2)]
END = RunEnded("events", 4, reports=2)


class Sink:
    """Has one content at each read, the last one forever; None is an outage. Gives what is new."""

    path = "reports"

    def __init__(self, *answers):
        self.answers, self.known, self.reads = list(answers), [], 0

    def follow(self, run_id):
        assert run_id == "run-1"
        return self

    def read_new(self):
        answer = self.answers[min(self.reads, len(self.answers) - 1)]
        self.reads += 1
        if answer is None:
            raise StreamError("the folder 'r' cannot be used: the store is away.")
        reports, ended = answer
        before, self.known = len(self.known), reports
        return None, reports[before:], ended


class Job:
    """Runs until the sink was read so often. error: what it has failed with then."""

    def __init__(self, sink, reads=99, error=None):
        self.sink, self.reads, self.error = sink, reads, error
        self.is_cancelled = False

    @property
    def is_over(self):
        return self.sink.reads >= self.reads

    def raise_error(self):
        if self.error is not None:
            raise self.error

    def counts_and_gauges(self):
        return {"events_read": 7}, {}

    def cancel(self):
        self.is_cancelled = True


@pytest.fixture
def status(monkeypatch):
    """What a person would see: lines and reports. on_line: is called with each line."""
    seen = types.SimpleNamespace(lines=[], shown=[], on_line=lambda text: None)

    def tell(text):
        if not text.startswith("[not covered by the guarantee"):
            seen.lines.append(text)
            seen.on_line(text)

    monkeypatch.setattr(stream_watch, "tell", tell)
    monkeypatch.setattr(stream_watch, "show_reports", seen.shown.extend)
    return seen


def watch_of(sink, stop_file=None, recovers=False, resumes=False, **options):
    clock = StreamClock(out_of_order_seconds=10, idle_timeout_seconds=60)
    job = types.SimpleNamespace(sink=sink, run_id="run-1", plan=small_plan(), stop_file=stop_file, clock=clock)
    request = types.SimpleNamespace(job=job, once=False, reads_once=False, recovers=recovers, resumes=resumes)
    return StreamWatch(request, **{"pause_seconds": 0.0, **options})


def slow(sink, seconds):
    """One read takes so long, of a patience of 120 s."""
    ticks = iter(range(1000, 10**9, seconds))
    return watch_of(sink, clock=lambda: next(ticks))


def test_an_outage_is_told_once_and_what_comes_after_it_is_shown(status):
    sink = Sink(([], None), None, None, None, (REPORTS[:1], None), None, None, (REPORTS, END))
    watched = slow(sink, 59)
    assert [watched.check() for _ in range(8)] == [*[None] * 7, END]
    assert status.shown == REPORTS
    assert len(status.lines) == 2, "once for each outage, each with a patience of its own"
    assert "trying again for 120 s: the folder 'r' cannot be used" in status.lines[0]


def test_an_outage_that_lasts_is_an_error_but_never_at_the_first_look(status):
    watched = slow(Sink(None), 60)
    assert [watched.check(), watched.check()] == [None, None]
    with pytest.raises(UserError, match=r"for 120 s: the folder 'r' .*the store is away\.$"):
        watched.check()
    watched = slow(Sink(None, (REPORTS, END)), 1000)
    assert [watched.check(), watched.check()] == [None, END]


def test_a_run_that_ends_during_an_outage_is_read_again_until_it_can_be_read(status):
    assert slow(Sink(None, None, None, (REPORTS, END)), 1).check_until_read(lambda: False) == END
    assert slow(Sink(([], None)), 1).check_until_read(lambda: False) is None
    with pytest.raises(UserError, match="could not be read for 120 s"):
        slow(Sink(None), 10).check_until_read(lambda: False)
    with pytest.raises(UserError, match="what was written stays"):
        slow(Sink(None), 1).check_until_read(lambda: True)


def test_a_command_tolerates_an_outage_of_the_output_and_leaves_no_job_behind(status):
    sink = Sink(([], None), None, None, (REPORTS, END))
    job = Job(sink)
    watch_of(sink).to_the_end(job)
    assert job.is_cancelled
    assert status.shown == REPORTS
    assert status.lines[-2:] == [
        "The declared range is over: all 4 windows are closed; nothing more is answered.",
        "2 windows with heavy items; see all with: shh show reports",
    ]
    job = Job(Sink(None))
    with pytest.raises(UserError, match=r"the store is away\.$"):
        watch_of(job.sink, recovers=True, patience_seconds=0.0).to_the_end(job)
    assert job.is_cancelled


def test_a_signal_that_comes_as_soon_as_it_is_told_drains_the_run(tmp_path, status):
    """What the first line says can be relied on at once: not before signals are caught."""
    sink = Sink(([], None), ([], None), (REPORTS, END))
    stop_file = tmp_path / "folder that a cleaner removed" / "stop"
    status.on_line = lambda text: signal.raise_signal(signal.SIGINT) if text.startswith("Ctrl-C") else None
    watch_of(sink, str(stop_file)).to_the_end(Job(sink))
    begins = ["Ctrl-C drains it", "Draining", "A stop was asked for", "2 windows with heavy items; see all with"]
    assert [words.split(":")[0] for words in status.lines] == begins
    assert re.match(r"Draining: what arrives by \d\d:\d\d:\d\d UTC counts; .*in about 7[01] s", status.lines[1])
    assert not stop_file.exists()


def test_a_stop_stays_for_a_run_that_can_be_taken_up_again(tmp_path, status):
    """Its partitions must all find the same moment: the file goes away with the end of the run, and not before."""
    is_early = ("Ctrl-C drains it", "Draining")
    status.on_line = lambda text: signal.raise_signal(signal.SIGINT) if text.startswith(is_early) else None
    for number, recovers in enumerate((False, True)):
        stop_file, job = tmp_path / str(number), Job(Sink(([], None)))
        with pytest.raises(SystemExit):
            watch_of(job.sink, str(stop_file), recovers).to_the_end(job)
        assert job.is_cancelled
        assert stop_file.exists() == recovers
        assert (f"leave {stop_file} there" in status.lines[-1]) == recovers
    came, status.on_line = stop_file.stat().st_ctime_ns, lambda text: None
    for answers, error in ((([], None), StreamError("broken")), ((REPORTS, END), None)):
        assert stop_file.stat().st_ctime_ns == came
        job = Job(Sink(answers), 2, error)
        with contextlib.nullcontext() if error is None else pytest.raises(UserError, match="broken"):
            watch_of(job.sink, str(stop_file), recovers=True, resumes=True).to_the_end(job)
    assert not stop_file.exists()


def test_a_job_that_fails_is_told_at_once_even_if_the_output_cannot_be_read(status):
    job = Job(Sink(None), 2, StreamError("a window was answered twice"))
    with pytest.raises(UserError, match="a window was answered twice"):
        watch_of(job.sink).to_the_end(job)
    assert job.sink.reads == 2


def test_who_watches_on_sees_what_is_new_and_how_a_job_without_an_end_goes_on(status):
    sink = Sink((REPORTS[:1], None), (REPORTS, None))
    watch_of(sink, recovers=True, resumes=True).to_the_end(Job(sink, 2))
    assert status.shown == REPORTS[1:]
    assert status.lines[0].startswith("1 windows with heavy items were reported before, some perhaps while no command")
    assert "ended the job before its last window. Resume it from the last checkpoint" in status.lines[-2]
    assert "--run-id run-1" in status.lines[-2]


SIGNALS = 600
# Another process sends them, so they meet this one anywhere, within the wait too.
UNDER_FIRE = f"""
import os, subprocess, sys
from dp_transforms.cli.stream_watch import caught_stops
send = "import os, sys, time\\nfor _ in range({SIGNALS}):\\n    os.kill(int(sys.argv[1]), 2)\\n    time.sleep(0.002)"
with caught_stops() as stops:
    sender = subprocess.Popen([sys.executable, "-c", send, str(os.getpid())])
    while sender.poll() is None:
        stops.wait(1e-5, stops.count)
print(stops.count)
"""


def test_no_signal_meets_a_lock():
    """The deadlock that this is about came within a second of such fire."""
    fired = run_python("-c", UNDER_FIRE, timeout=120)
    assert fired.returncode == 0, fired.stderr[-2000:]
    assert SIGNALS // 2 < int(fired.stdout) <= SIGNALS  # two at once count as one


def test_a_wait_ends_with_the_signal_or_the_time_and_the_handlers_come_back():
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with contextlib.suppress(ZeroDivisionError), caught_stops() as stops:
        assert isinstance(signal.getsignal(signal.SIGINT), StopSignals)
        assert not stops.wait(0.01, 0)
        timer = threading.Timer(0.1, signal.raise_signal, [signal.SIGTERM])
        timer.start()
        begin = time.monotonic()
        assert stops.wait(60, 0)
        assert time.monotonic() - begin < 50
        timer.join()
        assert (stops.count, stops.code) == (1, 143)
        assert stops.count / 0
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


# The page of --html.

OF_STORIES = hourly_plan()
WINDOWS = reports_of(OF_STORIES, STORIES)


def page_of(path, plan=OF_STORIES):
    return StreamPage(str(path), header_of(plan), datetime.UTC, {})


def starts(path):
    """Of the windows on the page."""
    return {start for start, _, _, _ in told(Page(path.read_text()).data["columns"])}


def summary(path):
    return next(text for text in Page(path.read_text()).texts if "named" in text)


def test_each_window_is_on_the_next_page_and_the_end_is_said(tmp_path):
    """Nothing is written while nothing is new."""
    path = tmp_path / "page.html"
    path.write_text("of a run before")
    page = page_of(path)
    page.update([], None)
    assert "No item was named." in summary(path)
    for number, report in enumerate(WINDOWS, 1):
        page.update([report], None)
        assert len(starts(path)) == number
    assert Page(path.read_text()).data["goes_on"] is True
    assert summary(path).endswith("The run goes on: further windows may follow.")
    path.unlink()
    page.update([], None)
    assert not path.exists()
    page.update([], RunEnded("news", 12, len(WINDOWS)))
    assert Page(path.read_text()).data["goes_on"] is False
    assert summary(path).endswith("The run has ended: all of its 12 windows are closed.")


def test_a_page_that_cannot_be_written_is_told_once_and_tried_again(tmp_path, status):
    folder = tmp_path / "www"
    page = page_of(folder / "page.html")
    for report in WINDOWS[:3]:
        page.update([report], None)
    folder.mkdir()
    page.update([], None)
    assert len(starts(folder / "page.html")) == 3
    assert [line.partition(" /")[0] for line in status.lines] == ["Warning: --html: cannot write"]


def test_a_page_after_many_windows_costs_as_much_as_one_after_two_hundred(tmp_path):
    """Also where windows have many items: so no page has more sizes than it can hold."""
    plan, reports = many_windows(1000)
    path = tmp_path / "page.html"
    page = page_of(path, plan)
    page.update(reports[:200], None)
    early = path.stat().st_size
    page.update(reports[200:], None)
    assert path.stat().st_size <= 1.2 * early
    assert len(starts(path)) == 200
    assert max(starts(path)) == reports[-1].window_start / 1000
    assert f"{len(reports) - 200:,} earlier windows with heavy items: shh show --html has all." in summary(path)
    many = [HeavyHitter(f"item {number}", None, None, 1, number + 1) for number in range(15_000)]
    page.update([report._replace(heavy_hitters=many) for report in reports[:3]], None)
    assert len(starts(path)) == 1
