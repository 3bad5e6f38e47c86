"""`make demo-stream` shows what it says and leaves nothing behind, ended or stopped."""

import os
import pathlib
import signal
import subprocess
import sys
import time

import psutil
import pytest

from tests.engines import needs

# A demo on engines as a process, and what it leaves behind.


_ROOT = pathlib.Path(__file__).parents[2]


def start_demo(folder):
    """As a shell does for `make demo-stream &`: the program begins with SIGINT ignored."""
    return subprocess.Popen(
        [sys.executable, "-u", "-m", "examples.demos.demo_stream"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(_ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN),
    )


def left_behind(folder):
    """Command lines of programs that work below the folder, after they had time to end."""
    deadline = time.monotonic() + 60
    while True:
        found = []
        for process in psutil.process_iter(["cmdline", "cwd"]):
            words, cwd = process.info["cmdline"] or [], process.info["cwd"] or ""
            if str(folder) in " ".join(words) or cwd.startswith(str(folder)):
                found.append(words)
        if not found or time.monotonic() > deadline:
            return found
        time.sleep(0.2)


pytestmark = [pytest.mark.nightly, needs("flink", "kafka")]


def test_a_worker_is_killed_and_the_answers_are_those_of_a_run_without(tmp_path):
    demo = start_demo(tmp_path)
    output, _ = demo.communicate(timeout=600)
    assert demo.returncode == 0, output
    assert "Killing the Python worker: kill -9" in output
    assert (output.count('"window_start"'), output.count("\nyes  ")) == (6, 4)
    assert left_behind(tmp_path) == []


def test_who_stops_it_ends_every_process(tmp_path):
    demo = start_demo(tmp_path)
    assert demo.stdout is not None
    for line in demo.stdout:
        if line.startswith("Run "):
            break
    assert any("java" in " ".join(process.info["cmdline"] or []) for process in psutil.process_iter(["cmdline"]))
    demo.send_signal(signal.SIGINT)
    output = demo.stdout.read()
    assert demo.wait(timeout=120) == 130
    assert "Stopped. All processes have ended." in output
    assert left_behind(tmp_path) == []
