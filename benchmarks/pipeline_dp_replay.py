"""The peer: PipelineDP, in an environment of its own, which has it and what each needs, and nothing of this repository.

``python -m benchmarks.pipeline_dp_replay BACKEND TASK LOG SECONDS CAP``: over a whole log; it needs pyarrow and, for
``beam``, Apache Beam. BACKEND: ``local`` or ``beam`` (Beam's local runner). TASK: ``names`` (`select_partitions`) or
``counts`` (names, and for each the number of its users, PRIVACY_ID_COUNT). CAP: partitions of a user that count. A
partition is an item in a window.

``python pipeline_dp_replay.py pairs IN.npz OUT.npz CAP STRATEGY``: `select_partitions` on the local backend. IN: users,
cells (int64[n], distinct pairs), epsilon, delta. OUT: kept, the selected cells.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterable
from typing import Any

EPSILON, DELTA = 2.0, 1e-9
_COLUMNS = ["user", "item", "timestamp"]


def _query(
    backend: Any,
    task: str,
    cap: int,
    budget: tuple[float, float] = (EPSILON, DELTA),
    strategy: str = "GAUSSIAN_THRESHOLDING",
) -> tuple[Callable[[Any], Any], Callable[[], None]]:
    """Rows (user, partition) -> what is published; and what ends the making of the query."""
    import pipeline_dp

    accountant = pipeline_dp.NaiveBudgetAccountant(*budget)
    engine = pipeline_dp.DPEngine(accountant, backend)
    bounds = {
        "max_partitions_contributed": cap,
        "partition_selection_strategy": pipeline_dp.PartitionSelectionStrategy[strategy],
    }
    extractors = pipeline_dp.DataExtractors(
        privacy_id_extractor=lambda row: row[0],
        partition_extractor=lambda row: row[1],
        value_extractor=lambda row: 0,
    )
    if task == "names":
        select = pipeline_dp.SelectPartitionsParams(**bounds)
        return lambda rows: engine.select_partitions(rows, select, extractors), accountant.compute_budgets
    count = pipeline_dp.AggregateParams(
        metrics=[pipeline_dp.Metrics.PRIVACY_ID_COUNT],
        noise_kind=pipeline_dp.NoiseKind.GAUSSIAN,
        max_contributions_per_partition=1,
        **bounds,
    )
    return lambda rows: engine.aggregate(rows, count, extractors), accountant.compute_budgets


def _rows(log: str, window_seconds: int) -> Iterable[tuple[str, tuple[int, str]]]:
    """All of the log at once: the local backend has a list as its input."""
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    table = pq.read_table(log, columns=_COLUMNS)
    seconds = pc.divide(pc.cast(table["timestamp"].cast(pa.timestamp("us")), pa.int64()), 1_000_000)
    windows = pc.divide(seconds, window_seconds).to_pylist()
    cells = zip(windows, table["item"].to_pylist(), strict=True)
    return list(zip(table["user"].to_pylist(), cells, strict=True))


def _locally(task: str, log: str, window_seconds: int, cap: int) -> int:
    import pipeline_dp

    query, end = _query(pipeline_dp.LocalBackend(), task, cap)
    published = query(_rows(log, window_seconds))
    end()
    return len(list(published))


def _on_beam(task: str, log: str, window_seconds: int, cap: int) -> int:
    import apache_beam as beam
    import pipeline_dp
    from apache_beam.metrics import Metrics
    from apache_beam.options.pipeline_options import PipelineOptions

    logging.disable(logging.CRITICAL)
    published = Metrics.counter("peer", "published")

    def row_of(event: dict[str, Any]) -> tuple[str, tuple[int, str]]:
        return event["user"], (int(event["timestamp"].timestamp()) // window_seconds, event["item"])

    pipeline = beam.Pipeline(options=PipelineOptions(["--runner=FnApiRunner"]))
    query, end = _query(pipeline_dp.BeamBackend(), task, cap)
    rows = pipeline | beam.io.ReadFromParquet(log, columns=_COLUMNS) | beam.Map(row_of)
    _ = query(rows) | "Count what is published" >> beam.Map(lambda _: published.inc())
    end()
    result = pipeline.run()
    result.wait_until_finish()
    counters = result.metrics().query()["counters"]
    return sum(each.committed for each in counters if each.key.metric.name == "published")


def _of_pairs(source: str, target: str, cap: str, strategy: str) -> None:
    import numpy as np
    import pipeline_dp

    data = np.load(source)
    budget = float(data["epsilon"]), float(data["delta"])
    query, end = _query(pipeline_dp.LocalBackend(), "names", int(cap), budget, strategy)
    selected = query(list(zip(data["users"].tolist(), data["cells"].tolist(), strict=True)))
    end()
    np.savez(target, kept=np.array(sorted(selected), dtype=np.int64))


def main(backend: str, *words: str) -> None:
    if backend == "pairs":
        return _of_pairs(*words)
    task, log, window_seconds, cap = words
    run = {"local": _locally, "beam": _on_beam}[backend]
    print(f"{run(task, log, int(window_seconds), int(cap)):,} items in windows")


if __name__ == "__main__":
    main(*sys.argv[1:])
