"""Which three stages a run has, by what its users pay for. And the state of one of them, carried from window to window
as a run stores it, for who runs stages without an engine: `Carried`.
"""

from __future__ import annotations

import dataclasses
import pathlib
import tempfile
from collections.abc import Iterator
from typing import Any, NamedTuple

from dp_transforms.monitor.pairs import UserPairs
from dp_transforms.monitor.planned_run import PlannedRun
from dp_transforms.plan.window_schedule import WindowSchedule
from dp_transforms.runs.run_part import RunPart
from dp_transforms.runs.state_cells import Kind, join_cells, pack_by_bucket, unpack_cell
from dp_transforms.runs.state_file import StateFile, write_state
from dp_transforms.runs.state_header import PartRecord, StateHeader
from dp_transforms.stages.items import FindCandidates, FindLooks, NameItems
from dp_transforms.stages.rounds import NameRound, WeighRound
from dp_transforms.stages.stage import SHARDS_OF_RUN, DomainOfRun, Sharding, Span, Stage, StageWork
from dp_transforms.stages.users import BoundUsers, SpendPurses, SpendPursesAtOnce, WeighReplay
from dp_transforms.stages.windows import MonitorWindows, ReleaseNames

_KEY = bytes(32)  # of the seal: the file is gone as soon as it was read


class ReleaseStages(NamedTuple):
    """What users add, what is found among items, and what is reported of each window."""

    users: Stage
    items: Stage
    windows: Stage

    def in_rounds(self) -> Iterator[tuple[str, Stage, Stage]]:
        """Users and items in each round of looks, and what tells their steps apart; once where looks have no rounds."""
        rounds = len(self.users.run.plan.units_of_rounds)
        for number in range(rounds):
            users, items = (dataclasses.replace(stage, round=number) for stage in (self.users, self.items))
            yield str(number) if rounds > 1 else "", users, items


class Cuts(NamedTuple):
    """How bounded input is cut. Results do not depend on it.

    users: what users hold, and what they add to items; one slab with all windows where they pay for looks, since a
    purse lasts for the run. windows: what is found among items, on its way to the reports.
    """

    users: Sharding
    windows: Sharding

    @classmethod
    def of(cls, schedule: WindowSchedule, *, pays_looks: bool, shards: int | None, part: RunPart | None = None) -> Cuts:
        """shards: None for a good number. part: None for the whole run."""
        by_window = Sharding.of_windows(schedule.horizon if part is None else part.windows, shards)
        if not pays_looks:
            return cls(by_window, by_window)
        return cls(Sharding(schedule.horizon, shards or SHARDS_OF_RUN), by_window)


def stages_of(
    run: PlannedRun, domain: DomainOfRun | None, *, is_replay: bool = False, is_part: bool = False
) -> ReleaseStages:
    """domain: of a plan with a known domain. is_replay: of the whole run at once, so that later events are known.
    is_part: of a part of a run at once. Else windows come one after the other."""
    works: tuple[type[StageWork], type[StageWork], type[StageWork]]
    if run.plan.looks is None:
        works = BoundUsers, FindCandidates, MonitorWindows
    elif run.plan.hits is not None:
        works = WeighReplay if is_replay else SpendPurses, FindLooks, MonitorWindows
    elif run.plan.rounds is not None:
        works = WeighRound, NameRound, ReleaseNames
    else:
        replay = WeighReplay if run.plan.window_rounds is None else SpendPursesAtOnce
        works = replay if is_replay else SpendPurses, NameItems, ReleaseNames
    if run.plan.counts is not None and not is_replay:
        raise ValueError(
            "counts_for cannot be used with a stream, nor with a run that is taken in parts: counts are paid for when"
            " all names of the run are known. Make the plan without it."
        )
    if run.plan.facets and not (is_replay or is_part):
        raise ValueError("by and weight cannot be used with a stream. Replay what is over: dp_transforms.replay.")
    if run.plan.rounds is not None and not (is_replay or is_part):
        raise ValueError(
            "rounds cannot be used with a stream: they go over all windows of a day again and again. Make the plan with"
            " window_rounds instead."
        )
    users, items, windows = works
    return ReleaseStages(Stage(users, run), Stage(items, run, domain), Stage(windows, run))


class Carried:
    """The state of a stage before the next window of a stream, as a real run stores it.

    Before every other window a part of the run ends: the state goes through the cells and the file that parts hand
    over. Before the others it is read from what a worker keeps.
    is_refused: whether a reader has refused what was stored. It is then carried on as it was, and audited all the same.
    """

    def __init__(self, work: StageWork) -> None:
        self.work = work
        self._kept: list[tuple[Kind, bytes]] = []
        self._is_of_part = False
        self.state: Any = None
        self.is_refused = False

    def over_to(self, window: int, columns: UserPairs | None = None) -> None:
        """Reads the state for this window. columns: all that comes in it; None: whoever may come."""
        try:
            is_of_part = window > 0 and window % 2 == 0
            here = Span(window, window + 1)
            self.state = self._of_part(here, columns) if is_of_part else self.work.read(self._kept, window)
            self._is_of_part = is_of_part
        except ValueError:
            self.is_refused = True

    def over_to_part(self, span: Span, columns: Any) -> Any:
        """Reads the state for a part of a run.

        Raises ValueError for a state that is refused.
        """
        self._is_of_part = True
        self.state = self._of_part(span, columns)
        return self.state

    def keep(self, span: Span) -> None:
        """Stores what this span has changed."""
        cells = self.work.cells(self.state) if self._is_of_part else self.work.changed(self.state, span)
        self._kept += cells

    def _of_part(self, span: Span, columns: Any) -> Any:
        plan, keys, load = self.work.plan, self.work.keys, self.work.load
        if not span.first:
            return load(RunPart(0, span.end), columns, span)
        digits = "0" * 64
        run = (plan.fingerprint, keys.stream, "audit", digits)
        parts = (PartRecord(0, span.first, digits, "report"),)
        header = StateHeader("plan", *run, user_field="user", item_field="item", parts=parts)
        with tempfile.TemporaryDirectory() as folder:
            path = str(pathlib.Path(folder) / "state")
            write_state(path, header, self._joined(span.first - plan.known_for), _KEY)
            part = RunPart(span.first, span.end, path, StateFile(path).fingerprint)
            return load(part, columns, span)

    def _joined(self, named_from: int) -> Iterator[tuple[Kind, int, bytes]]:
        cells: dict[tuple[Kind, int], list[memoryview]] = {}
        for kind, bucket, cell in map(unpack_cell, pack_by_bucket(self._kept)):
            cells.setdefault((kind, bucket), []).append(cell)
        for (kind, bucket), of_place in sorted(cells.items(), key=lambda each: each[0]):
            for joined in join_cells(kind, of_place, named_from=named_from):
                yield kind, bucket, joined
