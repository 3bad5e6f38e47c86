"""`make demo-stream` shows what it says it shows, and leaves nothing behind, whether it ends or is stopped."""

from __future__ import annotations

import os
import pathlib
import signal
import subprocess
import sys
import time

import psutil
import pytest

from tests.engines import skip_reason

ROOT = pathlib.Path(__file__).parents[2]
LACKING = skip_reason("flink") or skip_reason("kafka")
pytestmark = [pytest.mark.long, pytest.mark.skipif(LACKING is not None, reason=LACKING or "")]


def start(folder: pathlib.Path) -> subprocess.Popen[str]:
    """As a shell does for `make demo-stream &`: the program begins with SIGINT ignored."""
    return subprocess.Popen(
        [sys.executable, "-u", "-m", "dp_transforms.pipelines.demo_stream"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
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


def test_a_worker_is_killed_and_every_window_has_one_answer(tmp_path: pathlib.Path) -> None:
    demo = start(tmp_path)
    output, _ = demo.communicate(timeout=600)
    assert demo.returncode == 0, output
    assert "Killing the Python worker: kill -9" in output
    assert output.count('"window_start"') == 6
    assert output.count("\nyes  ") == 4
    assert left_behind(tmp_path) == []


def test_ctrl_c_ends_every_process(tmp_path: pathlib.Path) -> None:
    demo = start(tmp_path)
    assert demo.stdout is not None
    for line in demo.stdout:
        if line.startswith("Run "):  # shh stream has begun
            break
    assert any("kafka.Kafka" in " ".join(process.info["cmdline"] or []) for process in psutil.process_iter(["cmdline"]))
    demo.send_signal(signal.SIGINT)
    output = demo.stdout.read()
    assert demo.wait(timeout=120) == 130
    assert "Stopped. All processes have ended." in output
    assert left_behind(tmp_path) == []
