"""The logs of the benchmark `finding`, as distinct (user, window, item), and as files that ``shh replay`` reads.

Shares no code with the product, so that what was really held is counted independently.
"""

from __future__ import annotations

import dataclasses
import datetime
import functools
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from benchmarks import logs
from benchmarks.real_logs import GLOBO_HOURLY, MOVIES_WEEKLY, RealLog
from dp_transforms.cli.simulate import LogPlan, write_parquet

Whole = npt.NDArray[np.int64]
_SIMULATED_EVENTS, _SIMULATED_USERS, _SIMULATED_ITEMS, _SIMULATED_DAYS = 3_600_000, 25_000, 10_000, 28
_HOUR = 3600


@dataclasses.dataclass(frozen=True, eq=False)
class LogPairs:
    """n distinct (user, window, item), sorted in this order. users, windows, items: int64[n], codes from 0.

    path: a log with these pairs, columns user, item, timestamp. labels: how it spells each item code.
    """

    name: str
    path: Path
    time_unit: str
    start_seconds: int
    window_seconds: int
    horizon: int
    users: Whole
    windows: Whole
    items: Whole
    labels: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.users)

    @functools.cached_property
    def looks(self) -> Whole:
        """Contributions of each user: int64[users]."""
        return np.bincount(self.users)

    @functools.cached_property
    def _cells(self) -> tuple[Whole, Whole, Whole]:
        codes, of_row, holders = np.unique(
            self.windows * len(self.labels) + self.items, return_inverse=True, return_counts=True
        )
        return codes, of_row, holders

    @property
    def cells(self) -> Whole:
        """The c distinct (window, item) that anybody holds, as ``window * items + item``, ascending."""
        return self._cells[0]

    @property
    def cell_of_row(self) -> Whole:
        """Position in `cells` of each row: int64[n]."""
        return self._cells[1]

    @property
    def holders(self) -> Whole:
        """Distinct users of each cell: int64[c]."""
        return self._cells[2]

    @functools.cached_property
    def code_of_label(self) -> dict[str, int]:
        return {label: code for code, label in enumerate(self.labels)}

    def sums(self, weights: npt.NDArray) -> npt.NDArray[np.float64]:
        """The weights of the holders of each cell together. weights: [n], of each row."""
        return np.bincount(self.cell_of_row, weights, minlength=len(self.cells))

    def rank_in_user(self, random: np.random.Generator) -> Whole:
        """A random order of the pairs of each user, 0, 1, ...: int64[n]. A cap of C keeps the ranks below C."""
        order = np.lexsort((random.random(len(self)), self.users))
        starts = np.cumsum(self.looks) - self.looks
        rank = np.empty(len(self), dtype=np.int64)
        rank[order] = np.arange(len(self)) - starts[self.users[order]]
        return rank

    def rank_in_window(self, random: np.random.Generator) -> Whole:
        """The same within each window of each user."""
        codes = self.users * self.horizon + self.windows
        order = np.lexsort((random.random(len(self)), codes))
        begins = np.flatnonzero(np.diff(codes[order], prepend=-1))
        rank = np.empty(len(self), dtype=np.int64)
        rank[order] = np.arange(len(self)) - np.repeat(begins, np.diff(np.append(begins, len(self))))
        return rank

    def replay_arguments(self, output: str, *more: str) -> list[str]:
        """Of ``shh``, for this log, but for the budget."""
        start, end = (
            datetime.datetime.fromtimestamp(seconds, datetime.UTC).isoformat()
            for seconds in (self.start_seconds, self.start_seconds + self.horizon * self.window_seconds)
        )
        unit = ("--time-format", self.time_unit) if self.time_unit else ()
        schedule = () if "--plan" in more else ("--start", start, "--end", end, "--window", f"{self.window_seconds}s")
        return ["replay", str(self.path), *unit, *schedule, "--output", output, *more]


