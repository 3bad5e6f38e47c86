"""Nights of one run in a folder, by all that a real one does but the pipeline: state, ledger, report.

What it draws is a function of the run id, the nonce of the part, the windows and the log, as with a noise key.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import os
import pathlib
import signal
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

from dp_transforms.cli.options import LogError
from dp_transforms.cli.output_file import output_draft_file
from dp_transforms.cli.run_account import RunAccount
from dp_transforms.cli.shared_options import StateOptions
from dp_transforms.cli.state_part import StatePart, open_part
from dp_transforms.core.state_chunks import Kind, hit_bound_chunk
from dp_transforms.core.window_report import ABOVE, HeavyHitter
from dp_transforms.plan.plan import Plan
from dp_transforms.plan.window_schedule import WindowSchedule
from dp_transforms.reports import read_report_file
from dp_transforms.reports.files import write_report_file
from dp_transforms.runs.fingerprints import InputFingerprint, input_key, sealing_key
from dp_transforms.runs.ledger import Ledger
from dp_transforms.runs.records import Caps, VerdictKind
from dp_transforms.runs.state_file import StateFile, hold_state, write_state
from tests.helpers.report_samples import HEADER, HOUR, START, report
from tests.helpers.small_runs import SECRET, key_file

WINDOWS = 90
DAY = 86_400
PLAN = Plan.for_hits(epsilon=0.1, delta=1e-8, schedule=WindowSchedule(0, WINDOWS * DAY, DAY, DAY))
CAPS = Caps(400, "1e-3")
_OPEN = ("running", "failed")
OURS = ("cli/state_part.py", "cli/run_account.py", "killed_nights.py", "stores/local_files.py")
OURS += ("ledger/ledger.py", "ledger/database.py", "ledger/copy_file.py", "ledger/doctor.py", "runs/state_file.py")
_READERS = {"__init__", "_batch", "_read_rows", "_open", "open_regular", "<genexpr>", "_fingerprint", "read_copy"}
_READERS |= {"remove_dead_drafts", "mode_for_others", "cell", "_row_batch", "add", "digest", "_locked", "_errors"}


@functools.cache
def is_ours(file: str) -> bool:
    return file.endswith(OURS)


class Lines:
    """Counts the lines of ours that are run and do not only read, and ends the process before one of them."""

    def __init__(self, die_at: int | None = None) -> None:
        self.count = 0
        self.die_at = die_at

    def trace(self, frame: FrameType, event: str, argument: Any) -> Callable[..., Any] | None:
        if frame.f_code.co_name in _READERS or not is_ours(frame.f_code.co_filename):
            return None
        if event == "line":
            self.count += 1
            if self.count == self.die_at:
                os.kill(os.getpid(), signal.SIGKILL)
        return self.trace


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
    """Where they happen. has_ledger: whether the run is accounted for."""

    def __init__(self, folder: pathlib.Path, *, has_ledger: bool = True) -> None:
        self.folder, self.has_ledger = folder, has_ledger
        key_file(folder)
        for name in "ab":
            (folder / f"{name}.log").write_text(f"the log {name}\n")

    @property
    def ledger(self) -> Ledger:
        return Ledger.open(self.folder / "ledger.db", create=False)

    @property
    def state(self) -> StateFile:
        return StateFile(self.folder / "run.state")

    def take(self, end: int, log: str = "a", *, is_bad: bool = False) -> str:
        """The command of a night that ends before this window. Raises UserError, or StateError."""
        options = StateOptions(
            path=str(self.folder / "run.state"),
            noise_key_file=str(self.folder / "noise.key"),
            user_field="user",
            item_field="item",
            output=str(self.folder / f"{end}.jsonl"),
            until_seconds=end * DAY,
            population="news" if self.has_ledger else None,
        )
        with hold_state(options.path):
            read = self.read(log)
            account = self._account()
            facts = open_part(
                PLAN, options, stream="events", input_fingerprint=read.text, account=account, check=lambda facts: facts
            )
            part = StatePart(facts)
            if facts.how == VerdictKind.DONE:
                part.find_done(None)
                account.finish(facts, facts.state_fingerprint)
                return facts.how
            with part.account_of(account):
                self._draw(part, log, is_bad)
        return str(facts.how)

    def begun(self) -> tuple[int, str] | None:
        """End and log of the part that was begun and not finished, as the ledger knows it, or else the state."""
        found: list[tuple[int, str]] = []
        if self.has_ledger and (self.folder / "ledger.db").exists():
            for run, parts in self.ledger.runs():
                if run.run_id == self.state.header.run_id:
                    begun = [each for each in parts if each.status in _OPEN]
                    found += [(each.end_window, each.input_fingerprint.split()[0]) for each in begun]
        if (intent := self.state.header.intent) is not None:
            found.append((intent.end, intent.input_fingerprint))
        logs = {self.read(log).text: log for log in "ab"}
        still = [(end, logs[text]) for end, text in found if end > self.state.header.closed_through]
        return still[0] if still else None

    def read(self, log: str) -> InputFingerprint:
        return InputFingerprint([(str(self.folder / f"{log}.log"), "text")], (), input_key(SECRET))

    def begin_anew(self) -> None:
        """As an operator does whose run cannot go on."""
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

    def _account(self) -> RunAccount:
        return RunAccount(Ledger.open(self.folder / "ledger.db"), "news", CAPS) if self.has_ledger else RunAccount()

    def _draw(self, part: StatePart, log: str, is_bad: bool) -> None:
        facts = part.facts
        record, run_id = facts.record, facts.header.run_id
        drawn = [
            report(window, HeavyHitter(answer(run_id, facts.draws_as, window, log), ABOVE, None), spent=1.0)
            for window in range(record.first, record.end)
        ]
        with (
            output_draft_file(record.output) as draft,
            output_draft_file(facts.state_path) as state,
        ):
            write_report_file(draft, dataclasses.replace(HEADER, run_id=run_id), drawn)
            cells = [(Kind.HIT_BOUND, 0, hit_bound_chunk(record.end))]
            write_state(state, part.begun.after(record), cells, sealing_key(SECRET))
            if is_bad:
                raise LogError("the log is bad.")
            part.publish({record.output: draft}, state)

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
