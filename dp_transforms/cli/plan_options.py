"""The command line options that define a release plan, for ``shh plan``, ``shh replay`` and ``shh stream``."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING

import click

from dp_transforms.accounting.charged_hits import COUNTS, DEFAULT_HITS, LABELS
from dp_transforms.cli.operator_log import operator_console, tell
from dp_transforms.cli.options import (
    ADVANCED,
    BUDGET,
    DURATION,
    INPUT,
    UTC_TIME,
    Rule,
    flag,
    flags,
    names_of,
    opt,
    switch,
    user_errors,
)
from dp_transforms.errors import UserError
from dp_transforms.plan.calibration import (
    DEFAULT_FORGET_AFTER,
    DEFAULT_MAX_ITEMS_PER_USER,
    DEFAULT_MOST_TESTS,
    DEFAULT_USUAL_TESTS,
)
from dp_transforms.plan.plan import CHARGES, DEFAULT_MAX_ITEMS, DEFAULT_MAX_USERS, HITS, Plan, choices_of, plan_for
from dp_transforms.plan.rounds import REPLAY
from dp_transforms.plan.window_schedule import WindowSchedule
from dp_transforms.stores.local_files import read_regular
from dp_transforms.stores.remote_files import UrlError, is_remote, read_stored

if TYPE_CHECKING:
    from dp_transforms.core.public_items import PublicItems

_MOST_PLAN_BYTES = 1 << 20
_HITS = {counts: DEFAULT_HITS[COUNTS if counts else LABELS] for counts in (False, True)}
_LARGEST_USUAL_EPSILON = 10.0
_LARGEST_USUAL_DELTA = 1e-6


@dataclasses.dataclass(frozen=True, kw_only=True)
class PlanOptions:
    """What defines a release plan; None for what was not given, so that ``--plan FILE`` can replace it."""

    epsilon: float | None = opt(
        BUDGET,
        "Bound on the privacy loss of a user over the whole run, e.g. 2.",
        brief="Privacy loss of a user, e.g. 2.",
        needed="required",
    )
    delta: float | None = opt(
        BUDGET,
        "Failure probability of that bound: far below 1 / users, e.g. 1e-9.",
        brief="Its failure probability, e.g. 1e-9.",
        needed="required",
    )
    window: int | None = opt(
        BUDGET,
        "Length of a window, e.g. 1h. Windows are aligned to --start.",
        brief="Length of a window, e.g. 1h.",
        needed="required",
        type=DURATION,
    )
    slide: int | None = opt(
        BUDGET, "Time between the starts of two windows; must divide --window. Default: --window.", type=DURATION
    )
    start: int | None = opt(
        BUDGET,
        "Declared start of the run, ISO 8601; UTC unless it has an offset.",
        brief="Declared start, e.g. 2026-01-01.",
        needed="required",
        type=UTC_TIME,
    )
    end: int | None = opt(
        BUDGET,
        "Declared end of the run (exclusive). Never take it from the data.",
        brief="Declared end, exclusive.",
        needed="required",
        type=UTC_TIME,
    )
    charge: str | None = opt(
        BUDGET,
        "What users pay for. contributions: each item that a user has in a window, for names and sizes of heavy items; "
        "finds most where users are not active for ever. hits: charged results, for names of heavy items, which are "
        f"free far above the threshold. Default: {CHARGES[0]}.",
        brief="contributions (default) or hits.",
        type=click.Choice(CHARGES),
        seen_as=lambda charge: charge or CHARGES[0],
    )
    counts: bool = switch(
        BUDGET, "With hits: publish noisy counts, each of them charged.", brief="With hits: noisy counts, all charged."
    )
    hits_per_user: int | None = opt(
        ADVANCED,
        "Number of charged results after which a user no longer counts. "
        f"Default: {_HITS[False]}; {_HITS[True]} with --counts.",
    )
    max_items_per_user: int | None = opt(
        ADVANCED, f"Distinct items of one user that count in one window. Default: {DEFAULT_MAX_ITEMS_PER_USER}."
    )
    threshold: int | None = opt(
        ADVANCED,
        "Noisy counts of at least this number are reported. Default: the smallest safe one; with --public-items "
        "one that items without holders rarely reach.",
    )
    usual_contributions: tuple[int, int] | None = opt(
        ADVANCED,
        "So many contributions, items in windows, most users have in the whole run. Expect it, never count it in the "
        f"log. Default: {DEFAULT_USUAL_TESTS[0]} {DEFAULT_USUAL_TESTS[1]}, at most --most-contributions.",
        metavar="LOW HIGH",
    )
    most_contributions: int | None = opt(
        ADVANCED,
        f"A user's further contributions in the run do not count. Default: {DEFAULT_MOST_TESTS:,}.",
    )
    forget_after: int | None = opt(
        ADVANCED,
        "With contributions: a named item is followed down to fewer users until it was not named for so many "
        f"windows; 0: each window is judged alike. Default: {DEFAULT_FORGET_AFTER}.",
        metavar="WINDOWS",
    )
    public_items: str | None = opt(
        INPUT,
        "Public list of all items, one per line, UTF-8. Never make it from the log. Other items are left out. "
        "Default: any item.",
        metavar="FILE",
    )
    max_users: int | None = opt(
        ADVANCED,
        "Most different users that may ever appear: for hash collisions, and for stated sizes, "
        "which are wrong more often if there are more users. The default fits most logs. "
        f"Default: {DEFAULT_MAX_USERS:,}.",
    )
    max_items: int | None = opt(
        ADVANCED,
        "Most different items that may ever appear (for hash collisions). The default fits most "
        f"logs. Default: {DEFAULT_MAX_ITEMS:,}.",
    )


PLAN_OPTIONS = names_of(PlanOptions)
_REQUIRED = ("epsilon", "delta", "window", "start", "end")


def _charge_rule(charge: str) -> Rule:
    """Options of this charge alone."""
    others = frozenset().union(*(choices_of(other) for other in CHARGES if other != charge))
    own = choices_of(charge) - others
    options = [name for name in PLAN_OPTIONS if name in own]
    return Rule(flags(options), needs=f"--charge {charge}", is_usage=True)


CHARGE_RULES = (*map(_charge_rule, CHARGES),)
PLAN_RULES = (
    Rule(
        flags(name for name in PLAN_OPTIONS if name != "public_items"),
        excludes="--plan",
        why="the plan sets it already",
        remedy="Leave the plan or the option out.",
    ),
    *CHARGE_RULES,
)


def schedule_from_options(options: PlanOptions) -> WindowSchedule:
    """The declared windows. Raises click.UsageError for a missing option and UserError for a wrong one."""
    _require(options, ("window", "start", "end"))
    start, end, window = (int(each) for each in (options.start, options.end, options.window) if each is not None)
    return WindowSchedule(start, end, window, window if options.slide is None else options.slide)


def plan_from_options(options: PlanOptions, use: str = REPLAY) -> Plan:
    """The calibrated plan. use: as in `Plan.for_contributions`.

    Raises click.UsageError for a missing option, and UserError, naming the flag, for one that is out of range.
    """
    _require(options, _REQUIRED)
    schedule = schedule_from_options(options)
    choices = dataclasses.asdict(options)
    choices["use"] = use if options.charge != HITS else None
    choices["counts"] = options.counts or None
    for name in ("window", "slide", "start", "end"):
        del choices[name]
    choices["public_items"] = read_public_items(options.public_items)
    with operator_console().status("calibrating the plan"), user_errors(ValueError):
        plan = plan_for(schedule=schedule, **choices)
    warn_of_budget(plan.epsilon, plan.delta)
    return plan


def read_plan(path: str) -> Plan:
    """The plan in a file of ``shh plan --output``, checked again. Raises UserError."""
    try:
        text = (read_stored if is_remote(path) else read_regular)(path, _MOST_PLAN_BYTES)
        if len(text) > _MOST_PLAN_BYTES:
            raise ValueError("it has more than 1 MB, so it is not a plan. Write one with `shh plan --output`.")
        plan = Plan.from_json(text)
    except OSError as error:
        raise UserError(
            f"--plan {path} cannot be read: {error.strerror}. Write one with `shh plan --output`."
        ) from None
    except UrlError as error:
        raise UserError(f"--plan: {error}") from None
    except ValueError as error:
        raise UserError(f"--plan {path}: {error}") from None
    if plan.hits is not None and plan.hits.wide is not None:
        raise UserError(f"--plan {path}: plans with printed noise run in Python alone (docs/python_api.md).")
    warn_of_budget(plan.epsilon, plan.delta)
    return plan


def warn_of_budget(epsilon: float, delta: float) -> None:
    """Prints on stderr what a large epsilon or delta allows. Neither is forbidden: an example may have one."""
    if epsilon > _LARGEST_USUAL_EPSILON:
        tell(
            f"shh: warning: epsilon = {epsilon:g} is large. What is published may be {math.exp(epsilon):,.0f} times as"
            " likely with a user's events as without them, which protects hardly anybody. Use 1 or 2."
        )
    if delta > _LARGEST_USUAL_DELTA:
        share = f"1 in {round(1 / delta):,}" if delta < 0.4 else f"{delta:.0%} of the"
        tell(
            f"shh: warning: delta = {delta:g} is large. A mechanism with this delta may publish everything about"
            f" {share} users, and keep its promise. Use one far below 1 / users, such as 1e-9."
        )


def plan_of_command(options: PlanOptions, plan_file: str | None, use: str) -> Plan:
    """The plan of ``--plan FILE``, or of the budget options for this use (`plan_from_options`).

    Whether the list of public items belongs to the plan is checked when it is read.
    """
    if plan_file is None:
        return plan_from_options(options, use)
    plan = read_plan(plan_file)
    if options.public_items is None and plan.domain_size:
        raise UserError(f"the plan has {plan.domain_size:,} public items. Give the list of them with --public-items.")
    if options.public_items is not None and not plan.domain_size:
        raise UserError("the plan has no public items. Leave --public-items out, or make a plan with it.")
    return plan


def read_public_items(path: str | None) -> PublicItems | None:
    """The items of ``--public-items``; None without one. Raises UserError."""
    if path is None:
        return None
    from dp_transforms.core.public_items import PublicItems  # loads pyarrow

    with user_errors(ValueError, prefix="--public-items "):
        return PublicItems.read(path)


def _require(options: PlanOptions, names: tuple[str, ...]) -> None:
    missing = [flag(name) for name in names if getattr(options, name) is None]
    if missing:
        raise click.UsageError(f"Missing {', '.join(missing)}.", ctx=click.get_current_context(silent=True))
