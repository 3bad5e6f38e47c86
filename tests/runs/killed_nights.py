"""Nights of one run in a folder, by all that a real one does but the pipeline: state, ledger, report.

What it draws is a function of the run id, the nonce of the part, the windows and the log, as with a noise key.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import os
import pathlib
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable
from types import FrameType
from typing import Any

from dp_transforms.cli.run_account import drawn
from dp_transforms.core.state_chunks import Kind, hit_bound_chunk, pack_chunk
from dp_transforms.core.window_report import ABOVE, HeavyHitter
from dp_transforms.errors import LogError
from dp_transforms.plan.plan import Plan
from dp_transforms.plan.window_schedule import WindowSchedule
from dp_transforms.reports import read_report_file
from dp_transforms.reports.files import report_file_bytes
from dp_transforms.runs.fingerprints import input_fingerprint, input_key
from dp_transforms.runs.ledger import Ledger
from dp_transforms.runs.records import Part
from dp_transforms.runs.state_file import StateFile, hold_state
from dp_transforms.runs.state_part import StatePart, open_part
from tests.helpers.report_samples import HEADER, HOUR, START, report
from tests.helpers.small_runs import SECRET, key_file

WINDOWS = 90
DAY = 86_400
PLAN = Plan.for_hits(epsilon=0.1, delta=1e-8, schedule=WindowSchedule(0, WINDOWS * DAY, DAY, DAY))
CAPS = (400, "1e-3")
OURS = ("runs/state_part.py", "cli/run_account.py", "killed_nights.py", "stores/local_files.py")
OURS += ("runs/ledger.py", "runs/ledger_file.py", "runs/state_file.py")
_READERS = {"__init__", "_read", "open_regular", "<genexpr>", "all", "get", "_is_there"}
_READERS |= {"mode_for_others", "_errors", "_quoted"}


@functools.cache
def is_ours(file: str) -> bool:
    return file.endswith(OURS)


class Lines:
    """Counts the lines of ours that are run and do not only read, and ends the process before one of them.

    news: before which of them something new was on the disk, in this folder. A process that is killed leaves nothing
    else: before a line that is not among them it would leave what it leaves before the last one that is.
    """

    def __init__(self, die_at: int | None = None, folder: pathlib.Path | None = None) -> None:
        self.count = 0
        self.die_at = die_at
        self.news: list[int] = []
        self._folder, self._found = folder, dict[pathlib.Path, bytes]()

    def trace(self, frame: FrameType, event: str, argument: Any) -> Callable[..., Any] | None:
        if frame.f_code.co_name in _READERS or not is_ours(frame.f_code.co_filename):
            return None
        if event == "line":
            self.count += 1
            if self.count == self.die_at:
                os.kill(os.getpid(), signal.SIGKILL)
            if self._folder is not None:
                self._look_at(self._folder)
        return self.trace

    def _look_at(self, folder: pathlib.Path) -> None:
        found = {path: path.read_bytes() if path.is_file() else b"" for path in folder.rglob("*")}
        if found != self._found or not self.news:
            self._found = found
            self.news.append(self.count)


def lines_of(work: Callable[[], object], folder: pathlib.Path) -> tuple[int, list[int]]:
    """How many lines are run in a process that does it, and `Lines.news` of this folder."""
    with tempfile.NamedTemporaryFile() as told:

        def count() -> None:
            lines = Lines(folder=folder)
            sys.settrace(lines.trace)
            work()
            sys.settrace(None)
            pathlib.Path(told.name).write_text(json.dumps([lines.count, lines.news]))

        assert in_a_process(count) == (False, "")
        return tuple(json.load(told))


def in_a_process(work: Callable[[], object], die_at: int | None = None) -> tuple[bool, str]:
    """Runs it in a process that is killed before this line. Whether it was, and the error that ended it else."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        said = ""
        try:
            quiet = os.open(os.devnull, os.O_WRONLY)
            os.dup2(quiet, 2)
            sys.settrace(Lines(die_at).trace if die_at else None)
            work()
        except BaseException as error:
            said = f"{type(error).__name__}: {error}"
        finally:
            sys.settrace(None)
            os.write(writing, said.encode())
            os._exit(0)
    os.close(writing)
    with open(reading, "rb") as file:
        said = file.read().decode()
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status) == -signal.SIGKILL, said


