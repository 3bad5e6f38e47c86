"""Everything that runs the algorithm, by the doors that users have: each driver gives the reports of one case."""

from __future__ import annotations

import itertools
import pathlib
from collections.abc import Callable, Sequence
from typing import NamedTuple

import apache_beam as beam

from dp_transforms import (
    EventBatch,
    EventFields,
    MonitorStream,
    Plan,
    PublicItems,
    ReadEvents,
    ShiftingHeavyHitters,
    WindowReport,
    read_report,
)
from dp_transforms.logs import find_log_chunks
from dp_transforms.logs.streams.partition_progress import StreamClock
from dp_transforms.reports.report_records import RunEnded
from tests.conformance.cuts import SPAN, Cut, arrivals_of, events_of, late_of, pieces_of
from tests.helpers.beam_pipelines import Collected, Script, local_pipeline
from tests.helpers.memory_stream import MemoryStream
from tests.helpers.parts import Parts
from tests.helpers.small_runs import MICROS, RUN_ID, batch_of, key_file
from tests.helpers.small_runs import START as SCRIPT_START
from tests.reference.run import reference
from tests.transcripts import drivers as transcripts
from tests.transcripts.cases import MODES as TOLD
from tests.transcripts.cases import READERS, Mode, calibrated, public_of, write_log

CLOCK = StreamClock("arrival", SPAN, 0, idle_timeout_seconds=0.2)
REPEATED = ("--direct_runner_bundle_repeat=1",)
TAKEN = {"each": range(1, 99), "five": (2, 4, 7, 9), "two": (4,)}  # where parts end, and at the end of the run

_CONTRIBUTIONS, _HITS = (TOLD[mode].choices for mode in ("contributions", "hits"))
_NOISE = {
    **_CONTRIBUTIONS,
    "forget_after": 4,
    "false_name_error": 0.12,
}  # names known items in windows where nobody holds them
_ROUNDS = {"usual_contributions": (1, 16), "most_contributions": 40, "use": "replay"}
_OPEN = {"also_open": True}
_KNOWN = {**TOLD["contributions-public"].choices, "false_name_error": 0.05}
MODES = {
    **TOLD,
    "contributions-from-noise": Mode("contributions", {**_NOISE, "false_name_error": 0.11}),
    "contributions-twice": Mode(
        "contributions-twice", {**_CONTRIBUTIONS, "usual_contributions": (1, 40), "false_name_error": 0.12}
    ),
    "contributions-twice-sliding": Mode("contributions-twice", _CONTRIBUTIONS, window_hours=3),
    "contributions-least": Mode("contributions", {**_CONTRIBUTIONS, "least_users": 5}),
    "contributions-in-rounds-least": Mode("contributions", {**_ROUNDS, "least_users": 5}),
    "contributions-in-rounds": Mode("contributions", _ROUNDS),
    "contributions-in-rounds-sliding": Mode("contributions", _ROUNDS, window_hours=3),
    "contributions-also-open": Mode("contributions", {**_NOISE, **_OPEN}, public=True),
    "contributions-in-rounds-also-open": Mode("contributions", {**_ROUNDS, **_OPEN}, public=True),
    "contributions-public-sliding": Mode("contributions", _KNOWN, window_hours=3, public=True),
    "hits-from-noise-public": Mode("hits", {**_HITS, "threshold": 4}, public=True),
    "hits-with-counts-public-sliding": Mode("hits-with-counts", {**_HITS, "threshold": 4}, window_hours=3, public=True),
}


_expected: dict[str, list[WindowReport]] = {}


class Case(NamedTuple):
    """how: the word behind the cut: a reader, or where parts end."""

    folder: pathlib.Path
    mode: Mode
    cut: Cut
    how: str

    @property
    def plan(self) -> Plan:
        return calibrated(self.mode)

    @property
    def public(self) -> PublicItems | None:
        return PublicItems.of_ids(public_of(self.mode)) if self.mode.public else None

    @property
    def flags(self) -> Sequence[str]:
        return REPEATED if self.cut.runs_twice else ()

    def key(self) -> str:
        return key_file(self.folder)

    @property
    def ends(self) -> tuple[int, ...]:
        """Where its parts end but for the last one."""
        return tuple(end for end in TAKEN.get(self.how, ()) if end < self.plan.schedule.horizon)

    def expected(self, *, in_order: bool = False) -> list[WindowReport]:
        """The same for all cuts that differ in order, pieces and copies alone."""
        ends = self.ends if self.plan.rounds is not None else ()
        in_order &= self.mode.mode == "contributions" and self.mode.choices.get("use") != "replay"
        case = repr((self.mode, self.cut.hours, in_order, ends))
        if case not in _expected:
            events = events_of(self.cut._replace(copies=1))
            _expected[case] = reference(events, self.plan, public_of(self.mode), in_order=in_order, ends=ends)
        return list(_expected[case])


def seen(collected: Collected) -> list[WindowReport]:
    """One report a window, at its last instant. A repeated bundle says the same twice."""
    reports: list[WindowReport] = []
    for report, stamp in collected.stamped:
        assert stamp.micros == report.window_end - 1
        if report not in reports:
            reports.append(report)
    return reports


