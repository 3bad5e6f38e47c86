"""What the demos on engines share: a command that runs beside them, signals, and what they print."""

from __future__ import annotations

import contextlib
import os
import pathlib
import secrets
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence

from rich.console import Console

from dp_transforms.engines.engine_process import EngineError
from dp_transforms.engines.flink import WorkerPool


def run_demo(demo: Callable[[Console], int]) -> int:
    """Runs it. Returns the exit code."""
    console = Console(highlight=False, soft_wrap=True)
    try:
        with _stopped_by_signals():
            return demo(console)
    except KeyboardInterrupt:
        console.print("\nStopped. All processes have ended.")
        return 130
    except EngineError as error:
        console.print(f"[bold red]Error:[/] {error}")
        return 1


def print_command(console: Console, text: str) -> None:
    """As a user would type it."""
    console.print(f"\n[bold cyan]$ {text}[/]")
    sys.stdout.flush()


def shh_words(*words: str) -> list[str]:
    """The words that start ``shh`` with these."""
    return [sys.executable, "-m", "dp_transforms.cli.main", *words]


def make_noise_key(console: Console, path: pathlib.Path) -> None:
    """As the printed command does."""
    print_command(console, f"(umask 077; head -c 32 /dev/urandom > {path})")
    key = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with open(key, "wb") as file:
        file.write(secrets.token_bytes(32))


@contextlib.contextmanager
def started(command: Sequence[str]) -> Iterator[subprocess.Popen[bytes]]:
    """The command in a process group of its own: Ctrl-C reaches this process, which then ends it at once."""
    process = subprocess.Popen(command, start_new_session=True)
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def kill_workers(console: Console, pool: WorkerPool) -> None:
    """SIGKILL to all Python workers that run now."""
    pids = pool.worker_pids()
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    console.print(f"[bold red]Killing the Python worker: kill -9 {' '.join(map(str, pids))}[/]")


def print_checks(console: Console, checks: Sequence[tuple[bool, str]]) -> int:
    """A line for each. Returns the exit code."""
    console.print()
    for passed, words in checks:
        console.print(f"{'[green]yes[/]' if passed else '[bold red]NO [/]'}  {words}")
    return 0 if all(passed for passed, _ in checks) else 1


@contextlib.contextmanager
def _stopped_by_signals() -> Iterator[None]:
    """SIGTERM and SIGINT end the block as Ctrl-C does, so that everything it started is stopped.

    A shell that starts a program in the background lets it ignore SIGINT.
    """

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
