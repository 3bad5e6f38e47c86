"""``shh replay LOG...``: from a historical log to private reports, window by window."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import click
from click.core import ParameterSource
from rich.console import Console

from dp_transforms.checks import check_names
from dp_transforms.cli.home_workers import (
    check_memory,
    home_worker_options,
    pool_for,
    pool_for_request,
    read_ahead,
    read_early,
    shards_of_log,
)
from dp_transforms.cli.operator_log import ERROR, WARNING, is_json, tell
from dp_transforms.cli.options import (
    ADVANCED,
    BUDGET,
    ENGINE,
    INPUT,
    OUTPUT,
    UNREADABLE,
    GroupedCommand,
    event_fields,
    field_options,
    flag,
    option,
    user_errors,
)
from dp_transforms.cli.output_file import check_output
from dp_transforms.cli.plan_options import PLAN_OPTIONS, plan_of_command, plan_options
from dp_transforms.cli.replay_engine import choose_replay_engine, replay_engine_options, with_absolute_paths
from dp_transforms.cli.replay_request import ReplayRequest, ReplaySummary
from dp_transforms.cli.state_options import (
    StateOptions,
    account_of_options,
    check_state_options,
    ledger_options,
    state_options,
)
from dp_transforms.cli.table_output import (
    OUTPUT_TABLE,
    check_table_of_replay,
    output_table,
    show_command,
    shown_output,
)
from dp_transforms.errors import StreamError, UserError
from dp_transforms.logs import find_log_chunks, hint_of_log, unit_hint
from dp_transforms.logs.log_chunk import paused_collection
from dp_transforms.monitor.planned_run import fresh_run_id
from dp_transforms.monitor.window_report import WindowReport
from dp_transforms.reports import ReportHeader, read_report_file, report_format
from dp_transforms.stores.remote_files import full_name
from dp_transforms.views.plan_words import in_a_sentence
from dp_transforms.views.report_table import is_ascii_only, legend, windows_table

if TYPE_CHECKING:
    from dp_transforms.cli.ledger_account import LedgerAccount

_LATEST_WINDOWS = 12
_ITEMS_PER_WINDOW = 12
# Fields of a request that are options.
_AS_GIVEN = (*("domain_file", "dead_letter", "max_bad_fraction", "allow_empty", "noise_key_file", "stream"),)


@click.command(name="replay", cls=GroupedCommand)
@click.argument("logs", metavar="LOG...", nargs=-1, required=True)
@field_options
@plan_options
@option(
    OUTPUT,
    "--output",
    needed="required",
    brief="The report: .avro, .jsonl or .parquet.",
    metavar="FILE|URL",
    help="Where the report goes: a path or URL that ends in .avro, .jsonl or .parquet and must not exist; or a "
    "database, as postgresql://USER@HOST/DATABASE or sqlite:///FILE.",
)
@OUTPUT_TABLE
@option(
    BUDGET,
    "--noise-key-file",
    metavar="FILE",
    help="The noise key: a secret of at least 32 random bytes, mode 0600; not with --run-id, unless --state is given, "
    "which always needs it. Default: a key that is drawn for this run and forgotten.",
)
@option(
    ADVANCED,
    "--run-id",
    help="Name of the run; not with --noise-key-file, unless --state is given. Default: a fresh one. Every new run "
    "must have a new name.",
)
@state_options
@ledger_options
@option(
    OUTPUT, "--stream", metavar="NAME", default="events", show_default=True, help="Name of the stream in the report."
)
@option(
    OUTPUT,
    "--dead-letter",
    brief="For a list of rows that cannot be read.",
    metavar="FILE|URL",
    help="File for a list of the rows that cannot be read (JSON lines; a local one has mode 0600).",
)
@option(
    INPUT,
    "--max-bad-fraction",
    type=click.FloatRange(0, 1),
    default=0.5,
    show_default=True,
    help="Publish nothing if a larger fraction of the rows cannot be read. Keep it high: one user can write such "
    "rows, and a report that does not appear reveals them.",
)
@option(
    OUTPUT,
    "--allow-empty",
    is_flag=True,
    help="Write an empty report if no event of the log is inside the range. By default there is none then (exit code "
    "4), and nothing is spent. Give it where others see whether a report appears.",
)
@replay_engine_options
@home_worker_options
@option(
    ENGINE,
    "--allow-large-log",
    is_flag=True,
    help="Where one process does all the work: replay even if the log may not fit into its memory.",
)
@option(ADVANCED, "--verbose", is_flag=True, help="Show Beam's log, which may contain cells of the data.")
@click.pass_context
def command(context: click.Context, /, logs: tuple[str, ...], **options: Any) -> None:
    """Replay a log: which items were held by many users in each window, under differential privacy for each user.

    LOG is a Parquet, Avro, CSV or JSON lines file, a folder of such files, or a glob: a path or a URL
    (docs/object_stores.md). `shh replay LOG` alone looks at the log and prints the whole command. Options for Beam
    follow after `--`.

    \b
    shh replay clicks.parquet --start 2026-01-01 --end 2026-01-05 --window 1h \\
        --epsilon 2 --delta 1e-9 --output report.avro
    """
    if _has_no_budget(options):
        _propose(context, logs, options)
    if options["output"] is None:
        raise click.UsageError("Missing option '--output'.", ctx=context)
    with contextlib.ExitStack() as started:
        summary, request = _replay(logs, options, context.obj or [], started)
    if summary is None:
        return
    skipped = "--start .. --end" if options["state"] is None else "this part"
    _print_summary(summary, request, skipped)
    _print_report(request)


def _replay(
    logs: tuple[str, ...], options: dict[str, Any], beam_words: Sequence[str], started: contextlib.ExitStack
) -> tuple[ReplaySummary | None, ReplayRequest]:
    """What is started here ends with ``started``. Worker processes begin to read while this one still loads Beam."""
    with user_errors(ValueError):  # of a file, the plan, or an option
        cluster = choose_replay_engine(options, beam_words)
        pool = pool_for(logs, options, beam_words)
        if pool is not None:
            started.enter_context(pool)
            read_early(pool, logs, options)
        if cluster is not None:
            logs, options = with_absolute_paths(logs, options)
        elif beam_words:
            from dp_transforms.engines.local import is_local, pipeline_options

            beam_options = pipeline_options(beam_words)  # errors of words come before those of files
            if options["state"] is not None and not is_local(beam_options):
                raise UserError(
                    "--state cannot be used with another runner (--runner after --): its workers are elsewhere, and"
                    " what they have drawn may be read by others before it is published. Leave the runner out, or"
                    " --state."
                )
        account = account_of_options(options)
        request = _request(logs, options, account)
        if pool is None and cluster is None and not beam_words and options["state"] is None:
            pool = pool_for_request(request, options)
            if pool is not None:
                started.enter_context(pool)
        elif pool is None and cluster is None and not options["allow_large_log"]:
            check_memory(request)
        if pool is not None:
            request = dataclasses.replace(
                request, shards=shards_of_log(request.chunks, request.plan.schedule, request.plan.mode)
            )
            read_ahead(pool, request)
    with paused_collection():  # looking for garbage took a sixth of the time
        from dp_transforms.cli.replay_runs import run_part, run_whole  # loads Beam

    if request.state is None:
        return run_whole(request, cluster or beam_words, account, pool), request
    return run_part(request, beam_words, account), request


def _has_no_budget(options: dict[str, Any]) -> bool:
    """Whether nothing says what is to be published, where or from which account."""
    names = (*PLAN_OPTIONS, "plan_file", "output", "state", "until", "ledger")
    return all(options[name] is None for name in names)


def _propose(context: click.Context, logs: tuple[str, ...], options: dict[str, Any]) -> NoReturn:
    """Looks at the log and prints the whole command. On stderr: nothing of it may be published. Exit code 2, as for
    any command line that lacks an option: a script must not take it for a report."""
    from dp_transforms.cli.doctor import show_glance

    given = {name for name in options if context.get_parameter_source(name) is not ParameterSource.DEFAULT}
    fields = {name: options[name] if name in given else None for name in ("user_field", "item_field", "time_field")}
    show_glance(logs, {**options, **fields}, tell, Console(stderr=True))
    tell("\nNothing was run: the options of a budget are missing.".lstrip("\n" if is_json() else ""), ERROR)
    raise SystemExit(UNREADABLE)


def _request(logs: tuple[str, ...], options: dict[str, Any], account: LedgerAccount | None) -> ReplayRequest:
    """Finds all errors that can be known beforehand, before any budget is spent."""
    output, dead_letter = options["output"], options["dead_letter"]
    table, run_id = output_table(options), options["run_id"] or fresh_run_id()
    if table is not None:
        check_table_of_replay(table, run_id, has_state=options["state"] is not None)
        output = shown_output(table)
    else:
        report_format(output)
    if options["state"] is None and table is None:  # else what exists may be of this part, which was begun before
        check_output(output)
    if dead_letter:
        if options["state"] is None:
            check_output(dead_letter, "--dead-letter")
        if os.path.realpath(dead_letter) == os.path.realpath(output):
            raise UserError("--output and --dead-letter name the same file. Name two different ones.")
    check_names(**{flag(name): options[name] for name in ("stream", "run_id")})
    check_state_options(options)
    if options["state"] is None and options["run_id"] is not None and options["noise_key_file"] is not None:
        raise UserError(
            "--run-id and --noise-key-file exclude each other in a replay. If both were used again on a log that has"
            " changed, both runs would draw the same noise, and the two reports would show what changed. Leave --run-id"
            " out: a fresh one is drawn."
        )
    fields = event_fields(options)
    plan = plan_of_command(options)
    if options["state"] is not None and plan.pays_at_the_end:
        raise UserError(
            "--state cannot be used with a plan that has --counts-for: counts are paid for when all names of the run"
            " are known. Make a plan without it."
        )
    if account is not None and not (options["state"] is not None and os.path.lexists(options["state"])):
        # A state is of a run that has paid, or is refused.
        account.check_fits(plan, options["stream"], options["run_id"])
    chunks = find_log_chunks(logs, fields)
    state = None
    if options["state"] is not None:
        state = StateOptions(
            os.path.abspath(options["state"]),
            options["noise_key_file"],
            fields.user,
            fields.item,
            full_name(output),
            until_seconds=options["until"],
            run_id=options["run_id"],
            population=options["population"],
        )
    return ReplayRequest(
        **{name: options[name] for name in _AS_GIVEN},
        chunks=chunks,
        fields=fields,
        hint=hint_of_log(chunks, fields),
        plan=plan,
        output=output,
        run_id=run_id,
        table=table,
        logs=logs,
        is_named=options["run_id"] is not None,
        state=state,
    )


def _print_summary(summary: ReplaySummary, request: ReplayRequest, covered: str) -> None:
    """Prints on stderr: this is for the operator alone. covered: outside of which events are skipped."""
    rows = summary.events + summary.rejected
    unpaid = f" {summary.unpaid:,} pairs (window, item) beyond --most-looks of a user did not count,"
    rejected = f" {summary.rejected:,} unreadable. (For the operator, not covered by the guarantee.)"
    read = (
        f"Read {rows:,} rows in {summary.seconds:.1f} s ({rows / summary.seconds:,.0f} a second);"
        f" {summary.outside_range:,} outside {covered} skipped,"
        f"{f' {summary.outside_domain:,} of other items than --domain-file skipped,' if request.domain_file else ''}"
        f"{unpaid if summary.unpaid else ''}{rejected}"
    )
    odd, remedy = "", ""
    if not rows:
        odd = "The log has no rows."
    elif summary.events == summary.outside_range:
        unit = f"--time-unit {request.fields.time_unit}" if request.fields.time_unit else "--time-unit"
        other = unit_hint(request.chunks, request.fields)
        odd, remedy = f"No event is inside {covered}.", f" Check them, and {unit}{f'; {other}' if other else ''}."
    elif summary.events == summary.outside_range + summary.outside_domain:
        odd, remedy = "No event has an item of --domain-file.", " Ids are compared as text, blanks included."
    if is_json():
        tell(read, **dataclasses.asdict(summary))
        if odd:
            tell(f"{odd}{remedy}", WARNING)
        return
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    console.print(f"[dim]{read}[/]")
    if odd:
        console.print(f"[bold]{odd}[/]{remedy}")


def _print_report(request: ReplayRequest) -> None:
    console = Console(highlight=False)
    console.print(request.plan.guarantee, markup=False)
    header, reports = _published(request)
    latest = sorted(reports, key=lambda report: report.window_start)
    shown = latest[-_LATEST_WINDOWS:]
    if not shown:
        console.print(
            f"No window had an item held by enough users. {in_a_sentence(request.plan)}", markup=False, soft_wrap=True
        )
    else:
        ascii_only = is_ascii_only(console)
        console.print(windows_table(shown, max_items=_ITEMS_PER_WINDOW, ascii_only=ascii_only, plan=header.plan))
        console.print(legend(shown, plan=header.plan, ascii_only=ascii_only), markup=False)
    show = f"shh show {request.output}" if request.table is None else show_command(request.table, request.run_id)
    windows = "1 window" if len(latest) == 1 else f"{len(latest):,} windows"
    console.print(
        f"{windows} with heavy items: {request.output}; see all with: {show}",
        markup=False,
        soft_wrap=True,
    )


def _published(request: ReplayRequest) -> tuple[ReportHeader, Iterable[WindowReport]]:
    if request.table is None:
        return read_report_file(request.output)
    try:
        header, reports, _ = request.table.read(request.run_id)
    except StreamError as error:
        raise UserError(f"the report is in the database, and cannot be read just now: {error}") from None
    return header or request.header, reports
