"""What `shh replay` and the core of a stream find in a log."""

from __future__ import annotations

import secrets
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.finding.logs import Found, Log
from benchmarks.processes import COMMAND, run_measured
from dp_transforms import read_report
from dp_transforms.core.contributions import Contributions
from dp_transforms.core.item_table import ItemTable
from dp_transforms.core.planned_run import PlannedRun
from dp_transforms.core.stage import Span
from dp_transforms.core.stages import stages_of
from dp_transforms.plan.plan import Plan
from dp_transforms.plan.window_schedule import format_utc


def replay(log: Log, plan: Plan, parts: int = 1) -> Found:
    """The command itself, in a process of its own; or in parts of the run, one after the other."""
    with tempfile.TemporaryDirectory(prefix="shh_bench_") as name:
        folder = Path(name)
        (folder / "reports").mkdir()
        (folder / "plan.json").write_text(plan.to_json(), encoding="utf-8")
        (folder / "noise.key").write_text(secrets.token_hex(32), encoding="utf-8")
        (folder / "noise.key").chmod(0o600)
        words = ["replay", str(log.path), "--plan", f"{folder}/plan.json", "--noise-key-file", f"{folder}/noise.key"]
        words += ["--time-format", log.time_format] if log.time_format else []
        for number in range(parts):
            more = ["--output", f"{folder}/reports/{number}.jsonl"]
            if parts > 1:
                last = (number + 1) * log.schedule.horizon // parts - 1
                more += ["--state", f"{folder}/state", "--until", format_utc(log.schedule.window_end_micros(last))]
            run_measured(COMMAND, *words, *more)
        report = read_report(*sorted((folder / "reports").iterdir()))
    windows = [window for window in report for _ in window.heavy_hitters]
    starts = np.array([window.window_start for window in windows], dtype=np.int64)
    items = [heavy.item for window in report for heavy in window.heavy_hitters]
    return Found.of_codes(log, log.schedule.first_window(starts), log.codes_of(items))


def stream_order(log: Log, plan: Plan) -> Found:
    """Window by window through the steps of a stream; one shard."""
    run, secret = PlannedRun(plan=plan, stream="events", run_id="bench"), secrets.token_bytes(32)
    keys, steps = run.stream_keys(secret), [stage.start(secret) for stage in stages_of(run, None) if stage]
    states = [step.restore([], 0) for step in steps]
    table, position = ItemTable.of_labels(pa.array(log.labels), keys.hash_items)
    hashes = keys.hash_users(pa.array(np.arange(len(log.contributions))).cast(pa.string()))[:, 0]
    by_hash = np.argsort(hashes)
    code_of_user = np.argsort(by_hash)
    rows_by_window = np.argsort(log.windows, kind="stable")
    bounds = np.searchsorted(log.windows[rows_by_window], np.arange(log.schedule.horizon + 1))
    windows, items = [], []
    for window in range(log.schedule.horizon):
        rows = rows_by_window[bounds[window] : bounds[window + 1]]
        codes, places = code_of_user[log.users[rows]], position[log.items[rows]]
        order = np.lexsort((codes, places))
        columns = codes[order], np.full(len(order), window), places[order]
        sent: Any = Contributions(hashes[by_hash], *columns, table).select(slice(None))
        for step, state in zip(steps, states, strict=True):
            sent = step.process(state, sent, Span(window, window + 1), Counter())
        windows.append(sent.windows)
        items.append(log.codes_of(sent.table.labels.to_pylist())[sent.items])
    return Found.of_codes(log, np.concatenate(windows), np.concatenate(items))
