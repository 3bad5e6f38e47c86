"""What is released: the only types whose contents may leave the pipeline as results.

Every field is a released value, a declared parameter, or a number computed from these (docs/guarantee.md, "What may be
published"). No field can carry a raw count.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

from dp_transforms.checks import exact
from dp_transforms.html_tables import html_table
from dp_transforms.plan.window_schedule import format_utc

ABOVE = "above"
BETWEEN = "between"


class Facet(NamedTuple):
    """The users of a named item in a window whose events have a declared value.

    by, value: the column of the log and the value. at_least_users: so many; 0 says nothing, as of `HeavyHitter`.
    """

    by: str
    value: str
    at_least_users: int


class HeavyHitter(NamedTuple):
    """One item that many users hold in one window.

    item: its label, as the log spells it.
    zone: in mode `hits` ``above`` (far above the threshold, free of charge) or ``between`` (near it, charged);
        None in `hits-with-counts` and kms21.
    noisy_count: users that hold it, with noise; None for ``above``, and in kms21, where publishing it would break the
        theorem; and in mode `looks`.
    level: in mode `looks` the boundaries that the noisy sum of its holders' weights reaches, from 1. Else
        None.
    at_least_users: in mode `looks` at least so many users hold it; 0 says nothing. That any of these numbers of a run
        is wrong has a probability, over the noise, of at most `size_error` of the plan. Else None.
    facets: of a plan with facets those that were named, in declared order.
    at_least_weight: with `--weight`, the amounts of its users are at least so much together; 0 says nothing. Else None.
    """

    item: str
    zone: str | None
    noisy_count: int | None
    level: int | None = None
    at_least_users: int | None = None
    facets: tuple[Facet, ...] = ()
    at_least_weight: int | None = None

    @property
    def kind(self) -> tuple[str | None, int | None, int | None, int | None]:
        """What is said of it as a whole, beside the label."""
        return self[1:5]

    @property
    def size_in_words(self) -> str:
        """As far as it is published."""
        if self.noisy_count is not None:
            return f"about {self.noisy_count:,}"
        return f"at least {self.at_least_users:,}" if self.at_least_users else self.zone or ""


class WindowReport(NamedTuple):
    """The heavy hitters of one window of one stream. Windows without any are not reported.

    stream: name of the stream.
    window_start, window_end: microseconds since 1970 UTC; the end is exclusive.
    heavy_hitters: sorted by released values only (`release_order`).
    epsilon_total, delta: the guarantee of the whole run, for each user, over all its windows.
    epsilon_spent: running estimate of the part used up to and including this window (docs/guarantee.md, "The running
    figure epsilon_spent").
        In mode `looks` epsilon_total: a user may have spent all of it, and what is published does not tell.
    """

    stream: str
    window_start: int
    window_end: int
    heavy_hitters: Sequence[HeavyHitter]
    epsilon_total: float
    delta: float
    epsilon_spent: float

    def _repr_html_(self) -> str:
        """For notebooks."""
        caption = (
            f"{self.stream}: {format_utc(self.window_start)} to {format_utc(self.window_end)};"
            f" ({exact(self.epsilon_total)}, {exact(self.delta)})-DP for each user, over all windows of the run"
            " together"
        )
        rows = [(each.item, *each.kind, _facets_in_words(each), each.at_least_weight) for each in self.heavy_hitters]
        is_shown = [
            *[True] * 5,
            any(each.facets for each in self.heavy_hitters),
            any(row[-1] is not None for row in rows),
        ]
        columns = list(itertools.compress(HeavyHitter._fields, is_shown))
        return html_table(caption, columns, [list(itertools.compress(row, is_shown)) for row in rows])


def _facets_in_words(hitter: HeavyHitter) -> str:
    return ", ".join(f"{each.by}={each.value}: {each.at_least_users or 'named'}" for each in hitter.facets)


class RunEnded(NamedTuple):
    """Says that a run has released everything, and nothing about why: whether a stop by the operator mattered depends
    on data that is never released (docs/guarantee.md, "What may be published").

    stream: name of the stream.
    windows: the number of windows that were closed, with and without heavy items.
    reports: the number of windows with heavy items. `RunEnded` can overtake the last of their reports; from the number
        a reader knows when all have come.
    """

    stream: str
    windows: int
    reports: int = 0


def release_order(heavy_hitter: HeavyHitter) -> tuple[bool, int, int, int, int, str]:
    """Sort key of the heavy hitters of a report: above first, then by falling level, falling at_least_users, falling
    noisy count and falling at_least_weight, then by label. A function of released values only."""
    return (
        heavy_hitter.zone != ABOVE,
        -(heavy_hitter.level or 0),
        -(heavy_hitter.at_least_users or 0),
        -(heavy_hitter.noisy_count or 0),
        -(heavy_hitter.at_least_weight or 0),
        heavy_hitter.item,
    )


FACET_SCHEMA: dict[str, Any] = {
    "type": "record",
    "name": "Facet",
    "fields": [
        {"name": "by", "type": "string", "doc": "Name of the column."},
        {"name": "value", "type": "string", "doc": "The value."},
        {"name": "at_least_users", "type": "long", "doc": "At least so many users, or 0: not stated."},
    ],
}
_EXTRAS: dict[str, dict[str, Any]] = {
    "facets": {
        "doc": "Of the declared values of some columns those that many of these users have, in declared order.",
        "type": {"type": "array", "items": FACET_SCHEMA},
    },
    "at_least_weight": {
        "doc": "All of its users have at least so much of the declared weight, or 0: not stated.",
        "type": ["null", "long"],
    },
}
WINDOW_REPORT_AVRO_SCHEMA: dict[str, Any] = {
    "type": "record",
    "name": "WindowReport",
    "namespace": "shh",
    "doc": "Items held by many users in one window, differentially private for each user over the whole run.",
    "fields": [
        {"name": "stream", "type": "string", "doc": "Name of the stream."},
        {
            "name": "window_start",
            "type": {"type": "long", "logicalType": "timestamp-micros"},
            "doc": "Start of the window (inclusive), UTC.",
        },
        {
            "name": "window_end",
            "type": {"type": "long", "logicalType": "timestamp-micros"},
            "doc": "End of the window (exclusive), UTC.",
        },
        {
            "name": "heavy_hitters",
            "doc": "Items found heavy; above first, then by falling level, at_least_users, noisy_count; by label."
            " Ranks, and what is new, rising, falling or gone, follow from these: docs/read_a_report.md.",
            "type": {
                "type": "array",
                "items": {
                    "type": "record",
                    "name": "HeavyHitter",
                    "fields": [
                        {"name": "item", "type": "string", "doc": "Label of the item."},
                        {
                            "name": "zone",
                            "type": ["null", "string"],
                            "doc": "mode hits: above (free of charge) or between (charged); else null.",
                        },
                        {
                            "name": "noisy_count",
                            "type": ["null", "long"],
                            "doc": "Users that hold it, with discrete Laplace noise; null for above, kms21 and names.",
                        },
                        {
                            "name": "level",
                            "type": ["null", "long"],
                            "default": None,
                            "doc": "mode looks: boundaries that the noisy sum of weights reaches, from 1; else null.",
                        },
                        {
                            "name": "at_least_users",
                            "type": ["null", "long"],
                            "default": None,
                            "doc": "mode looks: at least so many users hold it, or 0: not stated; else null.",
                        },
                    ],
                },
            },
        },
        {"name": "epsilon_total", "type": "double", "doc": "Epsilon of the whole run, for each user."},
        {"name": "delta", "type": "double", "doc": "Delta of the whole run, for each user."},
        {
            "name": "epsilon_spent",
            "type": "double",
            "doc": "Running estimate of the part of epsilon_total used so far, from public output alone.",
        },
    ],
}


def window_report_schema(extra: str | None) -> dict[str, Any]:
    """The Avro schema of the reports of a plan. extra: ``facets`` or ``at_least_weight`` of one that has them."""
    schema = WINDOW_REPORT_AVRO_SCHEMA
    if extra is None:
        return schema
    schema = copy.deepcopy(schema)
    hitters = next(each for each in schema["fields"] if each["name"] == "heavy_hitters")
    hitters["type"]["items"]["fields"].append({"name": extra, **_EXTRAS[extra]})
    return schema
