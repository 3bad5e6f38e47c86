"""``shh plan --from-log``: the usual looks of a plan from a log, of other users, or of the same ones at a price.

Guarantee: of the same users, what comes out is one noisy histogram, which the plan pays for (`accounting.activity`).
All else here, such as the number of rows, is for the operator, on standard error.
"""

from __future__ import annotations

import dataclasses
import secrets
from typing import Any

import click

from dp_transforms.accounting.activity import (
    DEFAULT_ACTIVITY_SHARE,
    LARGEST_ACTIVITY_SHARE,
    bucket_edges,
    split_epsilon,
    usual_looks_of,
)
from dp_transforms.accounting.purse.purse_choice import DEFAULT_MOST_LOOKS
from dp_transforms.checks import check_whole
from dp_transforms.cli.operator_log import tell
from dp_transforms.cli.options import (
    INPUT,
    READING_OPTIONS,
    UTC_TIME,
    adds,
    flag,
    log_field_options,
    option,
)
from dp_transforms.cli.plan_options import option_error, plan_from_options, schedule_from_options
from dp_transforms.errors import UserError
from dp_transforms.plan.plan import DEFAULT_MODE, Plan
from dp_transforms.plan.plan_checks import MOST_LOOKS_OF_PLAN
from dp_transforms.plan.window_schedule import WindowSchedule

SAME, OTHER = "same", "other"
_KEY_BYTES = 32
_BASE_BYTES = 300_000_000
_BYTES_PER_EVENT = 150  # of an event with a pair of its own, at the peak, when all are sorted
_MOST_BAD = 0.5  # of the rows, as in a replay by default
_FIELD_DEFAULTS = {"user_field": "user", "item_field": "item", "time_field": "timestamp"}
from_log_options = adds(
    option(
        INPUT,
        "--from-log",
        brief="Learn from an earlier log how active users are.",
        metavar="LOG",
        help="With looks: read from this log, a file, folder or glob, how many pairs (window, item) users have, in the "
        "place of --usual-looks.",
    ),
    option(
        INPUT,
        "--from-log-users",
        type=click.Choice([OTHER, SAME]),
        help="With --from-log, required. other: no user of this log will be in the run; they are not protected. same: "
        "some will; one noisy histogram of them is made, and takes --from-log-share of epsilon.",
    ),
    option(
        INPUT,
        "--from-log-share",
        type=click.FloatRange(0, LARGEST_ACTIVITY_SHARE, min_open=True),
        help="With --from-log-users same: the part of epsilon that the histogram takes. Default: "
        f"{DEFAULT_ACTIVITY_SHARE:g}.",
    ),
    option(
        INPUT,
        "--from-log-start",
        type=UTC_TIME,
        help="With --from-log: where the past run begins in the log; it is as long as the run to come. "
        "Default: --start.",
    ),
    log_field_options,
)
FROM_LOG_OPTIONS = ("from_log_users", "from_log_share", "from_log_start")  # which mean nothing without --from-log


@dataclasses.dataclass(frozen=True)
class Activity:
    """What a log says about activity. All of it may be published with the plan if users is ``same``.

    users: ``same`` or ``other``. epsilon: what it took; 0 of other users. usual_looks: None where noise hides them.
    edges, histogram: the least number of pairs of each bucket, and users in it, with noise; None of other users.
    """

    users: str
    epsilon: float
    usual_looks: tuple[int, int] | None
    edges: tuple[int, ...] | None
    histogram: tuple[int, ...] | None

    @property
    def in_a_sentence(self) -> str:
        price = (
            f" One noisy histogram of these users took epsilon {self.epsilon:g}; each further one takes as much again."
            if self.epsilon
            else " It costs nothing, if none of its users is in the run."
        )
        if self.usual_looks is None:
            return f"The log has too few users to tell their activity: the usual looks are the default.{price}"
        low, high = self.usual_looks
        return f"In the log most pairs are of users with {low:,} to {high:,} pairs in such a run.{price}"


def plan_with_activity(options: dict[str, Any]) -> tuple[Plan, Activity | None]:
    """The plan of the options, with usual looks from the log that they name, if they name one.

    Raises click.UsageError and UserError as `plan_from_options`, and UserError for a log that cannot be read.
    """
    if options["from_log"] is None:
        _refuse_without_log(options)
        return plan_from_options(**options), None
    share = _check_options(options)
    most_looks = DEFAULT_MOST_LOOKS if options["most_looks"] is None else options["most_looks"]
    schedule = schedule_from_options(options)
    try:
        check_whole("most_looks", most_looks, 1, MOST_LOOKS_OF_PLAN)
        shifted = _shifted(schedule, options["from_log_start"])
        left, epsilon = options["epsilon"], 0.0
        if options["from_log_users"] == SAME and options["epsilon"] is not None:
            left, epsilon = split_epsilon(options["epsilon"], share)
    except ValueError as error:
        raise option_error(error) from None
    budget = {**options, "epsilon": left, "activity_epsilon": epsilon or None}
    # What can be wrong is found before the log is read, and before anything is spent.
    plan = plan_from_options(**budget)
    activity = _read(options, shifted, most_looks, epsilon)
    if activity.usual_looks is not None:
        try:
            plan = plan_from_options(**{**budget, "usual_looks": activity.usual_looks})
        except UserError as error:
            # What the histogram took is spent: the plan for the default looks stands.
            tell(f"shh: warning: no plan for the usual looks of the log, so it is for others: {error}")
    return plan, activity


