"""``shh replay LOG...``: from a historical log to private reports, window by window."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import NoReturn

import click
from rich.console import Console

from dp_transforms.checks import check_names
from dp_transforms.cli.operator_log import tell
from dp_transforms.cli.options import MAKE_A_KEY, UNREADABLE, beam_words, filled_by, given_names, user_errors
from dp_transforms.cli.output_file import check_output, write_output
from dp_transforms.cli.plan_options import plan_of_command
from dp_transforms.cli.replay_request import (
    REPLAY_RULES,
    ReplayOptions,
    ReplayRequest,
    ReplaySummary,
)
from dp_transforms.cli.replay_run import run_part, run_whole
from dp_transforms.cli.run_account import RunAccount
from dp_transforms.cli.shared_options import StateOptions, check_page, check_state_file
from dp_transforms.core.planned_run import fresh_run_id
from dp_transforms.errors import UserError
from dp_transforms.local.machine import SMALL_LOG_BYTES, bytes_of_files, events_in_windows
from dp_transforms.local.pool import start_fork_server
from dp_transforms.logs import find_log_chunks, unit_hint
from dp_transforms.logs.event_ids import joined_label
from dp_transforms.plan.rounds import PARTS, REPLAY
from dp_transforms.plan.window_schedule import MICROS_PER_SECOND, format_utc
from dp_transforms.reports import ReportFileError, read_report_file, report_format
from dp_transforms.reports.trends import Trend, trends
from dp_transforms.runs.records import Verdict
from dp_transforms.stores.remote_files import full_name
from dp_transforms.views.plan_words import in_a_sentence, why
from dp_transforms.views.report_words import counted, is_ascii_only, legend, windows_table

_LATEST_WINDOWS = 12
_ITEMS_PER_WINDOW = 8
_BY_ITSELF = "The command itself would do the work: the log is small."
_MANY_IN_WINDOWS = 10_000_000
_FEWEST_EVENTS = 30  # of a user: where fewer count in all their windows it is said


@filled_by(ReplayOptions, "replay", REPLAY_RULES, has_runner=True)
def command(options: ReplayOptions) -> None:
    """Replay a log: which items were held by many users in each window, under differential privacy for each user.

    LOG: a path or URL (docs/stores.md) of a file (Parquet, Avro, CSV, JSON lines), folder or glob.
    `shh replay LOG` alone shows the whole command.

    \b
    shh replay clicks.parquet --start 2026-01-01 --end 2026-01-05 --window 1h \\
        --epsilon 2 --delta 1e-9 --output report.avro

    Options of Beam may follow, such as --runner=FlinkRunner --flink_master=HOST:PORT (docs/engines.md).
    """
    context = click.get_current_context()
    if options.has_no_budget:
        _propose(options)
    if options.output is None and not options.dry_run:
        raise click.UsageError("Missing option '--output'.", ctx=context)
    check_page(options.html)
    titles = options.view.read_titles()
    if options.dry_run:
        _say_what_would_be_done(options)
        return
    summary, request = _replay(options, beam_words())
    if summary is None:
        return
    skipped = "--start .. --end" if request.state is None else "this part"
    _print_summary(summary, request, skipped)
    if options.html is not None:
        _write_page(options.html, request, titles)
    _print_report(request, titles)


def _replay(options: ReplayOptions, runner: Sequence[str]) -> tuple[ReplaySummary | None, ReplayRequest]:
    """runner: Beam's options, if one was named."""
    with user_errors(ValueError):  # of a file, the plan, or an option
        if runner:
            _check_with_runner(options)
            options = options.with_absolute_paths()
        elif bytes_of_files(options.logs) >= SMALL_LOG_BYTES:
            with contextlib.suppress(OSError):  # it is told when workers are started
                start_fork_server()  # which loads its libraries while the plan is made
        account = RunAccount.of_options(options.account)
        request = _request(options, account)
        if sliding := _sliding_words(request):
            tell(sliding)
        if not runner and (little := _memory_words(request)):
            tell(little)
    if request.state is None:
        return run_whole(request, runner, account), request
    return run_part(request, account), request


def _memory_words(request: ReplayRequest) -> str | None:
    """None where --memory is enough."""
    spread, memory = request.spread, request.options.work.memory
    if memory is None or memory >= spread.least_bytes:
        return None
    return (
        f"--memory is less than this command with {counted(spread.number, 'worker')} may take,"
        f" {spread.least_bytes / 1e9:.2f} GB, even with all that lies between two steps on disk."
    )


