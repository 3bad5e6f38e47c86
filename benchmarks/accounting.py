"""Accounting: how long a calibration takes, and what each bound says on the reference grid."""

from __future__ import annotations

import json
import math
import time
from pathlib import Path
from typing import Any

from benchmarks.charging_bounds import (
    ClosedFormAccountant,
    ExactTailAccountant,
    RenyiAccountant,
    static_adversary_epsilon,
)
from benchmarks.report import Figure, show_figures, show_table, write_results
from dp_transforms.accounting.charging_game import GameAccountant, between_probability, charging_game_deltas
from dp_transforms.mechanisms.discrete_laplace_law import not_prior_probability
from dp_transforms.plan.plan import Plan
from dp_transforms.plan.window_schedule import WindowSchedule

_GRID = Path(__file__).parents[1] / "tests" / "data" / "reference_values.json"
_HOURLY = WindowSchedule.fixed(1_506_826_800, 1_506_826_800 + 384 * 3600, 3600)
_ROUNDS = 3


def run(*, quick: bool = False) -> list[Figure]:
    figures = []
    for mode in ("hits",) if quick else ("hits", "hits-with-counts"):
        for hits in (10,) if quick else (10, 100, 300):
            target = ("<=", 2.0) if hits == 100 else None
            seconds, plan = _calibrate(mode, hits)
            note = f"noise scale {plan.charged_hits.noise.scale:.1f}, threshold {plan.threshold:,}"
            figures.append(Figure(f"Calibrate {mode}, {hits} hits", seconds, "s", target, note))
            started = time.perf_counter()
            first = plan.epsilon_after_hits[0]
            note = f"after 1 hit: {first:.3f} of 2"
            figures.append(Figure("  its running figure", time.perf_counter() - started, "s", None, note))
    show_figures("Accounting: epsilon 2, delta 1e-9, 384 windows, 3 items per user", figures)
    table = [_bounds(row) for row in json.loads(_GRID.read_text(encoding="utf-8"))[: 2 if quick else None]]
    rows = [[f"{value:{'g' if place < 3 else '.3f'}}" for place, value in enumerate(row.values())] for row in table]
    show_table("epsilon by bound", list(table[0]), rows, texts=())
    write_results("accounting", figures, epsilon_by_bound=table)
    return figures


def _calibrate(mode: str, hits: int) -> tuple[float, Plan]:
    """The median of a few calibrations, each from a cold cache."""
    seconds = []
    for _ in range(_ROUNDS):
        charging_game_deltas.cache_clear()
        started = time.perf_counter()
        plan = Plan.calibrate(epsilon=2.0, delta=1e-9, schedule=_HOURLY, mode=mode, hits_per_user=hits)
        seconds.append(time.perf_counter() - started)
    return sorted(seconds)[_ROUNDS // 2], plan


def _bounds(row: dict[str, Any]) -> dict[str, float]:
    epsilon_per_query, hits, delta = row["eps_query"], row["hits"], row["delta"]
    q = not_prior_probability(epsilon_per_query)
    between = between_probability(epsilon_per_query, math.ceil(2 / epsilon_per_query))
    return {
        "epsilon_per_query": epsilon_per_query,
        "hits": hits,
        "delta": delta,
        "static adversary": static_adversary_epsilon(epsilon_per_query, q, hits, delta),
        "game": GameAccountant(epsilon_per_query, q, hits).epsilon(delta),
        "exact tail": ExactTailAccountant(epsilon_per_query, q, hits).epsilon(delta),
        "Renyi": RenyiAccountant(epsilon_per_query, q, hits).epsilon(delta),
        "closed form": ClosedFormAccountant(epsilon_per_query, q, hits).epsilon(delta),
        "game, labels": GameAccountant(epsilon_per_query, between, hits).epsilon(delta),
    }
