"""``shh replay --dry-run``: what a replay would read, find, need and charge; from the plan and a sample of the log."""

from __future__ import annotations

from collections.abc import Iterator

from dp_transforms.cli.field_roles import ITEM, TIME, USER
from dp_transforms.cli.glance_words import FOR_THE_OPERATOR
from dp_transforms.cli.home_workers import memory_words, sliding_words
from dp_transforms.cli.log_glance import glance_at
from dp_transforms.cli.replay_request import ReplayRequest, choose_replay_engine
from dp_transforms.logs import estimate_log
from dp_transforms.logs.samples import sample_log
from dp_transforms.plan.window_schedule import MICROS_PER_SECOND, format_utc
from dp_transforms.runs.records import Verdict
from dp_transforms.views.plan_words import in_a_sentence
from dp_transforms.views.report_words import counted


def dry_run_lines(request: ReplayRequest, charged: Verdict | None) -> Iterator[str]:
    """charged: by the ledger; None without one. Raises EventFileError, as the replay would."""
    yield FOR_THE_OPERATOR
    events = estimate_log(request.chunks, request.fields).events
    yield f"Reads about {counted(events, 'row')} of {counted(len({chunk.path for chunk in request.chunks}), 'file')}."
    if request.hint:
        yield f"Look at this: {request.hint}"
    yield _range(request)
    yield f"{request.plan.guarantee} {in_a_sentence(request.plan)}"
    if choose_replay_engine(request.options.work, ()) is None:
        yield memory_words(request)
    if sliding := sliding_words(request):
        yield sliding
    if charged is not None:
        yield f"The ledger is not charged by this. If it is run, {charged.line}"
    yield f"Nothing was reserved or written. The report would be {request.output}."


def _range(request: ReplayRequest) -> str:
    """The declared range, beside the times that were looked at."""
    schedule, fields, reading = request.plan.schedule, request.fields, request.options.fields.reading
    start, end = (MICROS_PER_SECOND * at for at in (schedule.start_seconds, schedule.end_seconds))
    sample = sample_log(
        request.options.logs, csv_line_ends_in_cells=reading.csv_line_ends_in_cells, csv_separator=reading.separator
    )
    glance = glance_at(sample, dict(zip((USER, ITEM, TIME), fields.names, strict=True)), fields.time_reading)
    declared = f"Declared: {format_utc(start)} to {format_utc(end)}, {counted(schedule.horizon, 'window')}."
    if glance.low is None or glance.high is None:
        return f"{declared} No time was found in the rows that were looked at."
    seen = f"{declared} Times that were looked at: {format_utc(glance.low)} to {format_utc(glance.high)}"
    is_outside = glance.high < start or glance.low >= end
    return f"{seen}, all of them outside." if is_outside else f"{seen}."
