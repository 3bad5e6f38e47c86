"""Beam's options of a run: the flags that it needs on each runner, with their reasons, before those that were given.

What was given wins. Three things are looked after here, since Beam needs no password and runs the code that it is sent,
beside the noise key: servers of this process listen on the loopback address alone, so do a Flink and a Prism that Beam
starts on this machine, and a Prism that is not marked as one that does so is refused.

Nothing is downloaded here. Whoever types ``DirectRunner``, ``direct`` or nothing gets the FnApiRunner, in this process:
Beam's own DirectRunner would choose an engine by itself, and try to download one. Of Dataflow only the construction of
jobs was tried (``--dry_run=true``). So what a job needs there is checked before it is sent, where an error costs
nothing.
"""

from __future__ import annotations

import atexit
import functools
import hashlib
import json
import os
import pathlib
import re
import shutil
import tempfile
from collections.abc import Mapping, Sequence

import apache_beam as beam
from apache_beam.options.pipeline_options import (
    DebugOptions,
    FlinkRunnerOptions,
    GoogleCloudOptions,
    PipelineOptions,
    PortableOptions,
    SetupOptions,
    StandardOptions,
    TestOptions,
    WorkerOptions,
    _BeamArgumentParser,
)

from dp_transforms.beam.on_loopback import listen_on_loopback
from dp_transforms.errors import UserError

LOCAL_RUNNER, FLINK, PRISM, DATAFLOW = "FnApiRunner", "FlinkRunner", "PrismRunner", "DataflowRunner"
_NAMES_OF_LOCAL = (None, "DirectRunner", "direct", LOCAL_RUNNER)
LOCAL_FLINK = "[local]"
_MAGIC_MASTERS = (LOCAL_FLINK, "[auto]")  # Beam's default is the second; its job server takes both for a Flink inside
RESUMES = ("savepoint_path", "update")  # the options that name the state to go on from: Flink's, Dataflow's
JOB_SERVER_JAR = "flink-job-server.jar"
PRISM_VERSION = "v2.77.0"
ON_LOOPBACK_MARK = f".prism-{PRISM_VERSION}-on-loopback"  # `make engines` makes it last, beside the binary
_LAUNCHED = "FLEX_TEMPLATE_PYTHON_PY_FILE"  # names the program to the launcher of flex templates (runners/dataflow)
# Prism splits a bundle that makes no progress for a tenth of a second, and then lets two bundles have one key at once:
# what the first of them writes to the state is lost (docs/engines.md).
_SPLIT_NO_BUNDLE = "prism_disable_sdf_split"
# Workers in this process; and Beam watches a job for ten years, in place of one minute.
_WATCHED_FROM_HERE = ["--environment_type=LOOPBACK", "--job_server_timeout=315360000"]
_PARTS_OF_FLINK = ("jobmanager.rpc.address", "jobmanager.bind-host", "taskmanager.host", "taskmanager.bind-host")
ON_LOOPBACK = dict.fromkeys((*_PARTS_OF_FLINK, "rest.address", "rest.bind-address"), "localhost")
"""Configuration of a Flink whose parts are all on this machine."""
# Before a shuffle in batch mode Beam packs all values of a key that a task has at hand into one record. Without this a
# job fails where such a record is larger than Flink's memory for a sort. Read where a job is submitted, on no cluster.
SORT_LARGE_RECORDS = {"taskmanager.runtime.large-record-handler": "true"}
# Flink uses reflection on these packages; Java 17 closes them by default.
_OPENED = "lang lang.reflect net io nio text time util util.concurrent util.concurrent.atomic util.concurrent.locks"
JAVA_FLAGS = (
    *(f"--add-exports={name}=ALL-UNNAMED" for name in ("java.base/sun.net.util", "java.rmi/sun.rmi.registry")),
    "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
    *(f"--add-opens=java.base/java.{name}=ALL-UNNAMED" for name in re.findall(r"\S+", _OPENED)),
)
# Beam's Python code does not know these: its job server for Flink does.
_OF_FLINK = re.findall(
    r"\w+",
    """allow_non_restored_state auto_watermark_interval checkpoint_timeout_millis checkpointing_interval
    checkpointing_mode disable_metrics execution_mode_for_batch execution_retry_delay externalized_checkpoints_enabled
    fail_on_checkpointing_errors finish_bundle_before_checkpointing flink_conf_dir latency_tracking_interval
    max_bundle_size max_bundle_time_mills min_pause_between_checkpoints num_concurrent_checkpoints
    number_of_execution_retries object_reuse operator_chaining retain_externalized_checkpoints_on_cancellation
    savepoint_path shutdown_sources_after_idle_ms state_backend state_backend_factory state_backend_storage_path
    unaligned_checkpoint_enabled""",
)
_TEMP_LOCATION = re.compile(r"gs://[a-z0-9][-_.a-z0-9]+[a-z0-9]/.*")  # as Beam wants it


