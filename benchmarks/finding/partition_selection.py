"""PipelineDP, run for real: its `select_partitions` in a fresh environment, at the best cap and strategy for the log.

The best ones are found on the log itself, by the law of each strategy. Its user could not do this privately.

[DVGM22] Desfontaines, Voss, Gipson, Mandayam. Differentially private partition selection. PoPETs 2022.
"""

from __future__ import annotations

import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Collection
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.special import ndtri

from benchmarks.finding.histograms import (
    counts_under_cap,
    expected_gaussian,
    expected_laplace,
    gaussian_sigma,
    laplace_threshold,
)
from benchmarks.finding.logs import Found, Log, Whole
from benchmarks.processes import data_folder

_VERSION = "0.3.1"
_PROGRAM = Path(__file__).with_name("pipeline_dp_pairs.py")
WEIGHTED = "WEIGHTED_GAUSSIAN_THRESHOLDING"
STRATEGIES = ("TRUNCATED_GEOMETRIC", "LAPLACE_THRESHOLDING", "GAUSSIAN_THRESHOLDING", WEIGHTED)


class Selection(NamedTuple):
    """expected: number of pairs found. strategy: a `PartitionSelectionStrategy` of the library."""

    expected: float
    cap: int
    strategy: str


def best_selection(
    log: Log, rank: Whole, epsilon: float, delta: float, caps: Collection[int], strategies: Collection[str]
) -> Selection:
    """By the expected number of pairs found. rank: `Log.rank_in_user`."""
    found = [each for cap in caps for each in _selections(log, rank, epsilon, delta, cap)]
    return max(each for each in found if each.strategy in strategies)


def _selections(log: Log, rank: Whole, epsilon: float, delta: float, cap: int) -> list[Selection]:
    """What each strategy finds on average under this cap."""
    counts = counts_under_cap(log, rank, cap)
    kept = TruncatedGeometric(epsilon, delta, cap)(np.arange(counts.max() + 1))
    laplace = laplace_threshold(epsilon, delta, cap)
    gaussian = GaussianSelection(epsilon, delta, cap)
    # A user's weights have the Euclidean norm 1, but noise and threshold are those of the cap.
    weights = np.where(rank < cap, 1 / np.sqrt(np.minimum(log.contributions, cap))[log.users], 0.0)
    expected = (
        float(kept[counts].sum()),
        expected_laplace(counts, cap / epsilon, laplace),
        expected_gaussian(counts, gaussian.sigma, gaussian.threshold),
        expected_gaussian(log.sums(weights), gaussian.sigma, gaussian.threshold),
    )
    return [Selection(pairs, cap, strategy) for pairs, strategy in zip(expected, STRATEGIES, strict=True)]


class TruncatedGeometric:
    """Keeps a partition of k users with probability pi(k) ([DVGM22], Theorem 1), the largest that its privacy allows.

    epsilon / cap and 1 - (1 - delta)^(1 / cap) for each partition.
    """

    def __init__(self, epsilon: float, delta: float, cap: int) -> None:
        self._epsilon = epsilon / cap
        self._delta = -math.expm1(math.log1p(-delta) / cap)
        self._crossing = 1 + math.floor(
            math.log1p(math.tanh(self._epsilon / 2) * (1 / self._delta - 1)) / self._epsilon
        )

    def __call__(self, users: Whole) -> npt.NDArray[np.float64]:
        near = np.minimum(users, self._crossing)
        step = math.expm1(self._epsilon)
        rising = np.expm1(near * self._epsilon) / step * self._delta
        # Beyond the crossing the complement falls by e^-epsilon and delta at each step, down to 0.
        beyond = np.expm1(-(users - near) * self._epsilon) * (1 - rising + self._delta / step)
        return np.asarray(np.minimum(1.0, rising - beyond), dtype=np.float64)


class GaussianSelection:
    """Keeps a partition whose number of users and Gaussian noise pass a threshold: half of delta for each."""

    def __init__(self, epsilon: float, delta: float, cap: int) -> None:
        self.sigma = gaussian_sigma(epsilon, delta / 2) * math.sqrt(cap)
        self.threshold = 1 - self.sigma * float(ndtri(-math.expm1(math.log1p(-delta / 2) / cap)))


def select_partitions(log: Log, choice: Selection, epsilon: float, delta: float) -> Found:
    """Runs the library on all distinct (user, window, item) of the log."""
    with tempfile.TemporaryDirectory(prefix="shh_bench_") as folder:
        source, target = f"{folder}/in.npz", f"{folder}/out.npz"
        np.savez(source, users=log.users, partitions=log.pair_of_row, epsilon=epsilon, delta=delta)
        words = (source, target, str(choice.cap), choice.strategy)
        subprocess.run([str(_environment()), str(_PROGRAM), *words], check=True)
        kept = np.load(target)["kept"]
    pairs = np.zeros(len(log.pairs), dtype=np.bool_)
    pairs[kept] = True
    return Found(pairs)


def _environment() -> Path:
    """The Python of an environment with the library, made when it is first needed and kept beside the logs."""
    folder = data_folder() / f"pipeline_dp_{_VERSION}"
    python, complete = folder / "bin" / "python", folder / "complete"
    if not complete.exists():
        own = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True, env=own)
        install = [str(python), "-m", "pip", "install", "--quiet", "--compile", f"pipeline-dp=={_VERSION}"]
        subprocess.run(install, check=True, env=own)
        complete.touch()
    return python
