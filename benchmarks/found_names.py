"""What `shh replay` and the core of a stream find in a log."""

from __future__ import annotations

import datetime
import json
import secrets
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa

from benchmarks.finding_logs import LogPairs
from benchmarks.found_pairs import FoundPairs, found_cells
from benchmarks.processes import run_measured
from dp_transforms.accounting.names_plan import NamesPlan
from dp_transforms.accounting.release_plan import ReleasePlan
from dp_transforms.monitoring.item_table import ItemTable
from dp_transforms.monitoring.user_pairs import UserPairs
from dp_transforms.naming.item_namer import ItemNamer
from dp_transforms.naming.item_sums import ItemSums
from dp_transforms.naming.known_items import KnownItems
from dp_transforms.naming.purses import Purses
from dp_transforms.run_settings import settings_of_plan

_COMMAND = "dp_transforms.pipelines.cli"


def replay(log: LogPairs, plan: ReleasePlan) -> FoundPairs:
    """The command itself, in a process of its own."""
    with tempfile.TemporaryDirectory(prefix="shh_bench_") as folder:
        report, stored = Path(folder) / "report.jsonl", Path(folder) / "plan.json"
        stored.write_text(plan.to_json(), encoding="utf-8")
        run_measured(_COMMAND, *log.replay_arguments(str(report), "--plan", str(stored)))
        windows, items = _read_report(log, report)
    reported, of_nobody = found_cells(log, windows, items)
    if isinstance(plan, NamesPlan):
        sums = log.sums(replay_weights(log, plan))
    else:
        sums = log.holders.astype(np.float64)
    return FoundPairs(reported, of_nobody, sums, plan.threshold)


def replay_weights(log: LogPairs, plan: NamesPlan) -> np.ndarray:
    """The largest weight of which a purse pays for all pairs of the user, by definition; their mean beyond most_looks."""
    looks = np.minimum(log.looks, plan.most_looks)
    affordable = np.searchsorted(plan.units, plan.purse // looks, side="right") - 1
    weights = np.array(plan.weights)[affordable] * (looks / log.looks)
    return weights[log.users]


def stream_order(log: LogPairs, plan: NamesPlan) -> FoundPairs:
    """Window by window through the purses that a stream keeps, and the namer; one shard."""
    settings = settings_of_plan(plan, stream="events", run_id="bench")
    keys = settings.stream_keys(secrets.token_bytes(32))
    table, position = ItemTable.of_labels(pa.array(log.labels), keys.hash_items)
    hashes = keys.hash_users(pa.array([str(user) for user in range(len(log.looks))]))[:, 0]
    users, code_of_user = np.sort(hashes), np.argsort(np.argsort(hashes))
    codes, items = code_of_user[log.users], position[log.items]
    order = np.lexsort((items, codes, log.windows))
    bounds = np.searchsorted(log.windows[order], np.arange(log.horizon + 1))
    purses = Purses(settings, keys)
    parts, weights = [], np.zeros(len(log))
    for window in range(log.horizon):
        rows = order[bounds[window] : bounds[window + 1]]
        if len(rows):
            pairs = UserPairs.from_sorted_codes(users, codes[rows], log.windows[rows], items[rows], table)
            weights[rows] = purses.spend(pairs, window)
            parts.append(ItemSums.of_weights(pairs, weights[rows].astype(np.int64), keys))
    named = ItemNamer(settings, keys).name_windows(ItemSums.merge(parts), KnownItems.none(), 0, log.horizon)
    code_of_name = np.array([log.code_of_label[label] for label in named.table.labels.to_pylist()], dtype=np.int64)
    reported, of_nobody = found_cells(log, named.windows, code_of_name[named.items])
    return FoundPairs(reported, of_nobody, log.sums(weights), plan.threshold)


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
