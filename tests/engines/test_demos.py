"""`make demo-stream` kills a worker, shows the answers of a run without, and leaves no process behind."""

import os
import subprocess
import sys

import psutil
import pytest

from tests.engines import needs
from tests.engines.conftest import ROOT

pytestmark = [pytest.mark.nightly, needs("flink", "kafka")]


def test_a_worker_is_killed_and_the_answers_are_those_of_a_run_without(tmp_path):
    command = [sys.executable, "-m", "examples.demos.demo_stream"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    demo = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=600)
    assert demo.returncode == 0, demo.stdout + demo.stderr
    assert "Killing the Python worker: kill -9" in demo.stdout
    assert (demo.stdout.count('"window_start"'), demo.stdout.count("\nyes  ")) == (6, 4)
    words = [" ".join(process.info["cmdline"] or []) for process in psutil.process_iter(["cmdline"])]
    assert not any(str(tmp_path) in each for each in words)
