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

import argparse
import atexit
import functools
import hashlib
import json
import os
import pathlib
import re
import shutil
import tempfile
import urllib.request
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeVar, cast

from apache_beam.options.pipeline_options import (
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
ON_LOOPBACK_MARK = f".prism-{PRISM_VERSION}-on-loopback"
"""`make prism` makes it last, beside the binary. The Makefile has the same name."""
WATCH_FOREVER = "--job_server_timeout=315360000"
"""Beam watches a job for so long at most: ten years, in place of one minute."""
_RAM_OF_A_REPLAY = "8GB"  # for parts of a million events
_DISK_OF_A_REPLAY_GB = 50  # the service shuffles: a worker keeps nothing but its image and what it writes
_LAUNCHED = "FLEX_TEMPLATE_PYTHON_PY_FILE"  # names the program to the launcher of flex templates (runners/dataflow)
_REST_SECONDS = 60.0
# Prism splits a bundle that makes no progress for a tenth of a second, and then lets two bundles have one key at once:
# what the first of them writes to the state is lost (docs/engines.md).
SPLIT_NO_BUNDLE = "--experiments=prism_disable_sdf_split"
# Beam would stage a list of the packages of this machine, and a worker that starts later would need the job server.
STAGE_NOTHING = "--experiments=disable_logging_submission_environment"
ON_LOOPBACK: dict[str, str | int] = {
    "jobmanager.rpc.address": "localhost",
    "jobmanager.bind-host": "localhost",
    "taskmanager.host": "localhost",
    "taskmanager.bind-host": "localhost",
    "rest.address": "localhost",
    "rest.bind-address": "localhost",
}
"""Configuration of a Flink whose parts are all on this machine."""
# Before a shuffle in batch mode Beam packs all values of a key that a task has at hand into one record. Without this a
# job fails where such a record is larger than Flink's memory for a sort. Read where a job is submitted, on no cluster.
SORT_LARGE_RECORDS: dict[str, str | int] = {"taskmanager.runtime.large-record-handler": "true"}
# Flink uses reflection on these packages; Java 17 closes them by default.
JAVA_FLAGS = (
    "--add-exports=java.base/sun.net.util=ALL-UNNAMED",
    "--add-exports=java.rmi/sun.rmi.registry=ALL-UNNAMED",
    *(
        f"--add-opens=java.base/{package}=ALL-UNNAMED"
        for package in (
            *("java.lang", "java.lang.reflect", "java.net", "java.io", "java.nio", "sun.nio.ch", "java.text"),
            *("java.time", "java.util", "java.util.concurrent", "java.util.concurrent.atomic"),
            "java.util.concurrent.locks",
        )
    ),
)
# Beam's Python code does not know these: its job server for Flink does.
_OF_FLINK = (
    *("allow_non_restored_state", "auto_watermark_interval", "checkpoint_timeout_millis"),
    *("checkpointing_interval", "checkpointing_mode", "disable_metrics", "execution_mode_for_batch"),
    *("execution_retry_delay", "externalized_checkpoints_enabled", "fail_on_checkpointing_errors"),
    *("finish_bundle_before_checkpointing", "flink_conf_dir", "latency_tracking_interval", "max_bundle_size"),
    *("max_bundle_time_mills", "min_pause_between_checkpoints", "num_concurrent_checkpoints"),
    *("number_of_execution_retries", "object_reuse", "operator_chaining"),
    *("retain_externalized_checkpoints_on_cancellation", "savepoint_path", "shutdown_sources_after_idle_ms"),
    *("state_backend", "state_backend_factory", "state_backend_storage_path", "unaligned_checkpoint_enabled"),
)
_TEMP_LOCATION = re.compile(r"gs://[a-z0-9][-_.a-z0-9]+[a-z0-9]/.*")  # as Beam wants it
_View = TypeVar("_View", bound=PipelineOptions)


class KnownOptions(PipelineOptions):
    """As `PipelineOptions`. Building one pipeline asks for 200 views of them, and Beam parses all words for each of
    these anew, which takes a quarter of the time."""

    def view_as(self, cls: type[_View]) -> _View:
        views: dict[type[PipelineOptions], PipelineOptions] = self.__dict__.setdefault("_views", {})
        if cls not in views:
            views[cls] = super().view_as(cls)  # shares its values with all others
        return cast(_View, views[cls])

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in super().__getstate__().items() if name != "_views"}


@functools.cache
def _beams_flags() -> Mapping[str, int]:
    """``--name`` of all options of Beam, and how many words follow."""
    parser = _BeamArgumentParser(allow_abbrev=False)
    for kind in {str(each): each for each in PipelineOptions.__subclasses__()}.values():
        kind._add_argparse_args(parser)
    actions: Mapping[str, argparse.Action] = parser._option_string_actions
    beams = {name: int(each.nargs != 0) for name, each in actions.items() if name.startswith("--")}
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


