"""Plans and logs for looks in rounds, of both kinds."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import random
from collections.abc import Collection, Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from dp_transforms import Plan, WindowSchedule
from dp_transforms.accounting.priced_weights import BUDGET_UNITS
from dp_transforms.core.item_table import ItemTable
from dp_transforms.core.named_items import WINDOWS_AT_ONCE, NamedItems
from dp_transforms.core.tables import WindowItems
from dp_transforms.plan.records import Rounds
from tests.helpers.core_runs import START
from tests.helpers.modes import plan_in_rounds
from tests.helpers.naming_runs import naming_settings
from tests.helpers.small_runs import SECRET
from tests.helpers.trial_plan import TrialPlan
from tests.reference.log import Event

WINDOWS = 12
SCHEDULE = WindowSchedule.fixed("2017-10-01T03:00Z", "2017-10-17T03:00Z", 3600)


@functools.cache
def calibrated(**choices: Any) -> Plan:
    """With rounds over blocks."""
    return plan_in_rounds(SCHEDULE, **choices)


def at(window: int) -> int:
    return (START + 10 * window + 5) * 1_000_000


def busy_log(seed: int) -> list[Event]:
    """A user with more items than a purse pays for, items of many in several windows, and items of few."""
    draws = random.Random(seed)
    log = [("busy", f"odd-{item}", at(item % WINDOWS)) for item in range(90)]
    for number, window in itertools.product(range(40), range(WINDOWS)):
        if draws.random() < 0.6:
            log.append((f"user-{number}", f"topic-{(window // 3 + (number % 4 == 0)) % 5}", at(window)))
        if draws.random() < 0.2:
            log.append((f"user-{number}", f"odd-{draws.randrange(30)}", at(window)))
    return log


def trial_with_rounds(
    block_seconds: int = 40,
    *,
    sliding: int = 1,
    threshold: int = 70,
    percents: tuple[int, ...] = (20, 10, 20, 50),
    false_names: float = 0.5,
) -> TrialPlan:
    """Windows of 10 seconds, and little noise. percents: of a purse, for each round."""
    trial = naming_settings(WINDOWS, most_tests=60, threshold=threshold, forget_after=0, sliding=sliding, scale=30)
    units = tuple(BUDGET_UNITS * percent // 100 for percent in percents)
    rounds = Rounds(block_seconds=block_seconds, units=units, false_names=false_names)
    return dataclasses.replace(trial, rounds=rounds)


def named_in_blocks(trial: TrialPlan, labels: Collection[str]) -> NamedItems:
    """As if round 0 had named these in the first block."""
    table, _ = ItemTable.of_labels(pa.array(labels, pa.string()), trial.stream_keys(SECRET).hash_items)
    zeros = np.zeros(len(table), dtype=np.int64)
    return NamedItems(zeros, np.arange(len(table)), zeros + 1, zeros, table)


def cells_of(cells: WindowItems, windows: Collection[int] | None = None) -> Iterator[tuple[int, str]]:
    """windows: instead of its own, each of these."""
    labels = cells.table.labels.to_pylist()
    for window, item in zip(cells.windows.tolist(), cells.items.tolist(), strict=True):
        yield from ((each, labels[item]) for each in ([window] if windows is None else windows))


def left_out_of(named: NamedItems) -> tuple[np.ndarray, np.ndarray]:
    """What is left out: windows, and positions in ``table``."""
    rows, later = np.nonzero(-np.minimum(named.levels, 0)[:, None] >> np.arange(WINDOWS_AT_ONCE) & 1)
    return named.windows[rows] + later, named.items[rows]
