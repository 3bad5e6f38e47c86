"""The two pipelines that are submitted: how a replay is cut, what each engine would get, what a job publishes, and how
it is watched and cancelled."""

from __future__ import annotations

import io
import json
import pathlib
import signal
import subprocess
import sys
import threading
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.options.pipeline_options import PipelineOptions, StandardOptions
from apache_beam.portability.api import beam_runner_api_pb2
from apache_beam.runners.portability.portable_runner import PortableRunner
from apache_beam.runners.runner import PipelineResult, PipelineState
from apache_beam.testing import test_stream

from dp_transforms.beam import jobs, write_reports
from dp_transforms.beam.monitor_stream import MonitorStream
from dp_transforms.beam.release_heavy_hitters import ShiftingHeavyHitters
from dp_transforms.beam.runner_options import runner_options
from dp_transforms.beam.workers import operator_counts
from dp_transforms.cli.pipeline_errors import errors_in_one_line
from dp_transforms.cli.replay_run import run_replay
from dp_transforms.core.operator_counts import REPORTS_WITHHELD
from dp_transforms.core.window_report import WindowReport
from dp_transforms.errors import StreamError, UserError
from dp_transforms.logs import EventFields
from dp_transforms.logs.streams.log_folder import LogFolder
from dp_transforms.reports import read_report_file
from dp_transforms.reports.report_records import RunEnded
from dp_transforms.stores import remote_files
from examples.engines import flink
from tests.helpers.contributions_plans import contributions_plan_of, small_contributions_plan
from tests.helpers.crowded_logs import SCHEDULE, replay_request, write_crowded_log
from tests.helpers.leak_search import forms_of, places_with, texts_within
from tests.helpers.small_runs import RUN_ID, SECRET, key_file, small_plan

# --- What an engine would get. State names are stored: a change here is one of what a running job can be updated to.

TURNS = {"pending", "pending_soon", "pending_far", "progress"}
POLL = {"PollPartitions": ({"progress_v1", "partitions_v1"}, {"poll_v1"})}
RELEASE = {f"Release/{step}": (TURNS | {"cells"}, set()) for step in ("Users", "Items", "Windows")}
MONITOR = {"Release/CloseWindows": (TURNS | {"contribution_counters"}, {"close"})}


def of_partitions(pipeline: beam.Pipeline, plan: Any, key: str, folder: pathlib.Path) -> beam.PCollection:
    source = LogFolder(str(folder), EventFields("user", "item", "time", "us"))
    return (pipeline | MonitorStream(source, plan, noise_key=key, run_id=RUN_ID)).reports


def by_watermark(pipeline: beam.Pipeline, plan: Any, key: str, folder: pathlib.Path) -> beam.PCollection:
    pairs = pipeline | test_stream.TestStream() | beam.Map(lambda pair: pair).with_output_types(tuple[str, str])
    return (pairs | ShiftingHeavyHitters(plan, noise_key=key, run_id=RUN_ID)).reports


def stored_in(job: beam_runner_api_pb2.Pipeline) -> dict[str, tuple[set[str], set[str]]]:
    """Part of the stream -> names of its states and of its timers."""
    found: dict[str, tuple[set[str], set[str]]] = {}
    for transform in job.components.transforms.values():
        if transform.spec.urn == "beam:transform:pardo:v1":
            payload = beam_runner_api_pb2.ParDoPayload.FromString(transform.spec.payload)
            if payload.state_specs or payload.timer_family_specs:
                # Beam names a timer's family "ts-" and the name of the timer.
                timers = {name.removeprefix("ts-") for name in payload.timer_family_specs}
                _, part, *within = transform.unique_name.split("/")
                states, before = found.get(part := f"{part}/{within[0]}" if part == "Release" else part, (set(), set()))
                found[part] = states | set(payload.state_specs), before | timers
    return found


@pytest.mark.parametrize(
    ("build", "plan", "states"),
    [
        (of_partitions, small_plan, POLL | RELEASE),
        (of_partitions, small_contributions_plan, POLL | RELEASE),
        (by_watermark, small_plan, MONITOR),
        (by_watermark, small_contributions_plan, RELEASE),
    ],
)
def test_the_job_of_an_engine_has_these_states_and_the_path_of_the_key_alone(build, plan, states, tmp_path):
    pipeline = beam.Pipeline(options=PipelineOptions(flink.options("localhost:1")))
    _ = build(pipeline, plan(), key_file(tmp_path), tmp_path)
    job = PortableRunner.get_proto_pipeline(pipeline, pipeline.options)
    text = job.SerializeToString()
    assert stored_in(job) == states
    assert len(text) < 1_000_000
    assert any(b"dp_transforms" in part for part in texts_within(text)), "the search reads pickles"
    assert places_with(forms_of(SECRET), {"job": text}) == []


