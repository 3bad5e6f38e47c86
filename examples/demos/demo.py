"""``make demo``: the Beam job of README.md, charged for hits, then a log and its replay, as a user would type them.

Also what the demos on engines share with it: a command that runs beside them, signals, and what they print.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import re
import secrets
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence

from rich.console import Console

from dp_transforms.cli.main import main
from dp_transforms.reports import read_report
from examples.engines.engine_process import EngineError
from examples.engines.flink import WorkerPool
from examples.engines.flink_cluster import worker_pids

_FOLDER, _README = pathlib.Path("demo"), pathlib.Path(__file__).parents[2] / "README.md"
_JOB, _LOG, _REPORT, _PAGE = (str(_FOLDER / name) for name in ("job.py", "clicks.parquet", "report.avro", "page.html"))
_SIMULATE = ["simulate", "--users", "50000", "--days", "2", "--seed", "1", "--output", _LOG]
_REPLAY = [
    *("replay", _LOG, "--start", "2026-01-01T00:00:00Z", "--end", "2026-01-03T00:00:00Z", "--window", "1h"),
    *("--epsilon", "2", "--delta", "1e-9", "--output", _REPORT),
]
_SHOW = ["show", _REPORT, "--html", _PAGE]


def fresh_folder(folder: pathlib.Path) -> None:
    """Makes an empty folder in the place of an earlier one. Ends the process if something else is there, or a link."""
    shutil.rmtree(folder, ignore_errors=True)
    try:
        folder.mkdir()
    except OSError as error:
        sys.exit(f"The folder {folder} cannot be made again: {error.strerror}. Move away what is there.")


def demo() -> None:
    """Starts from nothing: what an earlier demo made is removed."""
    fresh_folder(_FOLDER)
    console = Console(highlight=False, soft_wrap=True)
    (job,) = re.findall(r"```python\n(.*?)```", _README.read_text(encoding="utf-8"), re.DOTALL)
    pathlib.Path(_JOB).write_text(job, encoding="utf-8")
    console.print("\n[bold]Users pay for hits: ThresholdMonitorEvolving on Beam's DirectRunner, as in README.md.[/]")
    print_command(console, f"python {_JOB}")
    if subprocess.run([sys.executable, _JOB], check=False).returncode:
        sys.exit(1)
    console.print("\n[bold]A log, in which users pay for contributions, the default of the command.[/]")
    for words in (_SIMULATE, _REPLAY, _SHOW):
        print_command(console, f"shh {' '.join(words)}")
        main(words)
    named = sum(len(window.heavy_hitters) for window in read_report(_REPORT).windows)
    console.print(f"\n{named:,} pairs (window, item) were named.")
    console.print(f"Open {pathlib.Path(_PAGE).absolute()} in a browser: it needs no network.")


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
    pids = worker_pids(pool)
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


if __name__ == "__main__":
    demo()
