"""``shh replay LOG...``: from a historical log to private reports, window by window."""

from __future__ import annotations

import contextlib
import os
import time
from collections import Counter
from typing import TYPE_CHECKING

import click
from rich.console import Console

from dp_transforms.beam.replay_job import ReplayJob
from dp_transforms.checks import MAKE_A_KEY, check_names, time_zone
from dp_transforms.cli.operator_log import tell
from dp_transforms.cli.options import (
    ACCOUNT,
    FIELDS,
    NAMED_WITH_KEY,
    OF_PROGRAMS,
    PLAN_FILE,
    STREAM_NAME,
    UTC_TIME,
    VERBOSE,
    Command,
    Options,
    beam_words,
    check_account,
    check_together,
    fields_of,
    flag,
    is_given,
    option,
    rare,
)
from dp_transforms.cli.plan_options import PLAN, plan_of_command
from dp_transforms.cli.replay_run import run_part, run_whole
from dp_transforms.cli.run_account import RunAccount
from dp_transforms.cli.show import print_windows
from dp_transforms.core import operator_counts as names
from dp_transforms.errors import InputError, UserError
from dp_transforms.local.machine import SMALL_LOG_BYTES, bytes_of_files
from dp_transforms.local.pool import start_fork_server
from dp_transforms.logs import find_log_chunks
from dp_transforms.plan.plan import Plan
from dp_transforms.plan.rounds import PARTS, REPLAY
from dp_transforms.reports import read_report_file, report_format
from dp_transforms.reports.trends import trends
from dp_transforms.runs.state_part import check_state_file
from dp_transforms.stores.files import check_output, full_name
from dp_transforms.views.plan_words import in_a_sentence, why
from dp_transforms.views.report_words import counted

if TYPE_CHECKING:
    import apache_beam as beam

_LATEST_WINDOWS = 12
_ITEMS_PER_WINDOW = 8
_STATE = "Take the range in parts, one after the other, for one budget: the file that one hands to the next."
_EMPTY = (
    "Publish a report also if no event is in the range, or most rows cannot be read. Give it where others see whether"
    " there is one."
)
_OUTPUT = option(["--output"], required=True, metavar="FILE|URL", help="The report: .avro or .jsonl; a new file.")
_DEAD_LETTER = option(["--dead-letter"], metavar="FILE|URL", help="List of rows that cannot be read.")
_ALLOW_EMPTY = rare(["--allow-empty"], is_flag=True, help=_EMPTY)
PROGRAM = [
    option(
        ["--log", "logs"], multiple=True, required=True, metavar="FILE|URL", help="File, folder or glob; or several."
    ),
    _OUTPUT,
    _DEAD_LETTER,
    _ALLOW_EMPTY,
    *OF_PROGRAMS,
]
"""The options of pipelines/replay_log.py."""
_WRITTEN = ("output", "dead_letter")
WORKERS_FILES = ("logs", *_WRITTEN, "public_items", "noise_key_file")  # options that name what workers must see


@click.command(
    "replay",
    cls=Command,
    takes_runner=True,
    params=[
        click.Argument(["logs"], nargs=-1, required=True, metavar="LOG..."),
        *FIELDS,
        PLAN_FILE,
        *PLAN,
        *ACCOUNT,
        rare(
            ["--noise-key-file"],
            metavar="FILE",
            help="At least 32 secret random bytes, mode 0600. Default: drawn and forgotten.",
        ),
        rare(["--run-id"], metavar="NAME", help="Name of the run. Default: a fresh one."),
        rare(["--state"], metavar="FILE", help=_STATE),
        rare(["--until"], type=UTC_TIME, help="With --state: the end of this part. Default: --end."),
        _OUTPUT,
        STREAM_NAME,
        _DEAD_LETTER,
        _ALLOW_EMPTY,
        rare(
            ["--processes"],
            type=click.IntRange(min=1),
            metavar="N",
            help="Worker processes here. Default: one for each core.",
        ),
        VERBOSE,
    ],
)
def command(options: Options) -> None:
    """Replay a log: which items were held by many users in each window, under differential privacy for each user.

    LOG: a path or URL (docs/stores.md) of a file (Parquet, Avro, CSV, JSON lines), folder or glob. `shh doctor LOG`
    prints the whole command for it.

    \b
    shh replay clicks.parquet --start 2026-01-01 --end 2026-01-05 --window 1h \\
        --epsilon 2 --delta 1e-9 --output report.avro

    Options of Beam may follow, such as --runner=FlinkRunner --flink_master=HOST:PORT (docs/engines.md).
    """
    runner, state = beam_words(), options.state and os.path.abspath(options.state)
    _check_rules(options, has_runner=bool(runner))
    if runner:
        make_absolute(options)
    elif bytes_of_files(options.logs) >= SMALL_LOG_BYTES:
        with contextlib.suppress(OSError):  # it is told when workers are started
            start_fork_server()  # which loads its libraries while the plan is made
    check_names(stream=options.stream, run_id=options.run_id)
    check_files(options, state, are_written=state is None)  # what exists may be of a part that was begun before
    if state is not None:
        check_state_file(options.state)
    plan = plan_of_command(options, use := REPLAY if state is None else PARTS)
    account, job = RunAccount.of_options(options), job_of(options, plan, options.noise_key_file, options.run_id or "")
    if plan.contributions is not None and options.plan_file is None:
        tell(why(plan, use))
    started = time.monotonic()
    if state is None:
        counts: Counter[str] | None = run_whole(job, account, runner=runner, processes=options.processes)
    else:
        counts = run_part(job, account, state, until=options.until, processes=options.processes)
    if counts is not None:
        _print_counts(job, counts, time.monotonic() - started, "--start .. --end" if state is None else "this part")
        _print_report(job, options.time_zone)


