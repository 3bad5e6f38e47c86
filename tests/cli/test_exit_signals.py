"""Ctrl-C and SIGTERM at any moment, from the first line on: one line, the right exit code, and nothing left behind."""

from __future__ import annotations

import concurrent.futures
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time
from typing import NamedTuple

import pytest

from dp_transforms.cli.main import main
from tests.helpers.replay_logs import BUDGET, write_log
from tests.helpers.shh_process import ROOT

MOMENTS = 42
SAMPLED = 6  # the short form has every sixth moment, of each command others
SECONDS = 1.5  # a command takes so long to import all that it needs, on a machine that has nothing else to do
AT_ONCE = 4
PATIENCE_SECONDS = 300
# Says when the interpreter, which is not ours, has begun to run what is.
STARTING = "import os; os.write(1, b'.'); from dp_transforms.cli.main import main; main()"
KEY = bytes(range(32))
COMMANDS = {
    "plan": ["plan", *BUDGET, "--output", "plan.json"],
    "replay": ["replay", "log.parquet", *BUDGET, "--output", "report.avro", "--dead-letter", "bad.jsonl"],
    "stream": [
        *("stream", "--folder", "logs", *BUDGET[:2], "--end", "2099-01-01", "--window", "3650d", *BUDGET[6:]),
        *("--output", "reports", "--engine", "in-process", "--clock", "event", "--idle-timeout", "1h"),
    ],
}


class Ended(NamedTuple):
    moment: float
    code: int
    stderr_text: str
    left: set[str]


def stopped(folder: pathlib.Path, words: list[str], moment: float, stop: signal.Signals) -> Ended:
    """Runs the command in a new folder, and sends the signal so many seconds after its first line."""
    folder.mkdir()
    write_log(folder / "log.parquet")
    (folder / "logs").mkdir()
    (folder / "logs" / "a.jsonl").write_text(json.dumps({"user": "u", "item": "i", "timestamp": "2026-01-01"}) + "\n")
    process = subprocess.Popen(
        [sys.executable, "-c", STARTING, *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.read(1) == "."
    time.sleep(moment)
    process.send_signal(stop)
    try:
        _, stderr_text = process.communicate(timeout=PATIENCE_SECONDS)
    finally:
        process.kill()
    return Ended(
        moment, process.returncode, stderr_text, {path.name for path in folder.iterdir()} - {"log.parquet", "logs"}
    )


def came_before_the_first_line(ended: Ended) -> bool:
    """Python was still loading the entrance, modules that import nothing else of ours: no handler was there yet."""
    modules = set(re.findall(r"/dp_transforms/(?:cli/)?(\w+(?:/\w+)*)\.py", ended.stderr_text))
    return modules <= {"__init__", "main", "exit_signals"} and (
        ended.code < 0 or "KeyboardInterrupt" in ended.stderr_text
    )


def came_too_late(ended: Ended) -> bool:
    """The command was done, or had begun to drain as it says that it does."""
    return ended.code == 0 and "Traceback" not in ended.stderr_text


@pytest.mark.parametrize("form", ["sample", pytest.param("full", marks=pytest.mark.nightly)])
@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("command", COMMANDS)
def test_a_signal_at_any_moment_is_one_line(
    tmp_path: pathlib.Path, command: str, stop: signal.Signals, form: str
) -> None:
    moments = [SECONDS * number / MOMENTS for number in range(MOMENTS)]
    if form == "sample":
        moments = moments[2 * list(COMMANDS).index(command) :: SAMPLED]
    elif stop == signal.SIGTERM:
        moments = moments[::3]
    with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
        runs = [
            pool.submit(stopped, tmp_path / str(number), COMMANDS[command], moment, stop)
            for number, moment in enumerate(moments)
        ]
        everything = [run.result() for run in runs]
    ours = [ended for ended in everything if not came_before_the_first_line(ended) and not came_too_late(ended)]
    assert len(ours) >= len(moments) / 4  # a third of `plan` is over by then
    code = 128 + stop
    # Before its last line a stream may have said what it runs.
    wrong = [
        ended
        for ended in ours
        if (ended.code, ended.left - {"plan.json"}) != (code, set())  # a plan appears whole, before what is printed
        or ended.stderr_text.splitlines()[-1:] != ["shh: stopped."]
        or "Traceback" in ended.stderr_text
    ]
    assert not wrong, f"{len(wrong)} of {len(ours)}: {wrong[0]}"
    # A handful of milliseconds here, so a moment or two; more on a machine that is slow to import a module.
    assert len([ended for ended in everything if came_before_the_first_line(ended)]) <= max(2, len(moments) / 4)


PROGRAM = """
import signal, sys, time
from dp_transforms.cli import exit_signals
{before}
exit_signals.install()
with exit_signals.Unwinding():
    try:
        {body}
    except KeyboardInterrupt:
        print("unwound", flush=True)
        sys.exit(exit_signals.stopped_with)
"""
STARTED = 'print("started", flush=True)'
# What it says first, it says where it would swallow a signal already.
SWALLOWING = f"""
        while True:
            try:
                {STARTED} if exit_signals.stopped_with is None else None
                while True:
                    time.sleep(0.01)
            except BaseException:
                print("swallowed", flush=True)
"""


def signalled(program: str, *stops: signal.Signals) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a program that gets these signals, each once it has said something."""
    process = subprocess.Popen(
        [sys.executable, "-c", program], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    said = ""
    for stop in stops:
        said += process.stdout.readline()
        process.send_signal(stop)
    rest, stderr_text = process.communicate(timeout=PATIENCE_SECONDS)
    return process.returncode, said + rest, stderr_text


@pytest.mark.parametrize(("stop", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_what_was_started_is_stopped_in_order(stop: signal.Signals, code: int) -> None:
    program = PROGRAM.format(before="", body=f"{STARTED}; time.sleep(600)")
    assert signalled(program, stop) == (code, "started\nunwound\n", "")


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM])
def test_a_second_signal_ends_what_swallowed_the_first(stop: signal.Signals) -> None:
    program = PROGRAM.format(before="", body=SWALLOWING.strip())
    assert signalled(program, stop, signal.SIGINT) == (128 + stop, "started\nswallowed\n", "shh: stopped.\n")


def test_what_swallows_a_signal_is_ended_after_a_while() -> None:
    program = PROGRAM.format(before="exit_signals._SECONDS_TO_UNWIND = 1", body=SWALLOWING.strip())
    assert signalled(program, signal.SIGINT) == (130, "started\nswallowed\n", "shh: stopped.\n")


def test_a_signal_that_the_parent_switched_off_stays_so() -> None:
    """As nohup and jobs in the background of a shell have it."""
    body = f"{STARTED}; time.sleep(0.5); print('went on')"
    program = PROGRAM.format(before="signal.signal(signal.SIGINT, signal.SIG_IGN)", body=body)
    assert signalled(program, signal.SIGINT) == (0, "started\nwent on\n", "")


def test_handlers_come_back_after_a_command_within_another_program() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with pytest.raises(SystemExit):
        main(["plan", "--epsilon", "nan"])
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before