# --- What a replay publishes by itself


@pytest.fixture
def request_of(tmp_path: pathlib.Path):
    log = write_crowded_log(tmp_path / "log", 1500, 100, files=2)
    good = '{"user": "u1", "item": "i1", "timestamp": "2026-01-01T00:00:01Z"}\n'
    (tmp_path / "log" / "bad.jsonl").write_text(good + "no row\n" * 5)
    plan, key = contributions_plan_of(SCHEDULE, most_ids=5000), key_file(tmp_path)

    def make(output: str, **changes: Any):
        return replay_request(log, plan, output if "://" in output else tmp_path / output, key, **changes)

    return make


def ran(request: Any, times: int = 1) -> PipelineResult:
    """times: how often Beam runs each bundle, as an engine whose workers die."""
    repeats = f"--direct_runner_bundle_repeat={times - 1}"
    options = runner_options([repeats], job_name="job", streaming=False)
    with errors_in_one_line("nothing was published"):
        pipeline = beam.Pipeline(options=options)
        jobs.build_replay(pipeline, request)
        return jobs.run_to_end(pipeline)


@pytest.mark.xdist_group("s3")
def test_the_report_is_that_of_a_replay_here_however_often_a_step_runs_and_over_no_other(request_of, bucket, tmp_path):
    """Here in a store; in a folder: tests/pipelines."""
    here, url = request_of("here.jsonl"), f"{bucket}/there.jsonl"
    run_replay(here)
    ran(request_of(url, dead_letter=str(tmp_path / "bad.txt")), times=2)
    made = list(read_report_file(url)[1])
    assert made == list(read_report_file(here.output)[1])
    assert len(made) == SCHEDULE.horizon
    assert len((tmp_path / "bad.txt").read_text().splitlines()) == 5
    assert [file.url for file in remote_files.list_beginning(bucket + "/")] == [url], "a draft is left"
    with pytest.raises(UserError, match=r"there\.jsonl"):
        ran(request_of(url, run_id="run-2"))
    assert list(read_report_file(url)[1]) == made


def test_where_too_many_rows_are_bad_nothing_is_published_unless_that_is_allowed(request_of, monkeypatch):
    monkeypatch.setattr(write_reports, "MOST_REJECTED", 0.001)
    request = request_of("report.jsonl")
    assert operator_counts(ran(request))[REPORTS_WITHHELD] == 1
    assert {path.name for path in pathlib.Path(request.output).parent.iterdir()} == {"log", "noise.key"}
    ran(request_of("report.jsonl", allow_empty=True))
    assert pathlib.Path(request.output).exists()


# --- How a job is watched and cancelled


class Result(PipelineResult):
    """Of a job that is never over by itself."""

    def __init__(self) -> None:
        super().__init__(PipelineState.RUNNING)
        self.is_cancelled = threading.Event()

    def wait_until_finish(self, duration: int | None = None) -> str:
        self.is_cancelled.wait()
        raise RuntimeError("the job was cancelled")

    def cancel(self) -> None:
        self.is_cancelled.set()


class Pipeline(beam.Pipeline):
    """Starts a child as Beam starts an engine, takes the signal as it does, and forgets the runner as it does."""

    def __init__(self, *options: str) -> None:
        super().__init__(options=PipelineOptions([]))
        self._options = PipelineOptions(list(options) or ["--runner=PrismRunner"])
        self.result, self.child = Result(), b""

    def run(self) -> Result:
        code = "import signal; print(signal.getsignal(signal.SIGINT) == signal.SIG_IGN)"
        self.child = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout.strip()
        signal.signal(signal.SIGINT, lambda *_: None)
        self.options.view_as(StandardOptions).runner = None
        return self.result


def test_an_engine_does_not_hear_ctrl_c_and_this_process_keeps_its_handler():
    before, pipeline = signal.getsignal(signal.SIGINT), Pipeline()
    running = jobs.RunningPipeline(pipeline)
    assert signal.getsignal(signal.SIGINT) is before
    assert pipeline.child == b"True"
    assert not running.is_over
    running.cancel()
    assert running.is_over
    with pytest.raises(RuntimeError, match="cancelled"):
        running.raise_error()


