"""Files moved into a folder, through the real reader, the poller and both clocks: others' pairs do not depend on x'.

The kernel stamps the files, so both folders are filled in step, and windows lie around that time.
"""

from __future__ import annotations

import dataclasses
import gzip
import os
import pathlib
import random
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from dp_transforms.logs import EventFields
from dp_transforms.logs.streams import partition_poller
from dp_transforms.logs.streams.log_folder import LogFolder
from dp_transforms.logs.streams.partition_progress import StreamClock
from dp_transforms.plan.window_schedule import WindowSchedule
from tests.helpers.small_runs import MICROS, settings_of
from tests.helpers.trials import changed
from tests.neighbours.binary_files import PARQUET, cells_of, hostile_cells, write_avro, write_parquet
from tests.neighbours.logs import USERS, Log, place, without_added
from tests.neighbours.replayed import Pair, assert_same_pairs
from tests.neighbours.stepped import PLANS, Stepped, Treatment, WallClock
from tests.neighbours.text_files import FORMATS, text_of
from tests.reference.log import Event

HOUR = 3600
BEFORE = 4  # hours of the schedule before the files come; two more follow
# All files come in the middle of the fifth hour. Hours that ended 100 minutes before are too late, by arrival.
CLOCKS = {
    "arrival": StreamClock("arrival", 100 * 60, 0, 30 * 60, 600),
    "event": StreamClock("event", 3 * HOUR, 3 * HOUR, 30 * 60, 600),
}
_TICK_SECONDS = 0.02


@pytest.fixture(autouse=True)
def _short_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    """The wall clock of these tests does not wait for files."""
    monkeypatch.setattr(partition_poller, "MAX_SECONDS", 0.0005)


@dataclasses.dataclass
class Form:
    """write: a log to a file. spell: an event as a row. hostile: rows of x'."""

    ending: str
    write: Callable[[pathlib.Path, Log], object]
    spell: Callable[[Event], Any]
    hostile: dict[str, Sequence[Any]]


def _text(name: str) -> Form:
    form = FORMATS[name]
    small = {case: rows for case, rows in form.hostile.items() if sum(map(len, rows)) < 200_000}

    def write(path: pathlib.Path, log: Log) -> None:

        text = text_of(form, log)
        path.write_bytes(gzip.compress(text, 1) if name.endswith(".gz") else text)

    return Form(form.ending, write, form.spell, small)


def _cells(ending: str, write: Callable[[pathlib.Path, Log], object]) -> Form:
    return Form(ending, write, lambda event: cells_of([event], "whole")[0], hostile_cells("whole"))


FORMS = {
    **{name: _text(name) for name in ("csv", "jsonl", "jsonl.gz")},
    "parquet": _cells(".parquet", lambda path, log: write_parquet(path, PARQUET["small dictionary"], log)),
    "avro": _cells(".avro", lambda path, log: write_avro(path, "whole", log, "deflate", 2_000)),
}


