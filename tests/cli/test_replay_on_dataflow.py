"""`shh replay` on Dataflow, as far as it goes without the service: what it refuses, and the job that it makes."""

from __future__ import annotations

import dataclasses
import pathlib

import apache_beam as beam
import pytest
from apache_beam.options.pipeline_options import PipelineOptions, WorkerOptions
from apache_beam.portability.api import beam_runner_api_pb2

from dp_transforms.cli.cluster_replay import build_detached
from dp_transforms.engines import dataflow
from dp_transforms.stores import remote_files
from tests.helpers.crowded_logs import RANGE, replay_request, write_crowded_log
from tests.helpers.leak_search import forms_of, places_with
from tests.helpers.names_plans import small_names_plan
from tests.helpers.shh_here import shh
from tests.helpers.shh_process import error_line
from tests.helpers.small_runs import SECRET, key_file, small_plan

pytestmark = pytest.mark.xdist_group("s3")
BUDGET = ("--epsilon", "8", "--delta", "1e-6")
VERSION = "projects/p/secrets/s/versions/1"
ENGINE = ("--engine", "dataflow", "--noise-key-secret", VERSION)
CLOUD = ("--project=project", "--region=r", "--temp_location=gs://bucket/tmp", "--sdk_container_image=i")


@pytest.fixture
def log(bucket: str, tmp_path: pathlib.Path) -> str:
    folder = write_crowded_log(tmp_path / "log", 600, 30)
    for path in folder.iterdir():
        remote_files.put_new(f"{bucket}/log/{path.name}", path.read_bytes())
    return f"{bucket}/log"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--engine", "dataflow"], "which fetch one noise key: --noise-key-secret VERSION, and not --noise-key-file"),
        ([*ENGINE, "--noise-key-file", "k"], "and not --noise-key-file"),
        ([*ENGINE, "--run-id", "again"], "--run-id and --noise-key-secret exclude each other"),
        ([*ENGINE, "--ledger", "l.db", "--population", "p"], "--ledger cannot be used with --engine dataflow"),
        ([*ENGINE, "--dead-letter", "bad.jsonl"], "--dead-letter must be a URL with --engine dataflow"),
        ([*ENGINE, "--parallelism", "2"], "--parallelism belongs to --engine flink"),
        (["--noise-key-secret", VERSION], "--noise-key-secret belongs to --engine dataflow"),
        (["--engine", "dataflow", "--noise-key-secret", "latest"], "must be projects/P/secrets/S/versions/N"),
        (ENGINE, "a batch job on Dataflow needs --project=PROJECT, --region=REGION, --temp_location"),
    ],
)
def test_what_dataflow_cannot_have_is_refused_in_one_line(
    log: str, bucket: str, tmp_path: pathlib.Path, words: list[str], says: str
) -> None:
    result = shh("replay", log, *RANGE, *BUDGET, "--output", f"{bucket}/report.avro", *words, cwd=tmp_path)
    assert says in error_line(result)
    assert not remote_files.exists(f"{bucket}/report.avro")


def test_paths_of_this_machine_are_refused(log: str, bucket: str, tmp_path: pathlib.Path) -> None:
    for words in (
        [tmp_path / "log", "--output", f"{bucket}/report.avro"],
        [log, "--output", "report.avro"],
        [log, "--output", f"{bucket}/report.avro", "--domain-file", "items.txt"],
    ):
        result = shh("replay", *words, *RANGE, *BUDGET, *ENGINE, cwd=tmp_path)
        assert "must be a URL with --engine dataflow, whose workers share no disk" in error_line(result)


def test_a_dry_run_makes_the_job_and_sends_nothing(log: str, bucket: str, tmp_path: pathlib.Path) -> None:
    pytest.importorskip("google.cloud.dataflow", reason="Google's client is missing: pip install -e '.[dev]'")
    words = ["--output", f"{bucket}/report.avro", *ENGINE, "--", *CLOUD, "--dry_run=true"]
    result = shh("replay", log, *RANGE, *BUDGET, *words, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert "Nothing was sent: --dry_run=true" in result.stderr
    assert not remote_files.exists(f"{bucket}/report.avro")


def job(tmp_path: pathlib.Path, release: str, *words: str) -> beam_runner_api_pb2.Pipeline:
    pytest.importorskip("google.cloud.dataflow", reason="Google's client is missing: pip install -e '.[dev]'")
    plan = small_names_plan() if release == "names" else small_plan()
    log = write_crowded_log(tmp_path / "log", 600, 30)
    request = replay_request(log, plan, tmp_path / "report.jsonl", key_file(tmp_path))
    request = dataclasses.replace(request, noise_key_secret=VERSION, noise_key_file=None, shards=4)
    options = PipelineOptions([*dataflow.options(job_name="j", is_batch=True), *CLOUD, "--dry_run=true", *words])
    pipeline = beam.Pipeline(options=options)
    build_detached(pipeline, request)
    return dataflow.build_job(pipeline, is_batch=True)


def steps(made: beam_runner_api_pb2.Pipeline, urn: str) -> list[str]:
    return [
        each.unique_name for each in made.components.transforms.values() if each.spec.urn == f"beam:transform:{urn}:v1"
    ]


def test_no_step_of_names_takes_all_events_and_none_is_fused_with_the_list_of_files(tmp_path: pathlib.Path) -> None:
    """Between each two steps that work is a shuffle by shards; what one worker gathers is counts and the report."""
    made = job(tmp_path, "names")
    shuffles = [name.rpartition("/")[2] for name in steps(made, "group_by_key")]
    assert {"GroupByUserShard", "GroupByItemShard"} <= set(shuffles)
    assert any("SpreadChunks" in name for name in steps(made, "reshuffle") + steps(made, "group_by_key"))
    for transform in made.components.transforms.values():
        if transform.spec.urn == "beam:transform:pardo:v1":
            payload = beam_runner_api_pb2.ParDoPayload.FromString(transform.spec.payload)
            assert not payload.side_inputs, transform.unique_name
            assert not payload.state_specs, transform.unique_name


@pytest.mark.parametrize("release", ["names", "counts"])
def test_the_job_has_hints_and_no_key(tmp_path: pathlib.Path, release: str) -> None:
    made = job(tmp_path, release)
    hints = {
        (name.split(":")[2], value.decode())
        for environment in made.components.environments.values()
        for name, value in environment.resource_hints.items()
    }
    assert hints == {("min_ram_bytes", "8000000000")}
    flags = PipelineOptions(dataflow.options(job_name="j", is_batch=True))
    assert flags.view_as(WorkerOptions).disk_size_gb == 50  # docs/deploy.md
    assert places_with(forms_of(SECRET), {"job": made.SerializeToString()}) == []


def test_the_operators_own_flags_win(tmp_path: pathlib.Path) -> None:
    words = [*dataflow.options(job_name="j", is_batch=True), "--disk_size_gb=200"]
    assert PipelineOptions(words).view_as(WorkerOptions).disk_size_gb == 200
    made = job(tmp_path, "names", "--resource_hint=min_ram=32GB")
    (environment,) = (each for each in made.components.environments.values() if each.resource_hints)
    assert list(environment.resource_hints.values()) == [b"32000000000"]


def test_a_job_that_streams_is_not_a_replay(tmp_path: pathlib.Path) -> None:
    with pytest.raises(ValueError, match="a batch job on Dataflow needs no --streaming"):
        job(tmp_path, "names", "--streaming")
