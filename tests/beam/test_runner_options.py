"""Options of a run on each runner: whose a word is, what a run needs, and what is refused. Nothing is started."""

from __future__ import annotations

import pathlib
import re

import apache_beam as beam
import pytest
from apache_beam.options.pipeline_options import (
    DebugOptions,
    FlinkRunnerOptions,
    GoogleCloudOptions,
    PipelineOptions,
    PortableOptions,
    StandardOptions,
    WorkerOptions,
)
from apache_beam.runners.portability.prism_runner import PrismJobServer

from dp_transforms.beam import runner_options as options
from dp_transforms.beam.release_heavy_hitters import ShiftingHeavyHitters
from dp_transforms.errors import UserError
from tests.helpers.beam_pipelines import local_pipeline, pairs_source, run_monitor
from tests.helpers.no_network import no_network
from tests.helpers.small_runs import key_file, ordered_log, small_plan

ROOT = pathlib.Path(__file__).resolve().parents[2]
FLINK = ["--runner=FlinkRunner"]
CLUSTER = [*FLINK, "--flink_master=jobs:8081"]
CLOUD = [
    *("--runner=DataflowRunner", "--project=project", "--region=r", "--temp_location=gs://bucket/tmp"),
    "--sdk_container_image=i",
]


def made(words: list[str], *, streaming: bool = True) -> PipelineOptions:
    return options.runner_options(words, job_name="job", streaming=streaming)


