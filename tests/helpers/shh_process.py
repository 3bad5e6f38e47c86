"""`shh` in a process of its own."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]


def shh(*words: object, cwd: pathlib.Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs the command in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "dp_transforms.pipelines.cli", *map(str, words)],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def error_line(result: subprocess.CompletedProcess[str]) -> str:
    """The one line of an expected error."""
    assert result.returncode != 0, result.stdout
    lines = result.stderr.strip().splitlines()
    assert "Traceback" not in result.stderr
    assert len(lines) == 1, result.stderr
    return lines[0]
