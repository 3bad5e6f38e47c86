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


def stopped(folder, words, moment, stop):
    """Runs the command in a new folder, and sends the signal so many seconds after its first line. Returns its exit
    code, stderr, and the names of what it left."""
    folder.mkdir()
    write_log(folder / "log.parquet")
    (folder / "logs").mkdir()
    (folder / "logs" / "a.jsonl").write_text(json.dumps({"user": "u", "item": "i", "timestamp": "2026-01-01"}) + "\n")
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    command, environment = [sys.executable, "-c", STARTING, *words], {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, cwd=folder, env=environment, **pipes) as process:
        assert process.stdout.read(1) == "."
        time.sleep(moment)
        process.send_signal(stop)
        try:
            _, said = process.communicate(timeout=PATIENCE_SECONDS)
        finally:
            process.kill()
    return process.returncode, said, {path.name for path in folder.iterdir()} - {"log.parquet", "logs"}


def is_stopped_in_time(code, said):
    """Not before the first line, while Python was still loading the entrance, modules that import nothing else of ours:
    no handler was there yet. And not too late: the command was done, or had begun to drain as it says that it does."""
    modules = set(re.findall(r"/dp_transforms/(?:cli/)?(\w+(?:/\w+)*)\.py", said))
    is_early = modules <= {"__init__", "main", "exit_signals"} and (code < 0 or "KeyboardInterrupt" in said)
    return not is_early and not (code == 0 and "Traceback" not in said)


@pytest.mark.parametrize("command", COMMANDS)
def test_a_signal_at_any_moment_is_one_line(tmp_path, command):
    first = list(COMMANDS).index(command) / len(COMMANDS)
    with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
        runs = [
            (
                stop,
                pool.submit(
                    stopped, tmp_path / str(number), COMMANDS[command], SECONDS * (number + first) / MOMENTS, stop
                ),
            )
            for number, stop in zip(range(MOMENTS), itertools.cycle(STOPS), strict=False)
        ]
    ours = [(stop, *run.result()) for stop, run in runs if is_stopped_in_time(*run.result()[:2])]
    assert len(ours) >= 2  # a third of `plan` is over by then
    for stop, code, said, left in ours:
        assert (code, left - {"plan.json"}) == (128 + stop, set()), said  # a plan is written first
        assert said.splitlines()[-1:] == ["shh: stopped."]  # a stream may have said before what it runs
        assert "Traceback" not in said


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


def signalled(program, *stops):
    """Exit code, stdout and stderr of a program that gets these signals, each once it has said something."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", program], cwd=ROOT, **pipes) as process:
        said = ""
        for stop in stops:
            said += process.stdout.readline()
            process.send_signal(stop)
        rest, stderr_text = process.communicate(timeout=PATIENCE_SECONDS)
    return process.returncode, said + rest, stderr_text


SWALLOWED = "started\nswallowed\n", "shh: stopped.\n"


@pytest.mark.parametrize(
    ("before", "body", "stops", "ends"),
    [
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
