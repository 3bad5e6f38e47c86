"""A log that may not fit into memory is refused before it is read."""

from __future__ import annotations

import pathlib

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dp_transforms import EventFields, ReleasePlan, WindowSchedule, find_log_chunks
from dp_transforms.pipelines import replay_memory
from dp_transforms.pipelines.options import UserError


def write_log(folder: pathlib.Path, pairs: list[tuple[str, str]]) -> None:
    user, item = zip(*pairs, strict=True)
    times = pa.array([0] * len(pairs), pa.timestamp("us"))
    pq.write_table(pa.table({"user": user, "item": item, "timestamp": times}), folder / "log.parquet")


def test_a_log_too_large_for_memory_is_refused_with_the_figure(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_log(tmp_path, [("u", "i")] * 1000)
    plan = ReleasePlan.calibrate(
        epsilon=1, delta=1e-6, release="labels", schedule=WindowSchedule.sliding(0, 7200, 7200, 3600)
    )
    chunks = find_log_chunks([str(tmp_path)], EventFields())
    replay_memory.check_memory(chunks, EventFields(), plan)
    monkeypatch.setattr(replay_memory, "free_memory_bytes", lambda: 300_000_000)
    with pytest.raises(UserError, match=r"0\.4 GB on the local runner and 0\.3 GB are free.*--allow-large-log"):
        replay_memory.check_memory(chunks, EventFields(), plan)


def test_long_labels_count_in_the_memory_check(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """300,000 distinct labels of 1,000 characters took 2.2 GB."""
    write_log(tmp_path, [("u", f"{n:01000d}") for n in range(30_000)])
    plan = ReleasePlan.calibrate(epsilon=1, delta=1e-6, release="labels", schedule=WindowSchedule.fixed(0, 7200, 3600))
    chunks = find_log_chunks([str(tmp_path)], EventFields())
    monkeypatch.setattr(replay_memory, "free_memory_bytes", lambda: 570_000_000)
    with pytest.raises(UserError, match=r"0\.6 GB on the local runner"):
        replay_memory.check_memory(chunks, EventFields(), plan)


def test_a_list_of_items_counts_in_the_memory_check(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten million items in a file of 279 MB took 1.8 GB."""
    write_log(tmp_path, [("u", "i")] * 1000)
    plan = ReleasePlan.calibrate(epsilon=1, delta=1e-6, release="labels", schedule=WindowSchedule.fixed(0, 7200, 3600))
    items = tmp_path / "items.txt"
    with items.open("wb") as file:
        file.truncate(100_000_000)
    chunks = find_log_chunks([str(tmp_path / "log.parquet")], EventFields())
    monkeypatch.setattr(replay_memory, "free_memory_bytes", lambda: 1_000_000_000)
    replay_memory.check_memory(chunks, EventFields(), plan)
    with pytest.raises(UserError, match=r"1\.1 GB on the local runner"):
        replay_memory.check_memory(chunks, EventFields(), plan, str(items))
