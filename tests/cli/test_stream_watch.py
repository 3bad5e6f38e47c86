"""The command that watches a stream: an output that cannot be read for a while ends no run, one that never comes back
is named, and signals are counted wherever they meet it."""

import contextlib
import re
import signal
import threading
import time
import types

import pytest

from dp_transforms.cli import stream_watch
from dp_transforms.cli.stream_watch import StopSignals, StreamWatch, caught_stops, operator_line
from dp_transforms.core.window_report import WindowReport
from dp_transforms.errors import StreamError, UserError
from dp_transforms.logs.streams.partition_progress import StreamClock
from dp_transforms.reports.report_records import RunEnded
from tests.helpers import shh_process
from tests.helpers.small_runs import small_plan

HOUR = 3_600_000_000
REPORTS = [WindowReport("events", hour * HOUR, (hour + 1) * HOUR, [], 1.0, 1e-9, 0.5) for hour in range(2)]
END = RunEnded("events", 4, reports=2)


class Sink:
    """Has one content at each read, the last one forever; None is an outage. Gives what is new.

    made_anew: the reads at which it is another one, so that all is new again.
    """

    def __init__(self, *answers, made_anew=()):
        self.answers = list(answers)
        self.made_anew = made_anew
        self.reads = 0
        self.given = 0

    def follow(self, run_id):
        assert run_id == "run-1"
        return self

    path = "reports"

    def read_new(self):
        answer = self.answers[min(self.reads, len(self.answers) - 1)]
        is_new = self.reads == 0 or self.reads in self.made_anew
        self.reads += 1
        if answer is None:
            raise StreamError("the folder 'r' cannot be used: the store is away.")
        reports, ended = answer
        before = 0 if is_new else self.given
        self.given = len(reports)
        return None, reports[before:], ended, is_new


class Status:
    """Keeps what a person would see."""

    def __init__(self):
        self.lines = []
        self.shown = []

    def tell(self, text):
        if not text.startswith("[not covered by the guarantee"):
            self.lines.append(text)


@pytest.fixture
def status(monkeypatch):
    return see(monkeypatch, Status())


def see(monkeypatch, seen):
    monkeypatch.setattr(stream_watch, "tell", lambda text: seen.tell(text))
    monkeypatch.setattr(stream_watch, "show_reports", seen.shown.extend)
    return seen


def clock(seconds):
    """One read takes so long."""
    now = 1000.0
    while True:
        yield now
        now += seconds


def request_of(sink, recovers=False, resumes=False, stop_file=None):
    of_clock = StreamClock(out_of_order_seconds=10, idle_timeout_seconds=60)
    plan = small_plan()
    of_job = types.SimpleNamespace(sink=sink, run_id="run-1", plan=plan, stop_file=stop_file, clock=of_clock)
    return types.SimpleNamespace(job=of_job, once=False, reads_once=False, recovers=recovers, resumes=resumes)


def watch_of(sink, seconds):
    ticks = clock(seconds)
    return StreamWatch(request_of(sink), patience_seconds=120, clock=lambda: next(ticks))


def test_an_outage_is_told_once_and_what_comes_after_it_is_shown(status):
    sink = Sink(([], None), None, None, None, (REPORTS[:1], None), None, None, (REPORTS, END))
    watched = watch_of(sink, 59.0)
    assert [watched.check() for _ in range(8)] == [*[None] * 7, END]
    assert status.shown == REPORTS
    assert len(status.lines) == 2, "once for each outage, each with a patience of its own"
    assert "trying again for 120 s: the folder 'r' cannot be used" in status.lines[0]


def test_a_window_is_shown_once_also_if_the_sink_is_another_one_and_only_what_it_has_counts(status):
    watched = watch_of(Sink((REPORTS, None), (REPORTS[:1], END), (REPORTS, END), made_anew=[1]), 1.0)
    assert [watched.check(), watched.check(), watched.check()] == [None, None, END]
    assert status.shown == REPORTS


