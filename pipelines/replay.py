"""``shh replay LOG...``: from a historical log to private reports, window by window."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import uuid
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NoReturn

import click
from apache_beam.options.pipeline_options import DirectOptions, PipelineOptions
from click.core import ParameterSource
from rich.console import Console

from dp_transforms.beam.read_events import ReadProgress
from dp_transforms.checks import check_names
from dp_transforms.event_files import EventFileError, ending_of_log, find_log_chunks, hint_of_log
from dp_transforms.event_streams.stream_source import StreamError
from dp_transforms.monitoring.window_report import WindowReport
from dp_transforms.pipelines.event_options import event_fields
from dp_transforms.pipelines.exit_signals import Unwinding
from dp_transforms.pipelines.ledger_options import account_of_options, ledger_options
from dp_transforms.pipelines.operator_log import ERROR, WARNING, is_json, tell
from dp_transforms.pipelines.options import UNREADABLE, UserError, field_options
from dp_transforms.pipelines.output_file import check_output
from dp_transforms.pipelines.plan_options import PLAN_OPTIONS, flag, plan_of_command, plan_options
from dp_transforms.pipelines.plan_words import in_a_sentence
from dp_transforms.pipelines.replay_engine import (
    ClusterReplay,
    choose_replay_engine,
    replay_engine_options,
    with_absolute_paths,
)
from dp_transforms.pipelines.replay_progress import show_progress
from dp_transforms.pipelines.replay_run import ReplayRequest, ReplaySummary, check_memory, run_replay
from dp_transforms.pipelines.replay_state import ReplayPart, check_outputs
from dp_transforms.pipelines.report_table import is_ascii_only, legend, windows_table
from dp_transforms.pipelines.run_account import DONE, RunAccount
from dp_transforms.pipelines.state_options import StateOptions, check_state_options, state_options
from dp_transforms.pipelines.state_part import open_part, part_is_done, part_is_taken, secret_of_run, state_errors
from dp_transforms.pipelines.table_output import (
    OUTPUT_TABLE,
    check_table_of_replay,
    output_table,
    show_command,
    shown_output,
)
from dp_transforms.remote_files import full_name
from dp_transforms.report_files import ReportHeader, read_report_file, report_format
from dp_transforms.run_state.fingerprints import InputFingerprint, input_key
from dp_transforms.run_state.state_lock import hold_state
from dp_transforms.runners.local import is_local, pipeline_options

if TYPE_CHECKING:
    from dp_transforms.pipelines.ledger_account import LedgerAccount

_LATEST_WINDOWS = 12
_ITEMS_PER_WINDOW = 12


@click.command(name="replay")
@click.argument("logs", metavar="LOG...", nargs=-1, required=True)
@field_options
@plan_options
@click.option(
    "--output",
    metavar="FILE|URL",
    help="Where the report goes: a path or URL that ends in .avro, .jsonl or .parquet and must not exist; or a "
    "database, as postgresql://USER@HOST/DATABASE, sqlite:///FILE or duckdb:///FILE.",
)
@OUTPUT_TABLE
@click.option(
    "--noise-key-file",
    metavar="FILE",
    help="The noise key: a secret of at least 32 random bytes, mode 0600; not with --run-id, but always with --state. "
    "Default: a key that is drawn for this run and forgotten.",
)
@click.option(
    "--run-id",
    help="Name of the run; not with --noise-key-file. Default: a fresh one. Every new run must have a new name.",
)
@state_options
@ledger_options
@click.option("--stream", metavar="NAME", default="events", show_default=True, help="Name of the stream in the report.")
@click.option(
    "--dead-letter",
    metavar="FILE|URL",
    help="File for a list of the rows that cannot be read (JSON lines; a local one has mode 0600).",
)
@click.option(
    "--max-bad-fraction",
    type=click.FloatRange(0, 1),
    default=0.5,
    show_default=True,
    help="Publish nothing if a larger fraction of the rows cannot be read. Keep it high: one user can write such "
    "rows, and a report that does not appear reveals them.",
)
@replay_engine_options
@click.option("--allow-large-log", is_flag=True, help="Replay even if the log may not fit into memory.")
@click.option("--verbose", is_flag=True, help="Show Beam's log, which may contain cells of the data.")
@click.pass_context
def command(context: click.Context, /, logs: tuple[str, ...], **options: Any) -> None:
    """Replay a log: which items were held by many users in each window, under differential privacy for each user.

    LOG is a Parquet, Avro, CSV or JSON lines file, a folder of such files, or a glob: a path, or a URL
    s3://..., gs://..., azfs://... or hdfs://..., as --plan, --domain-file, --output and --dead-letter
    may be (docs/object_stores.md). Options for Beam follow after `--`. `shh replay LOG` alone, without a budget, runs
    nothing: it looks at the log and prints the whole command.

    \b
    shh replay clicks.parquet --start 2026-01-01 --end 2026-01-05 --window 1h \\
        --epsilon 2 --delta 1e-9 --output report.avro
    """
    if _has_no_budget(options):
        _propose(context, logs, options)
    if options["output"] is None:
        raise click.UsageError("Missing option '--output'.", ctx=context)
    where: PipelineOptions | ClusterReplay
    try:
        cluster = choose_replay_engine(logs, options, context.obj or [])
        if cluster is not None:
            logs, options = with_absolute_paths(logs, options)
        where = cluster or pipeline_options(context.obj or [])
        account = account_of_options(options)
        request = _request(logs, options, account)
        if _is_local(where) and not options["allow_large_log"]:
            check_memory(request.chunks, request.fields, request.plan, request.domain_file)
    except ValueError as error:  # of a file, the plan, or an option
        raise UserError(str(error)) from None
    if options["state"] is None:
        summary = _run_whole(logs, request, where, options["run_id"], account)
    else:
        assert isinstance(where, PipelineOptions)
        summary = _run_part(logs, request, where, options, account or RunAccount())
    if summary is None:
        return
    skipped = "--start .. --end" if options["state"] is None else "this part"
    _print_summary(summary, options["time_unit"], request.domain_file is not None, skipped)
    _print_report(request)


def _has_no_budget(options: dict[str, Any]) -> bool:
    """Whether nothing says what is to be published, where or from which account."""
    names = (*PLAN_OPTIONS, "plan_file", "output", "state", "until", "ledger")
    return all(options[name] is None for name in names)


def _propose(context: click.Context, logs: tuple[str, ...], options: dict[str, Any]) -> NoReturn:
    """Looks at the log and prints the whole command. On stderr: nothing of it may be published. Exit code 2, as for
    any command line that lacks an option: a script must not take it for a report."""
    from dp_transforms.pipelines.doctor import show_look

    given = {name for name in options if context.get_parameter_source(name) is not ParameterSource.DEFAULT}
    fields = {name: options[name] if name in given else None for name in ("user_field", "item_field", "time_field")}
    show_look(logs, {**options, **fields}, tell, ascii_only=is_ascii_only(Console(stderr=True)))
    tell("\nNothing was run: the options of a budget are missing.".lstrip("\n" if is_json() else ""), ERROR)
    raise SystemExit(UNREADABLE)


def _run(
    request: ReplayRequest, where: PipelineOptions | ClusterReplay, part: ReplayPart | None = None
) -> ReplaySummary | None:
    """None if the job was left running."""
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    if request.hint and is_json():
        tell(request.hint, WARNING)
    elif request.hint and console.is_terminal:  # else the error has the hint, if there is one
        console.print(request.hint, style="bold", markup=False)
    if isinstance(where, ClusterReplay):
        from dp_transforms.pipelines.cluster_replay import replay_on_cluster  # loads all engines

        return replay_on_cluster(request, where)
    progress = ReadProgress()
    # Unwinding lets Beam end its worker processes in order. Threads of this process need no such care.
    stopping = contextlib.nullcontext() if _in_this_process(where) else Unwinding()
    with stopping, show_progress(progress, sum(chunk.bytes for chunk in request.chunks)):
        return run_replay(request, where, progress, part)


def _run_whole(
    logs: tuple[str, ...],
    request: ReplayRequest,
    where: PipelineOptions | ClusterReplay,
    run_id: str | None,
    account: LedgerAccount | None,
) -> ReplaySummary | None:
    """All of a run at once, without a state."""
    if account is None:
        return _run(request, where)
    with state_errors():
        path = request.noise_key_file
        log = _fingerprint_of_log(logs, request, None if path is None else input_key(secret_of_run(path)))
        verdict = account.reserve_whole(request.plan, request.stream, run_id, log.text)
        with account.whole():
            return _run(dataclasses.replace(request, run_id=verdict.run_id), where)


def _fingerprint_of_log(logs: tuple[str, ...], request: ReplayRequest, key: bytes | None = None) -> InputFingerprint:
    """key: `input_key` of the run. Raises UserError if the files were exchanged since they were listed: then the row
    groups that are read would not be those of the file that was fingerprinted."""
    fields = request.fields
    reading = (*fields.names, fields.time_unit or "", str(fields.csv_line_ends_in_cells))
    files = [(chunk.path, ending_of_log(chunk.path)) for chunk in request.chunks]
    stored = {chunk.path: chunk.stored for chunk in request.chunks if chunk.stored is not None}
    log = InputFingerprint(files, reading, key, stored)
    try:
        is_same = bool(log.text) and find_log_chunks(logs, fields) == request.chunks
    except EventFileError as error:
        raise UserError(str(error)) from None
    if not is_same:
        raise UserError("the log was changed while it was looked at. Replay files that nobody writes to any more.")
    return log


def _run_part(
    logs: tuple[str, ...],
    request: ReplayRequest,
    beam_options: PipelineOptions,
    options: dict[str, Any],
    account: RunAccount,
) -> ReplaySummary | None:
    """One part of a run with a state; None if it was done before."""
    assert request.noise_key_file is not None
    path = os.path.abspath(options["state"])
    with state_errors(), hold_state(path):
        log = _fingerprint_of_log(logs, request, input_key(secret_of_run(request.noise_key_file)))
        facts = open_part(
            request.plan,
            StateOptions(
                path,
                request.noise_key_file,
                request.fields.user,
                request.fields.item,
                full_name(request.output),
                until_seconds=options["until"],
                run_id=options["run_id"],
                population=options["population"],
            ),
            stream=request.stream,
            input_fingerprint=log.text,
            account=account,
            check=lambda facts: check_outputs(facts, request.output, request.dead_letter),
        )
        part = ReplayPart(facts, log)
        if part.facts.how == DONE:
            part.tidy()
            account.finish(part.facts, part.facts.state_fingerprint)
            tell(part_is_done(part.facts))
            return None
        request = dataclasses.replace(request, run_id=part.facts.header.run_id)
        with part.account_of(account):
            summary = _run(request, beam_options, part)
    tell(part_is_taken(part.facts))
    return summary


def _is_local(where: PipelineOptions | ClusterReplay) -> bool:
    return not isinstance(where, ClusterReplay) and is_local(where)


def _in_this_process(beam_options: PipelineOptions) -> bool:
    mode = beam_options.view_as(DirectOptions).direct_running_mode
    return is_local(beam_options) and mode in (None, "in_memory", "multi_threading")


def _request(logs: tuple[str, ...], options: dict[str, Any], account: LedgerAccount | None) -> ReplayRequest:
    """Finds all errors that can be known beforehand, before any budget is spent."""
    output, dead_letter = options["output"], options["dead_letter"]
    table, run_id = output_table(options), options["run_id"] or uuid.uuid4().hex
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
        account.check_fits(
            plan, options["stream"], options["run_id"]
        )  # a state is of a run that has paid, or is refused
    chunks = find_log_chunks(logs, fields)
    return ReplayRequest(
        chunks=chunks,
        fields=fields,
        hint=hint_of_log(chunks, fields),
        plan=plan,
        domain_file=options["domain_file"],
        output=output,
        dead_letter=dead_letter,
        max_bad_fraction=options["max_bad_fraction"],
        noise_key_file=options["noise_key_file"],
        noise_key_secret=options["noise_key_secret"],
        run_id=run_id,
        stream=options["stream"],
        table=table,
    )


def _print_summary(summary: ReplaySummary, time_unit: str | None, has_domain: bool, covered: str) -> None:
    """Prints on stderr: this is for the operator alone. covered: outside of which events are skipped."""
    rows = summary.events + summary.rejected
    unpaid = f" {summary.unpaid:,} pairs (window, item) beyond --most-looks of a user did not count,"
    rejected = f" {summary.rejected:,} unreadable. (For the operator, not covered by the guarantee.)"
    read = (
        f"Read {rows:,} rows in {summary.seconds:.1f} s ({rows / summary.seconds:,.0f} a second);"
        f" {summary.outside_range:,} outside {covered} skipped,"
        f"{f' {summary.outside_domain:,} of other items than --domain-file skipped,' if has_domain else ''}"
        f"{unpaid if summary.unpaid else ''}{rejected}"
    )
    odd, remedy = "", ""
    if not rows:
        odd = "The log has no rows."
    elif summary.events == summary.outside_range:
        unit = f"--time-unit {time_unit}" if time_unit else "--time-unit"
        odd, remedy = f"No event is inside {covered}.", f" Check them, and {unit}."
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
        console.print(windows_table(shown, max_items=_ITEMS_PER_WINDOW, ascii_only=ascii_only))
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
