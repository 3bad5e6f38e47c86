"""The only door of these tests to the code: each driver runs one mode over one log, and says what it left.

What is renamed in the code is renamed here, and nowhere else in this folder but for the arguments of plans in `cases`.
"""

from __future__ import annotations

import dataclasses
import json
import pathlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple
from unittest import mock

import apache_beam as beam

from dp_transforms import (
    EventFields,
    KafkaTopic,
    LogFolder,
    MonitorStream,
    Plan,
    ReadEvents,
    RejectedEvents,
    ReportFolder,
    ReportHeader,
    ShiftingHeavyHitters,
    StreamClock,
    WindowReport,
    WriteReportStream,
    find_log_chunks,
    read_report,
)
from dp_transforms.beam.workers import operator_counts
from dp_transforms.cli import replay, state_part
from dp_transforms.cli.replay_run import ReplayRequest, ReplaySummary, run_on_runner, run_replay
from tests.helpers.beam_pipelines import Collected, Script, local_pipeline
from tests.helpers.crowded_logs import replay_request
from tests.helpers.shh_here import shh
from tests.helpers.small_runs import MICROS, RUN_ID, key_file
from tests.helpers.small_runs import START as SCRIPT_START
from tests.transcripts.cases import DOMAIN, HOURS, MODES, NIGHTS, READERS, plan_of, rows_of, write_logs


class Run(NamedTuple):
    """A folder with the log of one reader, the key and the plan of a mode.

    domain: the file of the known items, or None. logs: the folder of the log alone.
    """

    folder: pathlib.Path
    plan: Plan
    domain: pathlib.Path | None
    key: str

    @property
    def logs(self) -> pathlib.Path:
        return self.folder / "logs"


class Left(NamedTuple):
    """header: of the report, None where the driver makes none. bad: file, position and reason of each rejected row.
    files: the bytes of the report, where a file of it is written at once."""

    reports: list[WindowReport]
    bad: list[tuple[str, int, str]]
    counts: Mapping[str, int]
    header: ReportHeader | None = None
    files: bytes = b""


def prepared(folder: pathlib.Path, mode: str, reader: str) -> Run:
    """reader: one of `READERS`, or anything else for a run without a log."""
    (folder / "logs").mkdir()
    if reader in READERS:
        write_logs(folder / "logs", reader)
    plan = plan_of(mode)
    (folder / "plan.json").write_text(plan.to_json())
    domain = folder / "items.txt" if MODES[mode].domain else None
    if domain is not None:
        domain.write_text("\n".join(DOMAIN))
    return Run(folder, plan, domain, key_file(folder))


def replayed(run: Run, replay: Callable[[ReplayRequest], ReplaySummary] = run_replay, **more: Any) -> Left:
    output, bad = run.folder / "report.jsonl", run.folder / "bad.jsonl"
    more.update(public_items=str(run.domain) if run.domain else None, dead_letter=str(bad))
    request = replay_request(run.logs, run.plan, output, run.key, RUN_ID, **more)
    summary = dataclasses.asdict(replay(request))
    counts = {name: count for name, count in summary.items() if name != "seconds"}
    report = read_report(output)
    return Left(list(report.windows), list(_dead_letter([bad])), counts, report.header, output.read_bytes())


def replay_on(run: Run, *words: str) -> Left:
    """By the job that is submitted to a runner of Beam."""
    return replayed(run, lambda request: run_on_runner(request, words))


def _parts(run: Run) -> Left:
    """Three nights by the command, with fixed nonces. Each is given the whole log, since a sliding window may begin the
    night before."""
    outputs: list[pathlib.Path] = []
    letters: list[pathlib.Path] = []
    counts: dict[str, int] = {}
    for night in range(1, NIGHTS + 1):
        outputs.append(run.folder / f"{night}.jsonl")
        letters.append(run.folder / f"{night}.bad")
        until = f"2026-01-01T{HOURS // NIGHTS * night:02d}:00:00Z"
        words = ["replay", "logs", "--plan", "plan.json", "--noise-key-file", "noise.key"]
        words += ["--state", "run.state", "--run-id", RUN_ID, "--until", until]
        words += ["--output", outputs[-1].name, "--dead-letter", letters[-1].name]
        words += ["--ledger", "ledger.db", "--population", "all", "--caps", "100", "0.01"]
        words += ["--public-items", run.domain.name] if run.domain else []
        nonce = mock.patch.object(state_part, "fresh_nonce", return_value=f"{night}" * 32)
        with mock.patch.object(replay, "_print_summary") as told, nonce:
            done = shh(*words, cwd=run.folder)
        assert done.returncode == 0, done.stderr
        for name, number in dataclasses.asdict(told.call_args.args[0]).items():
            if isinstance(number, int):
                counts[f"night {night}, {name}"] = number
    reports = [window for output in outputs for window in read_report(output).windows]
    files = b"".join(output.read_bytes() for output in outputs)
    return Left(reports, list(_dead_letter(letters)), counts, read_report(outputs[0]).header, files)


