"""What a run promises and what not, in plain sentences with its own numbers. For the page and ``shh explain``.

Sources: docs/guarantee.md, "Setting" and "What may be published"; the bound on guesses is [KOV15] Theorem 2.1: of
(epsilon, delta)-DP the two errors of a test add up to at least 2 (1 - delta) / (1 + e^epsilon). All numbers are
rounded up.

And whether a report and the plan in its header agree, for somebody who did not make them (`check_against_plan`). It
finds a plan that was changed or exchanged, and results that such a run cannot publish. It cannot find a run that did
not follow its plan.
"""

from __future__ import annotations

import decimal
import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from dp_transforms.checks import exact
from dp_transforms.core.window_report import HeavyHitter, WindowReport
from dp_transforms.plan.plan import Plan
from dp_transforms.plan.window_schedule import MICROS_PER_SECOND
from dp_transforms.reports import ReportHeader

_MOST_EPSILON = 700.0  # e to a larger one is no float


class Budget(NamedTuple):
    """What a run costs each user. windows: 0 if that is unknown."""

    epsilon: float
    delta: float
    windows: int


def budget_of(plan: Plan | None, reports: Iterable[WindowReport]) -> Budget | None:
    """Of the plan; without one the largest that a report states; None if nothing states any."""
    if plan is not None:
        return Budget(plan.epsilon, plan.delta, plan.schedule.horizon)
    stated = [(report.epsilon_total, report.delta) for report in reports]
    if not stated:
        return None
    return Budget(max(epsilon for epsilon, _ in stated), max(delta for _, delta in stated), 0)


def in_three_sentences(budget: Budget) -> list[str]:
    """The guarantee for somebody who knows no statistics."""
    windows = f"all {budget.windows:,} windows" if budget.windows else "all windows"
    delta = "" if budget.delta == 0 else f", but for a probability of {one_in(budget.delta)}"
    return [
        f"Whether one person is in the log, with everything that this person did in {windows} of the run, changes the"
        f" probability of whatever can be seen here by a factor of at most {factor(budget.epsilon)} (e to the power of"
        f" {exact(budget.epsilon)}){delta}.",
        "Somebody who would otherwise have to toss a coin to guess whether a certain person is in the log, and who sees"
        f" all results of this run, guesses right with a probability of at most {chance(budget)}.",
        "This holds whatever else that somebody knows, today or later; it is about this run alone, so what other runs"
        " tell about the same people comes on top.",
    ]


def chance(budget: Budget) -> str:
    """The probability of a right guess, in percent: (e^epsilon + delta) / (1 + e^epsilon)."""
    wrong = (1 - budget.delta) / (1 + math.exp(min(budget.epsilon, _MOST_EPSILON)))
    percent = math.ceil((1 - wrong) * 1000) / 10
    return f"{min(percent, 100.0):g} %"


def factor(epsilon: float) -> str:
    if epsilon > _MOST_EPSILON:
        return "more than 1e300"
    return up(math.exp(epsilon))


def one_in(probability: float) -> str:
    """``1 in 1,000,000,000``, rounded up: the second number down."""
    return f"1 in {int(1 / decimal.Decimal(repr(probability))):,}"


def up(value: float) -> str:
    """Three digits, rounded up."""
    rounded = decimal.Context(prec=3, rounding=decimal.ROUND_CEILING).create_decimal(repr(value))
    return f"{rounded:,.0f}" if 1000 <= rounded < 1e9 else f"{float(rounded):,.3g}"


def may_be_done(plan: Plan | None) -> list[str]:
    if plan is not None and plan.contributions is not None:
        least = plan.contributions.least_users
        each = "" if least is None else f"Each item states at least {least:,}. "
        sizes = (
            f"Say that at least so many users had it, where that is stated. {each}That any such number of the run is"
            f" too large has a probability of at most {one_in(plan.contributions.size_error)}."
        )
    else:
        sizes = "Say that about so many users had it, where a number is stated. It has noise."
    followed = (
        ", or some of them if it was named lately before" if plan is None or plan.contributions is not None else ""
    )
    of_noise = "Noise alone seldom names one."
    if plan is not None and plan.rounds is not None:
        followed = ", or some of them if it has many in the windows around it"
        false_names = plan.rounds.false_names * (len(plan.rounds.units) - 1)
        of_noise = f"On average noise alone names at most {false_names:g} of them in a run."
    return [
        "Publish it, to anybody and for ever: what a reader computes from it takes nothing more from anybody.",
        f"Say that an item of the report had many users in the window in which it is named{followed}. {of_noise}",
        sizes,
    ]


