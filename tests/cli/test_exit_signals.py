"""Ctrl-C, SIGTERM and SIGHUP at any moment, from the first line on: one line, the right exit code, nothing left."""

import concurrent.futures
import itertools
import json
import os
import re
import signal
import subprocess
import sys
import time
from typing import NamedTuple

import pytest

from tests.helpers.replay_logs import BUDGET, write_log
from tests.helpers.shh_process import ROOT

MOMENTS = 4  # of each command others, by each signal in turn
SECONDS = 1.5  # a command takes so long to import all that it needs, on a machine that has nothing else to do
AT_ONCE = 4
PATIENCE_SECONDS = 300
# Says when the interpreter, which is not ours, has begun to run what is.
STARTING = "import os; os.write(1, b'.'); from dp_transforms.cli.main import main; main()"
STOPS = [  # one that is ignored here, as SIGHUP is behind nohup, stays ignored in what is started
    each for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP) if signal.getsignal(each) != signal.SIG_IGN
]
COMMANDS = {
    "plan": ["plan", *BUDGET, "--output", "plan.json"],
    "replay": ["replay", "log.parquet", *BUDGET, "--output", "report.avro", "--dead-letter", "bad.jsonl"],
    "stream": [
        *("stream", "--input", "logs", *BUDGET[:2], "--end", "2099-01-01", "--window", "3650d", *BUDGET[6:]),
        *("--output", "reports", "--clock", "event", "--idle-timeout", "1h"),
    ],
}


class Ended(NamedTuple):
    moment: float
    stop: signal.Signals
    code: int
    stderr_text: str
    left: set[str]


def stopped(folder, words, moment, stop):
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
    left = {path.name for path in folder.iterdir()} - {"log.parquet", "logs"}
    return Ended(moment, stop, process.returncode, stderr_text, left)


def came_before_the_first_line(ended):
    """Python was still loading the entrance, modules that import nothing else of ours: no handler was there yet."""
    modules = set(re.findall(r"/dp_transforms/(?:cli/)?(\w+(?:/\w+)*)\.py", ended.stderr_text))
    return modules <= {"__init__", "main", "exit_signals"} and (
        ended.code < 0 or "KeyboardInterrupt" in ended.stderr_text
    )


def came_too_late(ended):
    """The command was done, or had begun to drain as it says that it does."""
    return ended.code == 0 and "Traceback" not in ended.stderr_text


@pytest.mark.parametrize("command", COMMANDS)
def test_a_signal_at_any_moment_is_one_line(tmp_path, command):
    first = list(COMMANDS).index(command) / len(COMMANDS)
    moments = [SECONDS * (number + first) / MOMENTS for number in range(MOMENTS)]
    with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
        runs = [
            pool.submit(stopped, tmp_path / str(number), COMMANDS[command], moment, stop)
            for number, (moment, stop) in enumerate(zip(moments, itertools.cycle(STOPS), strict=False))
        ]
        everything = [run.result() for run in runs]
    ours = [ended for ended in everything if not came_before_the_first_line(ended) and not came_too_late(ended)]
    assert len(ours) >= 2  # a third of `plan` is over by then
    # Before its last line a stream may have said what it runs.
    wrong = [
        ended
        for ended in ours
        if (ended.code, ended.left - {"plan.json"}) != (128 + ended.stop, set())  # a plan is written first
        or ended.stderr_text.splitlines()[-1:] != ["shh: stopped."]
        or "Traceback" in ended.stderr_text
    ]
    assert not wrong, f"{len(wrong)} of {len(ours)}: {wrong[0]}"


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
# A signal that comes just before a long sleep begins would be heard when it ends.
WAITING = "[time.sleep(0.05) for _ in range(12_000)]"
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


def signalled(program, *stops):
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


UNWOUND = "started\nunwound\n", ""
SWALLOWED = "started\nswallowed\n", "shh: stopped.\n"


@pytest.mark.parametrize(
    ("before", "body", "stops", "ends"),
    [
        pytest.param("", f"{STARTED}; {WAITING}", [signal.SIGINT], (130, *UNWOUND), id="in order"),
        pytest.param("", SWALLOWING.strip(), [signal.SIGTERM, signal.SIGINT], (143, *SWALLOWED), id="second signal"),
        # As nohup and jobs in the background of a shell have it.
        pytest.param(
            *("signal.signal(signal.SIGINT, signal.SIG_IGN)", f"{STARTED}; time.sleep(0.5); print('went on')"),
            *([signal.SIGINT], (0, "started\nwent on\n", "")),
            id="switched off by the parent",
        ),
    ],
)
def test_what_was_started_is_stopped_in_order(before, body, stops, ends):
    assert signalled(PROGRAM.format(before=before, body=body), *stops) == ends
