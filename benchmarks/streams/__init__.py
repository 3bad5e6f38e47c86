"""What a stream on Flink costs at a given rate of events, with Kafka, the producer and everything on this machine.

Everything is the real command: `shh stream` on Flink, with a cluster of two processes. The delay of a window: from its
end and the declared lateness, after which no event can count for it, until its report is in the folder of reports.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import secrets
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.processes import COMMAND
from benchmarks.report import Figure, show_figures, write_results
from benchmarks.streams.samples import Repeated, Sample, cpu_of, median_memory, percentile, take_sample
from dp_transforms.plan.window_schedule import WindowSchedule, format_utc
from examples.engines.engine_process import EngineError, engine_file, java
from examples.engines.flink import JOB_SERVER_JAR, WorkerPool
from examples.engines.flink_cluster import FLINK_LIBRARIES, FlinkCluster
from examples.engines.kafka_server import KAFKA_LIBRARIES, KafkaServer

_WINDOW_SECONDS = 10
_LATENESS_SECONDS = 1
_PARTITIONS = 2
_SECONDS_TO_START = 50
_SECONDS_AFTER_END = 20
_LATE_SECONDS = 5.0  # a delay of more says that the rate is not kept
_TOPIC = "events"


@dataclasses.dataclass(frozen=True)
class Load:
    """One run. delays: in seconds, by window; inf: no report came. samples: from the first event to the last."""

    delays: list[float]
    samples: list[Sample]


def run(*, rate: int, minutes: float) -> list[Figure]:
    """rate: events per second."""
    try:
        java()
        for name in (KAFKA_LIBRARIES, FLINK_LIBRARIES, JOB_SERVER_JAR):
            engine_file(name)
    except EngineError as error:
        print(f"streams is left out: {error}", file=sys.stderr)
        return []
    print(f"{rate:,} events/s for {minutes:g} minutes ...", file=sys.stderr)
    with tempfile.TemporaryDirectory(prefix="shh_streams_") as folder:
        load = _load(Path(folder), rate, max(1, round(minutes * 60 / _WINDOW_SECONDS)))
    figures = _figures(load)
    show_figures(f"Stream on Flink, {rate:,} events/s for {minutes:g} minutes", figures)
    samples = [dataclasses.asdict(sample) for sample in load.samples]
    write_results("streams", figures, rate=rate, delays=load.delays, samples=samples)
    return figures


def _load(folder: Path, rate: int, windows: int) -> Load:
    """One run of `shh stream` under so many events a second. Stops early where reports stay away.

    Raises RuntimeError if a program fails.
    """
    reports = folder / "reports"
    with contextlib.ExitStack() as stack:
        for part in ("kafka", "flink"):
            (folder / part).mkdir()
        kafka = stack.enter_context(KafkaServer(folder / "kafka"))
        cluster = stack.enter_context(FlinkCluster(folder / "flink"))
        pool = stack.enter_context(WorkerPool(log_path=folder / "workers.log"))
        kafka.create_topic(_TOPIC, _PARTITIONS)
        start = int(time.time()) + _SECONDS_TO_START
        schedule = WindowSchedule.fixed(start, start + windows * _WINDOW_SECONDS, _WINDOW_SECONDS)
        engine = (
            *("--runner=FlinkRunner", f"--flink_master={cluster.address}"),
            *("--environment_type=EXTERNAL", f"--environment_config={pool.address}"),
            *("--state_backend=filesystem", f"--state_backend_storage_path={(folder / 'checkpoints').as_uri()}"),
        )
        source = f"kafka://{kafka.bootstrap}/{_TOPIC}"
        stream = (COMMAND, "stream", "--input", source, *_options(folder, schedule), "--output", str(reports), *engine)
        # Behind the end something must still move the clocks of the partitions.
        steps = (f"{rate}:{windows * _WINDOW_SECONDS}", f"200:{_SECONDS_AFTER_END}")
        words = (kafka.bootstrap, _TOPIC, str(_PARTITIONS), str(float(start)), *steps)
        shh = stack.enter_context(_started(folder / "shh.log", *stream))
        producer = stack.enter_context(_started(folder / "producer.log", "benchmarks.streams.producer", *words))
        samples: list[Sample] = []
        arrivals: dict[int, float] = {}
        stack.enter_context(Repeated(lambda: samples.append(take_sample(_checkpoint_bytes(cluster))), 2.0))
        stack.enter_context(Repeated(lambda: _note_arrivals(reports, schedule, arrivals), 0.05))
        while shh.poll() is None and time.time() < schedule.end_seconds + 60:
            due = (time.time() - start - 4 * _LATE_SECONDS) // _WINDOW_SECONDS
            if producer.poll() or min(due, windows) - len(arrivals) > 1:
                break
            time.sleep(0.5)
        for process, name in ((shh, "shh"), (producer, "producer")):
            if process.poll():
                raise RuntimeError(f"{name} failed: {(folder / f'{name}.log').read_text()[-1500:]}")
        for job in cluster.rest.jobs():
            with contextlib.suppress(EngineError):
                cluster.rest.cancel(job.job_id)
    closes = [start + (window + 1) * _WINDOW_SECONDS + _LATENESS_SECONDS for window in range(windows)]
    delays = [arrivals.get(window, math.inf) - moment for window, moment in enumerate(closes)]
    return Load(delays, [sample for sample in samples if start <= sample.at_seconds <= schedule.end_seconds])


def _options(folder: Path, schedule: WindowSchedule) -> tuple[str, ...]:
    key = os.open(folder / "noise.key", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with open(key, "wb") as file:
        file.write(secrets.token_bytes(32))
    start, end = (format_utc(seconds * 1_000_000) for seconds in (schedule.start_seconds, schedule.end_seconds))
    return (
        *("--time-format", "ms", "--start", start, "--end", end, "--window", f"{_WINDOW_SECONDS}s"),
        *("--epsilon", "2", "--delta", "1e-9", "--charge", "hits", "--noise-key-file", str(folder / "noise.key")),
        *("--allowed-lateness", f"{_LATENESS_SECONDS}s", "--out-of-order", "0s"),
    )


@contextlib.contextmanager
def _started(log: Path, module: str, *words: str) -> Iterator[subprocess.Popen[bytes]]:
    """A program whose output goes to a log; it is killed at the end of the block."""
    with open(log, "ab") as file:
        process = subprocess.Popen([sys.executable, "-m", module, *words], stdout=file, stderr=file)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def _checkpoint_bytes(cluster: FlinkCluster) -> int:
    """Of the newest complete one of the newest job."""
    try:
        jobs = cluster.rest.jobs()
        newest = cluster.rest.checkpoints(jobs[0].job_id)["latest"]["completed"] if jobs else None
    except EngineError:
        return 0
    return int(newest["state_size"]) if newest else 0


def _note_arrivals(reports: Path, schedule: WindowSchedule, arrivals: dict[int, float]) -> None:
    """When the report of each window is first there. Files are named by the start of their window."""
    for window in range(schedule.horizon):
        if window not in arrivals:
            name = format_utc(schedule.window_start_micros(window)).replace(":", "")
            if any(reports.glob(f"{name}-*.jsonl")):
                arrivals[window] = time.time()


def _figures(load: Load) -> list[Figure]:
    third = max(1, len(load.delays) // 3)
    early, late = (statistics.median(part) for part in (load.delays[:third], load.delays[-third:]))
    cpu, others = cpu_of(load.samples)
    checkpoints = max((sample.checkpoint_bytes for sample in load.samples), default=0)
    last = load.samples[-len(load.samples) // 3 :]
    figures = [
        Figure("Delay, p50", percentile(load.delays, 0.5), "s", None, "from window end and lateness to the report"),
        Figure("Delay, p99", percentile(load.delays, 0.99), "s", ("<=", _LATE_SECONDS)),
        Figure("Delay, last third / first third", late / early, "", ("<=", 1.5), f"{late:.2f} s / {early:.2f} s"),
        Figure("Checkpoint, largest", checkpoints / 1e6, "MB"),
        Figure("CPU of other programs", others, "CPUs", None, "should be near 0; else the figures are too high"),
    ]
    for name in ("Python worker", "task manager", "job manager", "job server", "Kafka", "producer", "shh stream"):
        note = f"{cpu.get(name, math.nan):.2f} CPUs"
        figures.append(Figure(f"Memory of {name}, last third", median_memory(last, name) / 1e6, "MB", None, note))
    return figures
