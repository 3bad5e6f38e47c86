"""One log, one key, one run id: every engine and every way in gives the same records, and they are the oracle's."""

from __future__ import annotations

import contextlib
import time

import apache_beam as beam
import psutil
import pytest
from apache_beam.options.pipeline_options import PipelineOptions

from dp_transforms import EventFields
from dp_transforms.logs.streams.log_folder import LogFolder
from dp_transforms.reports import ReportFolder
from dp_transforms.reports.report_records import RunEnded
from examples.engines import flink, prism
from tests.engines import needs, on
from tests.engines.stream_case import STREAM, history_case, plain_reports, submit, wait_for_end
from tests.transcripts.cases import MODES, READERS
from tests.transcripts.drivers import Left, Run, add_stream, left_by_stream, prepared, replay_on
from tests.transcripts.transcript import difference, lines_of, stored

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")


@contextlib.contextmanager
def _running(result):
    """Ends the job also where the test fails."""
    try:
        yield
    finally:
        with contextlib.suppress(Exception):
            result.cancel()


@contextlib.contextmanager
def _engine(name, tmp_path):
    """The options of a pipeline on it, and of its stream. After the block no process is there."""
    if name == "prism":
        with prism.Prism() as engine:
            yield prism.options(engine.endpoint), {"confirm": False}
        group = engine.process.pid
    else:
        with flink.JobServer() as server:
            flags = flink.options(server.endpoint, checkpointing_interval_seconds=1, checkpoint_dir=str(tmp_path))
            yield flags, {}
        group = server.process.pid
        assert list(tmp_path.glob("**/chk-*/_metadata")), "the job has ended, and a checkpoint stays"
        assert not server.folder.exists()
    assert not psutil.pid_exists(group)


@pytest.mark.parametrize(
    ("engine", "mode"),
    [
        on("flink", "hits"),
        on("prism", "hits-with-counts"),
        on("prism", "looks", is_long=True),
        *(on("flink", mode, is_long=True) for mode in ("hits-with-counts", "looks")),
    ],
)
def test_a_topic_gives_the_reports_of_the_oracle(kafka, key_path, tmp_path, engine, mode):
    case = history_case(mode=mode)
    topic, sink = f"{engine}-{mode}", ReportFolder(str(tmp_path / "reports"))
    case.fill(kafka, topic)
    source = case.kafka(kafka.bootstrap, topic)
    with _engine(engine, tmp_path) as (flags, driving):
        begin = time.monotonic()
        with _running(submit(case, source, sink, flags, key_path, **driving)):
            wait_for_end(sink)
            print(f"{engine}, {mode}: {time.monotonic() - begin:.1f} s")
    _, reports, ended = sink.read()
    assert plain_reports(reports) == plain_reports(case.expected.reports)
    assert ended == RunEnded(STREAM, case.plan.schedule.horizon, len(reports))


def _cases(driver: str, shown: tuple[str, ...]) -> list:
    """Each mode that this driver takes, each with another reader; those that are not shown are long."""
    modes = [mode for mode, of_mode in MODES.items() if driver in (of_mode.drivers or (driver,))]
    return [
        pytest.param(mode, READERS[number % len(READERS)], marks=() if mode in shown else pytest.mark.nightly)
        for number, mode in enumerate(modes)
    ]


def _assert_stored(mode: str, driver: str, reader: str, left: Left) -> None:
    """Of the aspects that this run shows."""
    found = lines_of(left)
    expected = {aspect: lines for aspect, lines in stored(mode)[driver, reader].items() if aspect in found}
    assert difference(expected, found) is None


@needs("flink")
@pytest.mark.parametrize(("mode", "reader"), _cases("replay-1", ("hits",)))
def test_a_replay_on_flink_leaves_what_one_in_process_leaves(tmp_path, mode, reader):
    left = replay_on(prepared(tmp_path, mode, reader), "--runner=FlinkRunner", "--parallelism=2")
    _assert_stored(mode, "replay-1", reader, left)


@contextlib.contextmanager
def _streamed_on_flink(run: Run, source):
    """The report of a stream on embedded Flink."""
    with _engine("flink", run.folder / "checkpoints") as (flags, _):
        pipeline = beam.Pipeline(options=PipelineOptions(flags))
        sink, _ = add_stream(run, pipeline, source, poll_seconds=0.1, shards=2)
        with _running(pipeline.run()):
            wait_for_end(sink)
            yield left_by_stream(run, sink)


@needs("flink")
@pytest.mark.parametrize(("mode", "reader"), _cases("stream", ("looks",)))
def test_a_stream_on_flink_leaves_what_one_in_process_leaves(tmp_path, mode, reader):
    run = prepared(tmp_path, mode, reader)
    with _streamed_on_flink(run, LogFolder(str(run.logs), EventFields())) as left:
        _assert_stored(mode, "stream", reader, left)
