"""Apache Flink: flags that make it exact and prompt, the job server, and the pool of Python workers.

docs/engines.md says what was measured.
"""

from __future__ import annotations

import atexit
import json
import os
import pathlib
import re
import shutil
import sys
import tempfile
from collections.abc import Mapping

from dp_transforms.engines.engine_process import LOCAL, Engine, engine_file, free_port, is_port_open, java
from dp_transforms.engines.flink_rest import FlinkRest
from dp_transforms.engines.portable import portable_options

__all__ = ["JobServer", "WorkerPool", "job_server_options", "options", "worker_pool_words"]

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
_SORT_LARGE_RECORDS: dict[str, str | int] = {"taskmanager.runtime.large-record-handler": "true"}
JOB_SERVER_JAR = "flink-job-server.jar"
FLINK_RELEASE = "1.19.3"
_START_SECONDS = 120.0
_REST_PORTS = 20
_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*:/")
_STARTED = re.compile(rb"JobService started on (?:localhost|127\.0\.0\.1):(\d+)")

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


def options(
    endpoint: str | None,
    *,
    checkpointing_interval_seconds: float = 10.0,
    checkpoint_timeout_seconds: float = 120.0,
    checkpoint_dir: str | None = None,
    parallelism: int = 2,
    environment: str = "LOOPBACK",
    worker_address: str | None = None,
    savepoint: str | None = None,
    streaming: bool = True,
    job_name: str | None = None,
) -> list[str]:
    """Beam flags for the job server at `endpoint`; None for Beam's FlinkRunner, see `job_server_options`.

    checkpoint_timeout_seconds: a checkpoint that takes longer fails, and Flink restarts the job. This finds a worker
        that hangs, or whose death Beam did not notice.
    checkpoint_dir: a folder or URL that every task manager and the job manager reach. Checkpoints stay there after the
        job was cancelled, so that it can be resumed. None leaves it to the cluster's configuration.
    savepoint: path of a savepoint or checkpoint of the same pipeline to resume from.
    streaming: False for input that ends. Then there are no checkpoints: after a failure Flink begins again, as often as
        the restart strategy of the cluster says.
    Other arguments as in `portable_options`. Raises ValueError.
    """
    for name, value in (
        ("checkpointing_interval_seconds", checkpointing_interval_seconds),
        ("checkpoint_timeout_seconds", checkpoint_timeout_seconds),
        ("parallelism", parallelism),
    ):
        if not value > 0:
            raise ValueError(f"{name} must be > 0, got {value!r}.")
    flags = portable_options(
        endpoint, environment=environment, worker_address=worker_address, streaming=streaming, job_name=job_name
    )
    # By default a bundle stays open for up to 10 s, once at every hop.
    flags += [f"--parallelism={parallelism}", "--max_bundle_time_mills=100", "--max_bundle_size=1000"]
    if not streaming:
        return flags
    flags.append(f"--checkpointing_interval={max(10, round(checkpointing_interval_seconds * 1000))}")
    flags.append(f"--checkpoint_timeout_millis={max(10, round(checkpoint_timeout_seconds * 1000))}")
    # Every task learns that a checkpoint is complete before the next one begins: finalizers rely on that.
    flags.append("--min_pause_between_checkpoints=200")
    # Without it, the last watermark can overtake the output of a bundle that a snapshot ended, and it is lost.
    flags.append("--finish_bundle_before_checkpointing")
    flags += ["--externalized_checkpoints_enabled", "--retain_externalized_checkpoints_on_cancellation"]
    # How often Flink restarts the job from its newest checkpoint before it gives up, and after how many milliseconds.
    flags += ["--number_of_execution_retries=1000", "--execution_retry_delay=1000"]
    if checkpoint_dir is not None:
        flags += ["--state_backend=filesystem", f"--state_backend_storage_path={_url(checkpoint_dir)}"]
    if savepoint is not None:
        flags.append(f"--savepoint_path={_url(savepoint)}")
    return flags


def job_server_options(master: str = LOCAL) -> list[str]:
    """Beam flags for Beam's FlinkRunner, which starts a job server by itself: that of `make flink`, on loopback alone.

    Beam has no flag for the configuration of a Flink inside the job server. So this process, and all that it starts,
    gets the variable FLINK_CONF_DIR, if it has none. master: as in `JobServer`. Raises EngineError.
    """
    if not os.environ.get("FLINK_CONF_DIR"):
        folder = tempfile.mkdtemp(prefix="shh-flink-")
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        write_flink_config(pathlib.Path(folder), _SORT_LARGE_RECORDS | (ON_LOOPBACK if master == LOCAL else {}))
        os.environ["FLINK_CONF_DIR"] = folder
    flags = [f"--flink_master={master}", f"--flink_job_server_jar={engine_file(JOB_SERVER_JAR, 'flink')}"]
    flags += [f"--job_server_java_launcher={java()}", "--expansion_port=-1"]
    return [*flags, *(f"--job_server_jvm_property={flag}" for flag in JAVA_FLAGS)]


