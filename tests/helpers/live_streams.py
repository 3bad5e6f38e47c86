"""Streams of `live_parts` as processes: started, and asked to stop."""

from __future__ import annotations

import signal
import subprocess
from typing import Any

from tests.helpers import forked
from tests.helpers.live_parts import LiveParts

_PATIENCE_SECONDS = 300  # a run takes some seconds of a machine that has nothing else to do


# Kills itself when a report, whose name begins with its time, has its name: however many are due, it is the first.
_DIES_AFTER_A_REPORT = """
import os, signal
link = os.link
def and_die(source, name, **more):
    link(source, name, **more)
    if os.path.basename(name)[0].isdigit():
        os.kill(os.getpid(), signal.SIGKILL)
os.link = and_die
from dp_transforms.cli.main import main
main()
"""


def begun(live: LiveParts, output: str, *words: str, dies: bool = False, **options: str) -> subprocess.Popen[str]:
    """A stream that starts. dies: as soon as it has published a report."""
    program = ("-c", _DIES_AFTER_A_REPORT) if dies else ("-m", "dp_transforms.cli.main")
    command = (*program, *live.words("stream", output, *words, **options))
    return forked.python(*command, cwd=live.folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def stoppable(process: subprocess.Popen[str]) -> subprocess.Popen[str]:
    """The same stream, once it can be stopped."""
    assert process.stderr is not None
    while "Ctrl-C" not in (line := process.stderr.readline()):
        assert line, process.wait()
    return process


def started(live: LiveParts, output: str, *words: str, **more: Any) -> subprocess.Popen[str]:
    """A stream that was `begun`, once it can be stopped."""
    return stoppable(begun(live, output, *words, **more))


def drained(process: subprocess.Popen[str]) -> str:
    """Asks it to stop, and returns what it says then."""
    with process:
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=_PATIENCE_SECONDS)
    assert process.returncode == 0, err
    return err
