"""`make demo-stream` shows what it says it shows, and leaves nothing behind, whether it ends or is stopped."""

from __future__ import annotations

import pathlib
import signal

import psutil
import pytest

from tests.engines import skip_reason
from tests.helpers.demo_runs import left_behind, start_demo

LACKING = skip_reason("flink") or skip_reason("kafka")
pytestmark = [pytest.mark.nightly, pytest.mark.skipif(LACKING is not None, reason=LACKING or "")]


def test_a_worker_is_killed_and_every_window_has_one_answer(tmp_path: pathlib.Path) -> None:
    demo = start_demo("demo_stream", tmp_path)
    output, _ = demo.communicate(timeout=600)
    assert demo.returncode == 0, output
    assert "Killing the Python worker: kill -9" in output
    assert output.count('"window_start"') == 6
    assert output.count("\nyes  ") == 4
    assert left_behind(tmp_path) == []


def test_ctrl_c_ends_every_process(tmp_path: pathlib.Path) -> None:
    demo = start_demo("demo_stream", tmp_path)
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
