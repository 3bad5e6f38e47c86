"""Ctrl-C, SIGTERM and SIGHUP at any moment, from the first line on: one line, the right exit code, nothing left.

Streams: test_stream.py; workers: tests/local/test_pool.py."""

import os
import signal
import subprocess
import sys

import pytest

from tests.helpers.replay_logs import BUDGET, write_log
from tests.helpers.shh_process import ROOT, run_python

# A signal comes when this module is imported, or when the report is written and has no name yet.
AT_A_MOMENT = """
import signal, sys
class Stop:
    def find_spec(self, name, path=None, target=None):
        if name == "{moment}":
            signal.raise_signal({number})
sys.meta_path.insert(0, Stop())
from dp_transforms.cli.main import main
if "{moment}" == "publish":
    from dp_transforms.stores import local_files
    local_files.publish = lambda *_: signal.raise_signal({number})
main()
"""


@pytest.mark.parametrize(
    ("moment", "number"),
    [
        ("click", signal.SIGINT),
        ("pyarrow", signal.SIGTERM),
        ("publish", signal.SIGTERM),
    ],
)
def test_a_signal_at_any_moment_is_one_line(tmp_path, moment, number):
    write_log(tmp_path / "log.parquet")
    words = ["replay", "log.parquet", *BUDGET, "--output", "report.avro", "--dead-letter", "bad.jsonl"]
    done = run_python("-c", AT_A_MOMENT.format(moment=moment, number=int(number)), *words, cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (128 + number, "", "shh: stopped.\n")
    assert os.listdir(tmp_path) == ["log.parquet"]


PROGRAM = """
import signal, sys, time
from dp_transforms.cli import exit_signals
{before}
exit_signals.install()
with exit_signals.Unwinding():
    {body}
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


@pytest.mark.parametrize(
    ("before", "body", "stops", "ends"),
    [
        # As nohup and jobs in the background of a shell have it.
        pytest.param(
            *("signal.signal(signal.SIGINT, signal.SIG_IGN)", f"{STARTED}; time.sleep(0.5); print('went on')"),
            *([signal.SIGINT], (0, "started\nwent on\n", "")),
            id="switched off by the parent",
        ),
        pytest.param(
            *("", SWALLOWING.strip(), [signal.SIGTERM, signal.SIGINT]),
            (143, "started\nswallowed\n", "shh: stopped.\n"),
            id="second signal",
        ),
    ],
)
def test_what_was_started_is_stopped_in_order(before, body, stops, ends):
    """Each signal comes once the program has said something."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    program = PROGRAM.format(before=before, body=body)
    with subprocess.Popen([sys.executable, "-c", program], cwd=ROOT, **pipes) as process:
        said = ""
        for stop in stops:
            said += process.stdout.readline()
            process.send_signal(stop)
        rest, error = process.communicate(timeout=300)
    assert (process.returncode, said + rest, error) == ends
