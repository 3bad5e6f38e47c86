"""`shh` in a process of its own, which imports what it needs. Most tests need only `tests.helpers.forked`."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parents[2]


def python(*words: object, environment: Mapping[str, str] | None = None, **options: Any) -> subprocess.Popen[str]:
    """A process of this Python with these words, of text. options: as of `subprocess.Popen`."""
    env = {**os.environ, "PYTHONPATH": str(ROOT), **(environment or {})}
    return subprocess.Popen([sys.executable, *map(str, words)], env=env, text=True, **options)


def shh(*words: object, cwd: pathlib.Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs the command in a process of its own."""
    command = ("-m", "dp_transforms.cli.main", *words)
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with python(*command, environment=environment, cwd=cwd, **pipes) as process:
        out, err = process.communicate()
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def error_line(result: subprocess.CompletedProcess[str]) -> str:
    """The one line of an expected error."""
    assert result.returncode != 0, result.stdout
    lines = result.stderr.strip().splitlines()
    assert "Traceback" not in result.stderr
    assert len(lines) == 1, result.stderr
    return lines[0]
