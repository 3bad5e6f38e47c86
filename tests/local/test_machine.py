"""How the work of a replay is spread on this machine: how many processes, how much memory, in how many parts."""

import types

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dp_transforms.local import machine
from dp_transforms.local.pool import ThisProcess
from dp_transforms.logs import EventFields, LogChunk, find_log_chunks
from tests.helpers.crowded_logs import SCHEDULE


@pytest.mark.parametrize(
    ("log_bytes", "processes", "free", "number", "left"),
    [
        (1_000, None, 4_000_000_000, 0, 0),  # a small log
        (10**9, None, 4_000_000_000, 2, 2_950_000_000),
        (10**9, None, 800_000_000, 1, 100_000_000),  # one process, and the rest on disk
        (10**9, 8, 10**9, 8, 0),
    ],
)
def test_processes_are_as_many_as_there_are_cores_and_memory_for(log_bytes, processes, free, number, left, monkeypatch):
    monkeypatch.setattr(machine, "cores", lambda: 2)
    monkeypatch.setattr(machine, "free_memory_bytes", lambda: free)
    monkeypatch.setattr(machine, "ProcessPool", lambda *made: made)
    workers = machine.start_workers(log_bytes, b"key", processes)
    assert workers == (number, left, b"key") if number else type(workers) is ThisProcess


@pytest.mark.parametrize(
    ("rows", "size", "shards"),
    [(100, 10**4, 8), (10**8, 10**9, 80), (None, 2 * 10**9, 80), (10**6, 10**9, 32), (10**9, 10**12, 256)],
)
def test_users_and_items_are_cut_into_as_many_shards_as_fit_into_a_worker(rows, size, shards):
    """Rows of which the number is not known have 20 bytes; of wide ones bytes count."""
    plan = types.SimpleNamespace(contributions="paid", schedule=SCHEDULE)
    chunk = LogChunk("log", "parquet", None, rows, size)
    assert machine.shards_of_log([chunk], plan) == shards


def test_long_labels_are_cut_into_more_shards(tmp_path, monkeypatch):
    """By what a Parquet file says that its rows unpack to: a worker has all labels of a shard at once."""
    monkeypatch.setattr(machine, "_BYTES_PER_SHARD", 500_000)
    path, rows = str(tmp_path / "log.parquet"), range(2_000)
    times = pa.array(rows, pa.timestamp("s"))
    pq.write_table(pa.table({"user": rows, "item": [f"{'x' * 4_000}{row}" for row in rows], "timestamp": times}), path)
    plan = types.SimpleNamespace(contributions="paid", schedule=SCHEDULE)
    assert machine.shards_of_log(find_log_chunks([path], EventFields()), plan) == pytest.approx(16, abs=1)


@pytest.mark.parametrize(("quota", "cores"), [("200000 100000", 2), ("50000 100000", 1), ("max 100000", 8)])
def test_a_container_with_a_share_of_the_cores_has_so_many(quota, cores, tmp_path, monkeypatch):
    (tmp_path / "cpu.max").write_text(quota)
    monkeypatch.setattr(machine, "_CPU_QUOTA", str(tmp_path / "cpu.max"))
    monkeypatch.setattr(machine.os, "sched_getaffinity", lambda _: set(range(8)))
    assert machine.cores() == cores


def test_the_memory_of_a_container_is_the_limit_if_it_is_less(tmp_path, monkeypatch):
    monkeypatch.setattr(machine, "_CGROUP_LIMITS", (str(tmp_path / "memory.max"),))
    monkeypatch.setattr(machine, "_available_bytes", lambda: 5_000_000_000)
    for limit in ("1000000000000", "max"):
        (tmp_path / "memory.max").write_text(limit)
        assert machine.free_memory_bytes() == 5_000_000_000
    (tmp_path / "memory.max").write_text("4000000000")
    assert 1_000_000_000 < machine.free_memory_bytes() < 4_000_000_000