# --- At once: who sees the whole log


def _written(case: Case) -> transcripts.Run:
    """The log in files of the format that the case names."""
    (case.folder / "logs").mkdir()
    # A file that reads nothing is refused.
    for number, events in enumerate(pieces_of(events_of(case.cut), case.cut)):
        rows = [(user, item, time // MICROS) for user, item, time in events]
        write_log(case.folder / "logs" / f"{number:02}.{case.how}", rows)
    (case.folder / "plan.json").write_text(case.plan.to_json())
    items = case.folder / "items.txt"
    items.write_text("\n".join(reversed(public_of(case.mode))))
    return transcripts.Run(case.folder, case.plan, items if case.mode.public else None, case.key())


def replay(case: Case) -> list[WindowReport]:
    """The command, by itself."""
    return _reports_of(transcripts.replayed(_written(case), allow_empty=True))


def pool(case: Case) -> list[WindowReport]:
    """The command, by three worker processes."""
    return _reports_of(transcripts.replayed(_written(case), allow_empty=True, processes=3))


def _reports_of(left: transcripts.Left) -> list[WindowReport]:
    return list(read_report(left.reports[0]).windows)


def batch(case: Case) -> list[WindowReport]:
    """The transform on bounded input, of files or of batches."""
    pipeline, reports = local_pipeline(case.flags), Collected()
    if case.how in READERS:
        chunks = find_log_chunks([str(_written(case).logs)], EventFields())
        batches, _ = pipeline | ReadEvents(chunks, EventFields(), workers=case.cut.shards)
    else:
        made = [batch_of(piece) for piece in pieces_of(events_of(case.cut), case.cut)]
        batches = pipeline | beam.Create(made, reshuffle=False).with_output_types(EventBatch)
    monitor = ShiftingHeavyHitters(
        case.plan, noise_key=case.key(), run_id=RUN_ID, public_items=case.public, shards=case.cut.shards
    )
    _ = (batches | monitor).reports | "Reports" >> reports.sink()
    pipeline.run().wait_until_finish()
    found = seen(reports)
    # Only who pays for hits must be asked window after window.
    return sorted(found) if case.plan.contributions is not None else found


# --- In order: window after window


def in_parts(case: Case) -> Parts:
    parts, horizon = Parts(case.folder / "parts", case.plan, public_items=case.public), case.plan.schedule.horizon
    events = events_of(case.cut)
    size = -(-len(events) // case.cut.pieces)
    for end in (*case.ends, horizon):
        parts.take(end, events, shards=case.cut.shards, batch=size)
    return parts


def parts(case: Case) -> list[WindowReport]:
    """Parts of a run, each given the whole log and the state of the part before it."""
    return in_parts(case).reports


def _partitions(case: Case) -> MemoryStream:
    """As many as shards; each poll takes a few records, or all."""
    arrivals = [*arrivals_of(case.cut), *late_of(case.cut, case.mode.window_hours)]
    arrivals.sort(key=lambda arrival: arrival.micros)
    number = case.cut.shards or 2
    size = -(-len(arrivals) // case.cut.pieces)
    return MemoryStream.of([arrivals[at::number] for at in range(number)], size)


def stream(case: Case) -> list[WindowReport]:
    """A stream in this process: of partitions in memory, or of a folder of files."""
    if case.how in READERS:
        return transcripts.streamed(_written(case))
    pipeline, reports, ended = local_pipeline(case.flags), Collected(), Collected()
    output = pipeline | MonitorStream(
        _partitions(case),
        case.plan,
        **vars(CLOCK),
        noise_key=case.key(),
        run_id=RUN_ID,
        public_items=case.public,
        driver="loop",
        poll_seconds=0.05,
        shards=case.cut.shards,
    )
    _ = output.reports | "Reports" >> reports.sink()
    _ = output.ended | "Ended" >> ended.sink()
    pipeline.run().wait_until_finish()
    found = seen(reports)
    assert set(ended.values) == {RunEnded("events", case.plan.schedule.horizon, len(found))}
    return found


def watermark(case: Case) -> list[WindowReport]:
    """The transform on unbounded input, whose watermark closes windows."""
    script, late = Script(case.plan), late_of(case.cut, case.mode.window_hours)
    pieces = pieces_of(arrivals_of(case.cut), case.cut._replace(pieces=case.plan.schedule.horizon))
    pieces += [list(of_one) for _, of_one in itertools.groupby(late, lambda arrival: arrival.micros)]
    for piece in sorted(filter(None, pieces), key=lambda piece: piece[0].micros):
        script.watermark(piece[0].micros // MICROS - SCRIPT_START - SPAN)
        script.events([arrival.event for arrival in piece])
    found = script.run(case.key(), public_items=case.public, shards=case.cut.shards)
    assert [stamp.micros for stamp in script.stamps] == [report.window_end - 1 for report in found]
    return found


Driver = Callable[[Case], list[WindowReport]]
AT_ONCE: dict[str, Driver] = {run.__name__: run for run in (replay, pool, batch)}
IN_ORDER: dict[str, Driver] = {run.__name__: run for run in (parts, stream, watermark)}
