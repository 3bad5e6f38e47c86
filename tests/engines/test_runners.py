"""Each engine starts, runs the shape of pipeline that we rely on, and leaves no process behind."""

from __future__ import annotations

import pathlib
import time

import apache_beam as beam
import psutil
import pytest
from apache_beam.coders import VarIntCoder
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.testing.util import assert_that, equal_to
from apache_beam.transforms.userstate import ReadModifyWriteStateSpec

from dp_transforms.engines import flink, portable, prism
from tests.engines import looping, skip_reason
from tests.engines.flink_questions import latest_checkpoint, wait_for_checkpoints

LIMIT = 40
# The threads of a worker end with an error when their engine goes away.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")


def _needs(name: str) -> pytest.MarkDecorator:
    reason = skip_reason(name)
    return pytest.mark.skipif(reason is not None, reason=reason or "")


def _assert_counts_exactly(path: pathlib.Path, in_order: bool) -> None:
    """Every number once, as the keyed state of the writer also says. in_order: whether the engine keeps their order."""
    rows = list(looping.written(path))
    for key in looping.KEYS:
        numbers, before = zip(*(row[1:3] for row in rows if row[0] == key), strict=True)
        assert list(before) == list(range(LIMIT)), "state was lost, or kept twice"
        assert (list(numbers) if in_order else sorted(numbers)) == list(range(LIMIT))


def _run_loops(flags: list[str], path: pathlib.Path, while_running=lambda: None, in_order: bool = True) -> None:
    pipeline = beam.Pipeline(options=PipelineOptions(flags))
    looping.build(pipeline, path, LIMIT)
    result = pipeline.run()
    try:
        looping.wait_until_written(path, LIMIT, 240)
        while_running()
    finally:
        result.cancel()
    _assert_counts_exactly(path, in_order)


@_needs("flink")
def test_embedded_flink_runs_loops_and_takes_checkpoints(tmp_path):
    checkpoints = tmp_path / "checkpoints"
    with flink.JobServer() as server:

        def see_checkpoints() -> None:
            (job,) = server.rest.jobs()
            assert job.state == "RUNNING"
            wait_for_checkpoints(server.rest, job.job_id)
            latest = latest_checkpoint(server.rest, job.job_id)
            assert latest is not None
            assert latest.startswith(checkpoints.as_uri().replace("file:///", "file:/"))

        flags = flink.options(
            server.endpoint, checkpointing_interval_seconds=0.5, checkpoint_dir=str(checkpoints), parallelism=1
        )
        started = time.monotonic()
        _run_loops(flags, tmp_path / "out.jsonl", see_checkpoints)
        print(f"embedded Flink: {time.monotonic() - started:.1f} s")
        group = server.process.pid
        assert server.folder.exists()
    assert list(checkpoints.glob("**/chk-*/_metadata")), "the job has ended, and a checkpoint stays"
    assert not server.folder.exists()
    assert not psutil.pid_exists(group)


@_needs("prism")
def test_prism_runs_loops(tmp_path):
    with prism.Prism(log_path=tmp_path / "prism.log") as engine:
        _run_loops(prism.options(engine.endpoint), tmp_path / "out.jsonl", in_order=False)


class CountSlowly(beam.DoFn):
    """Key and value -> how many values of the key there were before. So slow that Prism may want to cut its bundle."""

    SEEN = ReadModifyWriteStateSpec("seen_v1", VarIntCoder())

    def process(self, element, seen=beam.DoFn.StateParam(SEEN)):
        before = seen.read() or 0
        time.sleep(0.3)
        seen.write(before + 1)
        yield before


@_needs("prism")
def test_prism_gives_a_key_to_one_bundle_at_a_time():
    """It does not when it cuts bundles: what one of two bundles writes to the state is then lost."""
    with prism.Prism() as engine, beam.Pipeline(options=PipelineOptions(prism.options(engine.endpoint))) as pipeline:
        values = pipeline | beam.Create([0]) | beam.FlatMap(lambda _: [("key", number) for number in range(12)])
        seen = values | "Slow" >> beam.ParDo(CountSlowly())
        assert_that(seen, equal_to(list(range(12))))


def test_job_service_runs_a_bounded_pipeline(tmp_path):
    out = tmp_path / "out.jsonl"
    with portable.JobService() as engine:
        flags = portable.portable_options(engine.endpoint, streaming=False)
        with beam.Pipeline(options=PipelineOptions(flags)) as pipeline:
            pairs = [(key, number) for key in looping.KEYS for number in range(3)]
            _ = pipeline | beam.Create(pairs) | beam.ParDo(looping.WriteWithTotal(str(out)))
    assert sorted(row[:2] for row in looping.written(out)) == sorted(pairs)
