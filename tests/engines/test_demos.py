"""`make demo-flink` and `make demo-stream` show what they say and leave nothing behind, ended or stopped."""

from __future__ import annotations

import pathlib
import signal

import psutil
import pytest

from tests.engines import needs
from tests.helpers.demo_runs import left_behind, start_demo

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
    ("name", "begun", "how"),
    [("demo_flink", "$ shh replay", signal.SIGTERM), ("demo_stream", "Run ", signal.SIGINT)],
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
