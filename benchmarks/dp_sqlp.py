"""DP-SQLP's published workload: how many keys names finds, over windows of a step and over all steps so far.

[ZDK24] Zhang, Doroshenko, Kairouz, Steinke, Thakurta, Ma, Cohen, Apte, Spacek. Differentially private stream
processing at scale. PVLDB 17(12), arXiv 2303.18086. Its section 5.1: 10 million users, each with a number of records by
Zipf-Mandelbrot (N = 100,000, q = 26, s = 6.738); a million keys, each record's by Zipf-Mandelbrot (q = 1000, s = 1.4);
epsilon 6, delta 1e-9; T = 100 and 1,000 steps. Records fall on steps at random here.

``scale``: users and keys are divided by it, and each key stands for so many neighbours of like frequency
(`scaled_shift`). So each key has as many users as before, and a scaled-down log has 1/scale as many keys of each size.
Found keys are multiplied by it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from rich.console import Console

from benchmarks.found_names import LOOKS_ALONE, OrderedStream
from benchmarks.report import Figure, show_figures, write_results
from dp_transforms.plan.plan import Plan
from dp_transforms.plan.window_schedule import WindowSchedule

Whole = npt.NDArray[np.int64]
_USERS, _KEYS = 10_000_000, 1_000_000
_RECORDS = (100_000, 26.0, 6.738)
_KEY_SHIFT, _KEY_EXPONENT = 1000.0, 1.4
_EPSILON, _DELTA = 6.0, 1e-9
# An open replica of DP-SQLP (github.com/lucadibello/confidential-storm, benchmark/utility, June 2026): ten runs' means.
_REPLICA = {100: 32_146, 1000: 24_407}
_LEAST_SCALE = {("step", 100): 1, ("step", 1000): 1, ("so far", 100): 100, ("so far", 1000): 1000, ("whole", 0): 1}
_ONE_STEP_SECONDS = 3600


class Records(NamedTuple):
    """Distinct (user, key, step), by user: int64[n] each, codes from 0. keys 0, 1, ... from the most frequent on."""

    users: Whole
    keys: Whole
    steps: Whole


def zipf_mandelbrot(ranks: int, shift: float, exponent: float) -> npt.NDArray[np.float64]:
    """Cumulative probabilities of the ranks 1 .. ranks, each in proportion to ``(rank + shift)^-exponent``."""
    shares = np.cumsum((np.arange(1, ranks + 1) + shift) ** -exponent)
    return np.asarray(shares / shares[-1])


def scaled_shift(scale: int) -> float:
    """q for a key that stands for `scale` neighbours: ``rank + q`` is that of the middle one, over scale."""
    return (_KEY_SHIFT + 0.5) / scale - 0.5


def simulate(users: int, keys: int, shift: float, steps: int, random: np.random.Generator) -> Records:
    """The workload with so many users and keys."""
    of_user = 1 + np.searchsorted(zipf_mandelbrot(*_RECORDS), random.random(users))
    user = np.repeat(np.arange(users), of_user)
    key = np.searchsorted(zipf_mandelbrot(keys, shift, _KEY_EXPONENT), random.random(len(user)))
    rows = np.unique((user * keys + key) * steps + random.integers(0, steps, len(user)))
    cells, step = np.divmod(rows, steps)
    return Records(*np.divmod(cells, keys), step)


def run(*, quick: bool = False, scale: int = 20) -> list[Figure]:
    """scale: at least this; cumulative windows, where a user pays for each of its keys in every step, need more."""
    console = Console(stderr=True)
    scale = 200 if quick else scale
    figures: list[Figure] = []
    for way, steps in _LEAST_SCALE:
        factor = max(scale, _LEAST_SCALE[way, steps] * (10 if quick else 1))
        console.print(f"windows: {way}, {steps or 1} windows, 1/{factor} of the users and keys ...")
        figures += _figures(way, steps or 1, factor)
    write_results("dp_sqlp", figures, epsilon=_EPSILON, delta=_DELTA, scale=scale, replica=_REPLICA)
    show_figures(f"DP-SQLP's workload, epsilon {_EPSILON:g}, delta {_DELTA:g}", figures)
    return figures


def _figures(way: str, steps: int, factor: int) -> Iterator[Figure]:
    keys, users = _KEYS // factor, _USERS // factor
    records = simulate(users, keys, scaled_shift(factor), steps, np.random.default_rng(steps))
    budgets = (_EPSILON,) if way == "step" else (_EPSILON, _EPSILON / 2)
    for epsilon in budgets:
        plan = _plan(way, steps, epsilon)
        stream = OrderedStream(plan, [f"k{key}" for key in range(keys)], users, windows_at_once=16)
        started = time.perf_counter()
        looks = 0
        for step, rows in _windows(records, way, steps):
            stream.add_window(step, records.users[rows], records.keys[rows])
            looks += len(rows)
        windows, named = stream.finish()
        seconds = time.perf_counter() - started
        distinct = np.unique(named)
        at_end = len(np.unique(named[windows == steps - 1]))
        replica = f"; DP-SQLP (replica) {_REPLICA[steps]:,}" if way == "so far" and epsilon == _EPSILON / 2 else ""
        name = f"{way}, {steps} windows, epsilon {epsilon:g}"
        note = (
            f"1/{factor}; {looks:,} looks in {seconds:.0f} s; {len(named) * factor:,} pairs; in the last window "
            f"{at_end * factor:,}; held by nobody in the run {_never_held(distinct, records.keys) * factor:,}{replica}"
        )
        yield Figure(name, float(len(distinct) * factor), "keys", None, note)


def _plan(way: str, steps: int, epsilon: float) -> Plan:
    schedule = WindowSchedule.fixed(0, steps * _ONE_STEP_SECONDS, _ONE_STEP_SECONDS)
    # Some five keys for half of the steps on average, and at most 32 in each.
    looks = {"usual_looks": (steps, 10 * steps), "most_looks": 32 * steps} if way == "so far" else {}
    delta = _DELTA * epsilon / _EPSILON
    plan = Plan.calibrate(
        epsilon=epsilon, delta=delta, schedule=schedule, mode="looks", **{**LOOKS_ALONE, **looks},
        max_users=10**8, max_items=10**7,
    )  # fmt: skip
    assert plan.looks is not None
    return plan


def _windows(records: Records, way: str, steps: int) -> Iterator[tuple[int, Whole]]:
    """Each window and its rows of the records, one for each pair of user and key."""
    if way == "whole":
        yield 0, np.arange(len(records.users))
        return
    if way == "step":
        order = np.argsort(records.steps, kind="stable")
        bounds = np.searchsorted(records.steps[order], np.arange(steps + 1))
        for step in range(steps):
            yield step, order[bounds[step] : bounds[step + 1]]
        return
    is_first = np.ones(len(records.users), dtype=np.bool_)
    is_first[1:] = (np.diff(records.users) != 0) | (np.diff(records.keys) != 0)
    first = np.flatnonzero(is_first)  # sorted by step within a user's key
    for step in range(steps):
        yield step, first[records.steps[first] <= step]


def _never_held(named: Whole, keys: Whole) -> int:
    return int((~np.isin(named, keys)).sum())
