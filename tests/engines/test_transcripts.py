"""One log, one key, one run id: every engine and every way in gives the same records, and they are the oracle's."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pathlib
import shutil
import sys
import tempfile
import time

import apache_beam as beam
import psutil
import pytest
from apache_beam.options.pipeline_options import PipelineOptions

from dp_transforms import EventFields, KafkaTopic
from dp_transforms.logs.streams.log_folder import LogFolder
from dp_transforms.reports.report_folder import ReportFolder
from dp_transforms.reports.report_records import RunEnded
from dp_transforms.reports.report_topic import ReportTopic
from examples.engines import flink, prism
from examples.engines.engine_process import Engine
from tests.engines import needs, on
from tests.engines.answers import faults, raw_records
from tests.engines.stream_case import FIELDS, STREAM, history_case, plain_reports, submit, wait_for_end
from tests.helpers.small_runs import RUN_ID
from tests.transcripts.cases import MODES, READERS
from tests.transcripts.drivers import Left, Run, add_stream, left_by_stream, prepared, replay_on
from tests.transcripts.transcript import difference, lines_of, stored

_START_SECONDS = 120.0


class JobService(Engine):
    """Takes Beam jobs at `endpoint` and runs them; all its ports are of the loopback address.

    Raises EngineError if it does not start.
    """

    def __init__(self, *, log_path: str | os.PathLike[str] | None = None) -> None:
        self.log_path = pathlib.Path(os.devnull if log_path is None else log_path)
        self._folder = pathlib.Path(tempfile.mkdtemp(prefix="shh-job-service-"))
        port_file = self._folder / "port"
        command = [sys.executable, "-m", "dp_transforms.beam.on_loopback"]
        command += ["apache_beam.runners.portability.local_job_service_main", "--port=0"]
        command += [f"--port_file={port_file}", f"--staging_dir={self._folder / 'staging'}"]
        self._start(command, self.log_path, port_file.exists, _START_SECONDS)
        self.endpoint = f"localhost:{int(port_file.read_text())}"

    def stop(self) -> None:
        """Ends the service and its jobs."""
        super().stop()
        shutil.rmtree(self._folder, ignore_errors=True)


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
def test_a_topic_gives_the_records_of_the_oracle(kafka, key_path, tmp_path, engine, mode):
    case = history_case(mode=mode)
    source_topic, topic = (f"{engine}-{which}-{mode}" for which in ("in", "out"))
    case.fill(kafka, source_topic)
    kafka.create_topic(topic)
    sink = ReportTopic(kafka.bootstrap, topic)
    source = case.kafka(kafka.bootstrap, source_topic)
    with _engine(engine, tmp_path) as (flags, driving):
        begin = time.monotonic()
        with _running(submit(case, source, sink, flags, key_path, **driving)):
            wait_for_end(sink)
            print(f"{engine}, {mode}: {time.monotonic() - begin:.1f} s")
    for committed in (True, False):
        records = raw_records(kafka, topic, committed=committed)
        assert faults(records, case.expected.reports, case.plan.schedule.horizon) == []


@pytest.mark.parametrize(
    "mode", ["looks", *(pytest.param(mode, marks=pytest.mark.nightly) for mode in ("hits-with-counts", "hits"))]
)
def test_folder_and_local_job_service(key_path, tmp_path, mode):
    case = history_case(mode=mode)
    inbox = tmp_path / "inbox"
    inbox.mkdir()
    size = len(case.rows) // 4
    for number in range(5):
        path = tmp_path / f"part-{number}.jsonl"
        path.write_bytes(b"".join(row.json() + b"\n" for row in case.rows[number * size : (number + 1) * size]))
        os.utime(path, (time.time() - 100 + number,) * 2)
        path.rename(inbox / path.name)
    sink = ReportFolder(str(tmp_path / "reports"))
    joined = dataclasses.replace(case, partitions=1)
    with JobService() as engine:
        begin = time.monotonic()
        result = submit(
            joined,
            LogFolder(str(inbox), FIELDS),
            sink,
            ["--runner=PortableRunner", f"--job_endpoint={engine.endpoint}", "--environment_type=LOOPBACK"],
            key_path,
            driver="loop",
            confirm=False,
        )
        result.wait_until_finish()
        print(f"local job service: {time.monotonic() - begin:.1f} s")
    _, reports, ended = sink.read(RUN_ID)
    assert plain_reports(reports) == plain_reports(case.expected.reports)
    assert ended == RunEnded(STREAM, case.plan.schedule.horizon, reports=len(case.expected.reports))


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


@needs("flink")
@pytest.mark.parametrize(("mode", "reader"), _cases("stream", ()))
def test_a_stream_from_kafka_on_flink_leaves_what_one_from_a_folder_leaves(kafka, tmp_path, mode, reader):
    run = prepared(tmp_path, mode, "jsonl")
    topic = f"transcript-{mode}"
    kafka.create_topic(topic, timestamp_type="CreateTime")
    kafka.produce(topic, [line for path in sorted(run.logs.iterdir()) for line in path.read_bytes().splitlines()], 0)
    with _streamed_on_flink(run, KafkaTopic(kafka.bootstrap, topic, EventFields())) as left:
        _assert_stored(mode, "stream", reader, left)
