"""`shh` in a process of its own, for what only one shows: signals, exit codes, standard streams, limits, what SIGKILL
leaves. It costs 2 s of imports: what a command says and writes is seen in this process (`tests.helpers.shh_here`).
"""

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


def run_python(
    *words: object, input: str | None = None, timeout: float | None = None, **options: Any
) -> subprocess.CompletedProcess[str]:
    """Runs it to its end, and captures what it says unless the options say where that goes."""
    if input is not None:
        options["stdin"] = subprocess.PIPE
    with python(*words, **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}) as process:
        try:
            out, err = process.communicate(input, timeout=timeout)
        except BaseException:
            process.kill()
            raise
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def shh(*words: object, cwd: pathlib.Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs the command in a process of its own."""
    return run_python("-m", "dp_transforms.cli.main", *words, cwd=cwd, environment=environment)


def error_line(result: subprocess.CompletedProcess[str]) -> str:
    """The one line of an expected error."""
    assert result.returncode != 0, result.stdout
    lines = result.stderr.strip().splitlines()
    assert "Traceback" not in result.stderr
    assert len(lines) == 1, result.stderr
    return lines[0]