def _sliding_words(request: ReplayRequest) -> str | None:
    """What windows that overlap cost, in a sentence; None where they cost little."""
    schedule, plan, words = request.plan.schedule, request.plan, []
    in_windows, repeats = events_in_windows(request.chunks, schedule), schedule.windows_per_event
    if repeats > 1 and in_windows >= _MANY_IN_WINDOWS:
        words.append(f"this takes the time of about {in_windows:,} events, and space for them in --memory or in TMPDIR")
    if plan.contributions is not None and repeats > 1:
        events = min(plan.units_of_rounds) // plan.contributions.units[0] // repeats
        if events < _FEWEST_EVENTS:
            words.append(f"only about {max(1, events):,} of a user count, since each is paid (--most-contributions)")
    if not words:
        return None
    return f"Each event counts in {repeats:,} windows: {'; and '.join(words)}. A longer --slide helps."


def _check_with_runner(options: ReplayOptions) -> None:
    """Raises UserError for options that only a replay on this machine has."""
    if options.noise_key_file is None:
        raise UserError(f"--runner needs --noise-key-file: workers need one noise key. {MAKE_A_KEY}")
    given = {"--state": options.part.state, "--memory": options.work.memory, "--processes": options.work.processes}
    for name, value in given.items():
        if value is not None:
            raise UserError(f"{name} cannot be used with --runner: it is for a replay on this machine. Leave one out.")


def _say_what_would_be_done(options: ReplayOptions) -> None:
    """On stderr, since it depends on the log: what a replay prints on stdout may be published."""
    with user_errors(ValueError), tempfile.TemporaryDirectory() as folder:
        account = RunAccount.of_options(options.account, trial=folder)
        request = _request(options, account)
        charged = account.check_fits(request.plan, options.stream, options.run_id)
        for line in _dry_run_lines(request, charged):
            tell(line)


def _dry_run_lines(request: ReplayRequest, charged: Verdict | None) -> Iterator[str]:
    """What a replay would read, find, need and charge. charged: by the ledger; None without one. Raises EventFileError,
    as the replay would."""
    from dp_transforms.cli.doctor import FOR_THE_OPERATOR
    from dp_transforms.logs import estimate_log

    yield FOR_THE_OPERATOR
    events = estimate_log(request.chunks, request.fields).events
    yield f"Reads about {counted(events, 'row')} of {counted(len({chunk.path for chunk in request.chunks}), 'file')}."
    yield _range_words(request)
    yield f"{request.plan.guarantee} {in_a_sentence(request.plan)}"
    number = request.spread.number
    yield f"{counted(number, 'worker')} of this machine would do the work." if number else _BY_ITSELF
    if little := _memory_words(request):
        yield little
    if sliding := _sliding_words(request):
        yield sliding
    if charged is not None:
        yield f"The ledger is not charged by this. If it is run, {charged.line}"
    report = f" The report would be {request.output}." if request.output else ""
    yield f"Nothing was reserved or written.{report}"


def _range_words(request: ReplayRequest) -> str:
    """The declared range, beside the times that were looked at."""
    from dp_transforms.cli.doctor import ROLES, look_at

    schedule, fields = request.plan.schedule, request.fields
    start, end = (MICROS_PER_SECOND * at for at in (schedule.start_seconds, schedule.end_seconds))
    glance = look_at(request.options.logs, dict(zip(ROLES, fields.names, strict=False)), fields)
    declared = f"Declared: {format_utc(start)} to {format_utc(end)}, {counted(schedule.horizon, 'window')}."
    if glance.low is None or glance.high is None:
        return f"{declared} No time was found in the rows that were looked at."
    seen = f"{declared} Times that were looked at: {format_utc(glance.low)} to {format_utc(glance.high)}"
    is_outside = glance.high < start or glance.low >= end
    return f"{seen}, all of them outside." if is_outside else f"{seen}."


def _propose(options: ReplayOptions) -> NoReturn:
    """Looks at the log and prints the whole command. On stderr: nothing of it may be published. Exit code 2, as for
    any command line that lacks an option: a script must not take it for a report."""
    from dp_transforms.cli.doctor import ROLES, show_glance

    fields, names = options.fields.fields(), given_names()
    given = {role: name for role, name in zip(ROLES, fields.names, strict=False) if f"{role}_field" in names}
    show_glance(options.logs, given, fields, tell, Console(stderr=True), fields.items[1:])
    tell("\nNothing was run: the options of a budget are missing.")
    raise SystemExit(UNREADABLE)


