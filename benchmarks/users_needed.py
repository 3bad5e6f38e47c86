"""From how many users on an item is found: by a plan and its modes, and by the methods of others. Draws README's chart.

Methods of others have the same budget for a user's whole life. All holders of the item have equally many pairs (window,
item) in the run (`looks`). A method that bounds how many of them count keeps a random choice of them.

- Partition selection, as PipelineDP and the C++ library of google/differential-privacy do it: each pair is a partition;
  each user contributes to at most so many (the cap). The best cap for this activity, which its user would have to know.
- Weighted Gaussian [GGK20]: each user adds 1/sqrt(its pairs) to each of them; one Gaussian noise, one threshold.
- Gaussian histograms: a noisy histogram for each window, where a user counts for at most so many items.

[DVGM22] Desfontaines, Voss, Gipson, Mandayam. Differentially private partition selection. PoPETs 2022.
[GGK20] Gopi, Gulhane, Kulkarni, Shen, Shokouhi, Yekhanin. Differentially private set union. ICML 2020.
"""

from __future__ import annotations

import math
import pathlib
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.special import ndtr, ndtri

from benchmarks.line_plot import Series, line_plot_svg
from benchmarks.peers_set_union import Floats, gaussian_sigma, union_threshold
from benchmarks.report import Figure
from dp_transforms.accounting.purse.open_threshold import fewest_users
from dp_transforms.plan.hits_calibration import DEFAULT_MAX_ITEMS_PER_USER
from dp_transforms.plan.plan import Plan
from dp_transforms.plan.plan_comparison import FOUND, TITLES, Comparison
from dp_transforms.plan.window_schedule import WindowSchedule

PLOT = pathlib.Path(__file__).resolve().parents[1] / "docs" / "users_needed.svg"
_CAP_RATIO = 1.3  # from one cap that is tried to the next; then closer around the best
_CLOSER = 1.05
_POINTS = 13


def run(*, quick: bool = False) -> list[Figure]:
    """Of a year of hourly windows, as README says."""
    year = WindowSchedule.fixed("2026-01-01", "2027-01-01", 3600)
    plot = chart_svg(Plan.calibrate(epsilon=2, delta=1e-9, schedule=year))
    if not quick:
        PLOT.write_text(plot, encoding="utf-8")
    return []


def chart_svg(plan: Plan) -> str:
    """The plan of looks and all methods, as a whole SVG file."""
    most_looks = plan.paid_looks.most_looks
    looks = sorted({round(number) for number in np.geomspace(1, most_looks, _POINTS)})
    users: dict[str, dict[int, int]] = {
        TITLES[method]: row for method, row in Comparison(plan).found_from(looks).items()
    }
    counts = DEFAULT_MAX_ITEMS_PER_USER * plan.schedule.horizon
    others: dict[str, Callable[[int], int]] = {
        "PipelineDP, best cap": lambda number: partition_selection_found_from(plan.epsilon, plan.delta, number).users,
        "weighted Gaussian": lambda number: weighted_gaussian_found_from(plan.epsilon, plan.delta, number, most_looks),
        "Gaussian histograms": lambda _: gaussian_histograms_found_from(plan.epsilon, plan.delta, counts),
    }
    users |= {name: {number: found(number) for number in looks} for name, found in others.items()}
    series: Series = {name: [(float(x), float(y)) for x, y in row.items()] for name, row in users.items()}
    return line_plot_svg(
        f"epsilon {plan.epsilon:g}, delta {plan.delta:g}, {plan.schedule.horizon:,} windows",
        "pairs (window, item) of each holder in the run",
        f"users from which an item is found with {FOUND:.0%}",
        series,
        log_x=True,
        log_y=True,
    )


class BestCap(NamedTuple):
    """users: that an item needs. cap: pairs of a user that count. strategy: of the two of the library, the better."""

    users: int
    cap: int
    strategy: str


