"""Processes of this Python that begin with all of Beam and `shh` imported, in 0.02 s instead of 1.5 s of CPU.

They are forked from a process that imported it all and did nothing else (`fork_server`). A process of its own is what a
test needs for signals, exit codes, standard streams, limits or what is left after SIGKILL, and such a one it is; only
its imports were done before. Tests about importing, about what the interpreter does before a program begins
(PYTHONHASHSEED, sitecustomize, encodings of the standard streams), and those that wait for their child with os.waitpid
start a real one; so does one test of each command.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import pathlib
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from tests.helpers import shh_process

ROOT = shh_process.ROOT
HASH_SEED = "0"  # of all processes that are forked
CAN_FORK = sys.platform == "linux"


class _Server:
    """One for each process that runs tests, started by the first that needs it."""

    _only: _Server | None = None
    _lock = threading.Lock()

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        program = str(pathlib.Path(__file__).with_name("fork_server.py"))
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "OPENBLAS_NUM_THREADS": "1", "PYTHONHASHSEED": HASH_SEED}
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, program, str(theirs.fileno())],
                env=environment,
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
            )
        self._requests = ours
        atexit.register(self._close)

    @classmethod
    def ask(cls, request: dict[str, Any], files: Sequence[int]) -> None:
        with cls._lock:
            server = cls._only = cls._only or cls()
            body = json.dumps(request).encode()
            socket.send_fds(server._requests, [len(body).to_bytes(8, "big")], files)
            server._requests.sendall(body)

    def _close(self) -> None:
        self._requests.close()
        self._process.wait()


class Forked(subprocess.Popen[str]):
    """As `subprocess.Popen` of ``[sys.executable, *words]``: words begin with -c, -m or the path of a program.

    The process is not a child of this one. Its exit code comes from its parent, and all of `subprocess` works by it.
    """

    _told: int = -1
    _rest: bytes = b""

    def _execute_child(self, args: Any, *positional: Any) -> None:
        names = ("executable", "preexec_fn", "close_fds", "pass_fds", "cwd", "env", "startupinfo", "creationflags")
        given = dict(zip(names, positional, strict=False))
        streams = positional[9:15]  # each pipe: the end of the parent, the end of the child; -1 where there is none
        inherited = (0, 1, 2)
        ends = [streams[0], streams[3], streams[5]]
        child = [end if end != -1 else own for end, own in zip(ends, inherited, strict=True)]
        if given["preexec_fn"] or given["pass_fds"]:
            raise ValueError("a forked process takes neither preexec_fn nor pass_fds.")
        words = list(args)
        environment = dict(os.environ if given["env"] is None else given["env"])
        kind, what, rest = _program(words[1:])
        folder = os.path.abspath(given["cwd"] or os.getcwd())
        request = {
            "kind": kind,
            "what": what,
            "words": [what if kind not in ("-c", "-m") else kind, *rest],
            "path": [os.path.dirname(os.path.join(folder, what)) if kind not in ("-c", "-m") else ""],
            "folder": folder,
            "environment": environment,
        }
        self._told, telling = os.pipe()
        try:
            _Server.ask(request, [*child, telling])
        finally:
            os.close(telling)
            self._close_pipe_fds(*streams)  # type: ignore[attr-defined]
        self.pid = int(self._line())
        self._child_created = True

    def _line(self) -> bytes:
        while b"\n" not in self._rest:
            if not (more := os.read(self._told, 64)):
                raise ChildProcessError("the server of forked processes has gone.")
            self._rest += more
        line, _, self._rest = self._rest.partition(b"\n")
        return line

    def _try_wait(self, wait_flags: int) -> tuple[int, int]:
        if wait_flags & os.WNOHANG and not select.select([self._told], [], [], 0)[0]:
            return 0, 0
        status = int(self._line())
        os.close(self._told)
        return self.pid, status

    def _internal_poll(self, _deadstate: int | None = None, **_: Any) -> int | None:
        if self.returncode is None and self._waitpid_lock.acquire(False):
            try:
                if self.returncode is None:
                    pid, status = self._try_wait(os.WNOHANG)
                    if pid == self.pid:
                        self.returncode = os.waitstatus_to_exitcode(status)
            finally:
                self._waitpid_lock.release()
        return self.returncode


def _program(words: Sequence[str]) -> tuple[str, str, list[str]]:
    """Kind, what it is, and the words for it."""
    if words[0] in ("-c", "-m"):
        return words[0], words[1], list(words[2:])
    return "path", words[0], list(words[1:])


def python(*words: object, environment: Mapping[str, str] | None = None, **options: Any) -> subprocess.Popen[str]:
    """As `shh_process.python`, which it is where the system cannot fork so."""
    if not CAN_FORK:
        return shh_process.python(*words, environment=environment, **options)
    env = {**os.environ, "PYTHONPATH": str(ROOT), **(environment or {})}
    if env.setdefault("PYTHONHASHSEED", HASH_SEED) != HASH_SEED:
        raise ValueError(f"a forked process has PYTHONHASHSEED={HASH_SEED}, got {env['PYTHONHASHSEED']}.")
    return Forked([sys.executable, *map(str, words)], env=env, text=True, **options)


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
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)
            raise
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def shh(*words: object, cwd: pathlib.Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs the command in a process of its own."""
    return run_python("-m", "dp_transforms.cli.main", *words, cwd=cwd, environment=environment)
