"""A replay of mode looks beside its peers, on one log: PipelineDP on its local backend and on Beam, Beam's own count of
elements, and a group-by of pyarrow.

Each runs in a process of its own, in turns; of each number the smallest of all rounds counts. Each runs on a log of a
thousand events too: that is its start, and what it takes beyond that is its time without start.
"""

from __future__ import annotations

import dataclasses
import json
import re
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from rich.console import Console

from benchmarks import environments, logs
from benchmarks.processes import Measurement, PeakOfAll, numbers_of, run_measured
from benchmarks.report import Figure, show_figures, write_results

_EVENTS, _FULL, _QUICK, _LARGE, _OF_START = 1_000_000, 3_000_000, 20_000, 10_000_000, 1000
_HOUR = 3600
_CAP = 8  # pairs (window, item) of a user that PipelineDP keeps
OURS = _ONE, _TWO = "shh replay, 1 process", "shh replay, 2 processes"
_PYARROW = "pyarrow group-by, 1 thread, no privacy"


@dataclasses.dataclass(frozen=True)
class _Peer:
    """words: a module and its words, for a log and the path of a report. python: of its environment."""

    words: Callable[[Path, Path], Sequence[str]]
    python: Callable[[], str] = lambda: str(environments.installed_shh())


def _replay(processes: int) -> _Peer:
    return _Peer(lambda log, report: logs.replay(log, report, "--processes", str(processes)))


def _pipeline_dp(backend: str, task: str) -> _Peer:
    packages = ("pyarrow", "apache-beam") if backend == "beam" else ("pyarrow",)
    return _Peer(
        lambda log, _: ["benchmarks.pipeline_dp_replay", backend, task, str(log), str(_HOUR), str(_CAP)],
        lambda: str(environments.pipeline_dp(*packages)),
    )


PEERS = {
    _ONE: _replay(1),
    _TWO: _replay(2),
    "PipelineDP, local backend, names": _pipeline_dp("local", "names"),
    "PipelineDP, local backend, counts": _pipeline_dp("local", "counts"),
    "PipelineDP on Beam, names": _pipeline_dp("beam", "names"),
    "PipelineDP on Beam, counts": _pipeline_dp("beam", "counts"),
    "Beam Count.PerElement, rows, no privacy": _Peer(lambda log, _: ["benchmarks.beam_elements", str(log), str(_HOUR)]),
    "Beam Count.PerElement, columns, no privacy": _Peer(
        lambda log, _: ["benchmarks.beam_elements", str(log), str(_HOUR), "columns"]
    ),
    _PYARROW: _Peer(lambda log, _: ["benchmarks.pyarrow_group_by", str(log)]),
}
_AT_LARGE = (_ONE, _TWO, _PYARROW)


@dataclasses.dataclass
class Row:
    """Of one peer on one log: the smallest of its rounds. cpu and start_cpu: of all its processes. published: items in
    windows; None where all are counted and nothing is private."""

    peer: str
    events: int
    seconds: float
    cpu: float
    start_seconds: float
    start_cpu: float
    peak_bytes: int
    published: int | None

    @property
    def rest(self) -> tuple[float, float]:
        """Seconds of clock and of CPU without start."""
        return self.seconds - self.start_seconds, self.cpu - self.start_cpu


def run(*, quick: bool = False, full: bool = False, rounds: int = 3) -> list[Figure]:
    """full: three times as many events, for all. quick: 20,000 events, once, and no larger log."""
    console = Console(stderr=True)
    rounds = 1 if quick else rounds
    events = _QUICK if quick else _FULL if full else _EVENTS
    plan = {events: tuple(PEERS), **({} if quick else {_LARGE: _AT_LARGE})}
    for peer in PEERS.values():
        peer.python()  # its environment is made before anything is measured
    runs: dict[int, dict[str, list[Measurement]]] = {}
    published: dict[tuple[int, str], int | None] = {}
    for size in (_OF_START, *plan):
        log = logs.simulated_log(size)
        names = plan.get(size, tuple(PEERS))
        of_size = runs[size] = {name: [] for name in names}
        for _ in range(rounds):
            for name in names:
                console.print(f"  {size:,} events, {name} ...")
                ended, published[size, name] = _measured(PEERS[name], log)
                of_size[name].append(ended)
    rows = [
        _row(name, size, of_name, runs[_OF_START][name], published[size, name])
        for size in plan
        for name, of_name in runs[size].items()
    ]
    for row in rows:
        if row.peer == _TWO:
            console.print(f"  {row.events:,} events, {_TWO}, memory of all ...")
            with PeakOfAll() as peak:
                _measured(PEERS[_TWO], logs.simulated_log(row.events))
            row.peak_bytes = peak.bytes
    figures = list(_figures(rows))
    show_figures(f"Replays of {events:,} events beside peers", figures)
    as_dicts = [dataclasses.asdict(row) for row in rows]
    write_results("peers", figures, rounds=rounds, rows=as_dicts, runs=numbers_of(runs))
    return figures


def _measured(peer: _Peer, log: Path) -> tuple[Measurement, int | None]:
    """And how many items in windows were published."""
    with tempfile.TemporaryDirectory(prefix="shh_bench_") as folder:
        report = Path(folder) / "report.jsonl"
        ended = run_measured(*peer.words(log, report), python=peer.python())
        if report.exists():
            records = map(json.loads, report.read_text(encoding="utf-8").splitlines())
            return ended, sum(len(record.get("heavy_hitters", ())) for record in records)
    said = re.search(r"^([0-9,]+) items in windows$", ended.output, re.MULTILINE)
    return ended, int(said[1].replace(",", "")) if said else None


def _row(name: str, events: int, of_log: list[Measurement], starts: list[Measurement], published: int | None) -> Row:
    return Row(
        name,
        events,
        min(each.wall_seconds for each in of_log),
        min(each.cpu_seconds for each in of_log),
        min(each.wall_seconds for each in starts),
        min(each.cpu_seconds for each in starts),
        max(each.peak_bytes for each in of_log),
        published,
    )


def _figures(rows: list[Row]) -> Iterator[Figure]:
    """Of each row its rate; of each peer how much longer it takes than ours on the same log."""
    ours = {(row.events, row.peer): row for row in rows if row.peer in OURS}
    for row in rows:
        name = f"{row.events:,} events, {row.peer}"
        seconds, cpu = row.rest
        note = (
            f"{row.seconds:.1f} s, {row.cpu:.1f} s of CPU; without start {seconds:.1f} and {cpu:.1f} s;"
            f" peak {row.peak_bytes / 1e9:.2f} GB"
        )
        yield Figure(name, row.events / row.seconds, "events/s", None, note)
        if row.peer not in OURS:
            one, two = ours[row.events, _ONE], ours[row.events, _TWO]
            note = f"CPU without start / ours by 1 process: {cpu / one.rest[1]:.1f}; all CPU: {row.cpu / one.cpu:.1f}"
            yield Figure(f"{name}: clock / ours by 2 processes", row.seconds / two.seconds, "", None, note)
