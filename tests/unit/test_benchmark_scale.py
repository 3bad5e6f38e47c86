"""What the benchmark of scale adds up."""

import pyarrow.parquet as pq
import pytest

from benchmarks import logs, sequential_stage, stage_costs
from dp_transforms.cli.main import main


def test_a_step_begins_when_the_one_before_it_has_ended():
    tasks = {"first": [3.0, 1.0, 1.0, 1.0], "second": [2.0, 2.0]}
    assert [stage_costs.makespan(tasks, workers) for workers in (1, 2, 4)] == [10.0, 5.0, 5.0]


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    path = tmp_path_factory.mktemp("scale") / "log.parquet"
    main(["simulate", "--events", "4000", "--users", "200", "--items", "50", "--days", "16", "--output", str(path)])
    return path


def test_costs_are_of_all_events_and_shards(log):
    costs = stage_costs.measure(str(log), 86_400, 3)
    assert costs.events == 4000
    assert [len(of_step) for of_step in costs.tasks.values()] == [1, 3, 3]
    assert costs.messages == 3 + 9
    assert min(costs.seconds.values()) > 0
    assert 4000 < costs.user_bytes < 200_000


@pytest.mark.parametrize("kind", logs.SKEW)
def test_a_skewed_log_has_all_rows(log, tmp_path, kind):
    target = tmp_path / "skewed.parquet"
    logs._derive(kind, str(log), str(target), 0)
    table = pq.read_table(target)
    assert len(table) == 4000
    assert table["item"].to_pylist().count("everybody's") == (2000 if kind == "one item" else 0)
    assert table["user"].to_pylist().count("the busy one") == (4000 if kind == "one user" else 0)
    largest = max(pq.ParquetFile(target).metadata.row_group(0).num_rows, 0)
    assert largest == (3600 if kind == "one partition" else 4000)


def test_all_pairs_of_heavy_items_are_charged_in_counts():
    assert sequential_stage.measure("hits-with-counts", 900)["charged"] == 24 * 20 * 900