def _check_rules(options: Options, *, has_runner: bool) -> None:
    """Raises UserError for options that do not go together."""
    remedy = "Give --state FILE, or declare another range with --end."
    check_together(options, "until", needs="state", remedy=remedy)
    if has_runner and options.noise_key_file is None:
        raise UserError(f"--runner needs --noise-key-file: workers need one noise key. {MAKE_A_KEY}")
    for name in ("state", "processes"):
        if has_runner and is_given(options, name):
            raise InputError(name, "cannot be used with --runner: it is for a replay here.", "Leave one out.")
    one_key = "all parts of a run have one key, since users are recognised by it"
    check_together(options, "state", needs="noise_key_file", why=one_key, remedy=MAKE_A_KEY)
    check_account(options)
    if options.state is None:
        remedy = "Leave --run-id out: a fresh one is drawn."
        check_together(options, "run_id", excludes="noise_key_file", why=NAMED_WITH_KEY, remedy=remedy)


def make_absolute(options: Options) -> None:
    """For workers, which have another current folder."""
    options.logs = tuple(map(full_name, options.logs))
    for name in WORKERS_FILES[1:]:
        if is_given(options, name):
            setattr(options, name, full_name(getattr(options, name)))


def check_files(options: Options, state: str | None = None, *, are_written: bool = True) -> None:
    """Raises UserError for files of an unknown kind and for two of one name; are_written: and for one that could not be
    written, over no other."""
    report_format(options.output)
    named: dict[str, str] = {}
    files = {"--state": state, **{flag(name): getattr(options, name) for name in (*_WRITTEN, "noise_key_file")}}
    for its_flag, path in files.items():
        if path and (other := named.setdefault(os.path.realpath(path), its_flag)) != its_flag:
            raise UserError(f"{other} and {its_flag} name the same file. Name two different ones.")
    for name in _WRITTEN if are_written else ():
        check_output(getattr(options, name), flag(name))


def job_of(options: Options, plan: Plan, noise_key: beam.Secret | str | None, run_id: str) -> ReplayJob:
    """Of the command and the program. Looks for the log. Raises UserError."""
    fields = fields_of(options)
    return ReplayJob(
        chunks=find_log_chunks(options.logs, fields),
        fields=fields,
        plan=plan,
        noise_key=noise_key,
        run_id=run_id,
        stream=options.stream,
        public_items=options.public_items,
        output=options.output,
        dead_letter=options.dead_letter,
        allow_empty=options.allow_empty,
    )


def _print_counts(job: ReplayJob, counts: Counter[str], seconds: float, covered: str) -> None:
    """Prints on stderr: this is for the operator alone."""
    in_rounds = len(job.plan.units_of_rounds) > 1
    beyond = "tests of a round beyond the user budget" if in_rounds else "contributions beyond --most-contributions"
    rows = counts[names.EVENTS_READ] + counts[names.EVENTS_REJECTED]
    parts = [f"{counts[names.EVENTS_OUTSIDE_RANGE]:,} outside {covered} skipped"]
    if job.public_items and not job.plan.takes_open_items:
        parts.append(f"{counts[names.EVENTS_OF_OTHER_ITEMS]:,} of other items than --public-items skipped")
    if unpaid := counts[names.CONTRIBUTIONS_UNPAID]:
        parts.append(f"{unpaid:,} {beyond} of a user did not count")
    parts.append(f"{counts[names.EVENTS_REJECTED]:,} unreadable")
    tell(
        f"Read {rows:,} rows in {seconds:.1f} s ({rows / seconds:,.0f} a second); {', '.join(parts)}. (For the"
        " operator, not covered by the guarantee.)"
    )


def _print_report(job: ReplayJob, zone: str | None) -> None:
    console = Console(highlight=False, markup=False)
    console.print(job.plan.guarantee)
    _, reports = read_report_file(job.output)
    found = list(trends(job.plan, reports))
    if latest := found[-_LATEST_WINDOWS:]:
        print_windows(console, job.plan, latest, time_zone(zone or "UTC"), {}, max_items=_ITEMS_PER_WINDOW)
    else:
        click.echo(f"No window had an item held by enough users. {in_a_sentence(job.plan)}")
    see = f"all of it, and its page: shh show {job.output} --html report.html"
    click.echo(f"{counted(len(found), 'window')} with heavy items: {job.output}; {see}")
