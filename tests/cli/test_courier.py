"""New windows are sent on to real programs: each at least once, in order, and no stream waits."""

import json
import sys
import tempfile
import threading
import time

import pytest

from dp_transforms.cli.courier import Courier, SentWindows, to_program
from dp_transforms.monitor.window_report import HeavyHitter
from dp_transforms.plan.window_schedule import format_utc
from dp_transforms.reports.report_folder import ReportFolder
from tests.cli.stream_words import FOLDER, HISTORY, IN_PROCESS, PLAN, run, write_log_and_key
from tests.helpers.shh_here import shh
from tests.helpers.sinks import header, one_item, report

TAKES = "import sys; open(sys.argv[1], 'ab').write(sys.stdin.buffer.read())"
# The same, and an exit code for each of the first; then 0.
PICKY = f"""{TAKES}
taken, codes = open(sys.argv[1], 'rb').read().count(b'\\n'), sys.argv[2:]
sys.exit(int(codes[taken - 1]) if taken <= len(codes) else 0)"""


def courier(folder, deliver, said=None):
    tell = print if said is None else said.append
    sent = SentWindows(str(folder / "sent"), "run-1")
    return Courier(ReportFolder(str(folder / "reports")), "run-1", deliver, sent, tell, pause_seconds=0.01)


def wait_for(said, lines):
    deadline = time.monotonic() + 30
    while len(said) < lines:
        assert time.monotonic() < deadline, said
        time.sleep(0.01)


def starts(posted):
    return [each["window_start"][11:13] for each in posted]


def test_a_program_gets_each_window_until_it_takes_it_and_later_ones_wait(tmp_path):
    taken, said = tmp_path / "taken", list[str]()
    deliver = to_program([sys.executable, "-c", PICKY, str(taken), *"05314"])

    def sent():
        return [json.loads(line) for line in taken.read_text().splitlines()]

    first = courier(tmp_path, deliver, said)  # before there is anything
    writer = ReportFolder(str(tmp_path / "reports")).open(header())
    for window in (1, 2):
        writer.write(one_item(window))
    writer.write(report(3, HeavyHitter("=other", None, None, 1, 12)))
    assert first.finish(60)
    hours = starts(sent())
    assert (hours[0], hours[1:5], hours[5:]) == (hours[0], [hours[1]] * 4, [hours[1], hours[-1]])
    assert sorted(set(hours)) == list(dict.fromkeys(hours))
    last = sent()[-1]
    assert (last["run_id"], last["stream"]) == ("run-1", "news")
    (entry,), (gone,) = last["heavy_hitters"], last["gone"]
    assert (entry["item"], entry["rank"], entry["change"]) == ("=other", 1, "new")
    assert gone == one_item(2).heavy_hitters[0].item
    whys = ["exit code 5", "exit code 3", "exit code 4"]  # the first, second and fourth failure
    assert [any(why in line for line in said[:-1]) for why in whys] == [True] * 3
    assert said[-1] == "New windows are taken again."
    with (tmp_path / "sent").open("ab") as file:  # of another run, and torn off
        file.write(b"\nother|news|x\nrun-1|ne")
    writer.write(one_item(4))
    assert courier(tmp_path, deliver).finish(60)
    assert len(sent()) == 8, "what was taken is not sent again, but for the new one"
    lines = (tmp_path / "sent").read_text().split("\n")
    (tmp_path / "sent").write_text("\n".join(line for line in lines if f"T{hours[-1]}" not in line))
    assert courier(tmp_path, deliver).finish(60)
    assert starts(sent()[8:]) == hours[-1:], "taken and not noted, as by a kill in between: once more"