def refuse_from_log(options: dict[str, Any]) -> None:
    """Where no plan is made. Raises click.UsageError."""
    if options["from_log"] is not None:
        raise click.UsageError("--from-log is for a new plan. Leave it out.")
    _refuse_without_log(options)


def _refuse_without_log(options: dict[str, Any]) -> None:
    given = [name for name in FROM_LOG_OPTIONS if options[name] is not None]
    given += [name for name, default in _FIELD_DEFAULTS.items() if options[name] != default]
    given += [name for name in READING_OPTIONS if options[name]]
    if given:
        raise click.UsageError(f"{', '.join(map(flag, given))} cannot be used without --from-log. Leave it out.")


def _check_options(options: dict[str, Any]) -> float:
    """The share of epsilon that the histogram takes. Raises click.UsageError."""
    mode = options["mode"] or DEFAULT_MODE
    if mode != "looks":
        raise click.UsageError(f"--from-log cannot be used with --mode {mode}. Leave it out.")
    if options["usual_looks"] is not None:
        raise click.UsageError("--from-log and --usual-looks exclude each other. Leave one out.")
    if options["from_log_users"] is None:
        raise click.UsageError(
            "Missing --from-log-users: other if no user of this log will be in the run, same if some will. Of the same"
            f" users, one noisy histogram takes {DEFAULT_ACTIVITY_SHARE:.0%} of epsilon."
        )
    if options["from_log_users"] == OTHER and options["from_log_share"] is not None:
        raise click.UsageError("--from-log-share cannot be used with --from-log-users other. Leave it out.")
    return options["from_log_share"] or DEFAULT_ACTIVITY_SHARE


def _shifted(schedule: WindowSchedule, start: int | None) -> WindowSchedule:
    if start is None:
        return schedule
    length = schedule.end_seconds - schedule.start_seconds
    return WindowSchedule(start, start + length, schedule.window_seconds, schedule.slide_seconds)


def _read(options: dict[str, Any], schedule: WindowSchedule, most_looks: int, epsilon: float) -> Activity:
    import numpy as np  # what reads is not loaded for a plan that reads nothing

    from dp_transforms.monitor.activity import noisy_histogram

    pairs = _pairs_of_users(options, schedule)
    edges = bucket_edges(most_looks)
    counts = np.bincount(np.searchsorted(edges, pairs, side="right") - 1, minlength=len(edges)).astype(np.int64)
    if options["from_log_users"] == OTHER:
        looks = usual_looks_of(counts.tolist(), most_looks)
        if looks is None:
            raise UserError(
                f"--from-log {options['from_log']}: no event is inside the windows. Check --start, --end,"
                " --from-log-start and --time-unit."
            )
        return Activity(OTHER, 0.0, looks, None, None)
    uniforms = np.frombuffer(secrets.token_bytes(16 * len(edges)), dtype=np.uint64).reshape(-1, 2)
    noisy = noisy_histogram(counts, epsilon, uniforms).tolist()
    return Activity(SAME, epsilon, usual_looks_of(noisy, most_looks, epsilon), edges, tuple(noisy))


def _pairs_of_users(options: dict[str, Any], schedule: WindowSchedule) -> Any:
    """int64[users], for `_read` alone."""
    from dp_transforms.cli.options import event_fields
    from dp_transforms.engines.this_machine import free_memory_bytes
    from dp_transforms.logs import estimate_log, find_log_chunks, read_log_chunk, unit_hint
    from dp_transforms.monitor.activity import ActivityCounter

    fields = event_fields(options)
    counter = ActivityCounter(schedule, secrets.token_bytes(_KEY_BYTES))
    rows = rejected = 0
    try:
        chunks = find_log_chunks([options["from_log"]], fields)
        needed = _BASE_BYTES + estimate_log(chunks, fields).events * _BYTES_PER_EVENT
        if needed > (free := free_memory_bytes()):
            raise UserError(
                f"--from-log may need {needed / 1e9:.1f} GB and {free / 1e9:.1f} GB are free. Name a part of the log."
            )
        for chunk in chunks:
            for block in read_log_chunk(chunk, fields):
                rows += block.rows
                rejected += sum(len(part.positions) for part in block.rejected)
                counter.add(block.batch)
    except ValueError as error:  # of a file
        raise UserError(f"--from-log {error}") from None
    unit = unit_hint(chunks, fields) if 2 * (rejected + counter.outside) > rows else None
    if rejected > _MOST_BAD * rows:
        raise UserError(
            f"--from-log: {rejected:,} of {rows:,} rows cannot be read. Check the fields and --time-unit"
            f"{f' ({unit})' if unit else ''}; `shh replay --dead-letter` says where and why."
        )
    tell(
        f"shh: read {rows:,} rows; {counter.outside:,} outside the windows skipped, {rejected:,} unreadable. (For the"
        " operator, not covered by the guarantee.)"
        f"{f' Most are of no use: {unit}.' if unit else ''}"
    )
    return counter.pairs_of_users()
