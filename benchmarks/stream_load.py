"""The highest rate that Flink sustains with Kafka, the producer and everything on this machine, and what it costs.

First the rate rises step by step, until reports come late. Then the highest rate that was kept is held for minutes, by
a second run; if reports come late in it, the next lower one. Everything is the real command: `shh stream` on Flink,
with a cluster of two processes. The delay of a window: from its end and the declared lateness, after which no event can
count for it, until its report is in the folder of reports.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import json
import math
import os
import secrets
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from rich.console import Console

from benchmarks import stream_samples
from benchmarks.processes import OUTPUT, run_measured
from benchmarks.report import Figure, show_figures, write_results
from benchmarks.stream_samples import Sample, Sampler, percentile
from dp_transforms.core.contribution_counters import HitEntries
from examples.engines.engine_process import EngineError, engine_file, java
from examples.engines.flink import JOB_SERVER_JAR, WorkerPool
from examples.engines.flink_cluster import FLINK_LIBRARIES, FlinkCluster
from examples.engines.kafka_server import KAFKA_LIBRARIES, KafkaServer

_RATES = (20_000, 40_000, 60_000, 80_000, 100_000, 125_000, 150_000, 200_000)
_QUICK_RATES = (20_000, 60_000, 100_000)
_WINDOW_SECONDS = 10
_LATENESS_SECONDS = 1
_STEP_SECONDS = 20
_PARTITIONS = 2
_SECONDS_TO_START = 50
_SECONDS_AFTER_END = 20
_LATE_SECONDS = 5.0  # a delay of more says that the rate is not kept
_PEER_EVENTS = 5_000_000
_BUDGET = ("--epsilon", "2", "--delta", "1e-9", "--charge", "hits")
_CHARGED_USERS = 100_000


@dataclasses.dataclass(frozen=True)
class Engines:
    """folder: of logs, checkpoints and the key."""

    kafka: KafkaServer
    cluster: FlinkCluster
    pool: WorkerPool
    folder: Path

    def newest_checkpoint(self) -> tuple[int, float, int] | None:
        """Bytes, seconds and number of the newest one of the newest job."""
        try:
            jobs = self.cluster.rest.jobs()
            newest = self.cluster.rest.checkpoints(jobs[0].job_id)["latest"]["completed"] if jobs else None
        except EngineError:
            return None
        if newest is None:
            return None
        return int(newest["state_size"]), newest["end_to_end_duration"] / 1000, int(newest["id"])


@dataclasses.dataclass(frozen=True)
class LoadRun:
    """start_seconds: of the declared range, since 1970. delays: by window, in seconds. producer: what it printed."""

    start_seconds: int
    topic: str
    delays: list[float]
    samples: list[Sample]
    producer: dict[str, float]


def run(*, quick: bool = False, minutes: float = 10.0, rates: Sequence[int] = ()) -> list[Figure]:
    """rates: to try, rising; those of this module if none are given. A single one is held without a search."""
    minutes = min(minutes, 0.5) if quick else minutes
    console = Console(stderr=True)
    try:
        java()
        for name in (KAFKA_LIBRARIES, FLINK_LIBRARIES, JOB_SERVER_JAR):
            engine_file(name)
    except EngineError as error:
        console.print(f"stream_load is left out: {error}")
        return []
    with _engines() as engines:
        kept, search = _kept_rates(engines, rates or (_QUICK_RATES if quick else _RATES), console)
        for rate in reversed(kept):
            console.print(f"Holding {rate:,} events/s for {minutes:g} minutes ...")
            hold = load(engines, f"hold-{rate}", [(rate, int(minutes * 60 / _WINDOW_SECONDS) * _WINDOW_SECONDS)])
            if stream_samples.sustained([hold.delays], _LATE_SECONDS):
                break
            console.print(f"  reports came after up to {max(hold.delays):.1f} s.")
        console.print("Peers: a bare consumer, and shh replay ...")
        consumer_rate, replay_rate, peer_events = _peers(engines, hold)
    figures = _figures(rate, minutes, hold, consumer_rate, replay_rate, peer_events)
    if quick:
        figures = [dataclasses.replace(figure, target=None) for figure in figures]
    show_figures(f"Stream on Flink, {rate:,} events/s for {minutes:g} minutes", figures)
    write_results(
        "stream_load",
        figures,
        rate=rate,
        search=search,
        delays=hold.delays,
        samples=[dataclasses.asdict(sample) for sample in hold.samples],
        producer=hold.producer,
    )
    return figures


def _kept_rates(
    engines: Engines, rates: Sequence[int], console: Console
) -> tuple[Sequence[int], dict[int, list[float]]]:
    """The rates before the first one whose reports come late, and the delays of all of them. One is not tried."""
    if len(rates) == 1:
        return rates, {}
    console.print(f"Rates from {rates[0]:,} to {rates[-1]:,} events/s, {_STEP_SECONDS} s each ...")
    search = load(engines, "search", [(rate, _STEP_SECONDS) for rate in rates])
    per_step = _STEP_SECONDS // _WINDOW_SECONDS
    by_step = [search.delays[n * per_step : (n + 1) * per_step] for n in range(len(rates))]
    for rate, step in zip(rates, by_step, strict=True):
        console.print(f"  {rate:,}: reports after {', '.join(f'{delay:.1f} s' for delay in step)}")
    kept = stream_samples.sustained(by_step, _LATE_SECONDS)
    if not kept:
        raise RuntimeError(f"not even {rates[0]:,} events/s are kept: delays {by_step[0]}.")
    return rates[:kept], dict(zip(rates, by_step, strict=True))


@contextlib.contextmanager
def _engines() -> Iterator[Engines]:
    with tempfile.TemporaryDirectory(prefix="shh_stream_load_") as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        for part in ("kafka", "flink"):
            (folder / part).mkdir()
        kafka = stack.enter_context(KafkaServer(folder / "kafka"))
        cluster = stack.enter_context(FlinkCluster(folder / "flink"))
        pool = stack.enter_context(WorkerPool(log_path=folder / "workers.log"))
        key = os.open(folder / "noise.key", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(key, "wb") as file:
            file.write(secrets.token_bytes(32))
        yield Engines(kafka, cluster, pool, folder)


def load(engines: Engines, topic: str, steps: Sequence[tuple[int, int]]) -> LoadRun:
    """One run of `shh stream` under events of these ``(rate, seconds)``. Stops early where reports stay away.

    Raises RuntimeError if a program fails.
    """
    reports = engines.folder / f"{topic}-reports"
    engines.kafka.create_topic(topic, _PARTITIONS)
    start = int(time.time()) + _SECONDS_TO_START
    end = start + sum(seconds for _, seconds in steps)
    windows = (end - start) // _WINDOW_SECONDS
    # Behind the end something must still move the clocks of the partitions.
    words = [f"{rate}:{seconds}" for rate, seconds in [*steps, (200, _SECONDS_AFTER_END)]]
    producing = [sys.executable, "-m", "benchmarks.stream_producer", engines.kafka.bootstrap, topic, str(_PARTITIONS)]
    with contextlib.ExitStack() as stack:
        shh = stack.enter_context(_started(_stream_command(engines, topic, reports, start, end), engines.folder))
        producer = stack.enter_context(_started([*producing, str(float(start)), *words], engines.folder, pipe=True))
        sampler = stack.enter_context(Sampler(engines.newest_checkpoint))
        arrivals = stack.enter_context(_Arrivals(reports))
        while shh.poll() is None and time.time() < end + 60:
            if producer.poll():
                raise RuntimeError("the producer failed.")
            due = [start + (n + 1) * _WINDOW_SECONDS for n in range(windows)]
            missed = sum(1 for moment in due if moment + 4 * _LATE_SECONDS < time.time()) - len(arrivals.seen)
            if missed > 1:
                break
            time.sleep(0.5)
        if shh.poll():
            raise RuntimeError(
                f"shh stream failed: {(engines.folder / 'dp_transforms.cli.main.log').read_text()[-1500:]}"
            )
        produced = json.loads(producer.communicate()[0]) if producer.poll() is not None or shh.poll() == 0 else {}
        seen = dict(arrivals.seen)
    for job in engines.cluster.rest.jobs():
        with contextlib.suppress(EngineError):
            engines.cluster.rest.cancel(job.job_id)
    delays = stream_samples.delays(seen, start, _WINDOW_SECONDS, windows, _LATENESS_SECONDS)
    return LoadRun(start, topic, delays, sampler.samples, produced)


def _stream_command(engines: Engines, topic: str, reports: Path, start: int, end: int) -> list[str]:
    return [
        *(sys.executable, "-m", "dp_transforms.cli.main", "stream"),
        *(
            "--input",
            f"kafka://{engines.kafka.bootstrap}/{topic}",
            "--time-format",
            "ms",
            "--output",
            str(reports),
        ),
        *("--start", _utc(start), "--end", _utc(end), "--window", f"{_WINDOW_SECONDS}s", *_BUDGET),
        *("--allowed-lateness", f"{_LATENESS_SECONDS}s", "--out-of-order", "0s"),
        *("--noise-key-file", str(engines.folder / "noise.key")),
        *("--runner=FlinkRunner", f"--flink_master={engines.cluster.address}"),
        *("--environment_type=EXTERNAL", f"--environment_config={engines.pool.address}"),
        "--state_backend=filesystem",
        f"--state_backend_storage_path={(engines.folder / 'checkpoints' / topic).as_uri()}",
    ]


@contextlib.contextmanager
def _started(command: Sequence[str], folder: Path, *, pipe: bool = False) -> Iterator[subprocess.Popen[bytes]]:
    """A program whose output goes to a log in the folder, or to a pipe; it is killed at the end of the block."""
    with open(folder / f"{command[2]}.log", "ab") as log:
        process = subprocess.Popen(command, stdout=subprocess.PIPE if pipe else log, stderr=log)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


class _Arrivals:
    """Notes when each report is first there."""

    def __init__(self, reports: Path) -> None:
        self.seen: dict[int, float] = {}
        self._reports = reports
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> _Arrivals:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopped.wait(0.05):
            for path in self._reports.glob("*Z-*.jsonl"):  # named by the start of its window
                start = datetime.datetime.strptime(path.name.partition("Z")[0], "%Y-%m-%dT%H%M%S")
                moment = start.replace(tzinfo=datetime.UTC).timestamp()
                self.seen.setdefault(int(moment) * 1_000_000, time.time())


def _peers(engines: Engines, hold: LoadRun) -> tuple[float, float, int]:
    """Events per second of a bare consumer and of `shh replay` of the first events of the topic; how many they are."""
    servers = engines.kafka.bootstrap
    consuming = ("benchmarks.stream_peers", "consume", servers, hold.topic, str(_PEER_EVENTS))
    consumed = json.loads(run_measured(*consuming).output.splitlines()[-1])
    path = engines.folder / "events.jsonl"
    events = int(consumed["events"])
    run_measured("benchmarks.stream_peers", "dump", servers, hold.topic, str(events), str(path))
    end = hold.start_seconds + len(hold.delays) * _WINDOW_SECONDS
    replay = run_measured(
        *(
            "dp_transforms.cli.main",
            "replay",
            str(path),
            "--time-format",
            "ms",
            "--window",
            f"{_WINDOW_SECONDS}s",
            *_BUDGET,
        ),
        *("--start", _utc(hold.start_seconds), "--end", _utc(end), "--output", f"{OUTPUT}.jsonl"),
    )
    return events / consumed["seconds"], events / replay.wall_seconds, events


def _figures(
    rate: int, minutes: float, hold: LoadRun, consumer_rate: float, replay_rate: float, peer_events: int
) -> list[Figure]:
    begin = hold.start_seconds
    seconds = len(hold.delays) * _WINDOW_SECONDS
    third = seconds / 3
    spans = (begin, begin + third), (begin + seconds - third, begin + seconds)
    count = max(1, len(hold.delays) // 3)
    early, late = (statistics.median(part) for part in (hold.delays[:count], hold.delays[-count:]))
    (cpu_early, _), (cpu_late, _) = (stream_samples.cpu_between(hold.samples, *span) for span in spans)
    cpu, others = stream_samples.cpu_between(hold.samples, begin, begin + seconds)
    checkpoints = {s.checkpoint[2]: s.checkpoint for s in hold.samples if s.checkpoint is not None}
    sizes = [size for size, _, _ in checkpoints.values()]
    took = [seconds for _, seconds, _ in checkpoints.values()]
    sent = hold.producer.get("sent", math.nan)
    note = (
        f"{_WINDOW_SECONDS} s windows, lateness {_LATENESS_SECONDS} s, {len(hold.delays)} windows, {sent:,.0f} events"
    )
    figures = [
        Figure("Rate that was held", rate, "events/s", (">=", 50_000), note),
        Figure("Delay, p50", percentile(hold.delays, 0.5), "s", None, "from window end and lateness to the report"),
        Figure("Delay, p99", percentile(hold.delays, 0.99), "s", ("<=", _LATE_SECONDS)),
        Figure("Delay, last third / first third", late / early, "", ("<=", 1.5), f"{late:.2f} s / {early:.2f} s"),
        Figure("Worker's CPU per event, last third / first third", _ratio(cpu_late, cpu_early, "Python worker"), "",
               ("<=", 1.25), "the rate is the same"),
        Figure("Bare consumer and JSON decoding", consumer_rate, "events/s", None, "nothing else runs meanwhile"),
        Figure("Held rate / bare consumer", rate / consumer_rate, ""),
        Figure("shh replay of the same events", replay_rate, "events/s", None, f"the first {peer_events:,}, in JSON"),
        Figure("Held rate / shh replay", rate / replay_rate, ""),
        Figure("Checkpoint, largest", max(sizes, default=math.nan) / 1e6, "MB", None,
               f"{len(sizes)} seen; the slowest took {max(took, default=math.nan):.2f} s"),
        Figure("State per charged user", _bytes_per_charged_user(), "bytes"),
        Figure("CPU of other programs", others, "CPUs", None, "should be near 0; else the figures are too low"),
    ]  # fmt: skip
    for name in ("Python worker", "task manager", "job manager", "job server", "Kafka", "producer", "shh stream"):
        first, last = (stream_samples.median_memory(hold.samples, name, *span) / 1e6 for span in spans)
        note = f"{first:,.0f} MB in the first third; {cpu.get(name, math.nan):.2f} CPUs"
        figures.append(Figure(f"Memory of {name}, last third", last, "MB", None, note))
    return figures


def _ratio(late: dict[str, float], early: dict[str, float], name: str) -> float:
    return late.get(name, math.nan) / early[name] if early.get(name) else math.nan


def _bytes_per_charged_user() -> float:
    users = np.arange(_CHARGED_USERS, dtype=np.uint64)
    blobs = HitEntries(users, np.ones(_CHARGED_USERS, dtype=np.uint32)).to_chunks()
    return sum(map(len, blobs)) / _CHARGED_USERS


def _utc(seconds: int) -> str:
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