def partition_selection_found_from(epsilon: float, delta: float, looks: int, probability: float = 0.95) -> BestCap:
    """The best cap, and the better of truncated geometric and Gaussian selection."""

    def tried(caps: set[int]) -> BestCap:
        return min(
            BestCap(fewest_users(found, cap / looks, probability), cap, strategy)
            for cap in sorted(caps)
            for strategy, found in (
                ("truncated geometric", _TruncatedGeometric(epsilon, delta, cap)),
                ("Gaussian", _GaussianSelection(epsilon, delta, cap)),
            )
        )

    best = tried(_geometric(1, looks, _CAP_RATIO))
    around = _geometric(max(1, int(best.cap / _CAP_RATIO)), min(looks, math.ceil(best.cap * _CAP_RATIO)), _CLOSER)
    return min(best, tried(around))


def weighted_gaussian_found_from(
    epsilon: float, delta: float, looks: int, most_looks: int, probability: float = 0.95
) -> int:
    """[GGK20] section 5: half of delta for the noise, half for the threshold. most_looks: their Delta_0."""
    sigma = gaussian_sigma(epsilon, delta / 2)
    threshold = union_threshold(sigma, delta / 2, most_looks)
    weight = 1 / math.sqrt(min(looks, most_looks))

    def found(users: npt.NDArray[np.int64]) -> Floats:
        return _normal_tail(threshold - users * weight, sigma)

    return fewest_users(found, min(1.0, most_looks / looks), probability)


def gaussian_histograms_found_from(epsilon: float, delta: float, counts: int, probability: float = 0.95) -> int:
    """Half of delta for the noise, half for the threshold. counts: items a window that count, times windows.

    One user changes at most so many counts by 1 each. The threshold is the smallest T with
    ``counts Pr[1 + noise >= T] <= delta / 2``.
    """
    sigma = gaussian_sigma(epsilon, delta / 2) * math.sqrt(counts)
    threshold = 1 + math.ceil(-sigma * float(ndtri(delta / 2 / counts)))
    return math.ceil(threshold + sigma * float(ndtri(probability)))


class _TruncatedGeometric:
    """Keeps a partition of k users with probability pi(k) ([DVGM22], Theorem 1), the largest that its privacy allows.

    epsilon / cap and 1 - (1 - delta)^(1 / cap) for each partition.
    """

    def __init__(self, epsilon: float, delta: float, cap: int) -> None:
        self._epsilon = epsilon / cap
        self._delta = -math.expm1(math.log1p(-delta) / cap)
        self._crossing = 1 + math.floor(
            math.log1p(math.tanh(self._epsilon / 2) * (1 / self._delta - 1)) / self._epsilon
        )

    def __call__(self, users: npt.NDArray[np.int64]) -> Floats:
        near = np.minimum(users, self._crossing)
        step = math.expm1(self._epsilon)
        rising = np.expm1(near * self._epsilon) / step * self._delta
        # Beyond the crossing the complement falls by e^-epsilon and delta at each step, down to 0.
        beyond = np.expm1(-(users - near) * self._epsilon) * (1 - rising + self._delta / step)
        return np.asarray(np.minimum(1.0, rising - beyond), dtype=np.float64)


class _GaussianSelection:
    """Keeps a partition whose number of users and Gaussian noise pass a threshold: half of delta for each."""

    def __init__(self, epsilon: float, delta: float, cap: int) -> None:
        self._sigma = gaussian_sigma(epsilon, delta / 2) * math.sqrt(cap)
        self._threshold = 1 - self._sigma * float(ndtri(-math.expm1(math.log1p(-delta / 2) / cap)))

    def __call__(self, users: npt.NDArray[np.int64]) -> Floats:
        return _normal_tail(self._threshold - users, self._sigma)


def _normal_tail(margins: npt.NDArray[np.number], sigma: float) -> Floats:
    """``Pr[noise >= margin]`` of Gaussian noise."""
    return np.asarray(ndtr(-margins / sigma), dtype=np.float64)


def _geometric(first: int, last: int, ratio: float) -> set[int]:
    steps = math.ceil(math.log(last / first) / math.log(ratio))
    return {first, last, *(round(value) for value in np.geomspace(first, last, steps + 1))}