def must_not_be_concluded(plan: Plan | None) -> list[str]:
    found = [
        "That few users had an item that is not in the report: it may have missed the threshold by little.",
        "That nothing happened in a window without items: the report does not tell whether there were any events.",
        "How many different users there were in several windows together: the same user may be in all of them.",
        "How many events there were: a user counts once for an item in a window.",
    ]
    if plan is None or plan.contributions is not None:
        found.append(
            "That more users had the item with the larger size: at least so many is a bound, not an estimate. Its users"
            " may only be less active, so that each adds more."
        )
    if plan is not None and plan.contributions is not None and (least := plan.contributions.least_users) is not None:
        wrong = one_in(plan.contributions.size_error)
        found += [
            f"That it is k-anonymous for k = {least:,}: no exact count decides, so an item of fewer users may be in it,"
            f" in the whole run with a probability of at most {wrong}, and one of more users may be missing.",
            f"That the number {least:,} protects anybody: with exact counts, whoever knows all but one of the users of"
            " an item would see whether there is one more. What protects is noise, by the promise, with any number.",
        ]
    if plan is None or plan.hits is not None:
        found.append(
            "That an item lost its users where its size falls: some of them may be used up, and no longer count."
        )
    return found


def not_covered(budget: Budget | None, plan: Plan | None) -> list[str]:
    """What the guarantee does not say, each with the numbers of the run where there are any."""
    found = [
        "Other runs and reports about the same people: their epsilons and deltas add up (shh ledger keeps that"
        " account).",
        "Persons with several user ids: each id counts as a person of its own.",
        _groups(budget),
        "What is true of many: that a story was read by many is what the report is meant to tell, and who is known to"
        " do what many do can be guessed at.",
        "Texts of items: a label that names a person is published if enough users have it. Nobody reads the labels"
        " beforehand.",
        "The log itself, the noise key, rejected rows, standard error and metrics of the run: they are for the operator"
        " and must not be published.",
        "A run that did not follow its plan: a report cannot show that. Whoever runs it answers for it.",
        "Choices that were made by looking at the same log: the budget, the range, the windows and the thresholds must"
        " have been fixed beforehand.",
    ]
    if plan is not None and plan.public_items is not None:
        found.append(
            f"The list of {plan.public_item_count:,} items that was declared: it must be public, and not made from"
            " the log."
        )
    if plan is not None:
        found.append(
            f"A log with more than {plan.max_users:,} users or {plan.max_items:,} items, which is more than was"
            " declared."
        )
    return found


def _groups(budget: Budget | None) -> str:
    if budget is None:
        return "Groups: two persons together, such as a couple, have twice the epsilon."
    return (
        "Groups: the promise is for one person. Two together, such as a couple, have an epsilon of"
        f" {exact(2 * budget.epsilon)} instead of {exact(budget.epsilon)} and a delta of"
        f" {up(min(1.0, budget.delta * (1 + math.exp(min(budget.epsilon, _MOST_EPSILON)))))}; so does one person whose"
        " data are replaced by other data."
    )


class Finding(NamedTuple):
    """One point that was checked: a sentence that holds if `holds`, and is contradicted else."""

    holds: bool
    sentence: str


def check_against_plan(header: ReportHeader, reports: Sequence[WindowReport], plan: Plan | None) -> list[Finding]:
    """All findings; a plan that cannot be read is one, and nothing else can be checked then."""
    readable = Finding(
        plan is not None, "The plan in the report can be read, and passes all checks of this version of shh."
    )
    if plan is None:
        return [readable]
    expected = ReportHeader.of_plan(plan, header.run_id, header.stream)
    keys = {(report.stream, report.window_start, report.window_end) for report in reports}
    return [
        readable,
        Finding(header.guarantee == expected.guarantee, "The guarantee that the report states is that of its plan."),
        Finding(
            all((report.epsilon_total, report.delta) == (plan.epsilon, plan.delta) for report in reports),
            "All windows state the epsilon and delta of the plan.",
        ),
        Finding(
            all(_is_of_schedule(report, plan) for report in reports),
            "All windows are windows of the plan.",
        ),
        Finding(
            len(keys) == len(reports) and all(report.stream == header.stream for report in reports),
            "No window is there twice, and all are of the stream that the report names.",
        ),
        Finding(
            all(_is_of_charge(entry, plan) for report in reports for entry in report.heavy_hitters),
            f"What is said of items is what a plan of {plan.charge_in_words} publishes.",
        ),
    ]


def _is_of_schedule(report: WindowReport, plan: Plan) -> bool:
    schedule = plan.schedule
    start = schedule.window_start_micros(0)
    window, rest = divmod(report.window_start - start, schedule.slide_seconds * MICROS_PER_SECOND)
    if rest or not 0 <= window < schedule.horizon:
        return False
    return report.window_end == schedule.window_end_micros(window)


def _is_of_charge(entry: HeavyHitter, plan: Plan) -> bool:
    if plan.contributions is not None:
        states_enough = (entry.at_least_users or 0) >= (plan.contributions.least_users or 0)
        return entry.level is not None and entry.noisy_count is None and states_enough
    if entry.level is not None:
        return False
    if plan.charged_hits.zone_width:
        return entry.zone is not None
    return entry.zone is None and (entry.noisy_count is not None) == plan.counts
