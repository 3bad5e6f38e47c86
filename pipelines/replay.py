"""``shh replay LOG...``: from a historical log to private reports, window by window."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import uuid
from collections.abc import Iterator
from typing import Any

import click
from apache_beam.options.pipeline_options import DirectOptions, PipelineOptions
from rich.console import Console

from dp_transforms.beam.read_events import ReadProgress
from dp_transforms.checks import check_names
from dp_transforms.event_files import find_log_chunks, hint_of_log
from dp_transforms.local_files import open_regular
from dp_transforms.pipelines.event_options import event_fields
from dp_transforms.pipelines.exit_signals import Unwinding
from dp_transforms.pipelines.ledger_account import LedgerAccount, ledger_options
from dp_transforms.pipelines.options import UTC_TIME, UserError, field_options
from dp_transforms.pipelines.output_file import check_output
from dp_transforms.pipelines.plan_options import flag, plan_of_command, plan_options
from dp_transforms.pipelines.plan_words import in_a_sentence
from dp_transforms.pipelines.replay_engine import (
    FlinkReplay,
    choose_replay_engine,
    replay_engine_options,
    with_absolute_paths,
)
from dp_transforms.pipelines.replay_progress import show_progress
from dp_transforms.pipelines.replay_run import ReplayRequest, ReplaySummary, check_memory, run_replay
from dp_transforms.pipelines.replay_state import (
    DONE,
    ReplayPart,
    RunAccount,
    StateOptions,
    open_part,
    part_is_done,
    part_is_taken,
)
from dp_transforms.pipelines.report_table import is_ascii_only, legend, windows_table
from dp_transforms.report_files import read_report_file, report_format
from dp_transforms.run_state.fingerprints import InputFingerprint
from dp_transforms.run_state.state_header import StateError
from dp_transforms.run_state.state_lock import hold_state
from dp_transforms.runners.local import is_local, pipeline_options

_LATEST_WINDOWS = 12
_ITEMS_PER_WINDOW = 12


@click.command(name="replay")
@click.argument("logs", metavar="LOG...", nargs=-1, required=True)
@field_options
@plan_options
@click.option(
    "--output",
    required=True,
    metavar="FILE",
    help="Where the report goes: a name that ends in .avro, .jsonl or .parquet; must not exist.",
)
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
@click.option(
    "--state",
    metavar="FILE",
    help="Take the range in parts, one command after the other, for one budget: a private file with what one part "
    "hands to the next, made by the first one (mode 0600). The budget options and the key are the same in all parts. "
    "With --release names users spend at their own pace, as in a stream.",
)
@click.option(
    "--until",
    type=UTC_TIME,
    help="With --state: this part ends here, at the end of a window; it begins where the part before it ended. "
    "Default: --end.",
)
@ledger_options
@click.option("--stream", metavar="NAME", default="events", show_default=True, help="Name of the stream in the report.")
@click.option(
    "--dead-letter", metavar="FILE", help="File for a list of the rows that cannot be read (JSON lines, mode 0600)."
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

    LOG is a Parquet, Avro, CSV or JSON lines file, a folder of such files, or a glob. Options for Beam follow after
    `--`.

    \b
    shh replay clicks.parquet --start 2026-01-01 --end 2026-01-05 --window 1h \\
        --epsilon 2 --delta 1e-9 --output report.avro
    """
    where: PipelineOptions | FlinkReplay
    try:
        flink = choose_replay_engine(options, context.obj or [])
        if flink is not None:
            logs, options = with_absolute_paths(logs, options)
        where = flink or pipeline_options(context.obj or [])
        account = LedgerAccount.of_options(options)
        request = _request(logs, options)
        if _is_local(where) and not options["allow_large_log"]:
            check_memory(request.chunks, request.fields, request.plan, request.domain_file)
    except ValueError as error:  # of a file, the plan, or an option
        raise UserError(str(error)) from None
    if options["state"] is None:
        summary = _run_whole(request, where, options["run_id"], account)
    else:
        assert isinstance(where, PipelineOptions)
        summary = _run_part(request, where, options, account or RunAccount())
    if summary is None:
        return
    skipped = "--start .. --end" if options["state"] is None else "this part"
    _print_summary(summary, options["time_unit"], request.domain_file is not None, skipped)
    _print_report(request)


