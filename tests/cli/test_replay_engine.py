"""Where a replay runs: which places are refused, and how the work is cut. No engine is started."""

import dataclasses

import pytest

from dp_transforms.cli.flink_replay import events_that_fit, shards_for
from tests.helpers.crowded_logs import RANGE, replay_request, write_crowded_log
from tests.helpers.looks_plans import small_looks_plan
from tests.helpers.shh_here import shh
from tests.helpers.shh_process import error_line
from tests.helpers.small_runs import key_file, small_plan

BUDGET = ("--epsilon", "8", "--delta", "1e-6")
CLUSTER = ("--flink-master", "jobs.internal:8081")
POOL = ("--worker-pool", "localhost:50000")


@pytest.fixture
def log(tmp_path):
    return write_crowded_log(tmp_path / "log", 600, 30)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--flink-master", "jobs", *POOL, "--noise-key-file", "k"], "--flink-master must be HOST:PORT or [local]"),
        (["--engine", "dataflow"], "python pipelines/replay_log.py --runner=DataflowRunner"),
        ([*CLUSTER, *POOL, "--noise-key-file", "k", "--dead-letter", "ftp://a/b"], "URLs ftp://... are not known"),
    ],
)
def test_places_that_cannot_be_reached_are_refused_in_one_line(log, tmp_path, words, says):
    key_file(tmp_path)
    result = shh("replay", log, *RANGE, *BUDGET, "--output", "report.jsonl", *words, cwd=tmp_path)
    assert says in error_line(result)
    assert not (tmp_path / "report.jsonl").exists()


@pytest.mark.parametrize("plan", [small_looks_plan(), small_plan()], ids=["looks", "hits-with-counts"])
def test_parts_hold_so_many_events_whatever_the_size_of_the_log(log, tmp_path, plan):
    request = replay_request(log, plan, tmp_path / "report.jsonl", key_file(tmp_path))
    slabs = 1 if plan.mode == "looks" else plan.schedule.horizon

    def parts(events, parallelism=1, megabytes=2000):
        chunks = [dataclasses.replace(request.chunks[0], events=events)]
        return slabs * shards_for(dataclasses.replace(request, chunks=chunks), parallelism, megabytes)

    assert parts(600) >= 8
    assert parts(600, parallelism=20) >= 80, "every worker has something to do"
    for events in (10**8, 10**9):
        assert 800_000 <= events / parts(events) <= 1_000_000
        assert events / parts(events, megabytes=1500) <= events_that_fit(1500), "small workers get small parts"
    assert parts(2 * 10**9 * slabs) == slabs * 1024, "a message for each pair of parts"
    assert 10**12 / parts(10**12) <= events_that_fit(2000), "memory comes first"
    assert parts(10**12, megabytes=1500) > 2 * parts(10**12, megabytes=2000)
    assert events_that_fit(1500) >= 500_000
    with pytest.raises(ValueError, match="at least 1500 MB"):
        events_that_fit(1499)
