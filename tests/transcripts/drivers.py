"""The only door of these tests to the code: runs of one mode over one log, and what they leave as lines of text."""

from __future__ import annotations

import json
import pathlib
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple
from unittest import mock

from dp_transforms import EventFields, LogFolder, MonitorStream, Plan, WindowReport, WriteReportStream, read_report
from dp_transforms.cli import replay
from dp_transforms.cli.replay_run import run_replay
from dp_transforms.core import operator_counts as names
from dp_transforms.logs.streams.partition_progress import StreamClock
from dp_transforms.runs import state_part
from tests.helpers.beam_pipelines import local_pipeline
from tests.helpers.crowded_logs import replay_request
from tests.helpers.shh_here import shh
from tests.helpers.small_runs import RUN_ID, key_file
from tests.transcripts.cases import HOURS, MODES, NIGHTS, PUBLIC, READERS, plan_of, write_logs

DATA = pathlib.Path(__file__).parent / "data"
_COUNTS = {
    "events": names.EVENTS_READ,
    "outside_range": names.EVENTS_OUTSIDE_RANGE,
    "of_other_items": names.EVENTS_OF_OTHER_ITEMS,
    "rejected": names.EVENTS_REJECTED,
    "unpaid": names.CONTRIBUTIONS_UNPAID,
}


class Run(NamedTuple):
    """A folder with the log of one reader, the key and the plan of a mode.

    public: the file of the public items, or None. logs: the folder of the log alone.
    """

    folder: pathlib.Path
    plan: Plan
    public: pathlib.Path | None
    key: str

    @property
    def logs(self) -> pathlib.Path:
        return self.folder / "logs"


class Left(NamedTuple):
    """The files of its reports, and of rejected rows; and what the operator is told."""

    reports: Sequence[pathlib.Path]
    rejected: Sequence[pathlib.Path]
    counts: Mapping[str, int]


def prepared(folder: pathlib.Path, mode: str, reader: str) -> Run:
    (folder / "logs").mkdir()
    write_logs(folder / "logs", reader)
    plan = plan_of(mode)
    (folder / "plan.json").write_text(plan.to_json())
    public = folder / "items.txt" if MODES[mode].public else None
    if public is not None:
        public.write_text("\n".join(PUBLIC))
    return Run(folder, plan, public, key_file(folder))


def _told(counts: Counter[str]) -> dict[str, int]:
    """What the operator is told, by the names under which it is stored."""
    return {name: counts[counted] for name, counted in _COUNTS.items()}


def replayed(run: Run, processes: int | None = None, **more: Any) -> Left:
    output, bad = run.folder / "report.jsonl", run.folder / "bad.jsonl"
    more.update(public_items=str(run.public) if run.public else None, dead_letter=str(bad))
    job = replay_request(run.logs, run.plan, output, run.key, RUN_ID, **more)
    counts = _told(run_replay(job, processes))
    return Left([output], [bad], counts)


def _in_parts(run: Run) -> Left:
    """Three nights by the command, with fixed nonces. Each is given the whole log, since a sliding window may begin the
    night before."""
    left = Left([], [], {})
    for night in range(1, NIGHTS + 1):
        output, bad = run.folder / f"{night}.jsonl", run.folder / f"{night}.bad"
        until = f"2026-01-01T{HOURS // NIGHTS * night:02d}:00:00Z"
        words = ["replay", "logs", "--plan", "plan.json", "--noise-key-file", "noise.key"]
        words += ["--state", "run.state", "--run-id", RUN_ID, "--until", until]
        words += ["--output", output.name, "--dead-letter", bad.name]
        words += ["--ledger", "ledger.db", "--population", "all", "--caps", "100", "0.01"]
        words += ["--public-items", run.public.name] if run.public else []
        nonce = mock.patch.object(state_part, "fresh_nonce", return_value=f"{night}" * 32)
        with mock.patch.object(replay, "_print_counts") as told, nonce:
            done = shh(*words, cwd=run.folder)
        assert done.returncode == 0, done.stderr
        counts = {f"night {night}, {name}": number for name, number in _told(told.call_args.args[1]).items()}
        left = Left([*left.reports, output], [*left.rejected, bad], {**left.counts, **counts})
    return left


MEMBERS = (*READERS, "parts")  # a replay by each reader, and parts, which read what a replay reads


def ran(folder: pathlib.Path, mode: str, member: str) -> dict[str, list[str]]:
    """Reports as they are written, where no time stands at which they are made; who rejects which row; and counts."""
    if member == "parts":
        left, report = _in_parts(prepared(folder, mode, READERS[0])), "report in parts"
    else:
        left, report = replayed(prepared(folder, mode, member)), "report"
    rows = [json.loads(line) for path in left.rejected for line in path.read_text().splitlines()]
    return {
        report: [line for path in left.reports for line in path.read_text().splitlines()],
        f"rejected, {member}": [f"{pathlib.Path(row['file']).stem} {row['position']}: {row['reason']}" for row in rows],
        f"counts, {member}": [f"{name}: {count}" for name, count in sorted(left.counts.items())],
    }


def streamed(run: Run) -> list[WindowReport]:
    """The reports of a stream of the folder, by the clock of events: the last event lies so far behind the range that
    it closes all windows."""
    clock = StreamClock("event", allowed_lateness_seconds=60, out_of_order_seconds=30, idle_timeout_seconds=600)
    with local_pipeline() as pipeline:
        found = pipeline | MonitorStream(
            LogFolder(str(run.logs), EventFields()),
            run.plan,
            **vars(clock),
            noise_key=run.key,
            run_id=RUN_ID,
            public_items=str(run.public) if run.public else None,
            driver="loop",
            poll_seconds=0.05,
        )
        _ = (found.reports, found.ended) | WriteReportStream(run.folder / "reports", run.plan, run_id=RUN_ID)
    report = read_report(run.folder / "reports")
    assert report.ended is not None
    return list(report)
