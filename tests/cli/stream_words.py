"""Words of `shh stream` that several of its tests use, and how they run it in this process."""

from __future__ import annotations

import signal

import pytest

from dp_transforms.cli.main import main

START = 1_577_836_800  # 2020-01-01T00:00:00Z
HOURS = 6
PLAN = [
    *("--start", "2020-01-01", "--end", "2020-01-01T06:00:00Z", "--window", "1h"),
    *("--epsilon", "8", "--delta", "1e-6", "--mode", "hits-with-counts"),
]


def run(words: list[str], capsys: pytest.CaptureFixture[str], command: str = "stream") -> tuple[int, str, str]:
    """Exit code, stdout and stderr of the command, run in this process."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        main([command, *words])
        code = 0
    except SystemExit as stopped:
        code = int(stopped.code or 0)
    finally:
        signal.signal(signal.SIGTERM, before)
    out, err = capsys.readouterr()
    return code, out, err