@functools.cache
def _beams_flags() -> Mapping[str, int]:
    """``--name`` of all options of Beam, and how many words follow."""
    parser = _BeamArgumentParser(allow_abbrev=False)
    for kind in {str(each): each for each in PipelineOptions.__subclasses__()}.values():
        kind._add_argparse_args(parser)
    beams = {name: int(each.nargs != 0) for name, each in parser._option_string_actions.items() if name[:2] == "--"}
    return {**{f"--{name}": 0 for name in _OF_FLINK}, **beams}


def split_words(words: Sequence[str], ours: Mapping[str, int]) -> tuple[list[str], list[str]]:
    """The words of a command line that are ours or nobody's, and those that are Beam's.

    ours: our options, and how many words follow each. An option that both have is ours.
    """
    rest: list[str] = []
    beams: list[str] = []
    waiting = list(words)
    while waiting:
        word = waiting.pop(0)
        if word == "--":
            return [*rest, word, *waiting], beams
        name, equals, _ = word.partition("=")
        of_beam = name not in ours and name.startswith("--") and name in _beams_flags()
        following = 0 if equals else _beams_flags()[name] if of_beam else ours.get(name, 0)
        target = beams if of_beam else rest
        target += [word, *waiting[:following]]
        del waiting[:following]
    return rest, beams


def runner_options(words: Sequence[str], *, job_name: str, streaming: bool) -> PipelineOptions:
    """Beam's options of a job. words: those of the command line that are Beam's; none: a run in this process.

    Servers that Beam starts in this process listen on the loopback address alone from now on, and so do a Flink or a
    Prism that it starts on this machine. Raises UserError for what is missing.
    """
    listen_on_loopback()
    given = PipelineOptions(list(words))
    if given.view_as(GoogleCloudOptions).template_location and _LAUNCHED not in os.environ:
        raise UserError(
            "--template_location makes a job that may start twice, with one run id and so with the same noise. Use a"
            " flex template, which builds a job for each run (runners/dataflow)."
        )
    runner = given.view_as(StandardOptions).runner
    needed: list[str] = []
    if runner == FLINK:
        needed = [*flink_options(streaming=streaming), *_job_server_options(given), *_WATCHED_FROM_HERE]
    elif runner == PRISM:
        needed = [*prism_options(streaming=streaming), f"--prism_location={prism_binary()}", *_WATCHED_FROM_HERE]
    elif runner == DATAFLOW:
        # In the image is Beam's worker, and this package with its dependencies. A replay needs memory for parts of a
        # million events, and disk for the image and what it writes alone: the service shuffles.
        kind = ["--streaming"] if streaming else ["--resource_hint=min_ram=8GB", "--disk_size_gb=50"]
        needed = ["--sdk_location=container", *kind]
    own = [f"--runner={LOCAL_RUNNER}"] if runner in _NAMES_OF_LOCAL else []
    options = PipelineOptions([f"--job_name={job_name}", *needed, *words, *own])
    if runner == DATAFLOW:
        _check_dataflow(options, streaming=streaming)
    options.view_as(SetupOptions).save_main_session = False  # all code of workers is in the package
    return options


def flink_options(*, streaming: bool) -> list[str]:
    """Flags for Beam's runner on Flink. Input that ends has no checkpoints: after a failure Flink begins again, as
    often as the restart strategy of the cluster says."""
    # By default a bundle stays open for up to 10 s, once at every hop.
    flags = ["--parallelism=1", "--max_bundle_time_mills=100", "--max_bundle_size=1000"]
    # Beam would stage a list of the packages of this machine, and a worker that starts later would need the job server.
    flags.append("--experiments=disable_logging_submission_environment")
    if not streaming:
        return flags
    return [
        *flags,
        "--streaming",
        "--checkpointing_interval=10000",
        # A checkpoint that takes longer fails, and Flink restarts the job. This finds a worker that hangs, or whose
        # death Beam did not notice.
        "--checkpoint_timeout_millis=120000",
        # Every task learns that a checkpoint is complete before the next one begins: finalizers rely on that.
        "--min_pause_between_checkpoints=200",
        # Without it, the last watermark can overtake the output of a bundle that a snapshot ended, and it is lost.
        "--finish_bundle_before_checkpointing",
        *("--externalized_checkpoints_enabled", "--retain_externalized_checkpoints_on_cancellation"),
        # How often Flink restarts the job from its newest checkpoint, and after how many milliseconds.
        *("--number_of_execution_retries=1000", "--execution_retry_delay=1000"),
    ]