def test_an_outage_that_lasts_is_an_error(status):
    sink = Sink(None)
    watched = watch_of(sink, 60.0)
    assert [watched.check(), watched.check()] == [None, None]
    with pytest.raises(UserError, match=r"for 120 s: the folder 'r' .*is away\.$"):
        watched.check()
    assert len(status.lines) == 1


def test_one_read_that_takes_longer_than_the_patience_is_not_the_last():
    """A read of a store tries for minutes by itself."""
    watched = watch_of(Sink(None, (REPORTS, END)), 1000.0)
    assert [watched.check(), watched.check()] == [None, END]


def test_a_run_that_ends_during_an_outage_is_read_again_until_it_can_be_read():
    sink = Sink(None, None, None, (REPORTS, END))
    assert watch_of(sink, 1.0).check_until_read(lambda: False) == END
    assert watch_of(Sink(([], None)), 1.0).check_until_read(lambda: False) is None
    with pytest.raises(UserError, match="could not be read for 120 s"):
        watch_of(Sink(None), 10.0).check_until_read(lambda: False)
    with pytest.raises(UserError, match="what was written stays"):
        watch_of(Sink(None), 1.0).check_until_read(lambda: True)


# --- The command that watches


class Job:
    """Runs until the sink was read so often. error: what it has failed with then. gauges: what its runner tells."""

    def __init__(self, sink, reads, error=None, gauges=None):
        self._sink = sink
        self._reads = reads
        self._error = error
        self._gauges = gauges or {}
        self.is_cancelled = False

    @property
    def is_over(self):
        return self._sink.reads >= self._reads

    def raise_error(self):
        if self._error is not None:
            raise self._error

    def counts_and_gauges(self):
        return {"events_read": 7}, self._gauges

    def cancel(self):
        self.is_cancelled = True


PRISM, FLINK = {"recovers": False, "resumes": False}, {"recovers": True, "resumes": False}


def watch(sink, job, runner, stop_file=None, patience=120.0):
    request = request_of(sink, stop_file=stop_file, **runner)
    StreamWatch(request, pause_seconds=0.0, patience_seconds=patience).to_the_end(job)


def test_a_command_tolerates_an_outage_of_the_output(status):
    sink = Sink(([], None), None, None, (REPORTS, END))
    job = Job(sink, 99)
    watch(sink, job, PRISM)
    assert job.is_cancelled
    assert status.shown == REPORTS
    assert status.lines[-2:] == [
        "The declared range is over (4 windows); nothing more is answered.",
        "2 windows with heavy items; see all with: shh show reports",
    ]


def test_a_command_that_gives_up_leaves_no_job_behind():
    sink = Sink(None)
    job = Job(sink, 99)
    with pytest.raises(UserError, match=r"is away\.$"):
        watch(sink, job, FLINK, patience=0.0)
    assert job.is_cancelled


def test_a_signal_that_comes_as_soon_as_it_is_told_drains_the_run(tmp_path, monkeypatch):
    """What the first line says can be relied on at once: not before signals are caught."""
    sink = Sink(([], None), ([], None), (REPORTS, END))
    stop_file = tmp_path / "folder that a cleaner removed" / "stop"

    class Impatient(Status):
        def tell(self, text):
            super().tell(text)
            if text.startswith("Ctrl-C drains it"):
                signal.raise_signal(signal.SIGINT)

    status = see(monkeypatch, Impatient())
    watch(sink, Job(sink, 99), PRISM, str(stop_file))
    begins = ["Ctrl-C drains it", "Draining", "A stop was asked for", "2 windows with heavy items; see all with"]
    assert [words.split(":")[0] for words in status.lines] == begins
    assert re.match(
        r"Draining: what arrives by \d\d:\d\d:\d\d UTC counts; all windows .*in about 7[01] s", status.lines[1]
    )
    assert not stop_file.exists()


