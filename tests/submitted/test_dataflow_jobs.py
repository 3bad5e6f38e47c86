"""pipelines/replay_log.py for Dataflow, as far as it goes without the service: the command of the page makes a job."""

from __future__ import annotations

import pathlib
import subprocess
import sys

import pytest
from apache_beam.options.pipeline_options import GoogleCloudOptions, PipelineOptions, WorkerOptions
from apache_beam.portability.api import beam_runner_api_pb2

from dp_transforms import Plan
from dp_transforms.beam.runner_options import is_sent, runner_options
from dp_transforms.errors import UserError
from dp_transforms.stores import remote_files
from tests.helpers.looks_plans import small_looks_plan
from tests.helpers.shh_process import ROOT
from tests.helpers.small_runs import small_plan
from tests.helpers.submitted_jobs import REPLAY, STREAM, made_job, make_folder, script, words_on_page

pytest.importorskip("google.cloud.dataflow", reason="Google's client is missing: pip install -e '.[dev]'")
pytestmark = pytest.mark.xdist_group("s3")


CLOUD = [
    "--runner=DataflowRunner",
    "--project=project",
    "--region=r",
    "--temp_location=gs://bucket/tmp",
    "--sdk_container_image=i",
]


LOG_OF = {REPLAY: "gs://BUCKET/clicks", STREAM: "kafka://BROKER:9092/clicks"}


