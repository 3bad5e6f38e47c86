"""The peer PipelineDP, in an environment of its own, which has nothing of this repository.

``python pipeline_dp_pairs.py IN.npz OUT.npz CAP STRATEGY``: `select_partitions` on the local backend. IN: users and
partitions (int64[n], distinct together), epsilon, delta. OUT: kept, the selected partitions. CAP: partitions of a user
that count.
"""

from __future__ import annotations

import functools
import sys

import numpy as np


def main(source: str, target: str, cap: str, strategy: str) -> None:
    import pipeline_dp
    from pipeline_dp import partition_selection

    # The same for each partition, but computed anew for each by a search of 50 ms. Noise is drawn with each use.
    partition_selection.create_weighted_gaussian_thresholding = functools.cache(
        partition_selection.create_weighted_gaussian_thresholding
    )
    data = np.load(source)
    accountant = pipeline_dp.NaiveBudgetAccountant(float(data["epsilon"]), float(data["delta"]))
    engine = pipeline_dp.DPEngine(accountant, pipeline_dp.LocalBackend())
    select = pipeline_dp.SelectPartitionsParams(
        max_partitions_contributed=int(cap),
        partition_selection_strategy=pipeline_dp.PartitionSelectionStrategy[strategy],
    )
    extractors = pipeline_dp.DataExtractors(
        privacy_id_extractor=lambda row: row[0],
        partition_extractor=lambda row: row[1],
        value_extractor=lambda row: 0,
    )
    rows = list(zip(data["users"].tolist(), data["partitions"].tolist(), strict=True))
    selected = engine.select_partitions(rows, select, extractors)
    accountant.compute_budgets()
    np.savez(target, kept=np.array(sorted(selected), dtype=np.int64))


if __name__ == "__main__":
    main(*sys.argv[1:])