@pytest.mark.parametrize(
    ("program", "why"),
    [
        ("import sys; print('no such room', file=sys.stderr); sys.exit(3)", "exit code 3: no such room"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "exit code -9"),
        (None, "cannot be run"),
    ],
)
def test_a_program_that_takes_nothing_is_named_and_the_rest_waits(tmp_path, program, why):
    writer = ReportFolder(str(tmp_path / "reports")).open(header())
    for window in (1, 2):
        writer.write(one_item(window))
    said = []
    words = ["/no/such/program"] if program is None else [sys.executable, "-c", program]
    failing = courier(tmp_path, to_program(words), said)
    wait_for(said, 1)
    assert not failing.finish(0)
    assert why in said[0]
    assert why in failing.left_words
    assert failing.left_words.startswith("2 windows were not sent on")
    taken = tmp_path / "taken"
    assert courier(tmp_path, to_program([sys.executable, "-c", TAKES, str(taken)])).finish(60)
    assert len(taken.read_text().splitlines()) == 2


class StumblesOnce(SentWindows):
    """As where there is no memory."""

    stumbles = True

    def has(self, trend):
        if self.stumbles:
            self.stumbles = False
            raise MemoryError
        return super().has(trend)


def test_no_error_ends_the_courier(tmp_path, monkeypatch):
    """What is read cannot be looked up, the folder for temporary files is away, and nobody can be told of it."""
    room, taken, said = tmp_path / "room", tmp_path / "taken", []
    monkeypatch.setattr(tempfile, "tempdir", str(room))
    writer = ReportFolder(str(tmp_path / "reports")).open(header())
    for window in (1, 2):
        writer.write(one_item(window))

    def tell(text):
        said.append(text)
        raise BrokenPipeError

    deliver = to_program([sys.executable, "-c", TAKES, str(taken)])
    sent = StumblesOnce(str(tmp_path / "sent"), "run-1")
    late = Courier(ReportFolder(str(tmp_path / "reports")), "run-1", deliver, sent, tell, pause_seconds=0.01)
    wait_for(said, 2)
    room.mkdir()
    assert late.finish(60)
    assert "was not read to its end: MemoryError." in said[0]
    assert "not sent on: FileNotFoundError (No such file or directory)." in said[1]
    sent_starts = [json.loads(line)["window_start"] for line in taken.read_text().splitlines()]
    assert sent_starts == [format_utc(one_item(window).window_start) for window in (1, 2)]


def test_once_it_is_given_up_none_is_sent_but_the_one_on_its_way(tmp_path):
    writer = ReportFolder(str(tmp_path / "reports")).open(header())
    for window in (1, 2):
        writer.write(one_item(window))
    is_on_its_way, may_arrive, arrived = threading.Event(), threading.Event(), []

    def deliver(line):
        is_on_its_way.set()
        assert may_arrive.wait(60)
        arrived.append(line)

    held = courier(tmp_path, deliver)
    assert is_on_its_way.wait(60)
    assert not held.finish(0)
    may_arrive.set()
    for thread in threading.enumerate():
        if thread.name == "courier":
            thread.join(60)
    assert len(arrived) == 1


def test_a_stream_sends_what_shh_show_prints(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write_log_and_key(tmp_path)
    words = [*FOLDER, *PLAN, *IN_PROCESS, *HISTORY, "--output", "reports", "--run-id", "run-1"]
    code, _, err = run([*words, "--on-new", f"{sys.executable} -c {TAKES!r} 'new windows'"], capsys)
    assert code == 0, err
    sent = [json.loads(line) for line in (tmp_path / "new windows").read_text().splitlines()]
    shown = [json.loads(line) for line in shh("show", "reports", "--json").stdout.splitlines()]
    assert sent == [{"run_id": "run-1", **each} for each in shown] != []
    assert (tmp_path / "reports.sent").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--on-new", "'open"], "--on-new must be a program"),
        (["--on-new", "true", "--output", "sqlite:///reports.db"], "needs --sent-file FILE"),
        (["--on-new", "true", "--sent-file", "logs"], "--sent-file logs cannot be written: Is a directory"),
    ],
)
def test_who_cannot_be_told_is_named_before_anything_starts(tmp_path, monkeypatch, capsys, words, said):
    monkeypatch.chdir(tmp_path)
    write_log_and_key(tmp_path)
    code, _, err = run([*FOLDER, *PLAN, *IN_PROCESS, *HISTORY, "--output", "reports", *words], capsys)
    assert (code, err.count("\n")) == (1, 1)
    assert said in err
    assert not (tmp_path / "reports").exists()
