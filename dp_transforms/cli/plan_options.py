"""The options that define a release plan, for ``shh plan``, ``shh replay`` and ``shh stream``, and the plan of them."""

from __future__ import annotations

import math

import click

from dp_transforms.accounting.charged_hits import COUNTS, DEFAULT_HITS, NAMES
from dp_transforms.cli.operator_log import operator_console, tell
from dp_transforms.cli.options import (
    DURATION,
    PUBLIC_ITEMS,
    UTC_TIME,
    Options,
    check_together,
    option,
    rare,
    user_errors,
)
from dp_transforms.errors import UserError
from dp_transforms.plan.calibration import DEFAULT_MAX_ITEMS_PER_USER, DEFAULT_MOST_TESTS, DEFAULT_USUAL_TESTS
from dp_transforms.plan.plan import CHARGES, HITS, Plan, plan_for
from dp_transforms.plan.rounds import REPLAY, STREAM
from dp_transforms.plan.window_schedule import WindowSchedule
from dp_transforms.stores.files import read_file
from dp_transforms.stores.remote_files import UrlError

_MOST_PLAN_BYTES = 1 << 20
_HITS = {counts: DEFAULT_HITS[COUNTS if counts else NAMES] for counts in (False, True)}
_LARGEST_USUAL_EPSILON = 10.0
_LARGEST_USUAL_DELTA = 1e-6

_USUAL = (
    "Items in windows that most users have. Expect it, never count it in the log."
    f" Default: {DEFAULT_USUAL_TESTS[0]} {DEFAULT_USUAL_TESTS[1]}."
)
_MOST = f"Further ones of a user do not count. Default: {DEFAULT_MOST_TESTS:,}."
_LEAST = "Publish only items that state at least so many users, 5 or more."
_HITS_PER_USER = f"With hits: then a user no longer counts. Default: {_HITS[False]}; {_HITS[True]} with --counts."
_ITEMS_PER_USER = f"With hits: in one window. Default: {DEFAULT_MAX_ITEMS_PER_USER}."
_CHARGE = (
    "contributions (default), or hits. What users pay for: each item that a user has in a window; or charged results,"
    " free far above the threshold."
)

PLAN = (
    option(["--epsilon"], type=float, help="Privacy loss of a user in the whole run, e.g. 2."),
    option(["--delta"], type=float, help="Its failure probability, e.g. 1e-9."),
    option(["--window"], type=DURATION, help="Length of a window, e.g. 1h."),
    option(["--start"], type=UTC_TIME, help="Declared start, e.g. 2026-01-01; UTC."),
    option(["--end"], type=UTC_TIME, help="Declared end, exclusive. Never take it from the data."),
    rare(["--slide"], type=DURATION, help="Between the starts of two windows."),
    rare(["--charge"], type=click.Choice(CHARGES), metavar="CHARGE", help=_CHARGE),
    rare(["--counts"], is_flag=True, help="With hits: publish noisy counts, all charged."),
    rare(["--hits-per-user"], type=int, help=_HITS_PER_USER),
    rare(["--max-items-per-user"], type=int, help=_ITEMS_PER_USER),
    rare(["--usual-contributions"], type=int, nargs=2, metavar="LOW HIGH", help=_USUAL),
    rare(["--most-contributions"], type=int, help=_MOST),
    rare(["--least-users"], type=int, help=_LEAST),
    PUBLIC_ITEMS,
    rare(["--also-open"], is_flag=True, help="Beside the --public-items, others count too."),
)
_REQUIRED = ("epsilon", "delta", "window", "start", "end")
_CHOICES = (
    *("counts", "hits_per_user", "max_items_per_user", "usual_contributions", "most_contributions", "least_users"),
    "also_open",
)
_SET_BY_PLAN = f"{' '.join(_REQUIRED)} slide charge {' '.join(_CHOICES)}"


def plan_from_options(options: Options, use: str = REPLAY) -> Plan:
    """The calibrated plan. use: as in `Plan.for_contributions`.

    Raises click.UsageError for a missing option, and InputError for one that is out of range.
    """
    missing = [f"--{name}" for name in _REQUIRED if getattr(options, name) is None]
    if missing:
        raise click.UsageError(f"Missing {', '.join(missing)}.", ctx=click.get_current_context())
    window = options.window
    schedule = WindowSchedule(options.start, options.end, window, window if options.slide is None else options.slide)
    choices = {name: getattr(options, name) for name in (*_CHOICES, "charge")}
    choices |= {"counts": options.counts or None, "also_open": options.also_open or None}
    public_items = None
    if options.public_items is not None:
        from dp_transforms.core.public_items import PublicItems  # loads pyarrow

        with user_errors(ValueError, prefix="--public-items "):
            public_items = PublicItems.read(options.public_items)
    with operator_console().status("calibrating the plan"), user_errors(ValueError):
        plan = plan_for(
            schedule=schedule,
            epsilon=options.epsilon,
            delta=options.delta,
            public_items=public_items,
            use=None if options.charge == HITS else use,
            **choices,
        )
    warn_of_budget(plan.epsilon, plan.delta)
    return plan


def read_plan(path: str) -> Plan:
    """The plan in a file of ``shh plan --output``, checked again. Raises UserError."""
    try:
        text = read_file(path, _MOST_PLAN_BYTES)
        if len(text) > _MOST_PLAN_BYTES:
            raise ValueError("it has more than 1 MB, so it is not a plan. Write one with `shh plan --output`.")
        plan = Plan.from_json(text)
        if plan.hits is not None and plan.hits.wide is not None:
            raise ValueError("plans with printed noise run in Python alone (docs/python_api.md).")
    except OSError as error:
        raise UserError(f"--plan {path} cannot be read: {error.strerror}. Write one with shh plan --output.") from None
    except UrlError as error:  # says why without the URL, which may hold a secret
        raise UserError(f"--plan: {error}") from None
    except ValueError as error:
        raise UserError(f"--plan {path}: {error}") from None
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
        tell(
            f"shh: warning: delta = {delta:g} is large. A mechanism with this delta may publish everything about this"
            " share of the users, and keep its promise. Use one far below 1 / users, such as 1e-9."
        )


def plan_of_command(options: Options, use: str) -> Plan:
    """The plan of ``--plan FILE``, or of the budget options for this use.

    Whether the list of public items belongs to the plan is checked when it is read.
    """
    why, remedy = "the plan sets it already", "Leave the plan or the option out."
    check_together(options, _SET_BY_PLAN, excludes="plan_file", why=why, remedy=remedy)
    if options.plan_file is None:
        return plan_from_options(options, use)
    plan = read_plan(options.plan_file)
    if use == STREAM and plan.rounds is not None:
        raise UserError(
            "--plan is for a replay: it tests contributions in rounds, which go over all windows of a day again and"
            " again. Make one with `shh plan stream`."
        )
    if use != STREAM and plan.second_test is not None:
        of_use = "shh plan" if use == REPLAY else f"shh plan {use}"
        raise UserError(f"--plan is for a stream: it tests contributions twice in a window. Make one with `{of_use}`.")
    if options.public_items is None and plan.public_item_count:
        raise UserError(
            f"the plan has {plan.public_item_count:,} public items. Give the list of them with --public-items."
        )
    if options.public_items is not None and not plan.public_item_count:
        raise UserError("the plan has no public items. Leave --public-items out, or make a plan with it.")
    return plan
