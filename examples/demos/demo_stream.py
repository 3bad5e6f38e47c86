"""``make demo-stream``: a stream on real engines: Kafka, Flink in two processes, `shh stream`, and a worker that is
killed during the run. It takes about 90 seconds and leaves no process behind."""

from __future__ import annotations

import contextlib
import datetime
import pathlib
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from rich.console import Console

from dp_transforms.core.window_report import WindowReport
from dp_transforms.reports.report_records import RunEnded
from dp_transforms.reports.topic_records import decode_record
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
from examples.engines.kafka_server import KafkaServer, StoredRecord

_FOLDER = pathlib.Path("demo") / "stream"
_STREAM = LiveStream(events_per_second=1500, users=60_000, partitions=2)
_WINDOWS, _WINDOW_SECONDS = 6, 10
_START_IN_SECONDS = 15  # about when Flink has taken the job; later on a machine that takes long to start the engines
_KILL_AFTER_SECONDS = 24  # of the declared range: within the third window
_PATIENCE_SECONDS = 180  # beyond the end of the declared range


class Outcome(NamedTuple):
    """What the topic of reports holds at the end. reported: windows with a report. named: items in all of them.
    windows: how many were closed, None if the run did not end; contradictions: records of one window that differ;
    repeats: records that are there twice."""

    reported: int
    named: int
    windows: int | None
    contradictions: int
    repeats: int


def outcome(records: Sequence[StoredRecord]) -> Outcome:
    """records: all of one run, also those of aborted transactions."""
    by_key: dict[bytes | None, list[bytes]] = defaultdict(list)
    for record in records:
        by_key[record.key].append(record.value)
    decoded = [decode_record(values[0])[1] for values in by_key.values()]
    ends = [record for record in decoded if isinstance(record, RunEnded)]
    reports = [record for record in decoded if isinstance(record, WindowReport)]
    return Outcome(
        len(reports),
        sum(len(report.heavy_hitters) for report in reports),
        ends[0].windows if ends else None,
        sum(len(set(values)) - 1 for values in by_key.values()),
        sum(len(values) - len(set(values)) for values in by_key.values()),
    )


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
        kafka.create_topic("reports")
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
    lines = (
        ["stream", "--input", f"kafka://{kafka.bootstrap}/clicks", "--output", f"kafka://{kafka.bootstrap}/reports"],
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
        _kill_worker(console, kafka, cluster, pool, shh, start + _KILL_AFTER_SECONDS)
        while shh.poll() is None and time.time() < end + _PATIENCE_SECONDS:
            writer.check()
            time.sleep(0.2)
        code = shh.poll()
    restarts = len(cluster.rest.failures(cluster.rest.jobs()[0].job_id))
    return _tell(console, outcome(kafka.records("reports", committed=False)), code, restarts, writer.written)


def _kill_worker(
    console: Console,
    kafka: KafkaServer,
    cluster: FlinkCluster,
    pool: WorkerPool,
    shh: subprocess.Popen[bytes],
    at_seconds: float,
) -> None:
    """SIGKILL at this time, or as soon as there is a report to keep and a checkpoint to restart from."""
    while shh.poll() is None:
        if time.time() >= at_seconds and _has_checkpoint(cluster) and outcome(kafka.records("reports")).reported:
            kill_workers(console, pool)
            return
        time.sleep(0.5)


def _has_checkpoint(cluster: FlinkCluster) -> bool:
    """Not while Flink cannot tell: on a busy machine it starts a job for some seconds."""
    try:
        jobs = cluster.rest.jobs()
        return bool(jobs) and cluster.rest.completed_checkpoints(jobs[0].job_id) > 0
    except EngineError:
        return False


def _tell(console: Console, found: Outcome, code: int | None, restarts: int, written: int) -> int:
    checks = (
        (code == 0 and found.windows == _WINDOWS, f"The run ended, with all {_WINDOWS} windows closed."),
        (
            found.reported > 0,
            f"{found.reported} windows were answered with {found.named} items, from about {written:,} clicks.",
        ),
        (
            found.contradictions == 0,
            f"No window has two different answers ({found.repeats} records were written again with the same bytes; "
            "aborted transactions are counted).",
        ),
        (restarts > 0, f"Flink restarted the job {restarts} times, from a checkpoint: the worker was killed."),
    )
    return print_checks(console, checks)


def _utc(seconds: int) -> str:
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


if __name__ == "__main__":
    sys.exit(demo())
