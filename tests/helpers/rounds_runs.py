"""Steps that test contributions, run in this process as drivers run them: in rounds, and window after window."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import pathlib
import random
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from dp_transforms import Plan, WindowReport, WindowSchedule
from dp_transforms.accounting.priced_weights import BUDGET_UNITS
from dp_transforms.core.contributions import Contributions
from dp_transforms.core.item_sums import ItemSums
from dp_transforms.core.item_table import ItemTable
from dp_transforms.core.named_items import WINDOWS_AT_ONCE, FollowedItems, NamedItems
from dp_transforms.core.operator_counts import CONTRIBUTIONS_UNPAID
from dp_transforms.core.pack_contributions import contributions_of_events
from dp_transforms.core.planned_run import RunPart
from dp_transforms.core.stage import Span
from dp_transforms.core.state_chunks import Kind, join_chunks, pack_by_bucket, unpack_chunk
from dp_transforms.core.steps import NameRound, WeighRound
from dp_transforms.core.tables import WindowItems
from dp_transforms.plan.calibration import later_tests_of
from dp_transforms.plan.records import DeclaredItems, Rounds
from dp_transforms.runs.state_file import StateFile, StateHeader, StoredPart, write_state
from tests.helpers.core_runs import START, naming_settings, short_price_list
from tests.helpers.modes import plan_in_rounds
from tests.helpers.small_runs import SECRET, batch_of, settings_of, small_plan
from tests.helpers.trial_plan import TrialPlan
from tests.reference.log import Event

WINDOWS = 12
KEYS = settings_of(small_plan()).stream_keys(SECRET)
SCHEDULE = WindowSchedule.fixed("2017-10-01T03:00Z", "2017-10-17T03:00Z", 3600)


@functools.cache
def calibrated(**choices: Any) -> Plan:
    """With rounds over blocks."""
    return plan_in_rounds(SCHEDULE, **choices)


def at(window: int) -> int:
    return (START + 10 * window + 5) * 1_000_000


def busy_log(seed: int, users: int = 40) -> list[Event]:
    """A user with more items than a budget pays for, items of many in several windows, and items of few."""
    draws = random.Random(seed)
    log = [("busy", f"odd-{item}", at(item % WINDOWS)) for item in range(90)]
    for number, window in itertools.product(range(users), range(WINDOWS)):
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
    shapes: tuple[float, ...] = (),
    public: int = 0,
) -> TrialPlan:
    """Windows of 10 seconds, and little noise. percents: of a user budget, for each round. shapes: of the noise of each
    later round; the first one has 2.5. public: so many items are."""
    trial = naming_settings(WINDOWS, most_tests=60, threshold=threshold, forget_after=0, sliding=sliding, scale=30)
    units = tuple(BUDGET_UNITS * percent // 100 for percent in percents)
    later = [later_tests_of(short_price_list(60 + number, 30, shape)) for number, shape in enumerate(shapes)]
    closer = tuple(dataclasses.replace(tests, spacing=27 + number) for number, tests in enumerate(later)) or None
    rounds = Rounds(block_seconds=block_seconds, units=units, false_names=false_names, later=closer)
    items = DeclaredItems(public, "0" * 64) if public else None
    return dataclasses.replace(trial, rounds=rounds, public_items=items)


def contributions_of(log: Iterable[Event], trial: TrialPlan, part: RunPart | None = None) -> Contributions:
    if not log:
        return Contributions.none()
    keys, batch, part = trial.stream_keys(SECRET), batch_of(list(log)), part or RunPart.whole(trial.schedule)
    horizon, firsts = trial.schedule.horizon, np.full(len(batch), part.first)
    parts = contributions_of_events(
        batch, trial.schedule, keys, windows_per_range=horizon, shards=1, first_open=firsts, end=part.end
    )
    return Contributions.merge([found for *_, found in parts])


def span(shard: int = 0, shards: int = 1, *, windows: range = range(WINDOWS)) -> Span:
    return Span(windows.start, windows.stop, shard, shards)


def cells_of(cells: WindowItems, windows: Collection[int] | None = None) -> Iterator[tuple[int, str]]:
    """windows: instead of its own, each of these."""
    labels = cells.table.labels.to_pylist()
    for window, item in zip(cells.windows.tolist(), cells.items.tolist(), strict=True):
        yield from ((each, labels[item]) for each in ([window] if windows is None else windows))


def by_cell(sums: ItemSums) -> Counter[tuple[int, str]]:
    return Counter(dict(zip(cells_of(sums), sums.sums.tolist(), strict=True)))


def named_in_blocks(trial: TrialPlan, labels: Collection[str]) -> NamedItems:
    """As if round 0 had named these in the first block."""
    table, _ = ItemTable.of_labels(pa.array(labels, pa.string()), trial.stream_keys(SECRET).hash_items)
    zeros = np.zeros(len(table), dtype=np.int64)
    return NamedItems(zeros, np.arange(len(table)), zeros + 1, zeros, table)


def all_named(sums: ItemSums) -> NamedItems:
    """As if round 0 had named all that users add to."""
    ones = np.ones(len(sums), dtype=np.int64)
    return NamedItems(sums.windows, sums.items, ones, ones, sums.table)


def left_out_of(named: NamedItems) -> tuple[np.ndarray, np.ndarray]:
    """What is left out: windows, and positions in ``table``."""
    rows, later = np.nonzero(-np.minimum(named.levels, 0)[:, None] >> np.arange(WINDOWS_AT_ONCE) & 1)
    return named.windows[rows] + later, named.items[rows]


def followed_of(labels: Sequence[str], last_named: Sequence[int] | np.ndarray) -> FollowedItems:
    table, positions = ItemTable.of_labels(pa.array(labels, pa.string()), KEYS.hash_items)
    ordered = np.empty(len(table), dtype=np.int64)
    ordered[positions] = last_named
    return FollowedItems(table, ordered)


def state_of(path: pathlib.Path, chunks: Iterable[tuple[Kind, bytes]], first: int, end: int) -> StoredPart:
    """A part of a run, before which this was stored."""
    by_place: dict[tuple[Kind, int], list[memoryview]] = {}
    for kind, bucket, chunk in map(unpack_chunk, pack_by_bucket(chunks)):
        by_place.setdefault((kind, bucket), []).append(chunk)
    joined = [(*place, chunk) for place, found in sorted(by_place.items()) for chunk in join_chunks(place[0], found)]
    write_state(str(path), StateHeader("run", first), joined, bytes(32))
    return StoredPart(first, end, state_path=str(path), state_fingerprint=StateFile(str(path)).fingerprint)


class OfRound(NamedTuple):
    """sums: of all shards. drawn: for how many contributions. found: named in this round. named: in windows up to
    it."""

    sums: ItemSums
    drawn: int
    found: NamedItems
    named: NamedItems


class Run:
    """The steps of all rounds. told: the names are those of this run, whatever is added here. told_blocks: what round 0
    named. part: of the run. public: items. stored: what each round hands over."""

    def __init__(
        self,
        log: Sequence[Event],
        trial: TrialPlan,
        shards: int = 1,
        *,
        told: Run | None = None,
        told_blocks: NamedItems | None = None,
        part: RunPart | None = None,
        public: Collection[str] = (),
    ) -> None:
        self.rounds: list[OfRound] = []
        self.stored: list[tuple[Kind, bytes]] = []
        part = part or RunPart.whole(trial.schedule)
        self.trial = trial
        windows = range(part.first, part.end)
        keys, held, counts = trial.stream_keys(SECRET), contributions_of(log, trial, part), Counter[str]()
        items = ItemTable.of_labels(pa.array(public, pa.string()), keys.hash_items)[0] if public else None
        for number in range(len(trial.rounds.units)):
            weigh, name = WeighRound(trial, keys, None, number), NameRound(trial, keys, items, number)
            before, blobs = NamedItems.none(), []
            if number:
                names = (self if told is None else told).rounds
                before = names[number - 1].named if number > 1 else before
                in_blocks = names[0].found if told_blocks is None else told_blocks
                blobs = [[in_blocks.to_bytes()], [before.to_bytes()]]
            here = span(windows=windows)
            state = weigh.restore(part.entries(weigh.state_kind), part.first)
            sums = weigh.process(state, held, here, counts, *blobs)
            self.stored += weigh.delta(state)
            drawn = weigh.earlier(here, *blobs).candidates.drawn if number else 0
            if told is not None:
                self.rounds.append(OfRound(sums, drawn, *told.rounds[number][2:]))
                continue
            parts = []
            for shard in range(shards):
                of_shard, added = span(shard, shards, windows=windows), sums.of_shard(shard, shards)
                parts.append(name.process(None, added, of_shard, counts, *blobs))
            named = NamedItems.merge(parts)
            already = set(cells_of(before))
            found = named.select(np.array([cell not in already for cell in cells_of(named)], dtype=np.bool_))
            self.rounds.append(OfRound(sums, drawn, found, named))
        self.unpaid = counts[CONTRIBUTIONS_UNPAID]

    def reports(self) -> list[WindowReport]:
        return [report for _, report in self.rounds[-1].named.window_reports(self.trial, "events")]

    def block_reports(self) -> list[WindowReport]:
        return [report for _, report in self.rounds[0].found.window_reports(self.trial, "events")]
