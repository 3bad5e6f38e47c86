"""`make demo-flink` and `make demo-stream` show what they say and leave nothing behind, ended or stopped."""

from __future__ import annotations

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


def start_demo(name: str, folder: pathlib.Path) -> subprocess.Popen[str]:
    """As a shell does for `make demo-... &`: the program begins with SIGINT ignored."""
    return subprocess.Popen(
        [sys.executable, "-u", "-m", f"examples.demos.{name}"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(_ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN),
    )


def left_behind(folder: pathlib.Path) -> list[list[str]]:
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


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("demo_flink", {"48 windows were answered": 1, "\nyes  ": 4}),
        ("demo_stream", {'"window_start"': 6, "\nyes  ": 4}),
    ],
)
def test_a_worker_is_killed_and_the_answers_are_those_of_a_run_without(
    tmp_path: pathlib.Path, name: str, shown: dict[str, int]
) -> None:
    demo = start_demo(name, tmp_path)
    output, _ = demo.communicate(timeout=600)
    assert demo.returncode == 0, output
    assert "Killing the Python worker: kill -9" in output
    assert {text: output.count(text) for text in shown} == shown
    assert left_behind(tmp_path) == []


@pytest.mark.parametrize(
    ("name", "begun", "how"), [("demo_flink", "$ shh replay", signal.SIGTERM), ("demo_stream", "Run ", signal.SIGINT)]
)
def test_who_stops_it_ends_every_process(tmp_path: pathlib.Path, name: str, begun: str, how: signal.Signals) -> None:
    demo = start_demo(name, tmp_path)
    assert demo.stdout is not None
    for line in demo.stdout:
        if line.startswith(begun):
            break
    assert any("java" in " ".join(process.info["cmdline"] or []) for process in psutil.process_iter(["cmdline"]))
    demo.send_signal(how)
    output = demo.stdout.read()
    assert demo.wait(timeout=120) == 130
    assert "Stopped. All processes have ended." in output
    assert left_behind(tmp_path) == []