def test_a_job_that_is_not_waited_for_is_cancelled_and_on_a_cluster_by_its_name_and_no_other(monkeypatch, tmp_path):
    """The job server of a cluster leaves it there; and Beam takes the runner out of the options when it runs."""
    states = {"a": ("mine", "RUNNING"), "b": ("other", "RUNNING"), "c": ("mine", "FAILED"), "d": ("mine", "RESTARTING")}
    listed = {"jobs": [{"jid": job, "name": name, "state": state} for job, (name, state) in states.items()]}
    asked: list[tuple[str, str]] = []

    def urlopen(request: Any, timeout: float) -> io.BytesIO:
        asked.append(("GET", request) if isinstance(request, str) else (request.method, request.full_url))
        return io.BytesIO(json.dumps(listed).encode())

    monkeypatch.setattr(jobs.urllib.request, "urlopen", urlopen)
    on_cluster = ["--runner=FlinkRunner", "--flink_master=jobs:8081", "--job_name=mine"]
    for options in ([], on_cluster):
        pipeline = Pipeline(*options)
        pipeline.result.wait_until_finish = lambda: signal.raise_signal(signal.SIGINT)  # type: ignore[method-assign]
        with pytest.raises(KeyboardInterrupt):
            jobs.run_to_end(pipeline)
        assert pipeline.result.is_cancelled.is_set()
    cancelled = [("PATCH", f"http://jobs:8081/jobs/{job}?mode=cancel") for job in "ad"]
    assert asked == [("GET", "http://jobs:8081/jobs/overview"), *cancelled]
    monkeypatch.setattr(jobs.urllib.request, "urlopen", lambda *_, **__: (tmp_path / "nobody answers").open())
    assert "The job mine may still be there" in jobs._Cancel(PipelineOptions(on_cluster))(Result())


class Watched:
    """A job, and its output: what each look finds, how many reports are new and how many the end says there are, or an
    error; the last one again and again."""

    is_over, cancelled, ends_by_itself, error = False, False, False, None

    def __init__(self, *found: tuple[int, int | None] | StreamError) -> None:
        self.found, self.looks, self.known, self.run_id, self.sink = found, 0, set[int](), "run-1", self

    def follow(self, run_id: str) -> Watched:
        return self

    def read_new(self) -> tuple[None, list[WindowReport], RunEnded | None]:
        found = self.found[min(self.looks, len(self.found) - 1)]
        self.looks += 1
        if isinstance(found, StreamError):
            raise found
        new, of_all = found
        self.known.update(range(len(self.known), len(self.known) + new))
        return None, [], None if of_all is None else RunEnded("events", 9, of_all)

    def cancel(self) -> None:
        self.cancelled = True

    def raise_error(self) -> None:
        if self.error is not None:
            raise self.error


def watch(monkeypatch: pytest.MonkeyPatch, watched: Any) -> None:
    monkeypatch.setattr(jobs, "RunningPipeline", lambda _: watched)
    jobs.watch_to_end(None, watched, pause_seconds=0)  # type: ignore[arg-type]


def test_a_stream_is_waited_for_until_all_that_its_end_counts_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """The end can overtake the last reports. In this process a job cannot be cancelled, and may yet fail: it is waited
    for in any case."""
    watched = Watched((1, None), StreamError("away"), (1, 4), (0, 4), (1, 4), (1, 4), (1, 4))
    watch(monkeypatch, watched)
    assert (watched.looks, watched.cancelled) == (6, True)
    here: Any = Watched((1, 1), (0, 1), (0, 1))
    here.ends_by_itself = True
    for number, _ in enumerate(jobs.watch(here, here, pause_seconds=0), start=1):
        here.is_over = number == 3
    assert here.looks == 4


def test_a_job_that_fails_or_whose_output_cannot_be_read_is_told_and_not_left_unwatched(monkeypatch) -> None:
    monkeypatch.setattr(jobs, "_PATIENCE_SECONDS", 0.1)
    unread, failed = Watched((1, None), StreamError("no broker.")), Watched(StreamError("no broker."))
    with pytest.raises(StreamError, match="no broker"):
        watch(monkeypatch, unread)
    assert (unread.cancelled, unread.looks > 2) == (True, True)
    failed.is_over, failed.error = True, ValueError("answered twice")
    with pytest.raises(ValueError, match="answered twice"):
        watch(monkeypatch, failed)
    assert failed.looks == 0
