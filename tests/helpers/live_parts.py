"""A run in parts by the clock of arrival: a folder with a plan around now, a key, and a log that has just arrived."""

from __future__ import annotations

import json
import pathlib
import subprocess
import time

from dp_transforms.monitor.window_report import WindowReport
from dp_transforms.plan.plan import Plan
from dp_transforms.plan.window_schedule import WindowSchedule, format_utc
from dp_transforms.reports import read_report_file, read_run
from dp_transforms.runs.state_file import StateFile
from tests.helpers.beam_pipelines import plain
from tests.helpers.shh_here import shh
from tests.helpers.small_runs import key_file

WINDOWS = 12
RUN_ID = "live"
CAPS = ("--max-epsilon", "20", "--max-delta", "1e-5")
_LATENESS = 60  # so long after its end a window closes by arrival
_TO_MAKE = 8  # seconds, within which the log arrives: while all windows are open
_CLOCKS = {
    "arrival": ("--allowed-lateness", f"{_LATENESS}s", "--idle-timeout", "1s"),
    "event": ("--clock", "event", "--max-ahead", "1d", "--idle-timeout", "1h"),
}


class LiveParts:
    """The current folder of all commands.

    clock: with ``arrival`` windows have a second, and window n closes n + 10 seconds after this was begun, or later.
    With ``event`` they have an hour, and now lies in window 6: ``logs`` has the events up to then, ``later`` has all.
    """

    def __init__(self, folder: pathlib.Path, mode: str = "looks", clock: str = "event") -> None:
        self.folder = folder
        self._clock = (*_CLOCKS[clock], "--out-of-order", "0s", "--shown-within", "1s")
        now = int(time.time())
        seconds = 1 if clock == "arrival" else 3600
        start = now - _LATENESS + _TO_MAKE if clock == "arrival" else now // 3600 * 3600 - 6 * 3600
        self.schedule = WindowSchedule(start, start + WINDOWS * seconds, seconds, seconds)
        self.plan = Plan.calibrate(epsilon=8, delta=1e-6, mode=mode, schedule=self.schedule)
        (folder / "plan.json").write_text(self.plan.to_json())
        key_file(folder)
        for name, windows in (("later", WINDOWS), ("logs", WINDOWS if clock == "arrival" else 7)):
            (folder / name).mkdir()
            rows = [json.dumps({"user": u, "item": i, "timestamp": t}) for u, i, t in self._rows(windows)]
            (folder / name / "log.jsonl").write_text("\n".join(rows) + "\n")
        assert clock == "event" or time.time() < start + _LATENESS, "the machine is too slow for this test"

    def _rows(self, windows: int) -> list[tuple[str, str, float]]:
        """In each window two items of many users and some of few. Half of the users come back in every window."""
        rows = []
        for window in range(windows):
            at = self.schedule.start_seconds + (window + 0.25) * self.schedule.slide_seconds
            for user in range(240):
                name = f"u{user}" if user % 2 else f"u{user}-{window}"
                rows += [(name, item, at) for item in (f"top-{window // 4}", f"odd-{user % 9}")]
        return rows

    def until(self, end: int) -> tuple[str, str]:
        """``--until`` of the windows before this one."""
        return "--until", format_utc(self.schedule.window_end_micros(end - 1))

    def words(
        self, command: str, output: str, *words: str, state: str = "run.state", ledger: str = "", logs: str = "logs"
    ) -> list[str]:
        """A command of the run; with a ledger, one that declares its population. logs: the folder of a stream."""
        if command == "stream":
            source = ["stream", "--input", logs, *self._clock]
            source += [] if "--engine" in words else ["--engine", "in-process"]
        else:
            source = ["replay", "later"]
        source += ["--time-unit", "s", "--plan", "plan.json", "--noise-key-file", "noise.key", "--state", state]
        account = ["--ledger", ledger, "--population", "all", *CAPS, "--run-id", RUN_ID] if ledger else []
        return [*source, "--output", output, *account, *words]

    def run(self, command: str, output: str, *words: str, **options: str) -> subprocess.CompletedProcess[str]:
        return shh(*self.words(command, output, *words, **options), cwd=self.folder)

    def state(self) -> StateFile:
        return StateFile(self.folder / "run.state")

    def answers(self, *outputs: str) -> list[tuple]:
        """The reports of these outputs, one after the other."""
        found: list[WindowReport] = []
        for name in outputs:
            path = self.folder / name
            found += read_run(str(path))[1] if path.is_dir() else list(read_report_file(path)[1])
        return [plain(report) for report in found]

    def expected(self, end: int = WINDOWS, of: str = RUN_ID) -> list[tuple]:
        """The reports of one replay of all these windows, with the same key and run id, and an account of its own."""
        name, words = f"whole-{end}.jsonl", (*self.until(end), "--run-id", of)
        ended = self.run("replay", name, *words, state=f"whole-{end}.state", ledger=f"whole-{end}.db")
        assert ended.returncode == 0, ended.stderr
        return self.answers(name)


def wait_for_reports(folder: pathlib.Path, reports: int, process: subprocess.Popen[str]) -> None:
    """Returns when the folder holds so many."""
    deadline = time.monotonic() + 120
    while len(list(folder.glob("2*.jsonl"))) < reports:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.1)
