"""A Flink cluster of two real Java processes, and the Python workers of its pool."""

from __future__ import annotations

import contextlib
import os
import pathlib
import types
from collections.abc import Mapping, Sequence
from typing import Self

import psutil

from examples.engines import flink
from examples.engines.engine_process import EngineError, EngineProcess, engine_file, free_ports, java
from examples.engines.flink_rest import FlinkRest

FLINK_LIBRARIES = f"flink-{flink.FLINK_RELEASE}/.made"  # `make engines` puts it there last, beside the folder lib
_START_SECONDS = 120.0
_ANSWER_SECONDS = 30.0
CONFIG: dict[str, str | int] = {
    # On disk: on the heap there is room for a few million users (docs/deploy.md).
    "state.backend.type": "rocksdb",
    "state.backend.incremental": "true",
    "restart-strategy.type": "fixed-delay",
    "restart-strategy.fixed-delay.attempts": 1000,
    "restart-strategy.fixed-delay.delay": "1s",
    # A task manager that was killed misses the second heartbeat, after 2 s. One that only waits, as on a busy machine,
    # gets more time.
    "heartbeat.interval": 1000,
    "heartbeat.timeout": 20_000,
}
"""How a cluster must treat a stream; runners/kubernetes has the same."""
_FRAMEWORK_HEAP_MEGABYTES = 64
# Flink's scripts would derive these from one figure; without the scripts each must be given.
_TASK_MANAGER_MEMORY = {
    "taskmanager.memory.framework.heap.size": f"{_FRAMEWORK_HEAP_MEGABYTES}mb",
    "taskmanager.memory.framework.off-heap.size": "96mb",
    "taskmanager.memory.managed.size": "128mb",
    "taskmanager.memory.network.min": "64mb",
    "taskmanager.memory.network.max": "64mb",
    "taskmanager.memory.network.fraction": "0.1",
    # Some exchanges of a replay are blocking, and each of these would reserve 512 of the 2,048 buffers.
    "taskmanager.network.sort-shuffle.min-buffers": "64",
    "taskmanager.memory.jvm-metaspace.size": "192mb",
    "taskmanager.memory.jvm-overhead.min": "128mb",
    "taskmanager.memory.jvm-overhead.max": "128mb",
}
_OTHER_DIRECT_MEGABYTES = 224  # of the framework and the network, and some more
_LOGGING = """rootLogger.level = INFO
rootLogger.appenderRef.console.ref = Console
appender.console.name = Console
appender.console.type = CONSOLE
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{HH:mm:ss,SSS} %-5p %c{1} - %m%n
"""


class FlinkCluster:
    """Job manager and task manager on free ports; logs, checkpoints and savepoints below `folder`.

    `rest` asks the job manager; `address` is the master for `examples.engines.flink.JobServer`.
    task_heap_megabytes, task_direct_megabytes: memory of all tasks of the task manager; replays of large logs need more
        (docs/engines.md). state_backend: hashmap keeps all state on the heap. settings: more of Flink's.
    """

    def __init__(
        self,
        folder: pathlib.Path,
        slots: int = 4,
        *,
        task_heap_megabytes: int = 384,
        task_direct_megabytes: int = 64,
        state_backend: str = "rocksdb",
        settings: Mapping[str, str] = types.MappingProxyType({}),
    ) -> None:
        self._task_megabytes = (task_heap_megabytes, task_direct_megabytes)
        self.folder = folder
        self.checkpoints = folder / "checkpoints"
        self.savepoints = folder / "savepoints"
        self._slots = slots
        self._java = java()
        self._libraries = engine_file(FLINK_LIBRARIES).parent / "lib"
        self._task_manager: EngineProcess | None = None
        for part in ("conf", "tmp", "checkpoints", "savepoints"):
            (folder / part).mkdir(parents=True, exist_ok=True)
        rest_port, rpc_port = free_ports(2)
        self.address = f"localhost:{rest_port}"
        self.rest = FlinkRest(self.address, _ANSWER_SECONDS)
        flink.write_flink_config(
            folder / "conf",
            {
                **flink.ON_LOOPBACK,
                **CONFIG,
                "state.backend.type": state_backend,
                "cluster.io-pool.size": 4,
                "jobmanager.rpc.port": rpc_port,
                "rest.port": rest_port,
                "taskmanager.numberOfTaskSlots": slots,
                "state.checkpoints.dir": self.checkpoints.resolve().as_uri(),
                "state.savepoints.dir": self.savepoints.resolve().as_uri(),
                "io.tmp.dirs": str(folder / "tmp"),
                **settings,
            },
        )
        (folder / "conf" / "log4j.properties").write_text(_LOGGING)
        self._job_manager = self._start(
            "org.apache.flink.runtime.entrypoint.StandaloneSessionClusterEntrypoint", "job_manager", 512
        )
        try:
            self._job_manager.wait_until(self.rest.is_up, _START_SECONDS)
            self.start_task_manager()
        except BaseException:
            self.stop()
            raise

    def _start(self, main_class: str, name: str, heap_megabytes: int, arguments: Sequence[str] = ()) -> EngineProcess:
        conf = self.folder / "conf"
        direct = self._task_megabytes[1] + _OTHER_DIRECT_MEGABYTES
        command = [self._java, f"-Xmx{heap_megabytes}m", f"-XX:MaxDirectMemorySize={direct}m"]
        command += [
            "-XX:+ExitOnOutOfMemoryError",  # else it stays, half dead
            f"-Dlog4j.configurationFile={conf / 'log4j.properties'}",
            *flink.JAVA_FLAGS,
            "-cp",
            f"{self._libraries}{os.sep}*",
            main_class,
        ]
        command += ["--configDir", str(conf), *arguments]
        return EngineProcess(command, self.folder / f"{name}.log", {"FLINK_CONF_DIR": str(conf)})

    def start_task_manager(self) -> None:
        """Starts it and waits until its slots can be used. Raises EngineError if one runs already."""
        if self._task_manager is not None:
            raise EngineError("the task manager runs already. Kill it first.")
        heap, direct = self._task_megabytes
        settings = {
            **_TASK_MANAGER_MEMORY,
            "taskmanager.memory.task.heap.size": f"{heap}mb",
            "taskmanager.memory.task.off-heap.size": f"{direct}mb",
            "taskmanager.cpu.cores": "2",
        }
        arguments = [word for key, value in settings.items() for word in ("-D", f"{key}={value}")]
        main_class = "org.apache.flink.runtime.taskexecutor.TaskManagerRunner"
        self._task_manager = self._start(main_class, "task_manager", heap + _FRAMEWORK_HEAP_MEGABYTES, arguments)
        known = self.rest.task_managers()
        self._task_manager.wait_until(lambda: self.rest.task_managers() > known, _START_SECONDS)

    def stop(self) -> None:
        """Ends both processes."""
        if self._task_manager is not None:
            self._task_manager.stop()
            self._task_manager = None
        self._job_manager.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def worker_pids(pool: flink.WorkerPool) -> list[int]:
    """Process ids of the Python workers that run now."""
    found = []
    for child in psutil.Process(pool.process.pid).children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):  # it ended in the meantime
            if child.status() != psutil.STATUS_ZOMBIE and "SdkHarness" in " ".join(child.cmdline()):
                found.append(child.pid)
    return found
