"""Nightly parts of one run: a folder with a plan, a key and the log of each day, and the commands of the nights."""

from __future__ import annotations

import pathlib
import subprocess
from collections.abc import Iterable

from dp_transforms.monitor.window_report import WindowReport
from dp_transforms.plan.window_schedule import MICROS_PER_SECOND, WindowSchedule, format_utc
from dp_transforms.reports import read_report_file
from dp_transforms.runs.state_file import StateFile
from tests.helpers.looks_plans import looks_plan_of
from tests.helpers.naming_oracle import oracle_names, reports_of
from tests.helpers.pace_oracle import stream_weights
from tests.helpers.replay_logs import write_parquet
from tests.helpers.shh_here import shh
from tests.helpers.small_runs import SECRET, key_file, settings_of

DAY = 86_400
START = 1_767_225_600  # 2026-01-01T00:00:00Z
DAYS = 6


def day(number: int) -> str:
    return format_utc((START + DAY * number) * MICROS_PER_SECOND)


def rows_of(number: int) -> list[tuple[str, str, int]]:
    """(user, item, seconds) of a day: two items of many users, and some of few. Half of the users come back daily."""
    rows = []
    for user in range(40):
        name = f"u{user}" if user % 2 else f"u{user}-{number}"
        rows += [(name, item, START + DAY * number + 7 * user) for item in (f"top-{number // 2}", f"odd-{user % 9}")]
    return rows


class Nights:
    """A folder with a plan, a key and the log of each day. The current folder of all commands."""

    def __init__(self, folder: pathlib.Path, days: int = DAYS, *, hits: int = 0) -> None:
        self.folder = folder
        schedule = WindowSchedule(START, START + DAY * days, DAY, DAY)
        self.plan = looks_plan_of(schedule, forget_after=2, most_looks=12, hits=hits)
        (folder / "plan.json").write_text(self.plan.to_json())
        key_file(folder)
        for number in range(days):
            write_parquet(folder / f"{number}.parquet", rows_of(number))

    def words(self, end: int, *logs: str, output: str | None = None, **options: str) -> list[str]:
        """The command of the night after which the days before ``end`` are published."""
        given = {"plan": "plan.json", "noise-key-file": "noise.key", "state": "run.state", "until": day(end)}
        given["output"] = output or f"{end}.jsonl"
        given |= {name.replace("_", "-"): value for name, value in options.items()}
        flags = [word for name, value in given.items() if value for word in (f"--{name}", value)]
        return ["replay", *(logs or [f"{end - 1}.parquet"]), *flags]

    def run(self, end: int, *logs: str, **options: str) -> subprocess.CompletedProcess[str]:
        return shh(*self.words(end, *logs, **options), cwd=self.folder)

    def taken(self, end: int, *logs: str, **options: str) -> None:
        done = self.run(end, *logs, **options)
        assert done.returncode == 0, done.stderr

    def refused(self, end: int, *logs: str, code: int = 1, **options: str) -> str:
        """Says why; nothing is changed."""
        before = self.content()
        done = self.run(end, *logs, **options)
        assert done.returncode == code
        errors = [line for line in done.stderr.splitlines() if "warning: delta" not in line]  # of a plan for tests
        assert len(errors) == 1, done.stderr
        assert errors[0].startswith("shh: ")
        assert self.content() == before
        return errors[0]

    def content(self) -> dict[str, bytes]:
        return {
            path.name: path.read_bytes()
            for path in self.folder.iterdir()
            if path.is_file() and not path.name.endswith(".lock")
        }

    @property
    def state(self) -> StateFile:
        return StateFile(self.folder / "run.state")

    def reports(self, *outputs: str) -> list[WindowReport]:
        return [report for output in outputs for report in read_report_file(self.folder / output)[1]]

    def expected(self, days: Iterable[int] | None = None) -> list[WindowReport]:
        """What the one run publishes of these days' events, by the rule of a stream; its id is that of the state."""
        settings = settings_of(self.plan, run_id=self.state.header.run_id)
        keys = settings.stream_keys(SECRET)
        numbers = range(self.plan.schedule.horizon) if days is None else days
        log = [(user, item, time * 10**6) for number in numbers for user, item, time in rows_of(number)]
        return reports_of(oracle_names(stream_weights(log, settings, keys), settings, keys), settings)
