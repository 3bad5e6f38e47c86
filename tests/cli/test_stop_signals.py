"""Signals are counted wherever they meet the command, and it goes on."""

from __future__ import annotations

import contextlib
import pathlib
import signal
import subprocess
import sys
import threading
import time

from dp_transforms.cli.stream_watch import StopSignals, caught_stops

ROOT = pathlib.Path(__file__).resolve().parents[2]
SIGNALS = 1500
# Another process sends them, so they meet this one anywhere, within the wait too.
UNDER_FIRE = f"""
import os, subprocess, sys
from dp_transforms.cli.stream_watch import caught_stops
send = "import os, sys, time\\nfor _ in range({SIGNALS}):\\n    os.kill(int(sys.argv[1]), 2)\\n    time.sleep(0.002)"
with caught_stops() as stops:
    sender = subprocess.Popen([sys.executable, "-c", send, str(os.getpid())])
    while sender.poll() is None:
        stops.wait(1e-5, stops.count)
print(stops.count)
"""


def test_no_signal_meets_a_lock() -> None:
    """The deadlock that this is about came within a second of such fire."""
    fired = subprocess.run(
        [sys.executable, "-c", UNDER_FIRE], cwd=ROOT, capture_output=True, text=True, check=False, timeout=120
    )
    assert fired.returncode == 0, fired.stderr[-2000:]
    assert SIGNALS // 2 < int(fired.stdout) <= SIGNALS  # two at once count as one


def test_a_wait_ends_with_the_signal_or_the_time() -> None:
    with caught_stops() as stops:
        assert not stops.wait(0.01, 0)
        timer = threading.Timer(0.1, signal.raise_signal, [signal.SIGINT])
        timer.start()
        begin = time.monotonic()
        assert stops.wait(60, 0)
        assert time.monotonic() - begin < 50
        timer.join()
        assert (stops.count, stops.code) == (1, 130)
        signal.raise_signal(signal.SIGTERM)
        assert stops.wait(60, 1)
        assert (stops.count, stops.code) == (2, 143)


def test_the_handlers_from_before_come_back() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with contextlib.suppress(ZeroDivisionError), caught_stops() as stops:
        assert isinstance(signal.getsignal(signal.SIGINT), StopSignals)
        assert stops.count / 0
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before
