"""Which steps a run has: what its users pay for decides it, and whether it is a replay, a part of one, or a stream."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import NamedTuple

from dp_transforms.core.planned_run import PlannedRun
from dp_transforms.core.public_items import PublicItemsSource
from dp_transforms.core.stage import Stage, Step
from dp_transforms.core.steps import (
    BoundUsers,
    FindCandidates,
    NameItems,
    NameRound,
    SpendBudgets,
    WeighReplay,
    WeighRound,
)
from dp_transforms.core.two_tests import NameAgain, NameFirst, WeighFirst


class RunStages(NamedTuple):
    """users: from what users hold to what they add to items. items: from that to named items, which are published as
    they are (`NamedItems.window_reports`); where users pay for hits to candidates, which `HeavyHitterMonitor` tests.
    again: the second test of a stream that tests contributions twice."""

    users: Stage
    items: Stage
    again: Stage | None = None

    def in_rounds(self) -> Iterator[tuple[str, Stage, Stage]]:
        """Of each round its name, and its steps of users and of items; of a run without rounds one, without a name."""
        rounds = len(self.users.run.plan.units_of_rounds)
        for number in range(rounds):
            users, items = (dataclasses.replace(stage, round=number) for stage in (self.users, self.items))
            yield str(number) if rounds > 1 else "", users, items


def stages_of(
    run: PlannedRun, public_items: PublicItemsSource | None, *, is_replay: bool = False, is_part: bool = False
) -> RunStages:
    """The steps of this run. is_replay: it is taken at once, so that later events are known. is_part: one part of it is
    taken at once. Neither: a stream, window after window."""
    users: type[Step]
    items: type[Step]
    if run.plan.rounds is not None and not (is_replay or is_part):
        raise ValueError(
            "a plan with rounds cannot be used with a stream: they go over all windows of a day again and again. Make"
            " it with use='stream'."
        )
    if run.plan.second_test is not None:
        if is_replay or is_part:
            raise ValueError("a plan of a stream cannot be used with a replay. Make it with use='replay' or 'parts'.")
        again = Stage(NameAgain, run, round=1)
        return RunStages(Stage(WeighFirst, run), Stage(NameFirst, run), again)
    if run.plan.contributions is None:
        users, items = BoundUsers, FindCandidates
    elif run.plan.rounds is not None:
        users, items = WeighRound, NameRound
    else:
        users, items = WeighReplay if is_replay else SpendBudgets, NameItems
    return RunStages(Stage(users, run), Stage(items, run, public_items))
