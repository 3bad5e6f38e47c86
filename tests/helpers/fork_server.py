"""Forks processes that have everything imported. `tests.helpers.forked` starts it, and says what it is for.

It must be run as a file, and what is below stays at the top level of its module: a process that was forked leaves
`serve` and runs its program to the end of the interpreter, which gives its exit code as of any other program.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import io
import json
import logging
import os
import pathlib
import pkgutil
import runpy
import signal
import socket
import sys
import types
import warnings
from typing import Any

# What Beam imports when the first pipeline is built or run; not all of it is installed everywhere.
_LAZY = (
    "IPython",
    "apache_beam.runners.direct.direct_runner",
    "apache_beam.runners.portability.fn_api_runner.fn_runner",
    "apache_beam.runners.portability.portable_runner",
    "apache_beam.runners.worker.sdk_worker",
    "fastavro",
    "pyarrow.csv",
    "pyarrow.json",
    "pyarrow.parquet",
    "rich.console",
    "rich.progress",
    "rich.table",
    "scipy.optimize",
    "scipy.signal",
    "scipy.special",
    "scipy.stats",
)
_HEAD_BYTES = 8
_DEFAULTS = (signal.SIGTERM, signal.SIGCHLD, signal.SIGHUP, signal.SIGALRM, signal.SIGUSR1, signal.SIGUSR2)


def import_all() -> None:
    """Importing alone: no thread is started, so that a fork is safe."""
    import dp_transforms

    filters = list(warnings.filters)
    logging.disable()  # Beam warns of what is not installed
    for module in pkgutil.walk_packages(dp_transforms.__path__, "dp_transforms."):
        if module.name.rpartition(".")[2] != "__main__":
            importlib.import_module(module.name)
    for name in _LAZY:
        with contextlib.suppress(ModuleNotFoundError):
            importlib.import_module(name)
    logging.disable(logging.NOTSET)
    logging.getLogger().handlers.clear()
    warnings.filters[:] = filters  # type: ignore[index]


def serve(requests: socket.socket) -> dict[str, Any]:
    """Returns in a process that was forked, with what it shall run. Ends with the process that asks."""
    while True:
        head, files, _, _ = socket.recv_fds(requests, _HEAD_BYTES, 4)
        if not head:
            os._exit(0)
        while len(head) < _HEAD_BYTES:
            head += requests.recv(_HEAD_BYTES - len(head))
        length, body = int.from_bytes(head, "big"), b""
        while len(body) < length:
            body += requests.recv(length - len(body))
        if not os.fork():
            child = os.fork()
            if not child:
                requests.close()
                _take(files[:3])
                os.close(files[3])
                return dict(json.loads(body))
            _tell_of(child, files)
        for file in files:
            os.close(file)
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _tell_of(child: int, files: list[int]) -> None:
    """The parent of the child: tells its id, and how it ended."""
    for file in files[:3]:
        os.close(file)
    os.write(files[3], b"%d\n" % child)
    _, status = os.waitpid(child, 0)
    os.write(files[3], b"%d\n" % status)
    os._exit(0)


def _take(streams: list[int]) -> None:
    """These are the standard streams from here on."""
    for target, file in enumerate(streams):
        os.dup2(file, target)
    for file in streams:
        if file > 2:
            os.close(file)


def become(words: list[str], folder: str, environment: dict[str, str]) -> None:
    """What Python does before it runs a program: words are those behind its name."""
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    is_unbuffered = bool(environment.get("PYTHONUNBUFFERED"))
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        mode, buffering = ("wb", 0 if is_unbuffered else -1) if number else ("rb", -1)
        raw: Any = open(number, mode, closefd=False, buffering=buffering)  # noqa: SIM115
        errors = "backslashreplace" if name == "stderr" else "strict"
        is_line = raw.isatty() or name == "stderr"
        stream = io.TextIOWrapper(raw, "utf-8", errors, line_buffering=is_line, write_through=is_unbuffered)
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    for number in _DEFAULTS:
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.argv = words
    sys.dont_write_bytecode = bool(environment.get("PYTHONDONTWRITEBYTECODE"))


def module_of(program: str) -> tuple[Any, dict[str, Any]]:
    """The code of a program, and the module ``__main__`` in which it runs."""
    module = types.ModuleType("__main__")
    sys.modules["__main__"] = module
    return compile(program, "<string>", "exec"), module.__dict__


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.path[0] = str(pathlib.Path(__file__).parents[2])  # else the folder of this file
    import_all()
    gc.collect()
    gc.freeze()
    request = serve(socket.socket(fileno=int(sys.argv[1])))
    become(request["words"], request["folder"], request["environment"])
    sys.path[:1] = request["path"]
    kind, what = request["kind"], request["what"]
    if kind == "-c":
        code, names = module_of(what)
        exec(code, names)  # noqa: S102
    elif kind == "-m":
        sys.modules.pop(what, None)  # a program is not imported before it runs
        runpy.run_module(what, run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(what, run_name="__main__")
