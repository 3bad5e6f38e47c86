"""``shh explain``: what a report or a plan promises, in plain words, for somebody who decides about it."""

from __future__ import annotations

import datetime
import shutil
import textwrap
from collections.abc import Iterable, Sequence

import click

from dp_transforms.cli.options import Command, Options, option
from dp_transforms.cli.plan_options import read_plan
from dp_transforms.cli.show import end_in_words
from dp_transforms.core.window_report import WindowReport
from dp_transforms.errors import UserError
from dp_transforms.plan.plan import Plan
from dp_transforms.reports import ReportHeader, read_report
from dp_transforms.views.page.promise import (
    Finding,
    budget_of,
    check_against_plan,
    in_three_sentences,
    may_be_done,
    must_not_be_concluded,
    not_covered,
)
from dp_transforms.views.page.report_page import named_in_words, plan_facts
from dp_transforms.views.plan_words import in_a_sentence, rounds_in_words
from dp_transforms.views.report_words import escape_text, local_text, shown_text

_WIDTH = 100
_PLAN = "Explain a plan of `shh plan --output` instead, before it is run."


@click.command(
    "explain",
    cls=Command,
    params=[
        click.Argument(["reports"], nargs=-1, metavar="[REPORT]..."),
        option(["--plan", "plan_file"], metavar="FILE", help=_PLAN),
    ],
)
def command(options: Options) -> None:
    """Say in plain words what a report promises, what it may be used for, and what it does not cover.

    REPORT is a file of `shh replay`, several of one run or their folder, or a folder of `shh stream`. Exit code 1 if
    the report contradicts its own plan.
    """
    plan_file = options.plan_file
    if bool(options.reports) == (plan_file is not None):
        raise click.UsageError("Name a report, or a plan with --plan.")
    findings: list[Finding] = []
    if plan_file is not None:
        plan: Plan | None = read_plan(plan_file)
        header, windows = None, list[WindowReport]()
    else:
        report = read_report(*options.reports)
        header, windows, plan = report.header, list(report), report.header.checked_plan()
        findings = check_against_plan(header, windows, plan)
        _say_report(header, windows, end_in_words(options.reports, report))
    _say_promise(plan, windows, header)
    if findings:
        marks = {True: "yes:", False: "NO, this does not hold:"}
        _say("Does the report agree with its plan?", [f"{marks[each.holds]} {each.sentence}" for each in findings])
    if not all(each.holds for each in findings):
        raise UserError("the report and its plan do not agree: see the points marked NO. Do not rely on its guarantee.")


def _say_report(header: ReportHeader, reports: Sequence[WindowReport], state: str) -> None:
    items = {heavy_hitter.item for report in reports for heavy_hitter in report.heavy_hitters}
    lines = [
        f"Stream {shown_text(header.stream)}, run {shown_text(header.run_id)}: which items many users had,"
        " window by window.",
        "No window has a heavy item."
        if not reports
        else f"{named_in_words(len(items), len(reports))}, between"
        f" {local_text(min(report.window_start for report in reports), datetime.UTC)} and"
        f" {local_text(max(report.window_end for report in reports), datetime.UTC)} (UTC).",
    ]
    _say("The report", [*lines, *([state] if state else [])])
    _say("What it states", [escape_text(header.guarantee)])


def _say_promise(plan: Plan | None, reports: Sequence[WindowReport], header: ReportHeader | None) -> None:
    """header: of the report; None for a plan."""
    if plan is not None:
        _say("The plan", [f"{name}: {value}" for name, value in plan_facts(plan)])
    budget = budget_of(plan, reports)
    if budget is not None:
        _say("What is promised to each person", in_three_sentences(budget))
    if plan is not None:
        rounds = [rounds_in_words(plan)] if len(plan.units_of_rounds) > 1 else []
        _say("What it finds, and what not", [in_a_sentence(plan), *rounds])
    of_what = "a report of this plan" if header is None else "this report"
    _say(f"You may, with {of_what}", may_be_done(plan))
    _say("You must not conclude", must_not_be_concluded(plan))
    _say("What is not covered", not_covered(budget, plan))


def _say(title: str, sentences: Iterable[str]) -> None:
    click.echo(f"\n{title}")
    for sentence in sentences:
        width = min(_WIDTH, shutil.get_terminal_size((_WIDTH, 24)).columns)
        click.echo(
            textwrap.fill(sentence, width, initial_indent="  - ", subsequent_indent="    ", break_on_hyphens=False)
        )
