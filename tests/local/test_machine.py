"""How the work of a replay is spread on this machine: how many processes, how much memory, in how many parts."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dp_transforms.local import machine
from dp_transforms.local.pool import ProcessPool
from dp_transforms.logs import EventFields, find_log_chunks
from tests.helpers.crowded_logs import SCHEDULE, write_crowded_log
from tests.helpers.looks_plans import looks_plan_of
from tests.helpers.shh_here import shh


@pytest.mark.parametrize(
    ("label", "other", "shards"), [("x" * 4_000, "", 16), ("x", "x" * 4_000, 8)], ids=["labels", "another column"]
)
def test_long_labels_are_cut_into_more_shards(tmp_path, monkeypatch, label, other, shards):
    """A worker has all labels of a shard at once; what a field has that is not read costs nothing."""
    monkeypatch.setattr(machine, "_LABEL_BYTES_PER_SHARD", 500_000)
    path, rows = tmp_path / "log.parquet", range(2_000)
    columns = {name: [f"{text}{row}" for row in rows] for name, text in (("item", label), ("other", other))}
    pq.write_table(pa.table({"user": ["u"] * 2_000, "timestamp": pa.array(rows, pa.timestamp("s")), **columns}), path)
    chunks = find_log_chunks([str(path)], EventFields())
    found = machine.shards_of_log(chunks, SCHEDULE, EventFields(), pays_tests=True)
    assert found == pytest.approx(shards, abs=1)


@pytest.mark.parametrize(
    ("log_bytes", "processes", "memory", "number", "left"),
    [
        (1_000, None, 4_000_000_000, 0, 3_650_000_000),  # a small log
        (1_000, 2, 4_000_000_000, 2, 2_950_000_000),
        (10**9, None, 4_000_000_000, 2, 2_950_000_000),
        (10**9, None, 800_000_000, 1, 100_000_000),  # one process, and the rest on disk
        (10**9, None, 300_000_000, 1, 0),
        (10**9, 8, 10**9, 8, 0),
    ],
)
def test_processes_are_as_many_as_there_are_cores_and_memory_for(
    log_bytes, processes, memory, number, left, monkeypatch
):
    monkeypatch.setattr(machine, "cores", lambda: 2)
    assert machine.Spread.of(log_bytes, processes, memory) == machine.Spread(number, left)


@pytest.mark.parametrize(("quota", "cores"), [("200000 100000", 2), ("50000 100000", 1), ("max 100000", 8)])
def test_a_container_with_a_share_of_the_cores_has_so_many(quota, cores, tmp_path, monkeypatch):
    (tmp_path / "cpu.max").write_text(quota)
    monkeypatch.setattr(machine, "_CPU_QUOTA", str(tmp_path / "cpu.max"))
    monkeypatch.setattr(machine.os, "sched_getaffinity", lambda _: set(range(8)))
    assert machine.cores() == cores


def test_the_memory_of_a_container_is_the_limit_if_it_is_less(tmp_path, monkeypatch):
    (tmp_path / "memory.max").write_text("1000000000000")
    monkeypatch.setattr(machine, "_CGROUP_LIMITS", (str(tmp_path / "memory.max"),))
    monkeypatch.setattr(machine, "_available_bytes", lambda: 5_000_000_000)
    assert machine.free_memory_bytes() == 5_000_000_000
    (tmp_path / "memory.max").write_text("4000000000")
    assert 1_000_000_000 < machine.free_memory_bytes() < 4_000_000_000
    (tmp_path / "memory.max").write_text("max")
    assert machine.free_memory_bytes() == 5_000_000_000


def test_the_command_uses_processes_by_itself_for_a_log_that_is_not_small(tmp_path, monkeypatch):
    write_crowded_log(tmp_path / "log", 3000, 200)
    (tmp_path / "plan.json").write_text(looks_plan_of(SCHEDULE, most_ids=5000).to_json())
    made = []

    class Watched(ProcessPool):
        def __init__(self, number, memory_bytes, *others, **options):
            made.append((number, memory_bytes))
            super().__init__(number, memory_bytes, *others, **options)

    monkeypatch.setattr(machine, "ProcessPool", Watched)
    monkeypatch.setattr(machine, "cores", lambda: 2)

    def said(name, *words):
        ended = shh("replay", "log", "--plan", "plan.json", "--output", f"{name}.jsonl", *words, cwd=tmp_path)
        assert ended.returncode == 0, ended.stderr
        return ended.stderr

    said("small")
    assert not made
    monkeypatch.setattr(machine, "SMALL_LOG_BYTES", 1000)
    assert "3,000 rows" in said("large", "--memory", "2GB")
    assert made == [(2, 950_000_000)]
    assert "--memory is less than this command with 1 worker may take, 0.70 GB" in said("little", "--memory", "300MB")
