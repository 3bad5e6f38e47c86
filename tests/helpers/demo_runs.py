"""A demo on engines as a process, and what it leaves behind."""

from __future__ import annotations

import os
import pathlib
import signal
import subprocess
import sys
import time

import psutil

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