def _run(
    request: ReplayRequest, where: PipelineOptions | FlinkReplay, part: ReplayPart | None = None
) -> ReplaySummary | None:
    """None if the job was left running."""
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    if request.hint and console.is_terminal:  # else the error has the hint, if there is one
        console.print(request.hint, style="bold", markup=False)
    if isinstance(where, FlinkReplay):
        from dp_transforms.pipelines.flink_replay import replay_on_flink  # loads all engines

        return replay_on_flink(request, where)
    progress = ReadProgress()
    # Unwinding lets Beam end its worker processes in order. Threads of this process need no such care.
    stopping = contextlib.nullcontext() if _in_this_process(where) else Unwinding()
    with stopping, show_progress(progress, sum(chunk.bytes for chunk in request.chunks)):
        return run_replay(request, where, progress, part)


def _run_whole(
    request: ReplayRequest, where: PipelineOptions | FlinkReplay, run_id: str | None, account: LedgerAccount | None
) -> ReplaySummary | None:
    """All of a run at once, without a state."""
    if account is None:
        return _run(request, where)
    with _state_errors():
        log = _fingerprint_of_log(request)
        verdict = account.reserve_whole(request.plan, request.stream, run_id, log.text)
        with account.whole():
            return _run(dataclasses.replace(request, run_id=verdict.run_id), where)


def _fingerprint_of_log(request: ReplayRequest) -> InputFingerprint:
    fields = request.fields
    reading = (*fields.names, fields.time_unit or "", str(fields.csv_line_ends_in_cells))
    return InputFingerprint((chunk.path for chunk in request.chunks), reading)


@contextlib.contextmanager
def _state_errors() -> Iterator[None]:
    try:
        yield
    except StateError as error:
        raise UserError(str(error)) from None


def _run_part(
    request: ReplayRequest, beam_options: PipelineOptions, options: dict[str, Any], account: RunAccount
) -> ReplaySummary | None:
    """One part of a run with a state; None if it was done before."""
    assert request.noise_key_file is not None
    path = os.path.abspath(options["state"])
    with _state_errors(), hold_state(path):
        part = open_part(
            request.plan,
            StateOptions(
                path,
                request.output,
                until_seconds=options["until"],
                run_id=options["run_id"],
                population=options["population"],
                dead_letter=request.dead_letter,
            ),
            stream=request.stream,
            noise_key_file=request.noise_key_file,
            log=_fingerprint_of_log(request),
            account=account,
        )
        if part.facts.how == DONE:
            part.tidy()
            account.finish(part.facts, part.facts.state_fingerprint)
            click.echo(part_is_done(part.facts), err=True)
            return None
        request = dataclasses.replace(request, run_id=part.facts.header.run_id)
        with part.account_of(account):
            summary = _run(request, beam_options, part)
    click.echo(part_is_taken(part.facts), err=True)
    return summary


def _is_local(where: PipelineOptions | FlinkReplay) -> bool:
    return not isinstance(where, FlinkReplay) and is_local(where)


def _in_this_process(beam_options: PipelineOptions) -> bool:
    mode = beam_options.view_as(DirectOptions).direct_running_mode
    return is_local(beam_options) and mode in (None, "in_memory", "multi_threading")


