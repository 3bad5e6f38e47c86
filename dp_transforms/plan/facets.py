"""Facets: declared values of columns, by which named items are looked at once more (docs/guarantee.md, "Facets")."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from dp_transforms.checks import check_whole, shown
from dp_transforms.mechanisms.priced_weights import PURSE_UNITS
from dp_transforms.plan.stored import Record

MOST_BY = 2  # columns whose values are facets: each event adds as many looks
MOST_FACETS = 100  # of all columns: each is drawn for, of each named pair
SHARE_OF_FACETS = 20  # percent of a purse


@dataclasses.dataclass(frozen=True, kw_only=True)
class Facets(Record):
    """After all other rounds over blocks, one more draws for the facets of each named pair (window, item): its users
    whose events have a declared value of a declared column.

    labels: of all facets, each ``COLUMN=VALUE``; an event without any of these values counts for no facet.
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
    return tuple(dict.fromkeys(label.partition("=")[0] for label in labels))


def check_facets(labels: tuple[str, ...]) -> None:
    """Raises ValueError unless these are some different ``COLUMN=VALUE``, of at most `MOST_BY` columns
    and at most `MOST_FACETS` in all."""
    parts = [label.partition("=") for label in labels]
    if not parts or not all(column and value for column, _, value in parts) or len(set(labels)) < len(labels):
        raise ValueError("by must name a column and some different values, such as country=DE,FR.")
    if len(labels) > MOST_FACETS:
        raise ValueError(f"by must name at most {MOST_FACETS} values, got {len(labels)}.")
    if len(columns_of_facets(labels)) > MOST_BY:
        raise ValueError(f"by must name at most {MOST_BY} columns, got {len(columns_of_facets(labels))}.")


def facet_labels(by: object) -> tuple[str, ...]:
    """``COLUMN=VALUE`` of every declared value. by: the values of each column. Raises ValueError."""
    if not isinstance(by, Mapping) or not all(isinstance(values, (list, tuple)) for values in by.values()):
        raise ValueError(f"by must name the values of a column, such as {{'country': ('DE', 'FR')}}, got {shown(by)}.")
    if any("=" in str(column) for column in by):
        raise ValueError("by must name columns without '='. Rename the column.")
    return tuple(f"{column}={value}" for column, values in by.items() for value in values)