def local_options() -> PipelineOptions:
    """Of a run in this process."""
    listen_on_loopback()
    return KnownOptions([f"--runner={LOCAL_RUNNER}"])


def runner_options(words: Sequence[str], *, job_name: str, streaming: bool) -> PipelineOptions:
    """Beam's options of a job. words: those of the command line that are Beam's.

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
        needed = [*flink_options(streaming=streaming), *_job_server_options(given)]
    elif runner == PRISM:
        needed = [*prism_options(streaming=streaming), f"--prism_location={prism_binary()}"]
    elif runner == DATAFLOW:
        needed = _dataflow_options(streaming=streaming)
    if runner in (FLINK, PRISM):
        needed += ["--environment_type=LOOPBACK", WATCH_FOREVER]
    if runner not in _NAMES_OF_LOCAL:
        needed.append(f"--job_name={job_name}")
    options = KnownOptions([*needed, *words])
    standard = options.view_as(StandardOptions)
    if runner in _NAMES_OF_LOCAL:
        standard.runner = LOCAL_RUNNER
    elif runner == DATAFLOW:
        check_dataflow(options, streaming=streaming)
    options.view_as(SetupOptions).save_main_session = False  # all code of workers is in the package
    return options


def flink_options(
    *, streaming: bool, checkpoint_seconds: float = 10.0, checkpoint_timeout_seconds: float = 120.0
) -> list[str]:
    """Flags for Beam's runner on Flink.

    checkpoint_timeout_seconds: a checkpoint that takes longer fails, and Flink restarts the job. This finds a worker
        that hangs, or whose death Beam did not notice.
    streaming: False for input that ends. Then there are no checkpoints: after a failure Flink begins again, as often as
        the restart strategy of the cluster says.
    """
    # By default a bundle stays open for up to 10 s, once at every hop.
    flags = ["--parallelism=1", "--max_bundle_time_mills=100", "--max_bundle_size=1000", STAGE_NOTHING]
    if not streaming:
        return flags
    return [
        *flags,
        "--streaming",
        f"--checkpointing_interval={round(checkpoint_seconds * 1000)}",
        f"--checkpoint_timeout_millis={round(checkpoint_timeout_seconds * 1000)}",
        # Every task learns that a checkpoint is complete before the next one begins: finalizers rely on that.
        "--min_pause_between_checkpoints=200",
        # Without it, the last watermark can overtake the output of a bundle that a snapshot ended, and it is lost.
        "--finish_bundle_before_checkpointing",
        *("--externalized_checkpoints_enabled", "--retain_externalized_checkpoints_on_cancellation"),
        # How often Flink restarts the job from its newest checkpoint before it gives up, and after how many
        # milliseconds.
        *("--number_of_execution_retries=1000", "--execution_retry_delay=1000"),
    ]


def _job_server_options(given: PipelineOptions) -> list[str]:
    """The job server of `make flink`, on loopback alone, where it was made; else the published one of the installed
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
            " server would let other machines send code beside the noise key. Make it with: make flink; or name a"
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


class ClusterJob(NamedTuple):
    """A job on a Flink cluster. address: of Flink's REST API."""

    name: str
    address: str

    def cancel(self) -> None:
        """Ends what has this name. A job server that is told to cancel leaves the job there. Raises OSError."""
        with urllib.request.urlopen(f"{self.address}/jobs/overview", timeout=_REST_SECONDS) as answer:
            jobs = json.load(answer)["jobs"]
        for job in jobs:
            if job["name"] == self.name and job["state"] not in ("FINISHED", "CANCELED", "FAILED"):
                request = urllib.request.Request(f"{self.address}/jobs/{job['jid']}?mode=cancel", method="PATCH")
                urllib.request.urlopen(request, timeout=_REST_SECONDS).close()


def cluster_job(options: PipelineOptions) -> ClusterJob | None:
    """None for a job elsewhere. Ask before it runs: Beam takes the runner out of the options then."""
    master = options.view_as(FlinkRunnerOptions).flink_master
    if options.view_as(StandardOptions).runner != FLINK or master in _MAGIC_MASTERS:
        return None
    address = f"http://{master.removeprefix('http://').rstrip('/')}" if not master.startswith("https:") else master
    return ClusterJob(options.view_as(GoogleCloudOptions).job_name, address)


def prism_options(*, streaming: bool) -> list[str]:
    """Flags for Prism, which keeps no checkpoints (docs/engines.md)."""
    # Else Beam prints what Prism and workers say, which may hold a cell, whatever the level of its log.
    quiet = ["--prism_log_kind=text", "--prism_log_level=warn"]
    return [*(["--streaming"] if streaming else []), SPLIT_NO_BUNDLE, *quiet]


