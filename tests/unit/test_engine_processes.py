"""Processes of engines end with their starter, and errors name a remedy. No engine is started."""

import os
import pathlib
import signal
import subprocess
import sys
import time

import psutil
import pytest

from dp_transforms.beam.runner_options import engines_folder
from dp_transforms.errors import UserError
from examples.engines import flink, prism
from examples.engines.engine_process import EngineError, EngineProcess, engine_file
from examples.engines.flink_cluster import FLINK_LIBRARIES
from examples.engines.kafka_server import KAFKA_LIBRARIES
from tests.engines import skip_reason


def _sleepers(seconds):
    return {p.pid for p in psutil.process_iter(["cmdline"]) if (p.info["cmdline"] or [])[-1:] == [seconds]}


def test_processes_end_with_their_starter(tmp_path):
    """Also when the starter is killed and can clean up nothing."""
    seconds = f"1234.{os.getpid()}"  # found again by it
    program = ["sh", "-c", f"sleep {seconds} & sleep {seconds}"]
    code = (
        "import pathlib, time, examples.engines.engine_process as e;"
        f"e.EngineProcess({program!r}, pathlib.Path({str(tmp_path / 'log')!r}));"
        "print('started', flush=True); time.sleep(600)"
    )
    starter = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert starter.stdout is not None
    assert starter.stdout.readline() == "started\n"
    deadline = time.monotonic() + 60
    while len(_sleepers(seconds)) < 2 and time.monotonic() < deadline:
        time.sleep(0.05)
    assert len(_sleepers(seconds)) == 2
    os.kill(starter.pid, signal.SIGKILL)
    starter.wait()
    deadline = time.monotonic() + 60
    while _sleepers(seconds) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert _sleepers(seconds) == set()


def test_a_program_that_ends_at_once_says_why(tmp_path):
    process = EngineProcess(["sh", "-c", "echo no such port; exit 3"], tmp_path / "log")
    with pytest.raises(EngineError, match="ended with 3: no such port"):
        process.wait_until(lambda: False, 60)
    process.stop()


def test_a_missing_program_names_its_remedy(tmp_path, monkeypatch):
    monkeypatch.setenv("SHH_ENGINES", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match="make prism"):
        prism.Prism()
    assert "make prism" in (skip_reason("prism") or "")
    with pytest.raises(EngineError, match="make flink"):
        flink.JobServer()


def test_engines_are_in_the_checkout_where_make_puts_them(monkeypatch):
    monkeypatch.delenv("SHH_ENGINES", raising=False)
    checkout = pathlib.Path(__file__).resolve().parents[2]
    assert (checkout / "Makefile").exists()
    assert engines_folder() == checkout / ".engines"


@pytest.mark.parametrize(("libraries", "target"), [(KAFKA_LIBRARIES, "kafka"), (FLINK_LIBRARIES, "flink")])
def test_what_was_half_made_is_missing(tmp_path, monkeypatch, libraries, target):
    monkeypatch.setenv("SHH_ENGINES", str(tmp_path))
    marker = tmp_path / libraries
    (marker.parent / "lib").mkdir(parents=True)
    with pytest.raises(EngineError, match=f"make {target}"):
        engine_file(libraries, target)
    marker.touch()
    assert engine_file(libraries, target).parent == marker.parent
