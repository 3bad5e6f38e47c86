"""Apache Flink: its job server, and the pool of Python workers."""

from __future__ import annotations

import os
import pathlib
import re
import shutil
import sys
import tempfile
from collections.abc import Mapping

from dp_transforms.beam.on_loopback import listen_on_loopback
from dp_transforms.beam.runner_options import (
    JAVA_FLAGS,
    JOB_SERVER_JAR,
    LOCAL_FLINK,
    ON_LOOPBACK,
    SORT_LARGE_RECORDS,
    flink_options,
    write_flink_config,
)
from examples.engines.engine_process import Engine, engine_file, free_port, is_port_open, java
from examples.engines.flink_rest import FlinkRest

FLINK_RELEASE = "1.19.3"
_START_SECONDS = 120.0
_REST_PORTS = 20
_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*:/")
_STARTED = re.compile(rb"JobService started on (?:localhost|127\.0\.0\.1):(\d+)")


def options(
    endpoint: str,
    *,
    checkpointing_interval_seconds: float = 10.0,
    checkpoint_timeout_seconds: float = 120.0,
    checkpoint_dir: str | None = None,
    parallelism: int = 2,
    worker_address: str | None = None,
    savepoint: str | None = None,
    streaming: bool = True,
) -> list[str]:
    """Beam flags for the job server at `endpoint`, beside those of `runner_options.flink_options`.

    checkpoint_dir: a folder that every task manager and the job manager reach. Checkpoints stay there after the job was
        cancelled, so that it can be resumed. None leaves it to the cluster's configuration.
    worker_address: of a `WorkerPool`; None: the Python code runs in this process.
    savepoint: path of a savepoint or checkpoint of the same pipeline to resume from.
    """
    flags = flink_options(streaming=streaming)
    if streaming:
        flags.append(f"--checkpointing_interval={round(1000 * checkpointing_interval_seconds)}")
        flags.append(f"--checkpoint_timeout_millis={round(1000 * checkpoint_timeout_seconds)}")
    flags += ["--runner=PortableRunner", f"--job_endpoint={endpoint}", f"--parallelism={parallelism}"]
    if worker_address is None:
        listen_on_loopback()
        flags.append("--environment_type=LOOPBACK")
    else:
        flags += ["--environment_type=EXTERNAL", f"--environment_config={worker_address}"]
    if checkpoint_dir is not None:
        flags += ["--state_backend=filesystem", f"--state_backend_storage_path={_url(checkpoint_dir)}"]
    if savepoint is not None:
        flags.append(f"--savepoint_path={_url(savepoint)}")
    return flags


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

    def __init__(self, master: str = LOCAL_FLINK, *, folder: str | os.PathLike[str] | None = None) -> None:
        jar = engine_file(JOB_SERVER_JAR)
        program = java()
        is_local = master == LOCAL_FLINK
        config: dict[str, str] = dict(SORT_LARGE_RECORDS)
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
    """Starts a Python worker whenever a task manager of this machine asks for one; for `worker_address` of `options`.

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
