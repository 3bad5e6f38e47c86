"""Which three stages a run has, by what its users pay for."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import NamedTuple

from dp_transforms.core.planned_run import PlannedRun
from dp_transforms.core.public_items import PublicItemsSource
from dp_transforms.core.rounds import NameRound, WeighRound
from dp_transforms.core.run_part import RunPart
from dp_transforms.core.stage import SHARDS_OF_RUN, Sharding, Stage, StageWork
from dp_transforms.core.users import BoundUsers, FindCandidates, NameItems, ReleaseNames, SpendBudgets, WeighReplay
from dp_transforms.plan.window_schedule import WindowSchedule


class ReleaseStages(NamedTuple):
    """What users add, what is found among items, and what is reported of each window: None where users pay for hits,
    since that is ThresholdMonitorEvolving (`dp_transforms.beam.threshold_monitor`)."""

    users: Stage
    items: Stage
    windows: Stage | None

    def in_rounds(self) -> Iterator[tuple[str, Stage, Stage]]:
        """Users and items in each round of looks, and what tells their steps apart; once where looks have no rounds."""
        rounds = len(self.users.run.plan.units_of_rounds)
        for number in range(rounds):
            users, items = (dataclasses.replace(stage, round=number) for stage in (self.users, self.items))
            yield str(number) if rounds > 1 else "", users, items


class Partitioning(NamedTuple):
    """How bounded input is cut. Results do not depend on it.

    users: what users hold, and what they add to items; one slab with all windows where they pay for looks, since a
    purse lasts for the run. windows: what is found among items, on its way to the reports.
    """

    users: Sharding
    windows: Sharding

    @classmethod
    def of(
        cls, schedule: WindowSchedule, *, pays_looks: bool, shards: int | None, part: RunPart | None = None
    ) -> Partitioning:
        """shards: None for a good number. part: None for the whole run."""
        by_window = Sharding.of_windows(schedule.horizon if part is None else part.windows, shards)
        if not pays_looks:
            return cls(by_window, by_window)
        return cls(Sharding(schedule.horizon, shards or SHARDS_OF_RUN), by_window)


def stages_of(
    run: PlannedRun, domain: PublicItemsSource | None, *, is_replay: bool = False, is_part: bool = False
) -> ReleaseStages:
    """domain: of a plan with a known domain. is_replay: of the whole run at once, so that later events are known.
    is_part: of a part of a run at once. Else windows come one after the other."""
    if run.plan.rounds is not None and not (is_replay or is_part):
        raise ValueError(
            "a plan with rounds cannot be used with a stream: they go over all windows of a day again and again. Make"
            " it with use='stream'."
        )
    users: type[StageWork]
    items: type[StageWork]
    if run.plan.looks is None:
        users, items = BoundUsers, FindCandidates
    elif run.plan.rounds is not None:
        users, items = WeighRound, NameRound
    else:
        users, items = WeighReplay if is_replay else SpendBudgets, NameItems
    windows = None if run.plan.looks is None else Stage(ReleaseNames, run)
    return ReleaseStages(Stage(users, run), Stage(items, run, domain), windows)
