"""How much noise each method adds to one count, for the same (epsilon, delta) and the same number of hits.

What is compared: the scale of the noise added to a count that is tested against a threshold, where one user changes the
count by at most 1. For each method the least noise that its own proof allows:

- Sparse [DR14]: its Algorithm 2, the better of its two forms (delta = 0 and delta > 0); noise Lap(2 sigma). Beside it
  the same algorithm with the optimal composition of its runs [KOV15].
- ThresholdMonitor [KMS21]: the wide noise 10 D, with the explicit constants of its proof.
- Target charging [CL23] with counts, by each accountant; and labels, where only results near the threshold are charged,
  by the game. Lower bound: what a fixed adversary attains, so that no accountant of target charging can be below it.

The hits do not mean the same, and this favours Sparse: its hits are the answers "above" of the whole stream, for all
users and items together, after which it halts. In the other methods each user has that many hits of its own and the
stream goes on. Sparse publishes no counts for this noise; target charging publishes the noisy count, in mode hits
that of the charged results. For counts, which a user can only raise, later work halves the noise of Sparse; the figures
are of the algorithm as published.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable

from benchmarks.charging_bounds import (
    ClosedFormAccountant,
    ExactTailAccountant,
    RenyiAccountant,
    static_adversary_delta,
)
from benchmarks.report import Figure, show_figures, show_table, write_results
from dp_transforms.accounting.charging_game import GameAccountant, between_probability
from dp_transforms.accounting.composition import Accountant, OptimalComposition, smallest_safe_argument
from dp_transforms.accounting.kms21_accountant import calibrate_threshold_monitor
from dp_transforms.mechanisms.discrete_laplace_law import not_prior_probability
from dp_transforms.mechanisms.papers.sparse_vector import epsilon_per_run

_BUDGETS = ((2.0, 1e-9), (1.0, 1e-6))
_HITS = (1, 2, 3, 5, 10, 20, 30, 50, 100, 200, 300)


@dataclasses.dataclass(frozen=True)
class _TargetCharging:
    """delta at an epsilon as a function of the noise's scale; the number of hits is fixed."""

    hits: int
    epsilon: float

    def by(self, make: Callable[[float, float, int], Accountant]) -> Callable[[float], float]:
        return lambda scale: make(1 / scale, not_prior_probability(1 / scale), self.hits).delta(self.epsilon)

    def labels(self, scale: float) -> float:
        q = between_probability(1 / scale, math.ceil(2 * scale))
        return GameAccountant(1 / scale, q, self.hits).delta(self.epsilon)

    def attained(self, scale: float) -> float:
        return static_adversary_delta(1 / scale, not_prior_probability(1 / scale), self.hits, self.epsilon)


def noise_scales(hits: int, epsilon: float, delta: float) -> dict[str, float]:
    """The scale of the noise of one count, by method: of Laplace noise, discrete where the counts are whole."""
    charging = _TargetCharging(hits, epsilon)
    runs = max(epsilon_per_run(epsilon, 0.0, hits), epsilon_per_run(epsilon, delta, hits))
    composed = _least(lambda scale: OptimalComposition(4 / scale, hits).delta(epsilon), delta, 4 / runs)
    game = _least(charging.by(GameAccountant), delta, composed)
    return {
        "KMS21": 1 / calibrate_threshold_monitor(epsilon, delta, hits).wide_epsilon,
        "Sparse": 4 / runs,
        "Sparse, optimal": composed,
        "closed form": _least(charging.by(ClosedFormAccountant), delta, 1.5 * game),
        "Renyi": _least(charging.by(RenyiAccountant), delta, 1.1 * game),
        "exact tail": _least(charging.by(ExactTailAccountant), delta, 1.1 * game),
        "game": game,
        "lower bound": _least(charging.attained, delta, game),
        "game, labels": _least(charging.labels, delta, game),
    }


def _least(delta_at: Callable[[float], float], delta: float, guess: float) -> float:
    return smallest_safe_argument(delta_at, delta, guess=guess, lowest=0.05, highest=1e9, tolerance=1e-5)


def run(*, quick: bool = False) -> list[Figure]:
    started = time.perf_counter()
    tables = {}
    for epsilon, delta in _BUDGETS[: 1 if quick else None]:
        rows = [{"hits": float(hits), **noise_scales(hits, epsilon, delta)} for hits in _HITS[: 3 if quick else None]]
        tables[f"epsilon {epsilon:g}, delta {delta:g}"] = rows
        _show(f"Scale of the noise of one count: epsilon {epsilon:g}, delta {delta:g}", rows)
    rows = next(iter(tables.values()))
    figures = [
        Figure(f"{name} / game, {row['hits']:.0f} hits", row[name] / row["game"], "", (">=", 1.0))
        for row in (rows[0], rows[-1])
        for name in ("closed form", "exact tail", "Renyi", "KMS21")
    ]
    figures.append(Figure("Time of the comparison", time.perf_counter() - started, "s", ("<=", 60.0)))
    show_figures("Noise comparison", figures)
    write_results("noise_comparison", figures, noise_scales=tables)
    return figures


def _show(title: str, rows: list[dict[str, float]]) -> None:
    texts = [[f"{value:,.{1 if value < 1000 else 0}f}" for value in list(row.values())[1:]] for row in rows]
    cells = [(f"{row['hits']:.0f}", *scales) for row, scales in zip(rows, texts, strict=True)]
    show_table(title, list(rows[0]), cells, texts=())