@pytest.fixture
def places(bucket: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """What stands in the command of the page for each name in capitals. The log is in the bucket."""
    make_folder(tmp_path)
    monkeypatch.chdir(tmp_path)
    for name in ("a", "b"):  # of one small file nothing is spread
        remote_files.put_new(f"{bucket}/clicks/{name}.parquet", (tmp_path / "clicks" / "a.parquet").read_bytes())
    urls = {"gs://BUCKET/clicks": f"{bucket}/clicks", "gs://BUCKET/report": f"{bucket}/report"}
    return {**urls, "PROJECT": "project", "BUCKET": "bucket"}


def test_a_replay_is_a_batch_job_that_publishes_in_its_last_step(
    bucket: str, places: dict[str, str], tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = {path.name for path in tmp_path.iterdir()}
    job, options = made_job(REPLAY, places, monkeypatch)
    (last,) = (each for each in job.components.transforms.values() if each.unique_name.endswith("/WriteReportFile"))
    assert not any(
        set(last.outputs.values()) & set(each.inputs.values()) for each in job.components.transforms.values()
    )
    environments = job.components.environments.values()
    assert {bytes(hint) for each in environments for hint in each.resource_hints.values()} == {b"8000000000"}
    assert options.view_as(GoogleCloudOptions).job_name.startswith("shh-events-")
    assert not remote_files.exists(f"{bucket}/report.avro")
    assert {path.name for path in tmp_path.iterdir()} == names


@pytest.mark.parametrize("plan", [small_looks_plan(), small_plan()], ids=["looks", "hits-with-counts"])
def test_no_step_takes_all_events_and_none_is_fused_with_the_list_of_files(
    places: dict[str, str], tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, plan: Plan
) -> None:
    """Between each two steps that work is a shuffle by shards; what one worker gathers is counts and the report."""
    (tmp_path / "plan.json").write_text(plan.to_json())
    job, _ = made_job(REPLAY, places, monkeypatch)
    steps = job.components.transforms.values()
    shuffles = [each.unique_name for each in steps if each.spec.urn == "beam:transform:group_by_key:v1"]
    reshuffles = [each.unique_name for each in steps if each.spec.urn == "beam:transform:reshuffle:v1"]
    if plan.contributions is not None:
        assert {"GroupUsers", "GroupItems"} <= {name.rpartition("/")[2] for name in shuffles}
    assert any("SpreadChunks" in name for name in shuffles + reshuffles)
    for each in steps:
        if each.spec.urn == "beam:transform:pardo:v1":
            has_state = bool(beam_runner_api_pb2.ParDoPayload.FromString(each.spec.payload).state_specs)
            assert has_state == each.unique_name.endswith("/CloseWindows"), each.unique_name


_WITHOUT_NETWORK = """
import runpy, sys
from tests.helpers.no_network import no_network
del sys.argv[0]
with no_network() as refused:
    runpy.run_path(sys.argv[0], run_name="__main__")
assert not refused, refused
"""


@pytest.mark.parametrize("mode", ["looks", "hits"])
@pytest.mark.parametrize("name", [REPLAY, STREAM])
def test_a_dry_run_needs_no_account_no_network_and_no_credentials(name: str, mode: str, tmp_path: pathlib.Path) -> None:
    """The command of the page, with names that Google allows and a folder in place of the log or topic, by a user with
    an empty home and no variables, who has no gcloud."""
    make_folder(tmp_path)
    (tmp_path / "plan.json").write_text((small_looks_plan() if mode == "looks" else small_plan(mode=mode)).to_json())
    (tmp_path / "home").mkdir()
    words = words_on_page("dataflow", name)
    for written, place in {LOG_OF[name]: "clicks", "PROJECT": "my-project", "BUCKET": "my-bucket"}.items():
        words = [word.replace(written, place) for word in words]
    before = {path.name for path in tmp_path.rglob("*")}
    command = [sys.executable, "-c", _WITHOUT_NETWORK, f"{ROOT}/pipelines/{name}.py", *words, "--dry_run=true"]
    environment = {"PATH": "/nonexistent", "HOME": str(tmp_path / "home"), "PYTHONPATH": str(ROOT)}
    made = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=400)
    assert made.returncode == 0, made.stderr
    assert "Dry run: the job was made. It is not sent." in made.stderr
    assert {path.name for path in tmp_path.rglob("*")} == before


@pytest.mark.parametrize("place", ["gs://BUCKET/tmp", "gs://bucket", "s3://bucket/tmp", "gs://-/tmp", ""])
def test_a_name_that_no_bucket_has_is_refused_where_beam_would_make_another(place: str) -> None:
    with pytest.raises(UserError, match="needs --temp_location=gs://BUCKET/FOLDER"):
        runner_options([*CLOUD, f"--temp_location={place}"], job_name="j", streaming=False)
    assert runner_options([*CLOUD, "--temp_location=gs://my.own_bucket-1/a/b"], job_name="j", streaming=False)


def test_the_operators_own_flags_win(monkeypatch: pytest.MonkeyPatch) -> None:
    options = runner_options(CLOUD, job_name="j", streaming=False)
    assert options.view_as(WorkerOptions).disk_size_gb == 50  # runners/dataflow/README.md
    options = runner_options([*CLOUD, "--disk_size_gb=200"], job_name="j", streaming=False)
    assert options.view_as(WorkerOptions).disk_size_gb == 200


@pytest.mark.usefixtures("places")
def test_what_the_launcher_of_a_template_starts_is_built_and_not_awaited(
    bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It writes parameters with underscores, and where the job is to be put. A classic template would have one run id
    for all its jobs."""
    replay = script(REPLAY).command
    words = [f"--log={bucket}/clicks", "--plan=plan.json", f"--output={bucket}/report.avro", *CLOUD]
    words += ["--noise_key_secret=projects/p/secrets/s/versions/1", "--user_field=user", "--dry_run=true"]
    with pytest.raises(SystemExit, match="with the same noise"):
        replay.run([*words, "--template_location=gs://bucket/job"])
    monkeypatch.setenv("FLEX_TEMPLATE_PYTHON_PY_FILE", "/template/pipelines/replay_log.py")
    replay.run([*words, "--template_location=gs://bucket/job"])
    assert not is_sent(PipelineOptions(["--template_location=gs://bucket/job"])), "the launcher sends it"
    assert is_sent(PipelineOptions([]))
    assert not remote_files.exists(f"{bucket}/report.avro")