def _request(options: ReplayOptions, account: RunAccount) -> ReplayRequest:
    """Finds all errors that can be known beforehand, before any budget is spent."""
    output, run_id, path = options.output or "", options.run_id or fresh_run_id(), options.part.state
    if output:
        report_format(output)
    if path is None:  # else what exists may be of this part, which was begun before
        check_output(options.output)
    others = {"--dead-letter": options.dead_letter, "--block-output": options.block_output}
    _check_others(output, {option: name for option, name in others.items() if name}, may_exist=path is not None)
    check_names(**{"--stream": options.stream, "--run-id": options.run_id})
    if path is not None:
        inputs = {"--plan": options.plan_file, "--noise-key-file": options.noise_key_file}
        check_state_file(path, {"--output": options.output, **others, **inputs})
    use = REPLAY if path is None else PARTS
    plan = plan_of_command(options.plan, options.plan_file, use)
    fields = options.fields.fields()
    if plan.contributions is not None and (options.plan_file is None or options.dry_run):
        tell(why(plan, use))
    if options.block_output and plan.rounds is None:
        raise UserError("--block-output needs a plan with rounds, and this one has none. Leave it out.")
    if path is None or not os.path.lexists(path):
        # A state is of a run that has paid, or is refused.
        account.check_fits(plan, options.stream, options.run_id)
    chunks = find_log_chunks(options.logs, fields)
    return ReplayRequest(
        options,
        chunks=chunks,
        fields=fields,
        plan=plan,
        output=output,
        run_id=run_id,
        state=None if path is None else _state(options, path, full_name(output)),
    )


def _check_others(output: str, others: Mapping[str, str], *, may_exist: bool) -> None:
    """Further files that the run writes."""
    named = {os.path.realpath(output): "--output"}
    for option, name in others.items():
        if option == "--block-output":
            report_format(name)
        if not may_exist:
            check_output(name, option)
        other = named.setdefault(os.path.realpath(name), option)
        if other != option:
            raise UserError(f"{other} and {option} name the same file. Name two different ones.")


def _state(options: ReplayOptions, path: str, output: str) -> StateOptions:
    return StateOptions(
        os.path.abspath(path),
        str(options.noise_key_file),
        options.fields.user_field,
        joined_label(options.fields.items),
        output,
        until_seconds=options.part.until,
        run_id=options.run_id,
        population=options.account.population,
    )


def _print_summary(summary: ReplaySummary, request: ReplayRequest, covered: str) -> None:
    """Prints on stderr: this is for the operator alone. covered: outside of which events are skipped."""
    rows = summary.events + summary.rejected
    beyond = (
        "tests of a round beyond the user budget"
        if len(request.plan.units_of_rounds) > 1
        else "contributions beyond --most-contributions"
    )
    unpaid = f" {summary.unpaid:,} {beyond} of a user did not count,"
    rejected = f" {summary.rejected:,} unreadable. (For the operator, not covered by the guarantee.)"
    read = (
        f"Read {rows:,} rows in {summary.seconds:.1f} s ({rows / summary.seconds:,.0f} a second);"
        f" {summary.outside_range:,} outside {covered} skipped,"
        f"{f' {summary.outside_domain:,} of other items than --public-items skipped,' if request.public_items else ''}"
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
        odd, remedy = "No event has an item of --public-items.", " Ids are compared as text, blanks included."
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    console.print(f"[dim]{read}[/]")
    if odd:
        console.print(f"[bold]{odd}[/]{remedy}")


def _write_page(path: str, request: ReplayRequest, titles: dict[str, str]) -> None:
    """After the report: it is there whatever becomes of the page. Raises UserError that says so."""
    from dp_transforms.views.page.report_page import report_page

    view = request.options.view
    try:
        header, reports = read_report_file(request.output)
        write_output(path, report_page(header, list(reports), view.zone, titles, title=view.page_title))
    except (UserError, ReportFileError) as error:
        raise UserError(
            f"the report is published, and valid. Only its page was not written: {error} Do not run the replay again,"
            f" which would spend a budget again: shh show {request.output} --html {path}"
        ) from None
    tell(f"Page written to {path}.")


def _print_report(request: ReplayRequest, titles: Mapping[str, str]) -> None:
    console = Console(highlight=False)
    console.print(request.plan.guarantee, markup=False)
    header, reports = read_report_file(request.output)
    total, shown = 0, deque[Trend](maxlen=_LATEST_WINDOWS)
    for total, found in enumerate(trends(header.plan, reports, are_all=request.state is None), start=1):  # noqa: B007
        shown.append(found)
    if not shown:
        console.print(
            f"No window had an item held by enough users. {in_a_sentence(request.plan)}", markup=False, soft_wrap=True
        )
    else:
        ascii_only = is_ascii_only(console)
        table = windows_table(
            shown,
            max_items=_ITEMS_PER_WINDOW,
            ascii_only=ascii_only,
            zone=request.options.view.zone,
            plan=header.plan,
            titles=titles,
        )
        console.print(table)
        console.print(legend(shown, plan=header.plan, ascii_only=ascii_only), markup=False)
    console.print(
        f"{counted(total, 'window')} with heavy items: {request.output}; see all with: shh show {request.output}",
        markup=False,
        soft_wrap=True,
    )
    if (blocks := request.options.block_output) is not None:
        console.print(f"Of blocks: {blocks}; see it with: shh show {blocks}", markup=False, soft_wrap=True)