class Case:
    """Three files of others, with rows of x' in two of them, and one of x' alone. head: rows that they begin with."""

    def __init__(
        self,
        folder: pathlib.Path,
        form: Form,
        clock: str,
        added: Sequence[Any],
        seed: int = 0,
        *,
        head: Sequence[Any] = (),
        where: str = "spread",
    ) -> None:
        self._folder, self._form, self._clock, self._seed = folder, form, CLOCKS[clock], seed
        source = random.Random(seed)
        now = int(time.time())
        self._schedule = WindowSchedule.fixed(now - HOUR // 2 - BEFORE * HOUR, now + HOUR // 2 + HOUR, HOUR)
        self._settings = changed(settings_of(PLANS["fixed"]), schedule=self._schedule)
        self._files: list[tuple[str, Log]] = []
        self._events: list[list[Event]] = []
        for number in range(3):
            ages = (source.randrange(-2 * HOUR // 3, BEFORE * HOUR) for _ in range(40))
            if clock == "event":  # in some disorder, as that clock wants it; and none is ahead of what comes later
                ages = (HOUR * (3 - number) + source.randrange(HOUR) for _ in range(40))
            events = [(source.choice(USERS), f"item-{source.randrange(5)}", (now - age) * MICROS) for age in ages]
            self._events.append(events)
            rows = [*head, *(form.spell(event) for event in events)]
            self._files.append((f"{number}-others", place(rows, added if number != 1 else [], where, seed)))
            if number == 1:
                self._files.append((f"{number}-added", place([], added, "first")))
        self._fill()

    def _fill(self) -> None:
        """The files of both folders come in step, so that one moment of a stop lies between the same files of both."""
        self.moments: list[int] = []
        self.folders = []
        for kind, is_added_file_there in (("with", True), ("without", True), ("without the added file", False)):
            folder = self._folder / f"{kind} {self._seed}"
            hidden = folder / ".written"
            hidden.mkdir(parents=True)
            self.folders.append(folder)
            for name, log in self._files:
                rows = log if kind == "with" else without_added(log)
                if rows or is_added_file_there:
                    self._form.write(hidden / f"{name}{self._form.ending}", rows)
        for name, _ in self._files:
            time.sleep(_TICK_SECONDS)
            for folder in self.folders:
                written = folder / ".written" / f"{name}{self._form.ending}"
                if written.exists():
                    os.rename(written, folder / written.name)
            time.sleep(_TICK_SECONDS)
            self.moments.append(time.time_ns() // 1000)

    def check(self, files: int | None = None, **treatment: Any) -> None:
        """files: so many have come when the run is stopped."""
        last_arrival = None if files is None else self.moments[files - 1]
        expected = self._expected(files)
        for number, folder in enumerate(self.folders):
            asked = None if files is None else 0
            drawn = Treatment(
                3 * self._seed + number, last_arrival=last_arrival, asked=asked, jump_seconds=900, **treatment
            )
            (partition,) = LogFolder(str(folder), EventFields(), 0.1).partitions()
            wall = WallClock(time.time_ns() // 1000)
            run = Stepped(partition.open, self._clock, wall, drawn, settings=self._settings, users=USERS)
            assert_same_pairs(run.pairs, expected)

    def _expected(self, files: int | None) -> frozenset[Pair]:
        """The second of four files is followed by that of x', so three of others have come with the fourth."""
        came = {None: 3, 1: 1, 2: 2, 3: 2, 4: 3}[files]
        start, pairs = self._schedule.start_seconds, set()
        for events, moment in zip(
            self._events[:came], [self.moments[0], self.moments[1], self.moments[3]], strict=False
        ):
            for user, item, micros in events:
                window = (micros // MICROS - start) // HOUR
                ends = self._schedule.window_end_micros(window)
                late = self._clock.clock == "arrival" and moment > ends + self._clock.lateness_micros
                if 0 <= window < self._schedule.horizon and not late and micros <= moment + 30 * 60 * MICROS:
                    pairs.add((window, user, item))
        return frozenset(pairs)


def some(form: Form, source: random.Random, count: int = 40) -> list[Any]:
    return source.choices([row for rows in form.hostile.values() for row in rows[:30]], k=count)


@pytest.mark.parametrize("clock", CLOCKS)
@pytest.mark.parametrize("name", FORMS)
def test_files_come_and_the_windows_close(tmp_path: pathlib.Path, name: str, clock: str) -> None:
    source = random.Random(f"{name} {clock}")
    case = Case(tmp_path, FORMS[name], clock, some(FORMS[name], source), source.getrandbits(32))
    case.check(confirm=source.random() < 0.7, deaths=0.03)


HEAD = [b'{"user": "u1", "timestamp": "2023-11-14T22:14:05Z"}'] * 120


def test_what_a_file_begins_with_judges_no_other_row(tmp_path: pathlib.Path) -> None:
    """As in the issue: 120 lines without an item, and one line of x' before them that has one."""
    added = [FORMS["jsonl"].spell(("x'", "A", 0))]
    Case(tmp_path, FORMS["jsonl"], "arrival", added, head=HEAD, where="first").check(confirm=False)


@pytest.mark.parametrize("clock", CLOCKS)
@pytest.mark.parametrize("name", ["csv", "parquet"])
def test_a_drain_behind_any_file(tmp_path: pathlib.Path, name: str, clock: str) -> None:
    source = random.Random(f"{name} {clock}")
    case = Case(tmp_path, FORMS[name], clock, some(FORMS[name], source), source.getrandbits(32))
    first, second = source.sample((1, 2, 3, 4), 2)
    case.check(first, confirm=False)
    case.check(second, deaths=0.03)
