"""A cluster of two processes with a pool of workers: killed worker, killed task manager, savepoint and going on."""

from __future__ import annotations

import os
import pathlib
import signal

import apache_beam as beam
import pytest
from apache_beam.options.pipeline_options import PipelineOptions

from dp_transforms.engines import flink
from tests.engines import looping, skip_reason
from tests.engines.flink_cluster import FlinkCluster
from tests.engines.flink_questions import latest_checkpoint, stop_with_savepoint, wait_for_checkpoints, wait_for_job

ROOT = pathlib.Path(__file__).parents[2]
LIMIT = 10_000
pytestmark = [
    pytest.mark.nightly,
    pytest.mark.skipif(skip_reason("flink") is not None, reason=skip_reason("flink") or ""),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning"),
]


def _reached(path: pathlib.Path) -> int:
    """How far every key has come."""
    rows = list(looping.written(path))
    return min(max((row[1] for row in rows if row[0] == key), default=-1) for key in looping.KEYS)


def _assert_one_history(path: pathlib.Path) -> None:
    """Numbers may be written twice after a restart; what the keyed state says about each is always the same."""
    befores_of: dict[tuple[str, int], set[int]] = {}
    for key, number, before, _ in looping.written(path):
        befores_of.setdefault((key, number), set()).add(before)
    for key in looping.KEYS:
        numbers = sorted(number for held_key, number in befores_of if held_key == key)
        assert numbers == list(range(len(numbers)))
    assert all(befores == {number} for (_, number), befores in befores_of.items())


def test_killed_worker_killed_task_manager_and_savepoint(tmp_path):
    out = tmp_path / "out.jsonl"
    (tmp_path / "cluster").mkdir()
    with (
        FlinkCluster(tmp_path / "cluster") as cluster,
        flink.JobServer(cluster.address) as server,
        flink.WorkerPool(log_path=tmp_path / "pool.log", env={"PYTHONPATH": str(ROOT)}) as pool,
    ):

        def run(name: str, savepoint: str | None = None) -> str:
            flags = flink.options(
                server.endpoint,
                checkpointing_interval_seconds=1,
                environment="EXTERNAL",
                worker_address=pool.address,
                savepoint=savepoint,
                job_name=name,
            )
            pipeline = beam.Pipeline(options=PipelineOptions(flags))
            looping.build(pipeline, out, LIMIT)
            pipeline.run()
            job = wait_for_job(cluster.rest, name)
            cluster.rest.wait_for_state(job.job_id, ["RUNNING"])
            return job.job_id

        def come_further(job: str) -> None:
            looping.wait_until_written(out, _reached(out) + 10, 240)
            wait_for_checkpoints(cluster.rest, job)

        job = run("first")
        come_further(job)
        workers = pool.worker_pids()
        assert workers
        os.kill(workers[0], signal.SIGKILL)
        come_further(job)
        cluster.kill_task_manager()
        cluster.wait_until_missed()
        cluster.start_task_manager()
        come_further(job)
        assert len(cluster.rest.exceptions(job)) >= 2
        assert cluster.rest.stages(job)
        path = stop_with_savepoint(cluster.rest, job, cluster.savepoints.as_uri())
        cluster.rest.wait_for_state(job, ["FINISHED"])
        before = _reached(out)
        second = run("second", path)
        assert second != job
        come_further(second)
        assert _reached(out) > before
        checkpoint = latest_checkpoint(cluster.rest, second)
        cluster.rest.cancel(second)
        cluster.rest.wait_for_state(second, ["CANCELED"])
        third = run("third", checkpoint)
        come_further(third)
        cluster.rest.cancel(third)
        cluster.rest.wait_for_state(third, ["CANCELED"])
    _assert_one_history(out)
