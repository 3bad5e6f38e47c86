"""What a method found in a log, and the columns of the comparison."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from benchmarks.finding_logs import LogPairs

SIZES = (50, 100, 200, 500, 1000)


@dataclasses.dataclass(frozen=True, eq=False)
class FoundPairs:
    """One run. reported: bool[c], of each cell of the log. of_nobody: reported pairs that nobody holds.

    sums, threshold: what a noisy test of each cell compares, without the noise (its expectation where a cap keeps
    random pairs), float64[c]; the threshold of a new item in the same unit.
    """

    reported: npt.NDArray[np.bool_]
    of_nobody: int
    sums: npt.NDArray[np.float64]
    threshold: float

    @property
    def pairs(self) -> int:
        return int(self.reported.sum()) + self.of_nobody


def columns(log: LogPairs, runs: Sequence[FoundPairs]) -> dict[str, float | None]:
    """Means over runs. None where the log has no such pair. looks: the share of all rows whose pair was found."""
    row: dict[str, float | None] = {"pairs": statistics.mean(run.pairs for run in runs)}
    row["looks"] = statistics.mean(float(log.holders[run.reported].sum()) / len(log) for run in runs)
    for size in SIZES:
        held = log.holders >= size
        total = int(held.sum())
        shares = [float((run.reported & held).sum()) / total for run in runs] if total else []
        row[f"recall_{size}"] = statistics.mean(shares) if shares else None
    below = [int((run.reported & (run.sums < run.threshold / 2)).sum()) + run.of_nobody for run in runs]
    row["below_half"] = statistics.mean(
        count / run.pairs if run.pairs else 0.0 for count, run in zip(below, runs, strict=True)
    )
    row["of_nobody"] = statistics.mean(run.of_nobody for run in runs)
    return row


def found_cells(
    log: LogPairs, windows: npt.NDArray[np.int64], items: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.bool_], int]:
    """Reported pairs as bool[c] over the cells of the log, and how many of them nobody holds."""
    codes = windows * len(log.labels) + items
    at = np.minimum(np.searchsorted(log.cells, codes), len(log.cells) - 1)
    held = log.cells[at] == codes
    reported = np.zeros(len(log.cells), dtype=np.bool_)
    reported[at[held]] = True
    return reported, int((~held).sum())
