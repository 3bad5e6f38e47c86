"""Runs PipelineDP's `select_partitions` on its local backend.

``python pipeline_dp_select.py IN.npz OUT.npz CAP STRATEGY``, in an environment of its own, which has PipelineDP and
numpy, and nothing of this repository. IN: users, cells (int64[n], distinct pairs), epsilon, delta. OUT: kept, the
selected cells.
"""

from __future__ import annotations

import sys


def main(source: str, target: str, cap: str, strategy: str) -> None:
    import numpy as np
    import pipeline_dp

    data = np.load(source)
    rows = list(zip(data["users"].tolist(), data["cells"].tolist(), strict=True))
    accountant = pipeline_dp.NaiveBudgetAccountant(
        total_epsilon=float(data["epsilon"]), total_delta=float(data["delta"])
    )
    engine = pipeline_dp.DPEngine(accountant, pipeline_dp.LocalBackend())
    selected = engine.select_partitions(
        rows,
        pipeline_dp.SelectPartitionsParams(
            max_partitions_contributed=int(cap),
            partition_selection_strategy=pipeline_dp.PartitionSelectionStrategy[strategy],
        ),
        pipeline_dp.DataExtractors(
            privacy_id_extractor=lambda row: row[0],
            partition_extractor=lambda row: row[1],
            value_extractor=lambda row: 0,
        ),
    )
    accountant.compute_budgets()
    np.savez(target, kept=np.array(sorted(selected), dtype=np.int64))


if __name__ == "__main__":
    main(*sys.argv[1:])
