"""Kafka and Flink for the tests on engines; they end with the session."""

from __future__ import annotations

import contextlib
import os
import pathlib
import signal
from collections.abc import Iterator

import psutil
import pytest

from examples.engines import flink, flink_cluster
from tests.engines import skip_reason, wait_for
from tests.engines.kafka_server import KafkaServer
from tests.helpers.small_runs import key_file

ROOT = pathlib.Path(__file__).parents[2]


@pytest.hookimpl(tryfirst=True)  # xdist reads the marks in the same hook
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Two groups, which may run in two processes: what shares the broker and the cluster of a session, and all others.

    More groups would start more clusters at once than 24 GB and 2 cores are enough for.
    """
    if config.pluginmanager.hasplugin("xdist"):
        for item in items:
            if item.path.parent == pathlib.Path(__file__).parent:
                shares = {"kafka", "cluster"} & set(getattr(item, "fixturenames", ()))
                item.add_marker(pytest.mark.xdist_group("shared engines" if shares else "own engines"))


@pytest.fixture(autouse=True, scope="session")
def _java_compiles_little() -> Iterator[None]:
    """An engine of a test lives for seconds: the second compiler of Java and its threads cost more than they save."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
        yield


@pytest.fixture(autouse=True, scope="session")
def _no_engine_is_left() -> Iterator[None]:
    """Beam ends what it has started when its process exits in order, which a worker of pytest-xdist does not do."""
    yield
    engines = [child for child in psutil.Process().children() if child.name() in ("prism", "java")]
    for engine in engines:
        engine.terminate()
    psutil.wait_procs(engines, 10)


@pytest.fixture(scope="session")
def kafka(tmp_path_factory) -> Iterator[KafkaServer]:
    if (reason := skip_reason("kafka")) is not None:
        pytest.skip(reason)
    with KafkaServer(tmp_path_factory.mktemp("kafka")) as server:
        yield server


@pytest.fixture(scope="session")
def key_path(tmp_path_factory) -> str:
    return key_file(tmp_path_factory.mktemp("key"))


class FlinkCluster(flink_cluster.FlinkCluster):
    """Its task manager can be killed."""

    def kill_task_manager(self) -> None:
        """SIGKILL: its tasks and their state are gone at once. Another one starts as soon as it is missed."""
        assert self._task_manager is not None
        self._task_manager.kill()
        self._task_manager = None
        wait_for("the job manager misses its task manager", lambda: self.rest.task_managers() == 0)
        self.start_task_manager()


class Cluster:
    """Job manager, task manager, job server and a pool of Python workers, each of them processes of their own."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.folder = folder
        with contextlib.ExitStack() as started:
            self.flink = FlinkCluster(folder)
            started.callback(self.flink.stop)
            self.server = flink.JobServer(self.flink.address, folder=folder / "server")
            started.callback(self.server.stop)
            self.pool = flink.WorkerPool(log_path=folder / "pool.log", env={"PYTHONPATH": str(ROOT)})
            started.callback(self.pool.stop)
            self.stop = started.pop_all().close
        self.rest = self.flink.rest

    def options(self, **changes: object) -> list[str]:
        arguments: dict = {
            "checkpointing_interval_seconds": 1,
            "checkpoint_timeout_seconds": 25,
            "worker_address": self.pool.address,
            **changes,
        }
        return flink.options(self.server.endpoint, **arguments)

    def job_ids(self) -> set[str]:
        return {job.job_id for job in self.rest.jobs()}

    def newest_job(self, known: set[str]) -> str:
        """The id of the job that is not among ``known``, once it runs."""

        def running() -> list[str]:
            return [job.job_id for job in self.rest.jobs() if job.job_id not in known and job.state == "RUNNING"]

        return wait_for("a new job runs", running)[0]

    def wait_for_checkpoint(self, job: str) -> None:
        """Until another one is complete."""
        before = self.rest.completed_checkpoints(job)
        wait_for("another checkpoint", lambda: self.rest.completed_checkpoints(job) > before)

    def kill_worker(self) -> None:
        """SIGKILL to the Python workers that run now, or as soon as one does."""
        for pid in wait_for("a Python worker", lambda: flink_cluster.worker_pids(self.pool)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def is_restarted(self, job: str, restarts: int) -> bool:
        """Whether it runs again, after more restarts than these."""
        return self.rest.restarts(job) > restarts and self.rest.job_state(job) == "RUNNING"

    def cancel(self, job: str) -> None:
        """Ends the job, whatever it is doing."""
        self.rest.cancel(job)
        self.rest.wait_for_state(job, ["CANCELED", "FAILED", "FINISHED"])

    def log_files(self) -> list[pathlib.Path]:
        return [path for path in self.folder.rglob("*") if path.is_file() and path.suffix in (".log", ".out")]


@pytest.fixture(scope="session")
def cluster(tmp_path_factory) -> Iterator[Cluster]:
    if (reason := skip_reason("flink")) is not None:
        pytest.skip(reason)
    engines = Cluster(tmp_path_factory.mktemp("cluster"))
    yield engines
    engines.stop()
