"""A run that is taken in parts, in this process: a `LocalReplay` of each, with the state between them."""

from __future__ import annotations

import pathlib
from collections import Counter
from collections.abc import Sequence
from typing import Any

from dp_transforms.core.planned_run import PlannedRun, RunPart
from dp_transforms.core.public_items import PublicItemsSource
from dp_transforms.local.pool import ThisProcess
from dp_transforms.local.replay import LocalReplay
from dp_transforms.plan.plan import Plan
from dp_transforms.runs.fingerprints import sealing_key
from dp_transforms.runs.state_file import StateFile, StateHeader, StoredPart, write_next_state
from tests.helpers.small_runs import RUN_ID, SECRET, batches_of
from tests.reference.log import Event

SEALING_KEY = sealing_key(SECRET)


class Parts:
    """Takes the parts of one run, one after the other. states: the file after each."""

    def __init__(self, folder: pathlib.Path, plan: Plan, *, public_items: Any = None) -> None:
        folder.mkdir(exist_ok=True)
        self.folder, self.plan, self._public_items = folder, plan, public_items
        self.states: list[pathlib.Path] = []
        self.reports: list[Any] = []
        self.counts: Counter[str] = Counter()

    def take(
        self,
        end: int,
        log: Sequence[Event],
        *,
        shards: int | None = None,
        batch: int = 200,
        workers: ThisProcess | None = None,
    ) -> list:
        """The windows up to this one, from all of this log. Returns their reports."""
        part, after = self._next(end), self.folder / f"state-{len(self.states)}"
        run = PlannedRun(plan=self.plan, stream="events", run_id=RUN_ID)
        items = PublicItemsSource.of_plan(self._public_items, self.plan)
        replay = LocalReplay(run, workers or ThisProcess(SECRET), public_items=items, part=part, shards=shards)
        made = replay.take(list(batches_of(log, batch)))
        header = StateHeader(RUN_ID, end)
        write_next_state(after, header, part, made.handed_over, self.plan.followed_for, SEALING_KEY)
        self.counts = made.counts
        self.states.append(after)
        self.reports += made.reports
        return made.reports

    def _next(self, end: int) -> RunPart:
        if not self.states:
            return RunPart(0, end)
        before = StateFile(self.states[-1])
        at = {"state_path": before.path, "state_fingerprint": before.fingerprint}
        return StoredPart(before.header.closed_through, end, **at)