def test_a_stop_stays_for_a_run_that_can_be_taken_up_again(tmp_path, monkeypatch):
    """Its partitions must all find the same moment: the file goes away with the end of the run, and not before."""

    class Stopped(Status):
        def tell(self, text):
            super().tell(text)
            if text.startswith(("Ctrl-C drains it", "Draining")):
                signal.raise_signal(signal.SIGINT)

    for number, (runner, stays) in enumerate(((PRISM, False), (FLINK, True))):
        stop_file, sink = tmp_path / str(number), Sink(([], None))
        status = see(monkeypatch, Stopped())
        with pytest.raises(SystemExit):
            watch(sink, Job(sink, 99), runner, str(stop_file))
        assert stop_file.exists() == stays
        assert (f"leave {stop_file} there" in status.lines[-1]) == stays
    came = stop_file.stat().st_ctime_ns
    again = {**FLINK, "resumes": True}
    for answers, error in ((([], None), StreamError("broken")), ((REPORTS, END), None)):
        sink, status = Sink(answers), see(monkeypatch, Status())
        assert stop_file.stat().st_ctime_ns == came
        with contextlib.nullcontext() if error is None else pytest.raises(UserError, match="broken"):
            watch(sink, Job(sink, 2, error), again, str(stop_file))
        assert status.lines[1].startswith("Draining: what arrives by ")
    assert not stop_file.exists()


def test_a_job_that_fails_is_told_at_once_even_if_the_output_cannot_be_read():
    sink = Sink(None)
    with pytest.raises(UserError, match="a window was answered twice"):
        watch(sink, Job(sink, 2, StreamError("a window was answered twice")), PRISM)
    assert sink.reads == 2


def test_the_operators_line_is_marked():
    text = operator_line({"events_read": 5000, "events_rejected": 2, "events_late": 0}, {"pending_windows": 1})
    assert text == "[not covered by the guarantee, for the operator: 5,000 events, 1 windows pending, 2 rejected]"


def test_partitions_that_are_not_read_are_told(status):
    sink = Sink(([], None), (REPORTS, END))
    watch(sink, Job(sink, 99, gauges={"partitions_unread": 1}), PRISM)
    assert any("1 partitions were added to --input. This run does not read them." in line for line in status.lines)


def test_who_watches_on_sees_what_is_new_and_how_a_job_without_an_end_goes_on(status):
    sink = Sink((REPORTS[:1], None), (REPORTS, None))
    watch(sink, Job(sink, 2), {**FLINK, "resumes": True})
    assert status.shown == REPORTS[1:]
    assert status.lines[0] == (
        "1 windows with heavy items were reported before, some perhaps while no command watched: they are not shown"
        " here. See all with: shh show reports"
    )
    assert "ended the job before its last window. Resume it from the last checkpoint" in status.lines[-2]
    assert "--run-id run-1" in status.lines[-2]
    assert status.lines[-1] == "2 windows with heavy items; see all with: shh show reports", "not only what was shown"


# --- Signals

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
    fired = shh_process.run_python("-c", UNDER_FIRE, timeout=120)
    assert fired.returncode == 0, fired.stderr[-2000:]
    assert SIGNALS // 2 < int(fired.stdout) <= SIGNALS  # two at once count as one


def test_a_wait_ends_with_the_signal_or_the_time_and_the_handlers_come_back():
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with caught_stops() as stops:
        assert not stops.wait(0.01, 0)
        timer = threading.Timer(0.1, signal.raise_signal, [signal.SIGINT])
        timer.start()
        begin = time.monotonic()
        assert stops.wait(60, 0)
        assert time.monotonic() - begin < 50
        timer.join()
        assert (stops.count, stops.code) == (1, 130)
        signal.raise_signal(signal.SIGTERM)
        assert stops.wait(60, 1)
        assert (stops.count, stops.code) == (2, 143)
    with contextlib.suppress(ZeroDivisionError), caught_stops() as stops:
        assert isinstance(signal.getsignal(signal.SIGINT), StopSignals)
        assert stops.count / 0
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before
