"""The logs of the benchmark `finding`: who really held what, and the file that ``shh replay`` reads.

What was held is counted here without the product's code.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from benchmarks.processes import data_folder
from dp_transforms.cli.simulate import LogPlan, write_parquet
from dp_transforms.plan.window_schedule import WindowSchedule

Whole = npt.NDArray[np.int64]

_REAL = {  # the folder of each log, and its range
    "globo": ("globo_news", WindowSchedule.fixed("2017-10-01T03:00:00Z", "2017-10-17T03:00:00Z", 3600)),
    "films": ("movietweetings_2013", WindowSchedule.fixed("2013-02-28T00:00:00Z", "2013-11-07T00:00:00Z", 604_800)),
}
_SIMULATED_DAYS = WindowSchedule.fixed("2026-01-01", "2026-01-29", 3600)


@dataclasses.dataclass(frozen=True, eq=False)
class Log:
    """n contributions, distinct (user, window, item), sorted in this order.

    path: of the same log, with columns user, item, timestamp; time_format: of `shh` for them.
    users, windows, items: int64[n], codes from 0. labels: how the file spells each item code.
    """

    name: str
    path: Path
    time_format: str
    schedule: WindowSchedule
    users: Whole
    windows: Whole
    items: Whole
    labels: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.users)

    @functools.cached_property
    def contributions(self) -> Whole:
        """How many each user has: int64[users]."""
        return np.bincount(self.users)

    @functools.cached_property
    def _pairs(self) -> tuple[Whole, Whole, Whole]:
        codes, pair_of_row, holders = np.unique(
            self.windows * len(self.labels) + self.items, return_inverse=True, return_counts=True
        )
        return codes, pair_of_row, holders

    @property
    def pairs(self) -> Whole:
        """The c distinct (window, item) that anybody holds, as ``window * items + item``, ascending."""
        return self._pairs[0]

    @property
    def pair_of_row(self) -> Whole:
        """Position in `pairs` of each contribution: int64[n]."""
        return self._pairs[1]

    @property
    def holders(self) -> Whole:
        """Distinct users of each pair: int64[c]."""
        return self._pairs[2]

    def codes_of(self, labels: Sequence[str]) -> Whole:
        """The code of each of these items."""
        return (
            pc.index_in(pa.array(labels, pa.string()), pa.array(self.labels, pa.string())).to_numpy().astype(np.int64)
        )

    def sums(self, weights: npt.NDArray) -> npt.NDArray[np.float64]:
        """The weights of the holders of each pair together: float64[c]. weights: [n], of each contribution."""
        return np.bincount(self.pair_of_row, weights, minlength=len(self.pairs))

    def rank_in_user(self, random: np.random.Generator) -> Whole:
        """A random order of the contributions of each user, 0, 1, ...: int64[n]. A cap of C keeps ranks below C."""
        return _random_rank(self.users, random)

    def rank_in_window(self, random: np.random.Generator) -> Whole:
        """The same within each window of each user."""
        return _random_rank(self.users * self.schedule.horizon + self.windows, random)


@dataclasses.dataclass(frozen=True, eq=False)
class Found:
    """What one run of a method reports. pairs: bool[c], of `Log.pairs`. of_nobody: pairs that nobody holds."""

    pairs: npt.NDArray[np.bool_]
    of_nobody: int = 0

    def __len__(self) -> int:
        return int(self.pairs.sum()) + self.of_nobody

    @classmethod
    def of_codes(cls, log: Log, windows: Whole, items: Whole) -> Found:
        codes = windows * len(log.labels) + items
        pairs = np.isin(log.pairs, codes)
        return cls(pairs, len(codes) - int(pairs.sum()))


def all_logs() -> Iterator[Log]:
    """The real ones that this machine has, in the folder of ``SHH_TEST_DATA``, and the simulated one."""
    folder = os.environ.get("SHH_TEST_DATA")
    for name, (log, schedule) in _REAL.items():
        if folder and (path := Path(folder) / log / "events.parquet").exists():
            table = pq.read_table(path)
            seconds = table.column("timestamp").to_numpy() // 1000
            yield _distinct(name, path, "ms", schedule, seconds, table)
        else:
            print(f"{name} is left out: SHH_TEST_DATA names no folder with {log}/events.parquet.", file=sys.stderr)
    path = data_folder() / "simulated_28_days.parquet"
    if not path.exists():
        partial = path.with_suffix(".partial")
        with partial.open("wb") as file:
            write_parquet(file, LogPlan(users=25_000, items=10_000, days=28, seed=7, events=3_600_000))
        os.replace(partial, path)
    table = pq.read_table(path)
    seconds = table.column("timestamp").cast(pa.int64()).to_numpy() // 1_000_000
    yield _distinct("simulated", path, "", _SIMULATED_DAYS, seconds, table)


def _distinct(
    name: str, path: Path, time_format: str, schedule: WindowSchedule, seconds: Whole, table: pa.Table
) -> Log:
    windows = (seconds - schedule.start_seconds) // schedule.window_seconds
    inside = (windows >= 0) & (windows < schedule.horizon)
    users, items = (
        pc.dictionary_encode(table.column(column).combine_chunks()).filter(inside) for column in ("user", "item")
    )
    _, users = np.unique(users.indices.to_numpy(), return_inverse=True)
    labels = tuple(str(label) for label in items.dictionary.to_pylist())
    rows = np.unique((users * schedule.horizon + windows[inside]) * len(labels) + items.indices.to_numpy())
    rows, items = np.divmod(rows, len(labels))
    users, windows = np.divmod(rows, schedule.horizon)
    return Log(name, path, time_format, schedule, users, windows, items, labels)


def _random_rank(groups: Whole, random: np.random.Generator) -> Whole:
    """groups: int64[n], ascending. Returns the place of each row in a random order of its group."""
    order = np.lexsort((random.random(len(groups)), groups))
    begins = np.flatnonzero(np.diff(groups, prepend=-1))
    rank = np.empty(len(groups), dtype=np.int64)
    rank[order] = np.arange(len(groups)) - np.repeat(begins, np.diff(np.append(begins, len(groups))))
    return rank
