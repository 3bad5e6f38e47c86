"""Processes that are forked with everything imported end, read and say as those that Python starts."""

from __future__ import annotations

import pathlib
import signal
import subprocess

import pytest

from tests.helpers import forked, shh_process

PROGRAMS = {
    "an exit code": "import sys; sys.exit(3)",
    "words on exit": "import sys; sys.exit('no')",
    "a signal": "import os, signal; os.kill(os.getpid(), signal.SIGTERM)",
    "SIGKILL": "import os; os.kill(os.getpid(), 9)",
    "Ctrl-C that is caught": "import os\ntry: os.kill(os.getpid(), 2)\nexcept KeyboardInterrupt: print('caught')",
    "what ends last": "import atexit\natexit.register(print, 'end')\nprint('begin', end=' ')",
    "standard input": "import sys; print(sys.stdin.read()[::-1])",
    "both streams": "import sys; print('ä'); print('ö', file=sys.stderr)",
    "a stream that closes": "import os, sys; sys.stdout.close(); os.write(2, b'x')",
    "words": "import sys; print(sys.argv, sys.path[0], __name__)",
    "its folder and environment": "import os; print(os.getcwd(), os.environ['MORE'], os.getenv('PYTHONPATH'))",
    "a thread that goes on": "import threading\nthreading.Timer(0.1, print, ['x']).start()",
    "warnings": "import warnings; warnings.warn('w', DeprecationWarning); import logging; logging.info('x')",
}


def run(start, program: str, folder: pathlib.Path) -> tuple[int, str, str]:  # type: ignore[no-untyped-def]
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with start("-c", program, "word", cwd=folder, environment={"MORE": "more"}, **pipes) as process:
        out, err = process.communicate("input")
    return process.returncode, out, err


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_ends_and_says_the_same(tmp_path: pathlib.Path, name: str) -> None:
    ended = run(forked.python, PROGRAMS[name], tmp_path)
    assert ended == run(shh_process.python, PROGRAMS[name], tmp_path)
    assert ended != (0, "", "")


@pytest.mark.skipif(not forked.CAN_FORK, reason="processes are forked on Linux alone")
def test_it_is_a_process_of_its_own_that_has_imported_beam(tmp_path: pathlib.Path) -> None:
    program = "import sys, time\nprint('apache_beam' in sys.modules, flush=True)\ntime.sleep(600)"
    with forked.python("-c", program, cwd=tmp_path, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "True\n"
        assert process.poll() is None
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.01)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == process.poll() == -signal.SIGTERM


@pytest.mark.skipif(not forked.CAN_FORK, reason="processes are forked on Linux alone")
def test_hashes_of_another_seed_are_refused(tmp_path: pathlib.Path) -> None:
    with pytest.raises(ValueError, match="PYTHONHASHSEED=0, got 1"):
        forked.python("-c", "", cwd=tmp_path, environment={"PYTHONHASHSEED": "1"})