def prism_binary() -> str:
    """The one in the engines' folder, else the one in the PATH; never one that Beam downloads.

    Beam's own builds listen on all addresses and run the code that they are sent. `make prism` changes that, and leaves
    a mark beside the binary. Raises UserError for one without the mark.
    """
    made = engines_folder() / "prism"
    found = str(made) if made.exists() else shutil.which("prism")
    if found is None:
        raise UserError(f"{made} is missing. Make it with: make prism (SHH_ENGINES names another folder).")
    if not pathlib.Path(found).resolve().with_name(ON_LOOPBACK_MARK).exists():
        raise UserError(
            f"{found} was not built by this version's make prism, so other machines may reach its port, which takes"
            " code without a password. It was not started. Build it again with: make prism."
        )
    return found


def _dataflow_options(*, streaming: bool) -> list[str]:
    """Streaming jobs of Python run on the Streaming Engine, which keeps state and timers.

    ``--sdk_location=container``: the image has Beam's worker and this package with its dependencies, so that a worker
    installs nothing when it starts.
    """
    if streaming:
        return ["--sdk_location=container", "--streaming"]
    sizes = [f"--resource_hint=min_ram={_RAM_OF_A_REPLAY}", f"--disk_size_gb={_DISK_OF_A_REPLAY_GB}"]
    return ["--sdk_location=container", *sizes]


def check_dataflow(options: PipelineOptions, *, streaming: bool) -> None:
    """Raises UserError for options that a job cannot run with; it names all that are missing or wrong."""
    cloud, standard = options.view_as(GoogleCloudOptions), options.view_as(StandardOptions)
    worker, setup = options.view_as(WorkerOptions), options.view_as(SetupOptions)
    wrong = []
    if not cloud.project:
        wrong.append("--project=PROJECT")
    if not cloud.region:
        wrong.append("--region=REGION")
    if not _TEMP_LOCATION.fullmatch(cloud.temp_location or ""):  # else Beam makes a bucket, also in a dry run
        wrong.append(f"--temp_location=gs://BUCKET/FOLDER (got {cloud.temp_location})")
    if bool(standard.streaming) != streaming:
        wrong.append("--streaming" if streaming else "no --streaming")
    if not (worker.sdk_container_image or setup.setup_file or setup.extra_packages):
        wrong.append("--sdk_container_image=IMAGE (workers need this package; runners/dataflow)")
    if (setup.pickle_library or "").startswith("dill"):
        # Beam's default, cloudpickle, sends no variables; "dill" with --save_main_session sends all of them.
        wrong.append(f"no --pickle_library={setup.pickle_library} (it can send this session's variables)")
    if wrong:
        raise UserError(f"a {'streaming' if streaming else 'batch'} job on Dataflow needs {', '.join(wrong)}.")


def is_local(options: PipelineOptions) -> bool:
    """Whether the work is done in this process."""
    return bool(options.view_as(StandardOptions).runner == LOCAL_RUNNER)


def workers_are_here(options: PipelineOptions) -> bool:
    """Whether all workers are in this process, whatever runs them."""
    return is_local(options) or options.view_as(PortableOptions).environment_type == "LOOPBACK"


def is_on_dataflow(options: PipelineOptions) -> bool:
    """Whether workers share no disk with this machine."""
    return bool(options.view_as(StandardOptions).runner == DATAFLOW)


def is_sent(options: PipelineOptions) -> bool:
    """Whether a job runs once its pipeline was run: not of a dry run, and of a flex template its launcher sends it."""
    return not (options.view_as(TestOptions).dry_run or options.view_as(GoogleCloudOptions).template_location)


def is_dry(options: PipelineOptions) -> bool:
    """Whether a job is only made: workers will never look for its files."""
    return bool(options.view_as(TestOptions).dry_run)


def resumes(words: Sequence[str]) -> bool:
    """Whether these words of Beam's name a state that the runner goes on from."""
    return any(word.partition("=")[0].removeprefix("--") in RESUMES for word in words)


def parallelism_of(options: PipelineOptions) -> int | None:
    """Of a job on Flink; other runners choose it by themselves."""
    if options.view_as(StandardOptions).runner != FLINK:
        return None
    return int(options.view_as(FlinkRunnerOptions).parallelism)


def waits_for_storing(options: PipelineOptions) -> bool:
    """Whether a decision of a stream must wait until the runner has stored it: `confirm` of `MonitorStream`.

    Not where nothing is ever restored. Of a runner that nobody here knows it must: if it does restore, an answer that
    was given before could be given anew otherwise.
    """
    return not is_local(options) and options.view_as(StandardOptions).runner != PRISM


def recovers(options: PipelineOptions) -> bool:
    """Whether a worker that died is replaced by one that goes on from what the runner has stored, as far as is known: a
    runner that nobody here knows counts as one that does not."""
    return options.view_as(StandardOptions).runner in (FLINK, DATAFLOW)


def job_name(stream: str, run_id: str) -> str:
    """What the engine shows, within the rules of Dataflow. Each run has its own."""
    name = re.sub(r"[^a-z0-9]+", "-", f"shh-{stream}-{run_id}".lower())
    digest = hashlib.sha256(json.dumps([stream, run_id]).encode()).hexdigest()
    return f"{name[:50].rstrip('-')}-{digest[:12]}"