def _url(path: str) -> str:
    # Flink itself writes "file:/folder".
    return path if _SCHEME.match(path) else pathlib.Path(path).resolve().as_uri()


class JobServer(Engine):
    """Takes Beam jobs at `endpoint` and submits them to a Flink cluster, or runs them itself.

    All its ports are of the loopback address, and so are those that its jobs use to talk to Python workers, here or in
    task managers: the jar has a class of its own for that (runners/flink).

    master: "[local]" runs Flink inside this server; "host:port" names the REST address of a cluster.
    folder: for log, configuration and staged files; None for a temporary folder that is removed at the end.
    Raises EngineError if the jar or Java is missing, or if the server does not start.
    """

    def __init__(self, master: str = LOCAL, *, folder: str | os.PathLike[str] | None = None) -> None:
        jar = engine_file(JOB_SERVER_JAR, "flink")
        program = java()
        is_local = master == LOCAL
        config: dict[str, str | int] = dict(_SORT_LARGE_RECORDS)
        rest_address = master
        if is_local:
            # Jobs of one server do not share a port: the first takes the first of the range.
            port = free_port()
            rest_address = f"localhost:{port}"
            config |= {"rest.bind-port": f"{port}-{port + _REST_PORTS}", **ON_LOOPBACK}
        self._owned_folder = folder is None
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="shh-flink-") if folder is None else folder)
        for part in ("artifacts", "conf", "tmp"):
            (self.folder / part).mkdir(parents=True, exist_ok=True)
        write_flink_config(self.folder / "conf", config)
        self.log_path = self.folder / "job_server.log"
        self.log_path.write_bytes(b"")
        heap = 1024 if is_local else 512  # megabytes
        command = [program, f"-Xmx{heap}m", f"-Djava.io.tmpdir={self.folder / 'tmp'}", *JAVA_FLAGS]
        command += ["-Dorg.slf4j.simpleLogger.showDateTime=true", "-jar", str(jar), f"--flink-master={master}"]
        command += ["--job-port=0", "--artifact-port=0", "--expansion-port=-1"]
        command += [f"--artifacts-dir={self.folder / 'artifacts'}", f"--flink-conf-dir={self.folder / 'conf'}"]
        self._start(command, self.log_path, lambda: self._started_port() is not None, _START_SECONDS)
        self.endpoint = f"localhost:{self._started_port()}"
        self.rest = FlinkRest(rest_address)
        """Of the cluster. With "[local]": of the first job, and only while that runs."""

    def _started_port(self) -> int | None:
        found = _STARTED.search(self.log_path.read_bytes())
        return None if found is None else int(found.group(1))

    def stop(self) -> None:
        """Ends the server and, with "[local]", its jobs."""
        super().stop()
        if self._owned_folder:
            shutil.rmtree(self.folder, ignore_errors=True)


def worker_pool_words(port: int) -> list[str]:
    """What follows `python` to start a pool of workers at this port of the loopback address."""
    program = ["dp_transforms.beam.on_loopback", "apache_beam.runners.worker.worker_pool_main"]
    return ["-m", *program, f"--service_port={port}"]


class WorkerPool(Engine):
    """Starts a Python worker whenever a task manager of this machine asks for one; for `environment="EXTERNAL"`.

    Its port is of the loopback address. Beam needs no password: every user of this machine can connect, and have code
    run.
    env: additions to this process's environment, for the workers (PYTHONPATH, for example).
    Workers must write to standard error only: Beam never reads the pipe of their standard output.
    """

    def __init__(self, *, log_path: str | os.PathLike[str] | None = None, env: Mapping[str, str] | None = None) -> None:
        port = free_port()
        self.address = f"localhost:{port}"
        self.log_path = pathlib.Path(os.devnull if log_path is None else log_path)
        # Beam starts "python": it must be this one.
        path = os.pathsep.join([str(pathlib.Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
        self._start(
            [sys.executable, *worker_pool_words(port)],
            self.log_path,
            lambda: is_port_open(port),
            _START_SECONDS,
            {"PATH": path, **(env or {})},
        )


def write_flink_config(folder: pathlib.Path, config: Mapping[str, str | int]) -> None:
    """Writes `config` where Flink looks for it in a configuration folder."""
    lines = (f"{key}: {json.dumps(value)}\n" for key, value in config.items())
    (folder / "config.yaml").write_text("".join(lines))