def _job_server_options(given: PipelineOptions) -> list[str]:
    """The job server of `make engines`, on loopback alone, where it was made; else the published one of the installed
    Beam, which Beam downloads: that is for clusters alone, since a Flink inside it would listen on all addresses.

    Beam has no flag for the configuration of a Flink inside the job server. So this process, and all that it starts,
    gets the variable FLINK_CONF_DIR, if it has none.
    """
    of_flink = given.view_as(FlinkRunnerOptions)
    is_inside = of_flink.flink_master in _MAGIC_MASTERS
    jar = engines_folder() / JOB_SERVER_JAR
    if is_inside and (of_flink.flink_job_server_jar not in (None, str(jar)) or not jar.exists()):
        raise UserError(
            f"a Flink on this machine needs {jar}, which listens on the loopback address alone: the published job"
            " server would let other machines send code beside the noise key. Make it with: make engines; or name a"
            " cluster with --flink_master=HOST:PORT."
        )
    if not os.environ.get("FLINK_CONF_DIR"):
        folder = tempfile.mkdtemp(prefix="shh-flink-")
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        write_flink_config(pathlib.Path(folder), SORT_LARGE_RECORDS | (ON_LOOPBACK if is_inside else {}))
        os.environ["FLINK_CONF_DIR"] = folder
    flags = [f"--flink_master={LOCAL_FLINK}"] if is_inside else []
    if jar.exists():
        flags.append(f"--flink_job_server_jar={jar}")
    if home := os.environ.get("JAVA_HOME"):
        flags.append(f"--job_server_java_launcher={home}/bin/java")
    flags.append("--expansion_port=-1")  # none: no transform of another language is expanded
    return [*flags, *(f"--job_server_jvm_property={flag}" for flag in JAVA_FLAGS)]


def engines_folder() -> pathlib.Path:
    """``SHH_ENGINES``, or ``.engines`` of this checkout, where `make engines` puts them."""
    chosen = os.environ.get("SHH_ENGINES")
    return pathlib.Path(chosen) if chosen else pathlib.Path(__file__).resolve().parents[2] / ".engines"


def write_flink_config(folder: pathlib.Path, config: Mapping[str, str | int]) -> None:
    """Writes `config` where Flink looks for it in a configuration folder."""
    lines = (f"{key}: {json.dumps(value)}\n" for key, value in config.items())
    (folder / "config.yaml").write_text("".join(lines))


def prism_options(*, streaming: bool) -> list[str]:
    """Flags for Prism, which keeps no checkpoints (docs/engines.md)."""
    # Else Beam prints what Prism and workers say, which may hold a cell, whatever the level of its log.
    quiet = ["--prism_log_kind=text", "--prism_log_level=warn"]
    return [*(["--streaming"] if streaming else []), f"--experiments={_SPLIT_NO_BUNDLE}", *quiet]


def prism_binary() -> str:
    """The one in the engines' folder, else the one in the PATH; never one that Beam downloads.

    Beam's own builds listen on all addresses and run the code that they are sent. `make engines` changes that and
    leaves a mark beside the binary. Raises UserError for one without the mark.
    """
    made = engines_folder() / "prism"
    found = str(made) if made.exists() else shutil.which("prism")
    if found is None:
        raise UserError(f"{made} is missing. Make it with: make engines (SHH_ENGINES names another folder).")
    if not pathlib.Path(found).resolve().with_name(ON_LOOPBACK_MARK).exists():
        raise UserError(
            f"{found} was not built by this version's make engines, so other machines may reach its port, which takes"
            " code without a password. It was not started. Build it again with: make engines."
        )
    return found


