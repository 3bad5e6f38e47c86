"""`shh` in this process: through its real entrance, and without the 1.5 s that a process takes to import it all.

For what a command says and writes. What a process does as a whole needs one (`tests.helpers.shh_process`): signals, a
standard output that is closed, which modules are loaded, workers that Beam starts.
"""

from __future__ import annotations

import contextlib
import io
import logging
import os
import pathlib
import subprocess
import sys
import tempfile
import threading
import warnings
from collections.abc import Iterator
from typing import Any
from unittest import mock

from dp_transforms.cli.main import main


@contextlib.contextmanager
def logs_as_before() -> Iterator[None]:
    """What a command sets up for its process, for good, is put back: the root logger, the warnings, and what a thread
    that fails says. So no test depends on which others ran before it."""
    root, report = logging.getLogger(), threading.excepthook
    handlers, level, disabled = list(root.handlers), root.level, root.manager.disable
    with warnings.catch_warnings():
        try:
            yield
        finally:
            threading.excepthook = report
            root.handlers[:] = handlers
            root.manager.disable = disabled
            root.setLevel(level)  # after which no logger remembers what it was asked before


def shh(*words: object, cwd: pathlib.Path | str = ".", **environment: str) -> subprocess.CompletedProcess[str]:
    """As `shh_process.shh`. Also what C libraries write to the descriptors 1 and 2 is captured."""
    arguments = [str(word) for word in words]
    with contextlib.ExitStack() as stack:
        stack.enter_context(contextlib.chdir(cwd))
        stack.enter_context(mock.patch.dict(os.environ, environment))
        stack.enter_context(logs_as_before())
        out = stack.enter_context(_captured("stdout", 1))
        err = stack.enter_context(_captured("stderr", 2))
        code = _exit_code(arguments)
        sys.stdout.flush()
        sys.stderr.flush()
        return subprocess.CompletedProcess(arguments, code, _content(out), _content(err))


def said(*words: object, **more: Any) -> tuple[str, str, int]:
    """What it says on stdout and stderr, and its exit code."""
    done = shh(*words, **more)
    return done.stdout, done.stderr, done.returncode


def _exit_code(arguments: list[str]) -> int:
    try:
        main(arguments)
    except SystemExit as stopped:
        return int(stopped.code or 0)
    return 0


@contextlib.contextmanager
def _captured(name: str, descriptor: int) -> Iterator[int]:
    """While the block runs, the stream of `sys` and its descriptor both go to a file, whose descriptor this is."""
    stream_before, descriptor_before = getattr(sys, name), os.dup(descriptor)
    stream_before.flush()
    with tempfile.TemporaryFile() as file:
        os.dup2(file.fileno(), descriptor)
        stream = io.TextIOWrapper(open(descriptor, "wb", closefd=False), "utf-8", write_through=name == "stderr")  # noqa: SIM115
        setattr(sys, name, stream)
        try:
            yield file.fileno()
        finally:
            stream.flush()
            setattr(sys, name, stream_before)
            os.dup2(descriptor_before, descriptor)
            os.close(descriptor_before)


def _content(descriptor: int) -> str:
    return os.pread(descriptor, os.fstat(descriptor).st_size, 0).decode()