@pytest.fixture
def engines(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """A folder of engines with none, and no program in the PATH."""
    monkeypatch.setenv("SHH_ENGINES", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("FLINK_CONF_DIR", str(tmp_path))
    return tmp_path


def test_words_that_beam_knows_are_beams_unless_they_are_ours():
    ours = {"--output": 1, "--usual": 2, "--once": 0, "--project": 1}
    words = "--output --runner log --runner X --streaming --usual 1 --region --project p --checkpointing_interval=9"
    words += " --savepoint_path=s --flink_mastr=a --onse -h -- --runner=Y"
    rest, beams = options.split_words(words.split(), ours)
    assert " ".join(beams) == "--runner X --streaming --checkpointing_interval=9 --savepoint_path=s"
    expected = "--output --runner log --usual 1 --region --project p --flink_mastr=a --onse -h -- --runner=Y"
    assert " ".join(rest) == expected


@pytest.mark.parametrize("name", [[], ["--runner=DirectRunner"], ["--runner=direct"], ["--runner=FnApiRunner"]])
def test_the_local_runner_is_this_process(name):
    """Beam's own DirectRunner would look for an engine, and try to download one."""
    found = made(name)
    assert found.view_as(StandardOptions).runner == "FnApiRunner"
    assert options.is_local(found)
    assert options.workers_are_here(found)
    assert not options.waits_for_storing(found)
    assert not options.recovers(found)


def test_a_run_on_flink_takes_checkpoints_and_what_the_operator_says_wins(engines):
    (engines / options.JOB_SERVER_JAR).touch()
    found = made(FLINK)
    every = found.get_all_options(retain_unknown_options=True)
    assert every["checkpointing_interval"] in (10_000, "10000")
    assert found.view_as(FlinkRunnerOptions).flink_master == "[local]"
    assert found.view_as(FlinkRunnerOptions).flink_job_server_jar == str(engines / options.JOB_SERVER_JAR)
    assert options.workers_are_here(found)
    assert options.waits_for_storing(found)
    assert options.recovers(found)
    assert "checkpointing_interval" not in made(FLINK, streaming=False).get_all_options(retain_unknown_options=True)
    own = made([*CLUSTER, "--parallelism=7", "--environment_type=EXTERNAL", "--environment_config=pool:1"])
    assert own.view_as(FlinkRunnerOptions).parallelism == 7
    assert own.view_as(PortableOptions).environment_config == "pool:1"
    assert not options.workers_are_here(own)


def test_runs_whose_names_begin_alike_have_jobs_of_different_names():
    """A run that ends cancels the job of its name on a cluster."""
    pairs = [("s" * 60, "1"), ("s" * 60, "2"), ("a-b", "c"), ("a", "b-c"), ("a", "B.c")]
    names = {options.job_name(*pair) for pair in pairs}
    assert len(names) == 5
    assert all(re.fullmatch(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])", one) for one in names)


def test_without_our_job_server_a_cluster_gets_the_published_one_and_this_machine_none(engines):
    """It would listen on all addresses, beside the noise key."""
    assert made(CLUSTER).view_as(FlinkRunnerOptions).flink_job_server_jar is None
    for words in (FLINK, [*FLINK, "--flink_master=[auto]"], [*FLINK, "--flink_job_server_jar=/other.jar"]):
        with pytest.raises(UserError, match="Make it with: make engines; or name a cluster"):
            made(words)


@pytest.mark.parametrize("is_in_path", [False, True])
def test_a_prism_that_may_listen_on_all_addresses_is_refused(engines, is_in_path):
    with pytest.raises(UserError, match=r"prism is missing. Make it with: make engines"):
        made(["--runner=PrismRunner"])
    folder = engines / "bin" if is_in_path else engines
    folder.mkdir(exist_ok=True)
    (folder / "prism").touch(mode=0o755)
    (folder / ".prism-v2.77.0").touch()  # the mark of one before
    with pytest.raises(UserError, match=r"prism was not built by this version's make engines, so other machines"):
        made(["--runner=PrismRunner"])
    (folder / options.ON_LOOPBACK_MARK).touch()
    found = made(["--runner=PrismRunner"]).get_all_options()
    assert found["prism_location"] == str(folder / "prism")
    assert "prism_disable_sdf_split" in found["experiments"]
    assert not options.waits_for_storing(PipelineOptions(["--runner=PrismRunner"]))
    makefile = (ROOT / "runners" / "Makefile").read_text()
    (version,) = re.findall(r"^PRISM_VERSION := (\S+)$", makefile, re.MULTILINE)
    (mark,) = re.findall(r"^prism: \$\(ENGINES\)/(\S+)$", makefile, re.MULTILINE)
    assert mark.replace("$(PRISM_VERSION)", version) == options.ON_LOOPBACK_MARK


@pytest.mark.parametrize(
    ("left_out", "added", "message"),
    [
        ("--project", [], "--project=PROJECT"),
        ("--sdk_container_image", [], "--sdk_container_image=IMAGE"),
        ("--temp_location", ["--temp_location=gs://bucket"], "needs --temp_location=gs://BUCKET/FOLDER"),
        ("--temp_location", ["--temp_location=s3://bucket/tmp"], "needs --temp_location=gs://BUCKET/FOLDER"),
        ("", ["--streaming"], "a batch job on Dataflow needs no --streaming"),
        ("", ["--pickle_library=dill"], "no --pickle_library=dill"),  # which sends the session's variables
        ("", ["--template_location=gs://bucket/job"], "with the same noise"),
    ],
)
def test_a_job_that_could_not_run_on_dataflow_is_refused_before_it_is_sent(left_out, added, message, monkeypatch):
    monkeypatch.delenv("GOOGLE_CLOUD_PROJECT", raising=False)
    words = [word for word in CLOUD if word.partition("=")[0] != left_out]
    with pytest.raises(UserError, match=message):
        made([*words, *added], streaming=False)


def test_the_launcher_of_a_flex_template_builds_a_job_and_the_operators_own_flags_win(monkeypatch):
    monkeypatch.setenv("FLEX_TEMPLATE_PYTHON_PY_FILE", "/template/pipelines/replay_log.py")
    found = made([*CLOUD, "--template_location=gs://bucket/job", "--disk_size_gb=200"], streaming=False)
    assert not options.is_sent(found), "the launcher sends it"
    assert found.view_as(GoogleCloudOptions).template_location == "gs://bucket/job"
    assert found.view_as(WorkerOptions).disk_size_gb == 200
    usual = made(CLOUD, streaming=False)
    assert options.is_sent(usual)
    assert usual.view_as(WorkerOptions).disk_size_gb == 50  # runners/dataflow/README.md


def test_a_runner_that_nobody_knows_does_not_recover_and_its_decisions_wait_all_the_same():
    """If it does restore, an answer that was given before must not be given anew."""
    found = made(["--runner=SparkRunner"])
    assert not options.recovers(found)
    assert options.waits_for_storing(found)


# Beam's own DirectRunner: Prism, which it downloads, else the FnApiRunner (docs/engines.md).


def test_beams_direct_runner_gives_the_same_where_it_finds_no_prism_and_no_network(tmp_path, monkeypatch):
    monkeypatch.setattr(PrismJobServer, "BIN_CACHE", str(tmp_path / "downloaded"))
    plan, key = small_plan(mode="hits", hits_per_user=2), key_file(tmp_path)
    source = pairs_source(ordered_log(plan, 6, events=250))
    # Else Beam takes the Prism of an earlier test in this process.
    alone = ["--experiments=disable_prism_server_singleton"]
    nowhere = [f"--prism_location={tmp_path / 'nothing'}", *alone]
    with no_network() as asked:
        named = run_monitor(source, plan, noise_key=key).reports
        assert named
        assert run_monitor(source, plan, noise_key=key, runner="DirectRunner", flags=nowhere).reports == named
        assert asked == [], "told of a place where no Prism is, it asks nobody"
        assert run_monitor(source, plan, noise_key=key, runner="DirectRunner", flags=alone).reports == named
    assert asked == ["github.com"]


@pytest.mark.parametrize(("runner", "splits"), [("DirectRunner", False), ("FnApiRunner", True)])
def test_prism_is_told_to_split_no_bundle(runner, splits):
    """Else two bundles may have one key at once, and charges are lost (docs/engines.md)."""
    pipeline = local_pipeline(runner=runner)
    pairs = pipeline | beam.Create([("user", "item")]).with_output_types(tuple[str, str])
    _ = pairs | ShiftingHeavyHitters(small_plan())
    assert pipeline.options.view_as(DebugOptions).lookup_experiment("prism_disable_sdf_split", False) != splits