def _request(logs: tuple[str, ...], options: dict[str, Any]) -> ReplayRequest:
    """Finds all errors that can be known beforehand, before any budget is spent."""
    output, dead_letter = options["output"], options["dead_letter"]
    report_format(output)
    if options["state"] is None:  # else what exists may be of this part, which was begun before
        check_output(output)
    if dead_letter:
        if options["state"] is None:
            check_output(dead_letter, "--dead-letter")
        if os.path.realpath(dead_letter) == os.path.realpath(output):
            raise UserError("--output and --dead-letter name the same file. Name two different ones.")
    check_names(**{flag(name): options[name] for name in ("stream", "run_id")})
    _check_state_options(options)
    if options["state"] is None and options["run_id"] is not None and options["noise_key_file"] is not None:
        raise UserError(
            "--run-id and --noise-key-file exclude each other in a replay. If both were used again on a log that has"
            " changed, both runs would draw the same noise, and the two reports would show what changed. Leave --run-id"
            " out: a fresh one is drawn."
        )
    fields = event_fields(options)
    plan = plan_of_command(options)
    if options["state"] is not None and getattr(plan, "counts_for", None):
        raise UserError(
            "--state cannot be used with a plan that has --counts-for: counts are paid for when all names of the run"
            " are known. Make a plan without it."
        )
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
        run_id=options["run_id"] or uuid.uuid4().hex,
        stream=options["stream"],
    )


def _check_state_options(options: dict[str, Any]) -> None:
    """Raises UserError for options that do not go with ``--state``, or not without it."""
    state = options["state"]
    if state is None:
        if options["until"] is not None:
            raise UserError("--until belongs to --state. Give --state FILE, or declare another range with --end.")
        return
    if "://" in state:
        raise UserError("--state must be a path, got a URL. Mount what it names, and give the path of that.")
    if options["noise_key_file"] is None:
        raise UserError(
            "--state needs --noise-key-file: all parts of a run have one key, since users are recognised by it. Make"
            " one with: (umask 077; head -c 32 /dev/urandom > noise.key)"
        )
    if os.path.islink(state):
        raise UserError(f"--state {state} is a link, not a regular file. Give the path of the file itself.")
    if not os.path.isdir(os.path.dirname(os.path.abspath(state))):
        raise UserError(
            f"--state {state} cannot be written: its folder does not exist. Create it, or name another one."
        )
    try:
        open_regular(state).close()
    except FileNotFoundError:
        pass  # the first part makes it
    except OSError as error:
        raise UserError(f"--state {state} cannot be read: {error.strerror}. Check the path.") from None
    for name in ("output", "dead_letter", "noise_key_file", "plan_file"):
        if options[name] is not None and os.path.realpath(options[name]) == os.path.realpath(state):
            other = "--plan" if name == "plan_file" else flag(name)
            raise UserError(f"--state and {other} name the same file. Name two different ones.")


def _print_summary(summary: ReplaySummary, time_unit: str | None, has_domain: bool, covered: str) -> None:
    """Prints on stderr: this is for the operator alone. covered: outside of which events are skipped."""
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    unpaid = f" {summary.unpaid:,} pairs (window, item) beyond --most-looks of a user did not count,"
    rejected = f" {summary.rejected:,} unreadable. (For the operator, not covered by the guarantee.)"
    console.print(
        f"[dim]Read {summary.events + summary.rejected:,} rows in {summary.seconds:.1f} s"
        f" ({(summary.events + summary.rejected) / summary.seconds:,.0f} a second);"
        f" {summary.outside_range:,} outside {covered} skipped,"
        f"{f' {summary.outside_domain:,} of other items than --domain-file skipped,' if has_domain else ''}"
        f"{unpaid if summary.unpaid else ''}{rejected}[/]"
    )
    if not summary.events + summary.rejected:
        console.print("[bold]The log has no rows.[/]")
    elif summary.events == summary.outside_range:
        unit = f"--time-unit {time_unit}" if time_unit else "--time-unit"
        console.print(f"[bold]No event is inside {covered}.[/] Check them, and {unit}.")
    elif summary.events == summary.outside_range + summary.outside_domain:
        console.print("[bold]No event has an item of --domain-file.[/] Ids are compared as text, blanks included.")


def _print_report(request: ReplayRequest) -> None:
    console = Console(highlight=False)
    console.print(request.plan.guarantee, markup=False)
    header, reports = read_report_file(request.output)
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
    windows = "1 window" if len(latest) == 1 else f"{len(latest):,} windows"
    console.print(
        f"{windows} with heavy items: {request.output}; see all with: shh show {request.output}",
        markup=False,
        soft_wrap=True,
    )
