"""Facets: declared values of columns, by which named items are looked at once more (docs/guarantee.md, "Facets").

Or the column of `--weight`: numbers, of which a user adds its amount to a named item (docs/guarantee.md, "Amounts").
The weight of a look is another thing: what a user adds to a sum that noise comes to.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from dp_transforms.checks import check_whole, shown
from dp_transforms.mechanisms.priced_weights import PURSE_UNITS
from dp_transforms.plan.stored import Record

MOST_BY = 2  # columns whose values are facets: each event adds as many looks
MOST_FACETS = 100  # of all columns: each is drawn for, of each named pair
MOST_WEIGHT = 10**9  # the most amount of a user; so that whole numbers and floats agree
FULL_VALUE = 1 << 20  # of a user whose amount is the most that it may add
SHARE_OF_FACETS = 20  # percent of a purse, also for amounts
_WEIGHT = re.compile(r"([^=]+)<=([1-9][0-9]{0,9})", re.DOTALL)


class Weight(NamedTuple):
    """The column of `--weight`. A user's amount of a named item is what all of its events have there, cut at `most`."""

    column: str
    most: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Facets(Record):
    """After all other rounds over blocks, one more draws for the facets of each named pair (window, item): its users
    whose events have a declared value of a declared column. Or for the amounts of its users.

    labels: of all facets, each ``COLUMN=VALUE``; an event without any of these values counts for no facet. Or the one
        ``COLUMN<=MOST`` of `--weight`.
    units: what the looks of a user at facets cost of a purse together, at most.
    """

    labels: tuple[str, ...]
    units: int

    def __post_init__(self) -> None:
        super().__post_init__()
        check_facets(self.labels)
        check_whole("units", self.units, 1, PURSE_UNITS)

    @property
    def columns(self) -> tuple[str, ...]:
        """Of the log."""
        return columns_of_facets(self.labels)


def columns_of_facets(labels: tuple[str, ...]) -> tuple[str, ...]:
    """The columns of these facets, in order."""
    if weight := weight_of(labels):
        return (weight.column,)
    return tuple(dict.fromkeys(label.partition("=")[0] for label in labels))


def weight_of(labels: tuple[str, ...]) -> Weight | None:
    """The column of `--weight`, in the place of facets; None where these labels are of facets."""
    found = _WEIGHT.fullmatch(labels[0]) if len(labels) == 1 else None
    return None if found is None else Weight(found[1], int(found[2]))


def check_facets(labels: tuple[str, ...]) -> None:
    """Raises ValueError unless these are the column of `--weight`, or some different ``COLUMN=VALUE``, of at most
    `MOST_BY` columns and at most `MOST_FACETS` in all."""
    if weight := weight_of(labels):
        check_whole("most_weight", weight.most, 1, MOST_WEIGHT)
        return
    parts = [label.partition("=") for label in labels]
    if not parts or not all(column and value for column, _, value in parts) or len(set(labels)) < len(labels):
        raise ValueError("by must name a column and some different values, such as country=DE,FR.")
    if len(labels) > MOST_FACETS:
        raise ValueError(f"by must name at most {MOST_FACETS} values, got {len(labels)}.")
    if len(columns_of_facets(labels)) > MOST_BY:
        raise ValueError(f"by must name at most {MOST_BY} columns, got {len(columns_of_facets(labels))}.")


def facet_labels(by: object) -> tuple[str, ...]:
    """``COLUMN=VALUE`` of every declared value. by: the values of each column. Raises ValueError (`check_facets`)."""
    if not isinstance(by, Mapping) or not all(isinstance(values, (list, tuple)) for values in by.values()):
        raise ValueError(f"by must name the values of a column, such as {{'country': ('DE', 'FR')}}, got {shown(by)}.")
    if any("=" in str(column) or str(column).endswith("<") for column in by):
        raise ValueError("by must name columns without '=', and without '<' at the end. Rename the column.")
    labels = tuple(f"{column}={value}" for column, values in by.items() for value in values)
    check_facets(labels)
    return labels


def labels_of(given: Mapping[str, Any]) -> tuple[str, ...]:
    """The labels of facets, or of the column of `--weight`; none without. given: `LooksChoices`. Raises ValueError."""
    by, column, most = (given.get(name) for name in ("by", "weight", "most_weight"))
    if (column is None) != (most is None):
        raise ValueError("weight and most_weight must be given together: a column, and the most that a user may add.")
    if column is None:
        return () if by is None else facet_labels(by)
    if by is not None:
        raise ValueError("weight cannot be used with by. Leave one out.")
    if not isinstance(column, str) or not column or "=" in column:
        raise ValueError(f"weight must name a column without '=', got {shown(column)}.")
    return (f"{column}<={check_whole('most_weight', most, 1, MOST_WEIGHT)}",)