def _check_dataflow(options: PipelineOptions, *, streaming: bool) -> None:
    """Raises UserError for options that a job cannot run with; it names all that are missing or wrong."""
    cloud, setup = options.view_as(GoogleCloudOptions), options.view_as(SetupOptions)
    has_image = options.view_as(WorkerOptions).sdk_container_image or setup.setup_file or setup.extra_packages
    pickler = setup.pickle_library or ""
    needs = {
        "--project=PROJECT": cloud.project,
        "--region=REGION": cloud.region,
        # Else Beam makes a bucket, also in a dry run.
        f"--temp_location=gs://BUCKET/FOLDER (got {cloud.temp_location})": _TEMP_LOCATION.fullmatch(
            cloud.temp_location or ""
        ),
        "no --streaming": streaming or not options.view_as(StandardOptions).streaming,
        "--sdk_container_image=IMAGE (workers need this package; runners/dataflow)": has_image,
        # Beam's default, cloudpickle, sends no variables; "dill" with --save_main_session sends all of them.
        f"no --pickle_library={pickler} (it can send this session's variables)": not pickler.startswith("dill"),
    }
    if wrong := [words for words, is_there in needs.items() if not is_there]:
        raise UserError(f"a {'streaming' if streaming else 'batch'} job on Dataflow needs {', '.join(wrong)}.")


def keep_bundles_whole(pipeline: beam.Pipeline) -> None:
    """Tells Prism to split no bundle, whatever started it. Other engines do not know the option."""
    if type(pipeline.runner).__name__ in ("SwitchingDirectRunner", "PrismRunner", "PortableRunner"):
        pipeline.options.view_as(DebugOptions).add_experiment(_SPLIT_NO_BUNDLE)


def runner_of(options: PipelineOptions) -> str:
    """Its name, in the options of a job. Ask before it runs: Beam takes it out of the options then."""
    return str(options.view_as(StandardOptions).runner)


def is_local(options: PipelineOptions) -> bool:
    """Whether the work is done in this process."""
    return runner_of(options) == LOCAL_RUNNER


def workers_are_here(options: PipelineOptions) -> bool:
    """Whether all workers are in this process, whatever runs them."""
    return is_local(options) or options.view_as(PortableOptions).environment_type == "LOOPBACK"


def is_on_dataflow(options: PipelineOptions) -> bool:
    """Whether workers share no disk with this machine."""
    return runner_of(options) == DATAFLOW


def is_sent(options: PipelineOptions) -> bool:
    """Whether a job runs once its pipeline was run: not of a dry run, and of a flex template its launcher sends it."""
    return not (is_dry(options) or options.view_as(GoogleCloudOptions).template_location)


def is_dry(options: PipelineOptions) -> bool:
    """Whether a job is only made: workers will never look for its files."""
    return bool(options.view_as(TestOptions).dry_run)


def resumes(words: Sequence[str]) -> bool:
    """Whether these words of Beam's name a state that the runner goes on from."""
    return any(word.partition("=")[0].removeprefix("--") in RESUMES for word in words)


def cluster_address(options: PipelineOptions) -> str | None:
    """Of the REST API of the Flink cluster that has the job; None for a job elsewhere."""
    master = options.view_as(FlinkRunnerOptions).flink_master
    if runner_of(options) != FLINK or master in _MAGIC_MASTERS:
        return None
    return master if master.startswith("https:") else f"http://{master.removeprefix('http://').rstrip('/')}"


def waits_for_storing(options: PipelineOptions) -> bool:
    """Whether a decision of a stream must wait until the runner has stored it: `confirm` of `MonitorStream`.

    Not where nothing is ever restored. Of a runner that nobody here knows it must: if it does restore, an answer that
    was given before could be given anew otherwise.
    """
    return runner_of(options) not in (LOCAL_RUNNER, PRISM)


def recovers(options: PipelineOptions) -> bool:
    """Whether a worker that died is replaced by one that goes on from what the runner has stored, as far as is known: a
    runner that nobody here knows counts as one that does not."""
    return runner_of(options) in (FLINK, DATAFLOW)


def job_name(stream: str, run_id: str) -> str:
    """What the engine shows, within the rules of Dataflow. Each run has its own."""
    name = re.sub(r"[^a-z0-9]+", "-", f"shh-{stream}-{run_id}".lower())
    digest = hashlib.sha256(json.dumps([stream, run_id]).encode()).hexdigest()
    return f"{name[:50].rstrip('-')}-{digest[:12]}"
