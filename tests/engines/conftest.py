"""Kafka and Flink for the tests on engines; they end with the session."""

from __future__ import annotations

import contextlib
import os
import pathlib
import signal
import time
from collections.abc import Iterator

import psutil
import pytest

from dp_transforms.beam.workers import NAMESPACE, counts_and_gauges
from examples.engines import flink, flink_cluster
from tests.engines import skip_reason
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


def _skip_without(*names: str) -> None:
    for name in names:
        if (reason := skip_reason(name)) is not None:
            pytest.skip(reason)


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
    _skip_without("kafka")
    with KafkaServer(tmp_path_factory.mktemp("kafka")) as server:
        yield server


@pytest.fixture(scope="session")
def server(tmp_path_factory) -> Iterator[KafkaServer]:
    """A broker of its own for tests that kill it, or say what is in it."""
    with KafkaServer(tmp_path_factory.mktemp("kafka")) as running:
        yield running


@pytest.fixture(scope="session")
def key_path(tmp_path_factory) -> str:
    return key_file(tmp_path_factory.mktemp("key"))


class FlinkCluster(flink_cluster.FlinkCluster):
    """Its task manager can be killed; `start_task_manager` starts another one."""

    def exit_code(self) -> int | None:
        """Of its task manager; None while that runs."""
        assert self._task_manager is not None
        return self._task_manager.exit_code

    def kill_task_manager(self) -> None:
        """SIGKILL: its tasks and their state are gone at once. Returns when the job manager has missed it."""
        assert self._task_manager is not None
        self._task_manager.kill()
        self._task_manager = None
        deadline = time.monotonic() + 60
        while self.rest.task_managers() > 0:
            assert time.monotonic() < deadline, "the job manager did not notice that its task manager is gone"
            time.sleep(0.2)


class Cluster:
    """Job manager, task manager, job server and a pool of Python workers, each of them processes of their own."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.folder = folder
        self.flink = FlinkCluster(folder)
        try:
            self.server = flink.JobServer(self.flink.address, folder=folder / "server")
            self.pool = flink.WorkerPool(log_path=folder / "pool.log", env={"PYTHONPATH": str(ROOT)})
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        for name in ("pool", "server", "flink"):
            if hasattr(self, name):
                getattr(self, name).stop()

    def options(self, **changes: object) -> list[str]:
        arguments: dict = {
            "checkpointing_interval_seconds": 1,
            "checkpoint_timeout_seconds": 25,
            "worker_address": self.pool.address,
            **changes,
        }
        return flink.options(self.server.endpoint, **arguments)

    def newest_job(self, known: set[str]) -> str:
        """The id of the job that is not among ``known``, once it runs."""
        deadline = time.monotonic() + 180
        while True:
            new = [job for job in self.flink.rest.jobs() if job.job_id not in known]
            if new and new[0].state == "RUNNING":
                return new[0].job_id
            if time.monotonic() > deadline:
                raise TimeoutError(f"no new job runs after 180 s: {new}")
            time.sleep(0.1)

    def job_ids(self) -> set[str]:
        return {job.job_id for job in self.flink.rest.jobs()}

    def kill_worker(self) -> None:
        """SIGKILL to the Python workers that run now, or as soon as one does."""
        deadline = time.monotonic() + 180
        while not (pids := flink_cluster.worker_pids(self.pool)):
            if time.monotonic() > deadline:
                raise TimeoutError("no Python worker runs after 180 s.")
            time.sleep(0.05)
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def kill_task_manager(self) -> None:
        """SIGKILL, and a new one as soon as it is missed."""
        self.flink.kill_task_manager()
        self.flink.start_task_manager()

    def operator_numbers(self, job: str) -> dict[str, int]:
        """Counters and gauges of the product as Flink's own metrics show them."""
        counters, gauges = counts_and_gauges(self.flink.rest.beam_metrics(job, NAMESPACE))
        return {**counters, **gauges}

    def cancel(self, job: str) -> None:
        """Ends the job, whatever it is doing."""
        self.flink.rest.cancel(job)
        self.flink.rest.wait_for_state(job, ["CANCELED", "FAILED", "FINISHED"])

    def log_files(self) -> list[pathlib.Path]:
        return [path for path in self.folder.rglob("*") if path.is_file() and path.suffix in (".log", ".out")]


@pytest.fixture(scope="session")
def cluster(tmp_path_factory) -> Iterator[Cluster]:
    _skip_without("flink")
    engines = Cluster(tmp_path_factory.mktemp("cluster"))
    yield engines
    engines.stop()
