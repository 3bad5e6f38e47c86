"""The programs of an engine: where they are, how they start, and that they always end.

Nothing is downloaded here. `make engines` puts the programs into ``.engines`` of the checkout; ``SHH_ENGINES`` names
another folder.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Self

from dp_transforms.beam.runner_options import engines_folder
from dp_transforms.errors import UserError

# The group also ends when this process is killed (SIGKILL): then its end of the pipe closes.
_WITH_WATCH = 'exec 3<&0; (read -r _ <&3; kill -s KILL -- -$$) >/dev/null 2>&1 & exec "$@" 3<&- </dev/null'
_LOG_TAIL_BYTES = 2000


class EngineError(UserError):
    """An engine is missing, did not start, or refused a request."""


def engine_file(name: str) -> pathlib.Path:
    """A file or folder in the engines' folder. Raises EngineError if it was not made."""
    path = engines_folder() / name
    if not path.exists():
        raise EngineError(f"{path} is missing. Make it with: make engines (SHH_ENGINES names another folder).")
    return path


def java() -> str:
    """The Java program: the one in ``JAVA_HOME`` if that is set, else the one in the PATH. Raises EngineError."""
    home = os.environ.get("JAVA_HOME")
    found = shutil.which("java", path=os.path.join(home, "bin") if home else None)
    if found is None:
        raise EngineError(f"no java in {'JAVA_HOME' if home else 'the PATH'}. Install a Java runtime, 11 or 17.")
    return found


def free_port() -> int:
    """A TCP port of the loopback address that was free a moment ago."""
    return free_ports(1)[0]


def free_ports(count: int) -> list[int]:
    """Different TCP ports of the loopback address that were free a moment ago."""
    with contextlib.ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("localhost", 0))
        return [int(probe.getsockname()[1]) for probe in probes]


def is_port_open(port: int) -> bool:
    """Whether a program accepts connections on this port of the loopback address."""
    with contextlib.suppress(OSError), socket.create_connection(("localhost", port), timeout=1):
        return True
    return False


class EngineProcess:
    """A program with all its children, in a process group of its own.

    The group ends with `stop`, at the normal end of this process, and also when this process is killed.
    Standard output and error go to `log_path`, appended.
    """

    def __init__(self, command: Sequence[str], log_path: pathlib.Path, env: Mapping[str, str] | None = None) -> None:
        self.command = list(command)
        self.log_path = log_path
        with open(log_path, "ab") as log:
            self._process = subprocess.Popen(
                ["sh", "-c", _WITH_WATCH, "sh", *command],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env=None if env is None else {**os.environ, **env},
            )
        atexit.register(self.stop)

    @property
    def pid(self) -> int:
        """The program's process id; also the id of its process group."""
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self.exit_code is None

    @property
    def exit_code(self) -> int | None:
        """None while it runs."""
        return self._process.poll()

    def wait_until(self, answers: Callable[[], bool], timeout_seconds: float) -> None:
        """Returns once `answers()` is true. Raises EngineError, with the end of the log, if it ends or takes longer."""
        deadline = time.monotonic() + timeout_seconds
        while not answers():
            if not self.is_running:
                raise EngineError(f"{self.command[0]} ended with {self._process.returncode}: {self.log_tail()}")
            if time.monotonic() > deadline:
                raise EngineError(f"{self.command[0]} did not answer within {timeout_seconds:g} s: {self.log_tail()}")
            time.sleep(0.1)

    def log_tail(self) -> str:
        """The last lines of the log."""
        return self.log_path.read_bytes()[-_LOG_TAIL_BYTES:].decode(errors="replace").strip()

    def kill(self) -> None:
        """SIGKILL to the whole group, as a crash would; waits until the program is gone."""
        self._signal(signal.SIGKILL)
        self._process.wait()
        self._forget()

    def stop(self, grace_seconds: float = 5.0) -> None:
        """SIGTERM to the group, SIGKILL after the grace; does nothing if it was stopped before."""
        self._signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(grace_seconds)
        self.kill()

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if self._process.stdin is not None and not self._process.stdin.closed:
                os.killpg(self._process.pid, number)

    def _forget(self) -> None:
        if self._process.stdin is not None:
            self._process.stdin.close()
        atexit.unregister(self.stop)


class Engine:
    """What runs as one `EngineProcess`: a context manager that ends with it."""

    process: EngineProcess

    def _start(
        self,
        command: Sequence[str],
        log_path: pathlib.Path,
        answers: Callable[[], bool],
        timeout_seconds: float,
        env: Mapping[str, str] | None = None,
    ) -> None:
        """Returns once `answers()` is true; otherwise leaves nothing behind and raises EngineError."""
        self.process = EngineProcess(command, log_path, env)
        try:
            self.process.wait_until(answers, timeout_seconds)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Ends the program and its children; does nothing if it was stopped before."""
        self.process.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
