"""Streams of `live_parts` as processes: started, and asked to stop."""

from __future__ import annotations

import signal
import subprocess

from tests.helpers import forked
from tests.helpers.live_parts import LiveParts

_PATIENCE_SECONDS = 300  # a run takes some seconds of a machine that has nothing else to do


def started(live: LiveParts, output: str, *words: str, **options: str) -> subprocess.Popen[str]:
    """A stream, once it can be stopped."""
    command = ("-m", "dp_transforms.cli.main", *live.words("stream", output, *words, **options))
    process = forked.python(*command, cwd=live.folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stderr is not None
    while "Ctrl-C" not in (line := process.stderr.readline()):
        assert line, process.wait()
    return process


def drained(process: subprocess.Popen[str]) -> str:
    """Asks it to stop, and returns what it says then."""
    with process:
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=_PATIENCE_SECONDS)
    assert process.returncode == 0, err
    return err
