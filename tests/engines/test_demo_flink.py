"""`make demo-flink` shows what it says it shows, and leaves nothing behind."""

from __future__ import annotations

import pathlib
import signal

import pytest

from tests.engines import skip_reason
from tests.helpers.demo_runs import left_behind, start_demo

LACKING = skip_reason("flink")
pytestmark = [pytest.mark.nightly, pytest.mark.skipif(LACKING is not None, reason=LACKING or "")]


def test_workers_are_killed_and_the_report_is_that_of_a_replay_in_process(tmp_path: pathlib.Path) -> None:
    demo = start_demo("demo_flink", tmp_path)
    output, _ = demo.communicate(timeout=600)
    assert demo.returncode == 0, output
    assert "Killing the Python worker: kill -9" in output
    assert "48 windows were answered" in output
    assert output.count("\nyes  ") == 4
    assert left_behind(tmp_path) == []


def test_sigterm_ends_every_process(tmp_path: pathlib.Path) -> None:
    demo = start_demo("demo_flink", tmp_path)
    assert demo.stdout is not None
    for line in demo.stdout:
        if line.startswith("$ shh replay"):
            break
    demo.send_signal(signal.SIGTERM)
    output = demo.stdout.read()
    assert demo.wait(timeout=120) == 130
    assert "Stopped. All processes have ended." in output
    assert left_behind(tmp_path) == []
