"""The job that each engine would get: its states and timers, its size, and that no key is in it. Nothing is started."""

from __future__ import annotations

import apache_beam as beam
import pytest
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.portability.api import beam_runner_api_pb2
from apache_beam.runners.portability.portable_runner import PortableRunner
from apache_beam.testing import test_stream

from dp_transforms.beam.monitor_stream import MonitorStream
from dp_transforms.beam.release_heavy_hitters import ShiftingHeavyHitters
from dp_transforms.beam.runner_options import runner_options
from dp_transforms.errors import UserError
from dp_transforms.logs import EventFields
from dp_transforms.logs.streams.log_folder import LogFolder
from dp_transforms.logs.streams.partition_progress import StreamClock
from examples.engines import flink, prism
from tests.helpers.leak_search import forms_of, places_with, texts_within
from tests.helpers.looks_plans import small_looks_plan
from tests.helpers.small_runs import RUN_ID, SECRET, key_file, small_plan

VERSION = "projects/project-one/secrets/noise/versions/1"
IMAGE = "europe-docker.pkg.dev/project-one/images/monitor:1"
CLOUD = [
    *("--runner=DataflowRunner", "--job_name=monitor", "--sdk_location=container", "--streaming"),
    *("--project=project-one", "--region=europe-west1", "--temp_location=gs://bucket-one/temp"),
    f"--sdk_container_image={IMAGE}",
]
# Stored by the engines: a change here is a change of what a running job can be updated to.
# Four stateful steps: one polls, the others take turns.
TURNS = {"pending", "pending_soon", "pending_far", "progress"}
POLL = {"PollPartitions": ({"progress_v1", "partitions_v1"}, {"poll_v1"})}
RELEASE = {f"Release/{step}": (TURNS | {"cells"}, set()) for step in ("Users", "Items", "Windows")}
MONITOR = {"Release/CloseWindows": (TURNS | {"contribution_counters"}, {"close"})}


def _pipeline(folder, flags, key, planted=b"", plan=None) -> beam.Pipeline:
    pipeline = beam.Pipeline(options=PipelineOptions(flags))
    source = LogFolder(str(folder), EventFields("user", "item", "time", "us"))
    reports = (
        pipeline
        | "MonitorStream"
        >> MonitorStream(source, plan or small_plan(), clock=StreamClock(), noise_key=key, run_id=RUN_ID, shards=4)
    ).reports
    if planted:
        _ = reports | "Careless" >> beam.Map(lambda report: (report, planted))
    return pipeline


def _portable_job(pipeline: beam.Pipeline) -> beam_runner_api_pb2.Pipeline:
    return PortableRunner.get_proto_pipeline(pipeline, pipeline.options)


def _stored(job: beam_runner_api_pb2.Pipeline) -> dict[str, tuple[set[str], set[str]]]:
    """Part of the stream -> names of its states and of its timers."""
    found = {}
    for transform in job.components.transforms.values():
        if transform.spec.urn != "beam:transform:pardo:v1":
            continue
        payload = beam_runner_api_pb2.ParDoPayload.FromString(transform.spec.payload)
        if payload.state_specs or payload.timer_family_specs:
            # Beam names a timer's family "ts-" and the name of the timer.
            timers = {name.removeprefix("ts-") for name in payload.timer_family_specs}
            _, part, *within = transform.unique_name.split("/")
            part = f"{part}/{within[0]}" if part == "Release" else part
            states, timers_before = found.get(part, (set(), set()))
            found[part] = (states | set(payload.state_specs), timers_before | timers)
    return found


def _assert_good(job: beam_runner_api_pb2.Pipeline, key: bytes, states=POLL | RELEASE) -> None:
    text = job.SerializeToString()
    assert _stored(job) == states
    assert any(b"dp_transforms" in part for part in texts_within(text))  # the search reads pickles
    assert places_with(forms_of(key), {"job": text}) == []
    assert len(text) < 1_000_000
    assert "beam:requirement:pardo:stable_input:v1" not in job.requirements


def test_dataflow_gets_states_and_the_name_of_the_key(tmp_path):
    pytest.importorskip("google.cloud.dataflow", reason="Google's client is missing: pip install -e '.[dev]'")
    flags = [*CLOUD, "--dry_run=true"]
    pipeline = _pipeline(tmp_path, flags, beam.GcpSecret(VERSION))
    pipeline.run()
    job = pipeline.runner.proto_pipeline
    _assert_good(job, SECRET)
    assert any(VERSION.encode() in part for part in texts_within(job.SerializeToString()))
    images = [
        beam_runner_api_pb2.DockerPayload.FromString(environment.payload).container_image
        for environment in job.components.environments.values()
    ]
    assert set(images) == {IMAGE}


ENGINES = {
    "flink": lambda: flink.options("localhost:1"),
    "flink with a pool": lambda: flink.options("localhost:1", worker_address="localhost:2"),
    "prism": lambda: prism.options("localhost:1"),
}


@pytest.mark.parametrize("engine", [engine for engine in ENGINES if engine != "flink"])  # which the next one has
def test_portable_engines_get_states_and_the_path_of_the_key(engine, tmp_path):
    job = _portable_job(_pipeline(tmp_path, ENGINES[engine](), key_file(tmp_path)))
    _assert_good(job, SECRET)


def test_a_stream_of_contributions_has_the_same_states(tmp_path):
    job = _portable_job(_pipeline(tmp_path, ENGINES["flink"](), key_file(tmp_path), plan=small_looks_plan()))
    _assert_good(job, SECRET, POLL | RELEASE)


@pytest.mark.parametrize(("plan", "states"), [(small_plan, MONITOR), (small_looks_plan, RELEASE)])
def test_a_stream_that_beam_reads_is_closed_by_one_timer_or_by_grouping_alone(plan, states, tmp_path):
    pipeline = beam.Pipeline(options=PipelineOptions(ENGINES["flink"]()))
    pairs = pipeline | test_stream.TestStream() | beam.Map(lambda pair: pair).with_output_types(tuple[str, str])
    _ = pairs | ShiftingHeavyHitters(plan(), noise_key=key_file(tmp_path), run_id=RUN_ID)
    _assert_good(_portable_job(pipeline), SECRET, states)


def test_the_search_finds_a_key_in_a_job(tmp_path):
    job = _portable_job(_pipeline(tmp_path, prism.options("localhost:1"), key_file(tmp_path), planted=SECRET))
    with pytest.raises(AssertionError):
        _assert_good(job, SECRET)


@pytest.mark.parametrize("key", [SECRET, None])
def test_no_engine_gets_a_key_that_would_travel(key, tmp_path):
    with pytest.raises(ValueError, match=r"noise_key|noise key"):
        _pipeline(tmp_path, flink.options("localhost:1"), key)


@pytest.mark.parametrize(
    ("left_out", "message"),
    [
        ("--project", "--project=PROJECT"),
        ("", "no --streaming"),
        ("--sdk_container_image", "--sdk_container_image=IMAGE"),
    ],
)
def test_dataflow_options_that_miss_something_are_refused(left_out, message, monkeypatch):
    monkeypatch.delenv("GOOGLE_CLOUD_PROJECT", raising=False)
    runner_options(CLOUD, job_name="monitor", streaming=True)
    words = [flag for flag in CLOUD if flag.partition("=")[0] != left_out]
    with pytest.raises(UserError, match=message):
        runner_options(words, job_name="monitor", streaming=bool(left_out))


def test_the_session_is_not_sent_to_dataflow():
    with pytest.raises(UserError, match="no --pickle_library=dill"):
        runner_options([*CLOUD, "--pickle_library=dill"], job_name="monitor", streaming=True)