class NightFolder:
    """Where they happen. has_ledger: whether the run is accounted for; else its ledger is its own."""

    def __init__(self, folder: pathlib.Path, *, has_ledger: bool = True) -> None:
        self.folder, self.has_ledger = folder, has_ledger
        self.ledger_path = folder / ("ledger.db" if has_ledger else "run.state.ledger")
        key_file(folder)
        for name in "ab":
            (folder / f"{name}.log").write_text(f"the log {name}\n")

    @property
    def ledger(self) -> Ledger:
        return Ledger(self.ledger_path)

    @property
    def state(self) -> StateFile:
        return StateFile(self.folder / "run.state")

    @property
    def parts(self) -> list[Part]:
        """Of the run that was begun last."""
        return self.ledger.runs()[-1][1] if self.ledger_path.exists() and self.ledger_path.stat().st_size else []

    def take(self, end: int, log: str = "a", *, is_bad: bool = False) -> str:
        """The command of a night that ends before this window. Raises UserError, or StateError."""
        state = str(self.folder / "run.state")
        with hold_state(state):
            part = open_part(
                PLAN,
                state,
                until=end * DAY,
                log=self.read(log),
                output=str(self.folder / f"{end}.jsonl"),
                secret=SECRET,
                ledger=self.ledger if self.has_ledger else None,
                caps=CAPS if self.has_ledger else None,
                population="news" if self.has_ledger else "",
                stream="events",
                user_field="user",
                item_field="item",
            )
            if not part.is_done:
                with drawn(part.ledger, part.verdict, "Again.", left=lambda: part.left):
                    if is_bad or not part.is_drawn:
                        self._draw(part, log, is_bad)
                    part.publish()
        return str(part.verdict.kind)

    def begun(self) -> tuple[int, str] | None:
        """End and log of the part that may have drawn and was not finished."""
        logs = {self.read(log): log for log in "ab"}
        found = [part for part in self.parts if part.is_open and part.may_be_published]
        return (found[0].end_window, logs[found[0].input_fingerprint]) if found else None

    def read(self, log: str) -> str:
        return input_fingerprint([(str(self.folder / f"{log}.log"), "text")], (), input_key(SECRET))

    def begin_anew(self) -> None:
        """As an operator does whose run cannot go on."""
        shutil.rmtree(self.folder / ".run.state.drawn", ignore_errors=True)
        for path in (self.folder / "run.state", *self.folder.glob("[0-9]*.jsonl")):
            if path.exists():
                self._move(path)

    def move_report(self) -> None:
        """Somebody takes away what was published last."""
        found = sorted(self.folder.glob("[0-9]*.jsonl"), key=lambda path: int(path.stem))
        if found:
            self._move(found[-1])

    def _move(self, path: pathlib.Path) -> None:
        path.rename(self.folder / f"moved-{len(list(self.folder.glob('moved-*')))}{path.suffix}")

    def _draw(self, part: StatePart, log: str, is_bad: bool) -> None:
        windows, run_id = range(part.part.first_window, part.part.end_window), part.verdict.run_id
        found = [
            report(window, HeavyHitter(answer(run_id, part.run_part.draws_as, window, log), ABOVE, None), spent=1.0)
            for window in windows
        ]
        header = dataclasses.replace(HEADER, run_id=run_id)
        data = report_file_bytes(header, found, "json")
        if is_bad:
            raise LogError("the log is bad.")
        part.seal(data, [pack_chunk(Kind.HIT_BOUND, 0, hit_bound_chunk(windows.stop))])

    def published(self) -> dict[tuple[str, int], set[str]]:
        """What was ever to be read: for each run id and window all answers."""
        found: dict[tuple[str, int], set[str]] = {}
        for path in self.folder.glob("*.jsonl"):
            header, reports = read_report_file(path)
            for each in reports:
                window = header.run_id, (each.window_start - START) // HOUR
                found.setdefault(window, set()).add(each.heavy_hitters[0].item)
        return found


def answer(run_id: str, nonce: str, window: int, log: str) -> str:
    return hashlib.sha256(f"{run_id} {nonce} {window} {log}".encode()).hexdigest()[:12]
