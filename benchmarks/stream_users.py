"""How much state, memory and time a stream on Flink takes for so many users, all of them seen in its first window.

The real command, a cluster of two processes with a task heap of 1 GB, state on the heap or in RocksDB. After the first
window small ones follow, of a thousand of the users each: what is measured is what the others cost there. Also one of
the hundred shards of a hundred million users, and what many shards cost by themselves.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from rich.console import Console

from benchmarks.report import Figure, show_figures, write_results
from benchmarks.stream_samples import Sampler, cpu_between
from dp_transforms.beam.set_up_workers import NAMESPACE
from dp_transforms.monitor.operator_counts import PURSE_STATE_BYTES, counts_and_gauges
from examples.engines.engine_process import EngineError, engine_file, java
from examples.engines.flink import JOB_SERVER_JAR, WorkerPool
from examples.engines.flink_cluster import FLINK_LIBRARIES, FlinkCluster

_CASES = (  # users, where their state is, shards
    (100_000, "rocksdb", 4),
    (1_000_000, "rocksdb", 4),
    (10_000_000, "rocksdb", 10),
    (10_000_000, "rocksdb", 4),
    (10_000_000, "hashmap", 4),
    (1_000_000, "rocksdb", 1),
    (100_000, "rocksdb", 160),
    (100_000, "rocksdb", 1000),
)
_QUICK_CASES = ((10_000, "rocksdb", 4),)
_ENGINE = ("task manager", "Python worker")
_START = 1_767_225_600  # 2026-01-01
_HOUR = 3600
_SMALL_WINDOWS, _SMALL_USERS = 5, 1_000
_HEAP_MEGABYTES = 1024
_PATIENCE_SECONDS = 600.0
_SECONDS_OF_METRICS = 20.0  # Flink shows them so late


def run(*, quick: bool = False) -> list[Figure]:
    try:
        java()
        for name in (FLINK_LIBRARIES, JOB_SERVER_JAR):
            engine_file(name, "flink")
    except EngineError as error:
        Console(stderr=True).print(f"stream_users is left out: {error}")
        return []
    figures: list[Figure] = []
    for case in _QUICK_CASES if quick else _CASES:
        figures += _measured(*case)
    show_figures("State of a stream on Flink", figures)
    write_results("stream_users", figures)
    return figures


def _measured(users: int, backend: str, shards: int) -> list[Figure]:
    label = f"{users:,} users, {backend}, {shards} shards"
    with tempfile.TemporaryDirectory(prefix="shh_stream_users_") as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        for part in ("logs", "flink"):
            (folder / part).mkdir()
        cluster = FlinkCluster(folder / "flink", 2, task_heap_megabytes=_HEAP_MEGABYTES, state_backend=backend)
        stack.enter_context(cluster)
        pool = stack.enter_context(WorkerPool(log_path=folder / "workers.log"))
        stream = stack.enter_context(_stream(folder, cluster, pool, shards))
        sampler = stack.enter_context(Sampler(lambda: None))
        took = []
        _write(folder, 0, np.arange(users))
        began = 0.0
        for window in range(1, _SMALL_WINDOWS + 1):
            if not _is_reported(folder, window - 1, stream):
                return [Figure(f"{label}: fails", cluster.rest.restarts(cluster.rest.jobs()[0].job_id), "restarts")]
            begin, began = time.monotonic(), began or time.time()
            _write(folder, window, np.arange(_SMALL_USERS) * (users // _SMALL_USERS))
            _is_reported(folder, window, stream)
            took.append(time.monotonic() - begin)
        ended = time.time()
        time.sleep(_SECONDS_OF_METRICS)
        job = cluster.rest.jobs()[0].job_id
        _, gauges = counts_and_gauges(cluster.rest.beam_metrics(job, NAMESPACE))
        checkpoint = cluster.rest.checkpoints(job)["latest"]["completed"]["state_size"]
        heap = cluster.rest.fullest_heap() or 0
    peaks = {role: max(s.rss_bytes.get(role, 0) for s in sampler.samples) for role in _ENGINE}
    cpus, _ = cpu_between(sampler.samples, began, ended)
    of_window = sum(cpus.get(role, 0) for role in _ENGINE) * (ended - began) / _SMALL_WINDOWS
    return [
        Figure(f"{label}: purses of a shard", gauges[PURSE_STATE_BYTES] / 1e6, "MB"),
        Figure(f"{label}: a window of {_SMALL_USERS:,} users", statistics.median(took), "s"),
        Figure(f"{label}: CPU of such a window", of_window, "s"),
        Figure(f"{label}: newest checkpoint", checkpoint / 1e6, "MB"),
        Figure(f"{label}: heap at the end", heap * (_HEAP_MEGABYTES + 64), "MB"),
        *(Figure(f"{label}: peak of the {role}", peak / 1e6, "MB") for role, peak in peaks.items()),
    ]


@contextlib.contextmanager
def _stream(folder: Path, cluster: FlinkCluster, pool: WorkerPool, shards: int) -> Iterator[subprocess.Popen[bytes]]:
    key = os.open(folder / "noise.key", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with open(key, "wb") as file:
        file.write(secrets.token_bytes(32))
    words = [sys.executable, "-m", "dp_transforms.cli.main", "stream", "--input", str(folder / "logs")]
    words += [
        "--time-unit",
        "s",
        "--clock",
        "event",
        "--allowed-lateness",
        "0s",
        "--out-of-order",
        "0s",
        "--idle-timeout",
        "1d",
    ]
    words += ["--start", "2026-01-01", "--end", "2026-02-01", "--window", "1h", "--epsilon", "2", "--delta", "1e-9"]
    words += ["--noise-key-file", str(folder / "noise.key"), "--output", str(folder / "reports")]
    words += ["--engine", "flink", "--flink-master", cluster.address, "--worker-pool", pool.address]
    words += ["--parallelism", "2", "--checkpoint-interval", "5s", "--shards", str(shards)]
    with open(folder / "stream.log", "wb") as log:
        process = subprocess.Popen(words, stdout=log, stderr=log)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def _write(folder: Path, window: int, users: np.ndarray) -> None:
    """The events of a window, and one of the next, which closes it."""
    times = np.full(len(users) + 1, _START + window * _HOUR)
    times[-1] += _HOUR + 1
    ids = pa.array(np.append(users, 0)).cast(pa.string())
    table = {"user": ids, "item": pa.array(["news"] * len(times)).dictionary_encode(), "timestamp": pa.array(times)}
    pq.write_table(pa.table(table), folder / "writing")
    os.rename(folder / "writing", folder / "logs" / f"{window}.parquet")


def _is_reported(folder: Path, window: int, stream: subprocess.Popen[bytes]) -> bool:
    """Waits for it. False if the stream ends or takes too long."""
    name = time.strftime("%Y-%m-%dT%H", time.gmtime(_START + window * _HOUR))
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while not any(name in path.name for path in (folder / "reports").glob("*")):
        if time.monotonic() > deadline or stream.poll() is not None:
            return False
        time.sleep(0.05)
    return True
