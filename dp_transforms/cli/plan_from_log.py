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
from dp_transforms.cli.operator_log import operator_progress, tell
from dp_transforms.cli.options import INPUT, UTC_TIME, Rule, flags, names_of, nested, opt
from dp_transforms.cli.plan_options import PlanOptions, option_error, plan_from_options, schedule_from_options
from dp_transforms.cli.shared_options import FieldOptions
from dp_transforms.errors import UserError
from dp_transforms.plan.plan import Plan
from dp_transforms.plan.plan_checks import MOST_LOOKS_OF_PLAN
from dp_transforms.plan.window_schedule import WindowSchedule

SAME, OTHER = "same", "other"
_KEY_BYTES = 32
_BASE_BYTES = 300_000_000
_BYTES_PER_EVENT = 150  # of an event with a pair of its own, at the peak, when all are sorted
_MOST_BAD = 0.5  # of the rows, as in a replay by default


@dataclasses.dataclass(frozen=True, kw_only=True)
class FromLogOptions:
    """An earlier log, and how it is read."""

    from_log: str | None = opt(
        INPUT,
        "With looks: read from this log, a file, folder or glob, how many pairs (window, item) users have, in the "
        "place of --usual-looks.",
        brief="Learn from an earlier log how active users are.",
        metavar="LOG",
    )
    from_log_users: str | None = opt(
        INPUT,
        "With --from-log, required. other: no user of this log will be in the run; they are not protected. same: "
        "some will; one noisy histogram of them is made, and takes --from-log-share of epsilon.",
        type=click.Choice([OTHER, SAME]),
    )
    from_log_share: float | None = opt(
        INPUT,
        "With --from-log-users same: the part of epsilon that the histogram takes. Default: "
        f"{DEFAULT_ACTIVITY_SHARE:g}.",
        type=click.FloatRange(0, LARGEST_ACTIVITY_SHARE, min_open=True),
    )
    from_log_start: int | None = opt(
        INPUT,
        "With --from-log: where the past run begins in the log; it is as long as the run to come. Default: --start.",
        type=UTC_TIME,
    )
    fields: FieldOptions = nested(FieldOptions)


FROM_LOG_RULES = (
    Rule(flags(names_of(FromLogOptions)[1:]), needs="--from-log", is_usage=True),
    Rule("--from-log", needs="--mode looks", is_usage=True),
    Rule("--from-log", excludes="--usual-looks", is_usage=True),
    Rule(
        "--from-log",
        needs="--from-log-users",
        why="other if no user of this log will be in the run, same if some will. Of the same users, one noisy histogram"
        f" takes {DEFAULT_ACTIVITY_SHARE:.0%} of epsilon",
        is_usage=True,
    ),
    Rule("--from-log-share", needs="--from-log-users same", is_usage=True),
)


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


def plan_with_activity(options: PlanOptions, log: FromLogOptions) -> tuple[Plan, Activity | None]:
    """The plan of the options, with usual looks from the log that they name, if they name one.

    Raises click.UsageError and UserError as `plan_from_options`, and UserError for a log that cannot be read.
    """
    if log.from_log is None:
        return plan_from_options(options), None
    most_looks = DEFAULT_MOST_LOOKS if options.most_looks is None else options.most_looks
    schedule = schedule_from_options(options)
    epsilon = 0.0
    try:
        check_whole("most_looks", most_looks, 1, MOST_LOOKS_OF_PLAN)
        shifted = _shifted(schedule, log.from_log_start)
        if log.from_log_users == SAME and options.epsilon is not None:
            left, epsilon = split_epsilon(options.epsilon, log.from_log_share or DEFAULT_ACTIVITY_SHARE)
            options = dataclasses.replace(options, epsilon=left)
    except ValueError as error:
        raise option_error(error) from None
    # What can be wrong is found before the log is read, and before anything is spent.
    plan = plan_from_options(options, epsilon or None)
    activity = _read(log, shifted, most_looks, epsilon)
    if activity.usual_looks is not None:
        try:
            plan = plan_from_options(dataclasses.replace(options, usual_looks=activity.usual_looks), epsilon or None)
        except UserError as error:
            # What the histogram took is spent: the plan for the default looks stands.
            tell(f"shh: warning: no plan for the usual looks of the log, so it is for others: {error}")
    return plan, activity


def _shifted(schedule: WindowSchedule, start: int | None) -> WindowSchedule:
    if start is None:
        return schedule
    length = schedule.end_seconds - schedule.start_seconds
    return WindowSchedule(start, start + length, schedule.window_seconds, schedule.slide_seconds)


def _read(log: FromLogOptions, schedule: WindowSchedule, most_looks: int, epsilon: float) -> Activity:
    import numpy as np  # what reads is not loaded for a plan that reads nothing

    from dp_transforms.monitor.activity import noisy_histogram

    pairs = _pairs_of_users(log, schedule)
    edges = bucket_edges(most_looks)
    counts = np.bincount(np.searchsorted(edges, pairs, side="right") - 1, minlength=len(edges)).astype(np.int64)
    if log.from_log_users == OTHER:
        looks = usual_looks_of(counts.tolist(), most_looks)
        if looks is None:
            raise UserError(
                f"--from-log {log.from_log}: no event is inside the windows. Check --start, --end,"
                " --from-log-start and --time-unit."
            )
        return Activity(OTHER, 0.0, looks, None, None)
    uniforms = np.frombuffer(secrets.token_bytes(16 * len(edges)), dtype=np.uint64).reshape(-1, 2)
    noisy = noisy_histogram(counts, epsilon, uniforms).tolist()
    return Activity(SAME, epsilon, usual_looks_of(noisy, most_looks, epsilon), edges, tuple(noisy))


def _pairs_of_users(log: FromLogOptions, schedule: WindowSchedule) -> Any:
    """int64[users], for `_read` alone."""
    from dp_transforms.cli.home_workers import free_memory_bytes
    from dp_transforms.logs import estimate_log, find_log_chunks, read_log_chunk, unit_hint
    from dp_transforms.monitor.activity import ActivityCounter

    fields = log.fields.fields()
    counter = ActivityCounter(schedule, secrets.token_bytes(_KEY_BYTES))
    rows = rejected = 0
    try:
        chunks = find_log_chunks([str(log.from_log)], fields)
        needed = _BASE_BYTES + estimate_log(chunks, fields).events * _BYTES_PER_EVENT
        if needed > (free := free_memory_bytes()):
            raise UserError(
                f"--from-log may need {needed / 1e9:.1f} GB and {free / 1e9:.1f} GB are free. Name a part of the log."
            )
        with operator_progress() as bars:
            task = bars.add_task("reading", total=sum(chunk.bytes for chunk in chunks))
            for block in (block for chunk in chunks for block in read_log_chunk(chunk, fields)):
                rows += block.rows
                rejected += sum(len(part.positions) for part in block.rejected)
                counter.add(block.batch)
                bars.advance(task, block.bytes)
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
