"""PipelineDP, run for real: its `select_partitions` in a fresh environment, at the best cap and strategy for the log.

The best cap is found on the log itself, by the law of its strategies. Its user could not do this privately.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from benchmarks import logs
from benchmarks.finding_logs import LogPairs
from benchmarks.found_pairs import FoundPairs
from benchmarks.other_methods import GaussianSelection, TruncatedGeometric
from benchmarks.peers_histograms import (
    counts_under_cap,
    expected_gaussian,
    expected_laplace,
    laplace_threshold,
)

_VERSION = "0.3.1"
_SCRIPT = Path(__file__).with_name("pipeline_dp_pairs.py")


class Selection(NamedTuple):
    """strategy: a `PartitionSelectionStrategy` of the library. threshold: in users; where half of them are kept."""

    expected: float
    cap: int
    strategy: str
    threshold: float


def best_selection(
    log: LogPairs, rank: npt.NDArray[np.int64], epsilon: float, delta: float, caps: tuple[int, ...]
) -> Selection:
    """By the expected number of pairs found."""
    return max(each for cap in caps for each in _selections(counts_under_cap(log, rank, cap), epsilon, delta, cap))


def _selections(counts: npt.NDArray[np.int64], epsilon: float, delta: float, cap: int) -> list[Selection]:
    kept = TruncatedGeometric(epsilon, delta, cap)(np.arange(counts.max() + 1))
    laplace = laplace_threshold(epsilon, delta, cap)
    gaussian = GaussianSelection(epsilon, delta, cap)
    noisy = expected_gaussian(counts, gaussian.sigma, gaussian.threshold)
    return [
        Selection(float(kept[counts].sum()), cap, "TRUNCATED_GEOMETRIC", float(np.searchsorted(kept, 0.5))),
        Selection(expected_laplace(counts, cap / epsilon, laplace), cap, "LAPLACE_THRESHOLDING", laplace),
        Selection(noisy, cap, "GAUSSIAN_THRESHOLDING", gaussian.threshold),
    ]


def select_partitions(log: LogPairs, choice: Selection, epsilon: float, delta: float) -> FoundPairs:
    """Runs the library on all distinct (user, window, item) of the log."""
    with tempfile.TemporaryDirectory(prefix="shh_bench_") as folder:
        source, target = f"{folder}/in.npz", f"{folder}/out.npz"
        np.savez(source, users=log.users, cells=log.cell_of_row, epsilon=epsilon, delta=delta)
        words = (source, target, str(choice.cap), choice.strategy)
        subprocess.run([str(_pipeline_dp()), str(_SCRIPT), *words], check=True, capture_output=True)
        kept = np.load(target)["kept"]
    reported = np.zeros(len(log.cells), dtype=np.bool_)
    reported[kept] = True
    sums = log.sums(np.minimum(1.0, choice.cap / log.looks)[log.users])
    return FoundPairs(reported, 0, sums, choice.threshold)


def _pipeline_dp() -> Path:
    """The Python of an environment with the library, made when it is first needed and kept beside the logs."""
    folder = logs.data_folder() / f"pipeline_dp_{_VERSION}"
    python, complete = folder / "bin" / "python", folder / "complete"
    if not complete.exists():
        own = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True, env=own)
        install = [str(python), "-m", "pip", "install", "--quiet", "--compile", f"pipeline-dp=={_VERSION}"]
        subprocess.run(install, check=True, env=own)
        complete.touch()
    return python
