"""``make demo-stream``: a stream on real engines: Kafka, Flink in two processes, `shh stream`, and a worker that is
killed during the run. It takes about 90 seconds and leaves no process behind."""

from __future__ import annotations

import contextlib
import datetime
import pathlib
import subprocess
import sys
import time

from rich.console import Console

from dp_transforms.reports import ReportFolder
from examples.demos.demo import (
    fresh_folder,
    kill_workers,
    make_noise_key,
    print_checks,
    print_command,
    run_demo,
    shh_words,
    started,
)
from examples.demos.simulated_stream import LiveStream, LiveStreamWriter
from examples.engines.engine_process import EngineError
from examples.engines.flink import WorkerPool
from examples.engines.flink_cluster import FlinkCluster
from examples.engines.kafka_server import KafkaServer

_FOLDER = pathlib.Path("demo") / "stream"
_STREAM = LiveStream(events_per_second=1500, users=60_000, partitions=2)
_WINDOWS, _WINDOW_SECONDS = 6, 10
_START_IN_SECONDS = 15  # about when Flink has taken the job; later on a machine that takes long to start the engines
_KILL_AFTER_SECONDS = 24  # of the declared range: within the third window
_PATIENCE_SECONDS = 180  # beyond the end of the declared range


def demo() -> int:
    """Starts from nothing: what an earlier demo made is removed. Returns the exit code."""
    return run_demo(_demo)


def _demo(console: Console) -> int:
    _FOLDER.parent.mkdir(exist_ok=True)
    fresh_folder(_FOLDER)
    for part in ("kafka", "flink"):
        (_FOLDER / part).mkdir()
    folder, begin = _FOLDER.resolve(), time.monotonic()
    with contextlib.ExitStack() as stack:
        console.print("Starting Kafka ...")
        kafka = stack.enter_context(KafkaServer(folder / "kafka"))
        console.print("Starting Flink: a job manager, a task manager, and a pool of Python workers ...")
        cluster = stack.enter_context(FlinkCluster(folder / "flink"))
        pool = stack.enter_context(WorkerPool(log_path=folder / "workers.log"))
        kafka.create_topic("clicks", _STREAM.partitions)
        writer = stack.enter_context(LiveStreamWriter(_STREAM, kafka.bootstrap, "clicks"))
        console.print(f"{_STREAM.events_per_second:,} simulated clicks a second go to the topic clicks from now on.")
        # Otherwise all windows are over when the job begins, and are answered at once: there is nothing to kill.
        start_in = max(_START_IN_SECONDS, 2 * (time.monotonic() - begin))
        return _run(console, kafka, cluster, pool, writer, int(time.time() + start_in))


def _run(
    console: Console, kafka: KafkaServer, cluster: FlinkCluster, pool: WorkerPool, writer: LiveStreamWriter, start: int
) -> int:
    make_noise_key(console, _FOLDER / "noise.key")
    end = start + _WINDOWS * _WINDOW_SECONDS
    reports = _FOLDER / "reports"
    lines = (
        ["stream", "--input", f"kafka://{kafka.bootstrap}/clicks", "--output", str(reports)],
        [
            "--start",
            _utc(start),
            "--end",
            _utc(end),
            "--window",
            f"{_WINDOW_SECONDS}s",
            "--allowed-lateness",
            "1s",
            "--out-of-order",
            "1s",
        ],
        ["--epsilon", "2", "--delta", "1e-9", "--noise-key-file", str(_FOLDER / "noise.key")],
        ["--runner=FlinkRunner", f"--flink_master={cluster.address}", "--checkpointing_interval=2000"],
        ["--environment_type=EXTERNAL", f"--environment_config={pool.address}"],
    )
    print_command(console, "shh " + " \\\n      ".join(" ".join(words) for words in lines))
    with started(shh_words(*(word for words in lines for word in words))) as shh:
        before = _kill_worker(console, reports, cluster, pool, shh, start + _KILL_AFTER_SECONDS)
        while shh.poll() is None and time.time() < end + _PATIENCE_SECONDS:
            writer.check()
            time.sleep(0.2)
        code = shh.poll()
    restarts = len(cluster.rest.failures(cluster.rest.jobs()[0].job_id))
    return _tell(console, reports, before, code, restarts, writer.written)


def _kill_worker(
    console: Console,
    reports: pathlib.Path,
    cluster: FlinkCluster,
    pool: WorkerPool,
    shh: subprocess.Popen[bytes],
    at_seconds: float,
) -> dict[str, bytes]:
    """SIGKILL at this time, or as soon as there is a report to keep and a checkpoint to restart from. Returns the
    reports that were there."""
    while shh.poll() is None:
        if time.time() >= at_seconds and _has_checkpoint(cluster) and (before := _files_of(reports)):
            kill_workers(console, pool)
            return before
        time.sleep(0.5)
    return {}


def _files_of(reports: pathlib.Path) -> dict[str, bytes]:
    """Of windows, by name."""
    return {path.name: path.read_bytes() for path in reports.glob("*Z-*.jsonl")}


def _has_checkpoint(cluster: FlinkCluster) -> bool:
    """Not while Flink cannot tell: on a busy machine it starts a job for some seconds."""
    try:
        jobs = cluster.rest.jobs()
        return bool(jobs) and cluster.rest.completed_checkpoints(jobs[0].job_id) > 0
    except EngineError:
        return False


def _tell(
    console: Console, reports: pathlib.Path, before: dict[str, bytes], code: int | None, restarts: int, written: int
) -> int:
    """before: the reports that were there when the worker was killed."""
    _, found, ended = ReportFolder(str(reports)).read()
    named = sum(len(report.heavy_hitters) for report in found)
    has_ended = code == 0 and ended is not None and ended.windows == _WINDOWS
    checks = (
        (has_ended, f"The run ended, with all {_WINDOWS} windows closed."),
        (len(found) > 0, f"{len(found)} windows were answered with {named} items, from about {written:,} clicks."),
        (
            before.items() <= _files_of(reports).items(),
            f"The {len(before)} answers of before the kill are the same to the last byte.",
        ),
        (restarts > 0, f"Flink restarted the job {restarts} times, from a checkpoint: the worker was killed."),
    )
    return print_checks(console, checks)


def _utc(seconds: int) -> str:
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


if __name__ == "__main__":
    sys.exit(demo())
