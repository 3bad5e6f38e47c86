"""What `--by` and `--weight` cost and say: globo in rounds, where users have drawn values and clicks drawn lengths.

One run each. The other logs have no such columns, and neither has this one.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq

from benchmarks.real_logs import GLOBO_HOURLY as LOG
from benchmarks.report import Figure, show_figures, write_results
from dp_transforms import Plan, Report, WindowSchedule, replay

_SHARES = {"a": 0.5, "b": 0.25, "c": 0.12, "d": 0.08, "e": 0.05}  # of users
_SIZES = (20, 50, 100)  # users of a facet
_MOST = (300, 30)  # seconds; the middle of all clicks is 55
_LARGE = 500  # users of a pair whose amount is looked for
_CELL = ["window", "item"]


def run(*, quick: bool = False) -> list[Figure]:
    """The pairs of each choice, and what else it says of them."""
    if not LOG.path.exists():
        return []
    log = _log()
    if quick:
        log = log[log["user"] % 10 == 0]
    figures = [Figure("pairs", len(_named(_replayed(log))), "pairs")]
    found = _named(_replayed(log, by={"value": list(_SHARES)}))
    held = log.groupby([*_CELL, "value"])["user"].nunique().reset_index(name="users").merge(found[_CELL])
    told = found.loc[found["value"].notna(), [*_CELL, "value"]].assign(told=True)
    told = held.merge(told, how="left")["told"].notna()
    figures.append(Figure("pairs, by value", len(found[_CELL].drop_duplicates()), "pairs"))
    figures += [
        Figure(f"facets of named pairs, {size} users or more", told[held["users"] >= size].mean(), "%")
        for size in _SIZES
    ]
    for most in _MOST:
        found = _named(_replayed(log, weight="seconds", most_weight=most))
        users = log.groupby([*_CELL, "user"])["seconds"].sum().clip(upper=most).groupby(level=[0, 1])
        truth = users.agg(["size", "sum"]).reset_index().merge(found)
        large = truth[truth["size"] >= _LARGE]
        stated = large["at_least_weight"].notna()
        share = large["at_least_weight"].astype("float64") / large["sum"]
        figures += [
            Figure(f"pairs, seconds to {most}", len(found), "pairs"),
            Figure(
                f"amounts to {most} stated, {_LARGE} users or more", stated.mean(), "%", note=f"{len(large):,} pairs"
            ),
            Figure(f"amounts to {most}, share of the truth, in the middle", share.median(), "%"),
        ]
    write_results("by_value", figures)
    show_figures("globo by value and by amount", figures)
    return figures


def _log() -> pd.DataFrame:
    log = pq.read_table(LOG.path).to_pandas()
    draws, users = np.random.default_rng(1), log["user"].unique()
    values = pd.Series(draws.choice(list(_SHARES), len(users), p=list(_SHARES.values())), index=users)
    seconds = draws.lognormal(4, 1, len(log)).round(1)
    window = (log["timestamp"] // 1000 - LOG.start_seconds) // LOG.window_seconds
    log = log.assign(value=log["user"].map(values), seconds=seconds, window=window, item=log["item"].astype(str))
    return log[(window >= 0) & (window < LOG.windows)]


def _replayed(log: pd.DataFrame, **more: Any) -> Report:
    schedule = WindowSchedule.fixed(LOG.start_seconds, LOG.end_seconds, LOG.window_seconds)
    plan = Plan.calibrate(epsilon=2, delta=1e-9, schedule=schedule, rounds=True, **more)
    return replay(log, plan=plan, time_unit="ms")


def _named(report: Report) -> pd.DataFrame:
    found = report.to_pandas()
    seconds = found["window_start"].astype("datetime64[s, UTC]").astype("int64")
    return found.assign(window=(seconds - LOG.start_seconds) // LOG.window_seconds)