def all_logs(*, quick: bool = False) -> Iterator[LogPairs]:
    """Those that this machine has; the first one alone if quick."""
    if GLOBO_HOURLY.path.exists():
        globo = _read_real(GLOBO_HOURLY, "globo_news, hourly")
        yield globo
        if quick:
            return
        yield _merged(globo, 10)
        yield _merged(globo, 30)
    if MOVIES_WEEKLY.path.exists():
        yield _read_real(MOVIES_WEEKLY, "movietweetings_2013, weekly")
    yield _simulated()


def _read_real(log: RealLog, name: str) -> LogPairs:
    table = pq.read_table(log.path)
    time = table.column("timestamp").to_numpy()
    inside = (time >= log.start_seconds * 1000) & (time < log.end_seconds * 1000)
    windows = (time[inside] - log.start_seconds * 1000) // (log.window_seconds * 1000)
    users, items = (table.column(column).to_numpy()[inside] for column in ("user", "item"))
    schedule = (log.start_seconds, log.window_seconds, log.windows)
    return _distinct(name, log.path, "ms", schedule, users, windows, items)


def _merged(log: LogPairs, together: int) -> LogPairs:
    """So many users made one, by consecutive ranks of their ids, as a log of its own."""
    path = logs.data_folder() / f"globo_{together}_merged.parquet"
    users = log.users // together  # codes are ranks
    if not path.exists():
        millis = (log.start_seconds + log.windows * log.window_seconds) * 1000
        order = np.argsort(millis, kind="stable")
        labels = np.array(log.labels)
        columns = {"user": users[order], "item": labels[log.items[order]], "timestamp": millis[order]}
        partial = path.with_suffix(".partial")
        pq.write_table(pa.table(columns), partial, compression="zstd")
        os.replace(partial, path)
    schedule = (log.start_seconds, log.window_seconds, log.horizon)
    merged = _distinct(f"globo_news, {together} users merged", path, "ms", schedule, users, log.windows, log.items)
    return dataclasses.replace(merged, labels=log.labels)


def _simulated() -> LogPairs:
    """28 days with some 20,000 users active each day, in hourly windows."""
    path = logs.data_folder() / f"simulated_{_SIMULATED_DAYS}_days.parquet"
    if not path.exists():
        partial = path.with_suffix(".partial")
        with partial.open("wb") as file:
            write_parquet(
                file, LogPlan(_SIMULATED_USERS, _SIMULATED_ITEMS, _SIMULATED_DAYS, logs.SEED, _SIMULATED_EVENTS)
            )
        os.replace(partial, path)
    table = pq.read_table(path)
    start = int(datetime.datetime.fromisoformat(logs.START.replace("Z", "+00:00")).timestamp())
    seconds = table.column("timestamp").cast(pa.int64()).to_numpy() // 1_000_000
    windows = (seconds - start) // _HOUR
    users, items = (
        pc.dictionary_encode(table.column(column).combine_chunks()).indices.to_numpy() for column in ("user", "item")
    )
    labels = table.column("item").combine_chunks().dictionary_encode().dictionary.to_pylist()
    pairs = _distinct("simulated, 28 days", path, "", (start, _HOUR, _SIMULATED_DAYS * 24), users, windows, items)
    return dataclasses.replace(pairs, labels=tuple(labels))


def _distinct(
    name: str, path: Path, time_unit: str, schedule: tuple[int, int, int], users: Whole, windows: Whole, items: Whole
) -> LogPairs:
    start_seconds, window_seconds, horizon = schedule
    _, users = np.unique(users, return_inverse=True)
    labels, items = np.unique(items, return_inverse=True)
    rows = np.unique((users * horizon + windows) * len(labels) + items)
    cells, items = np.divmod(rows, len(labels))
    users, windows = np.divmod(cells, horizon)
    return LogPairs(
        name, path, time_unit, start_seconds, window_seconds, horizon, users, windows, items,
        tuple(str(label) for label in labels),
    )  # fmt: skip
