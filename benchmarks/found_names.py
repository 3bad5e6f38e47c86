"""What `shh replay` and the core of a stream find in a log."""

from __future__ import annotations

import datetime
import json
import secrets
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from benchmarks.finding_logs import LogPairs
from benchmarks.found_pairs import FoundPairs, found_cells
from benchmarks.logs import COMMAND
from benchmarks.processes import run_measured
from dp_transforms.accounting.priced_weights import BUDGET_UNITS
from dp_transforms.core.contributions import Contributions
from dp_transforms.core.item_namer import ItemNamer
from dp_transforms.core.item_sums import ItemSums
from dp_transforms.core.item_table import ItemTable
from dp_transforms.core.named_items import FollowedItems
from dp_transforms.core.user_budgets import UserBudgets
from dp_transforms.plan.plan import Plan
from tests.helpers.trials import trial_of

Whole = npt.NDArray[np.int64]
LOOKS: dict[str, Any] = {"usual_contributions": (1, 1000), "false_name_error": 1e-5}  # choices of a plan


def replay(log: LogPairs, plan: Plan, parts: int = 1) -> FoundPairs:
    """The command itself, in a process of its own; or in parts of the run, one after the other."""
    with tempfile.TemporaryDirectory(prefix="shh_bench_") as folder:
        stored, key = Path(folder) / "plan.json", Path(folder) / "noise.key"
        stored.write_text(plan.to_json(), encoding="utf-8")
        found = []
        for number in range(1, parts + 1):
            report, more = Path(folder) / f"report-{number}.jsonl", ["--plan", str(stored)]
            if parts > 1:
                key.exists() or key.write_text(secrets.token_hex(32), encoding="utf-8")
                key.chmod(0o600)
                until = log.start_seconds + number * log.horizon // parts * log.window_seconds
                shown = datetime.datetime.fromtimestamp(until, datetime.UTC).isoformat()
                more += ["--state", str(Path(folder) / "state"), "--noise-key-file", str(key), "--until", shown]
            run_measured(COMMAND, *log.replay_arguments(str(report), *more))
            found.append(_read_report(log, report))
        windows, items = map(np.concatenate, zip(*found, strict=True))
    reported, of_nobody = found_cells(log, windows, items)
    if plan.contributions is not None:
        sums = log.sums(replay_weights(log, plan))
    else:
        sums = log.holders.astype(np.float64)
    return FoundPairs(reported, of_nobody, sums, plan.threshold)


def replay_weights(log: LogPairs, plan: Plan) -> np.ndarray:
    """The largest weight of which a purse pays for all pairs of the user, or the mean beyond most_tests."""
    looks = np.minimum(log.looks, plan.paid_contributions.most_tests)
    affordable = np.searchsorted(plan.paid_contributions.units, BUDGET_UNITS // looks, side="right") - 1
    weights = np.array(plan.paid_contributions.weights)[affordable] * (looks / log.looks)
    return weights[log.users]


def stream_order(log: LogPairs, plan: Plan) -> FoundPairs:
    """Window by window through the purses that a stream keeps, and the namer; one shard."""
    rows_by_window = np.argsort(log.windows, kind="stable")  # within a window by user, then item
    bounds = np.searchsorted(log.windows[rows_by_window], np.arange(log.horizon + 1))
    weights = np.zeros(len(log), dtype=np.int64)
    stream = OrderedStream(plan, log.labels, len(log.looks))
    for window in range(log.horizon):
        rows = rows_by_window[bounds[window] : bounds[window + 1]]
        weights[rows] = stream.add_window(window, log.users[rows], log.items[rows])
    windows, items = stream.finish()
    reported, of_nobody = found_cells(log, windows, items)
    return FoundPairs(reported, of_nobody, log.sums(weights), plan.threshold)


class OrderedStream:
    """The core of a stream of mode looks, fed window by window: purses, then sums, then the namer with known items.

    labels: of all items. users: how many there are; users and items of a window are codes.
    """

    def __init__(self, plan: Plan, labels: Sequence[str], users: int, windows_at_once: int = 64) -> None:
        self._settings = trial_of(plan, stream="events", run_id="bench")
        self._keys = self._settings.stream_keys(secrets.token_bytes(32))
        self._table, self._position = ItemTable.of_labels(pa.array(labels), self._keys.hash_items)
        self._item_of_label = {label: item for item, label in enumerate(labels)}
        hashes = self._keys.hash_users(pa.array(np.arange(users)).cast(pa.string()))[:, 0]
        order = np.argsort(hashes)
        self._hashes, self._code = hashes[order], np.empty(users, dtype=np.int64)
        self._code[order] = np.arange(users)
        self._purses = UserBudgets(self._settings, self._keys)
        self._namer = ItemNamer(self._settings, self._keys)
        self._known = FollowedItems.none()
        self._windows_at_once = windows_at_once
        self._first = self._next = 0
        self._sums: list[ItemSums] = []
        self._named: list[tuple[Whole, Whole]] = []

    def add_window(self, window: int, users: Whole, items: Whole) -> Whole:
        """All pairs of a window, distinct. Returns their weights."""
        if window - self._first >= self._windows_at_once:
            self._name(window)
        self._next = window + 1
        if not len(users):
            return np.zeros(0, dtype=np.int64)
        codes, positions = self._code[users], self._position[items]
        order = np.argsort(positions * len(self._code) + codes)
        pairs = Contributions(self._hashes, codes[order], np.full(len(order), window), positions[order], self._table)
        pairs = pairs.select(slice(None))
        in_order = self._purses.spend(pairs, window)
        self._sums.append(ItemSums.of_weights(pairs, in_order, self._keys))
        weights = np.empty(len(order), dtype=np.int64)
        weights[order] = in_order
        return weights

    def finish(self) -> tuple[Whole, Whole]:
        """Windows and items of all that was named."""
        self._name(self._settings.schedule.horizon)
        windows, items = (np.concatenate(column) for column in zip(*self._named, strict=True))
        return windows, items

    def _name(self, end: int) -> None:
        named = self._namer.name_windows(ItemSums.merge(self._sums), self._known, self._first, end)
        self._known = self._known.after(named, end, self._settings.followed_for)
        items = np.array([self._item_of_label[label] for label in named.table.labels.to_pylist()], dtype=np.int64)
        self._named.append((named.windows, items[named.items]))
        self._sums, self._first = [], end


def _read_report(log: LogPairs, report: Path) -> tuple[np.ndarray, np.ndarray]:
    windows, items = [], []
    for line in report.read_text(encoding="utf-8").splitlines()[1:]:
        record = json.loads(line)
        start = datetime.datetime.fromisoformat(record["window_start"].replace("Z", "+00:00"))
        window = (int(start.timestamp()) - log.start_seconds) // log.window_seconds
        for heavy in record["heavy_hitters"]:
            windows.append(window)
            items.append(log.code_of_label[heavy["item"]])
    return np.array(windows, dtype=np.int64), np.array(items, dtype=np.int64)