def _dead_letter(paths: Iterable[pathlib.Path]) -> Iterator[tuple[str, int, str]]:
    for path in paths:
        for line in path.read_text().splitlines():
            row = json.loads(line)
            yield pathlib.Path(row["file"]).stem, row["position"], row["reason"]


def _rejected(found: Iterable[RejectedEvents]) -> Iterator[tuple[str, int, str]]:
    for rejected in found:
        for position in rejected.positions:
            yield pathlib.Path(rejected.source).stem, int(position), rejected.reason


def add_stream(
    run: Run, pipeline: beam.Pipeline, source: LogFolder | KafkaTopic, **driving: Any
) -> tuple[ReportFolder, beam.PCollection]:
    """By the clock of events: the last event lies so far behind the range that it closes all windows. Returns where
    its reports go, and what is rejected."""
    clock = StreamClock("event", allowed_lateness_seconds=60, out_of_order_seconds=30, idle_timeout_seconds=600)
    domain = str(run.domain) if run.domain else None
    found = pipeline | MonitorStream(
        source, run.plan, clock=clock, noise_key=run.key, run_id=RUN_ID, public_items=domain, **driving
    )
    sink = ReportFolder(str(run.folder / "reports"))
    header = ReportHeader.of_plan(run.plan, RUN_ID, "events")
    _ = (found.reports, found.ended) | WriteReportStream(sink, header)
    return sink, found.rejected


def left_by_stream(run: Run, sink: ReportFolder) -> Left:
    header, reports, ended = sink.read(RUN_ID)
    assert ended is not None
    files = b"".join(path.read_bytes() for path in sorted((run.folder / "reports").glob("2*.jsonl")))
    return Left(list(reports), [], {}, header, files)


def streamed(run: Run) -> Left:
    pipeline, rejected = local_pipeline(), Collected()
    sink, refused = add_stream(run, pipeline, LogFolder(str(run.logs), EventFields()), driver="loop", poll_seconds=0.05)
    _ = refused | rejected.sink()
    result = pipeline.run()
    result.wait_until_finish()
    bad = sorted(_rejected(rejected.values))
    return left_by_stream(run, sink)._replace(bad=bad, counts=operator_counts(result))


def _bounded(run: Run) -> Left:
    pipeline, reports, rejected = local_pipeline(), Collected(), Collected()
    fields = EventFields()
    batches, refused = pipeline | ReadEvents(find_log_chunks([str(run.logs)], fields), fields, workers=2)
    monitor = ShiftingHeavyHitters(run.plan, noise_key=run.key, run_id=RUN_ID, public_items=run.domain)
    _ = (batches | monitor).reports | "See reports" >> reports.sink()
    _ = refused | "See rejected" >> rejected.sink()
    result = pipeline.run()
    result.wait_until_finish()
    return Left(sorted(reports.values), sorted(_rejected(rejected.values)), operator_counts(result))


def _unbounded(run: Run) -> Left:
    """The watermark is 40 seconds behind, and the log half a minute out of order."""
    script, latest = Script(run.plan), 0
    rows = [row for night in range(NIGHTS) for row in rows_of(night)]
    events = [(user, item, time * MICROS) for user, item, time in rows if user and item and time is not None]
    for low in range(0, len(events), 250):
        script.events(events[low : low + 250])
        latest = max(latest, *(time for _, _, time in events[low : low + 250]))
        script.watermark(latest // MICROS - SCRIPT_START - 40)
    return Left(script.run(run.key, public_items=run.domain), [], {})


DRIVERS: dict[str, Callable[[Run], Left]] = {
    "replay-1": replayed,
    "replay-3": lambda run: replayed(run, processes=3),
    "parts": _parts,
    "stream": streamed,
    "bounded": _bounded,
    "unbounded": _unbounded,
}
WITHOUT_READER = ("unbounded",)  # given its events one by one
