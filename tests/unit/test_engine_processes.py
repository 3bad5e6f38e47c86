"""Processes of engines end with their starter, and errors name a remedy. No engine is started."""

import os
import signal
import subprocess
import sys
import time

import psutil


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
