"""Which items were named in which windows, and what is published of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from dp_transforms.mechanisms.priced_weights import FEWEST_STATED, stated_amounts, stated_users
from dp_transforms.monitor.column_kinds import Column, Items, Narrow, Windows
from dp_transforms.monitor.columns import Cells
from dp_transforms.monitor.equal_rows import group_slices
from dp_transforms.monitor.item_table import ItemTable
from dp_transforms.monitor.packed_arrays import NARROW, WHOLE
from dp_transforms.monitor.window_report import Facet, HeavyHitter, WindowReport, release_order
from dp_transforms.plan.facets import weight_of
from dp_transforms.plan.plan import Plan
from dp_transforms.plan.rounds import RoundTerms

NOT_COUNTED = -1
WINDOWS_AT_ONCE = 63  # of an item, for which one number says which of them are left out
Whole = npt.NDArray[np.int64]


def levels_and_sizes(
    noisy_sums: Whole, thresholds: Whole | int, plan: Plan, terms: RoundTerms, most_weight: int | None = None
) -> tuple[Whole, Whole]:
    """What is published of sums that reach their thresholds: a level from 1 on, and "at least N users". most_weight: or
    so much of amounts, of which a user adds at most this.

    Weights of early rounds are small: levels count what users would add with the largest of all rounds in windows, so
    that they compare. Where round 0 has larger ones, the first levels of its blocks are one. terms: of the round.
    """
    spacing, largest = plan.paid_looks.spacing, max(plan.largest_in_rounds[plan.rounds is not None :])
    boundaries: Whole = thresholds + (noisy_sums - thresholds) // spacing * spacing
    if most_weight is None:
        at_least = stated_users(boundaries, terms.likely_noise, terms.largest_weight)
    else:
        at_least = stated_amounts(boundaries, terms.likely_noise, terms.largest_weight, most_weight)
    in_largest = boundaries * largest // terms.largest_weight
    return np.maximum(1, 1 + (in_largest - thresholds) // spacing), at_least


@dataclasses.dataclass(frozen=True, eq=False)
class NamedItems(Cells):
    """n named (window, item), distinct, sorted by window and then by the keyed hash of the item: all of it public.

    windows: int64[n], window index. items: int64[n], position in ``table``. levels: int64[n], from 1 on. Between rounds
        of looks also a number below 0: the item is left out in this window and in later ones, its bits being those of
        the negative one; these are not drawn for any more.
    at_least_users: int64[n], so many users hold the item; all of them in a run, but for `Plan.size_error`.
    facets: int64[n], of a plan with facets: 0 for an item as a whole, else the number of the facet, counted from 1, in
        the place of an item of its own (`ItemTable.of_facets`). Amounts are one facet, and its size so much of them.
    """

    windows: npt.NDArray[np.int64]
    items: npt.NDArray[np.int64]
    levels: npt.NDArray[np.int64]
    at_least_users: npt.NDArray[np.int64]
    table: ItemTable
    facets: npt.NDArray[np.int64] | None = None

    SCHEMA: ClassVar = {
        "windows": Windows(),
        "items": Narrow(NARROW, into="table"),
        "levels": Column(WHOLE),
        "at_least_users": Column(WHOLE),
        "table": Items(),
        "facets": Narrow(NARROW, is_optional=True),
    }

    ORDER = ()  # not asked of messages: an engine that lost a state may name twice, and the tests are to see it

    def without_left_out(self) -> NamedItems:
        return self.select(self.levels >= 0)

    def left_out(self) -> tuple[Whole, Whole]:
        """The pairs that are left out: windows and positions in ``table``."""
        rows, later = np.nonzero(-np.minimum(self.levels, 0)[:, None] >> np.arange(WINDOWS_AT_ONCE) & 1)
        return self.windows[rows] + later, self.items[rows]

    def window_reports(
        self,
        plan: Plan,
        stream: str,
        noisy_counts: npt.NDArray[np.int64] | None = None,
        lasts: npt.NDArray[np.int64] | None = None,
    ) -> Iterator[tuple[int, WindowReport]]:
        """The report of each window with named items, in order, with the number of its window.

        noisy_counts: int64[n], `NOT_COUNTED` for an item that is not counted; None if none is.
        lasts: int64[n], of items in blocks: the last window of the block, which gives the number and the end.

        epsilon_spent is that of the whole run: public output does not say how much of a purse is left.
        """
        labels = self.table.labels
        for rows in group_slices(self.windows):
            counts = [None] * (rows.stop - rows.start) if noisy_counts is None else noisy_counts[rows].tolist()
            columns = (self.items[rows].tolist(), self.levels[rows].tolist(), self.at_least_users[rows].tolist())
            heavy_hitters = [
                HeavyHitter(labels[item].as_py(), None, None if count == NOT_COUNTED else count, level, users)
                for item, level, users, count in zip(*columns, counts, strict=True)
            ]
            if self.facets is not None:
                heavy_hitters = _with_facets(heavy_hitters, self.facets[rows].tolist(), plan.facets)
            last = int((self.windows if lasts is None else lasts)[rows.start])
            yield (
                last,
                WindowReport(
                    stream=stream,
                    window_start=plan.schedule.window_start_micros(int(self.windows[rows.start])),
                    window_end=plan.schedule.window_end_micros(last),
                    heavy_hitters=sorted(heavy_hitters, key=release_order),
                    epsilon_total=plan.epsilon,
                    delta=plan.delta,
                    epsilon_spent=plan.epsilon,
                ),
            )


def _with_facets(found: list[HeavyHitter], numbers: list[int], labels: tuple[str, ...]) -> list[HeavyHitter]:
    """Items with their facets, in declared order, and of the size that these imply: who is of a facet holds the item.
    numbers: of the facet of each that was found, 0 for an item."""
    if weight := weight_of(labels):
        return _with_weights(found, numbers, weight.most)
    of_items: dict[str, list[tuple[int, Facet]]] = {}
    for hitter, number in zip(found, numbers, strict=True):
        if number:
            column, _, value = labels[number - 1].partition("=")
            of_items.setdefault(hitter.item, []).append((number, Facet(column, value, hitter.at_least_users or 0)))
    whole = (hitter for hitter, number in zip(found, numbers, strict=True) if not number)
    return [_with_its_facets(hitter, sorted(of_items.get(hitter.item, ()))) for hitter in whole]


def _with_weights(found: list[HeavyHitter], numbers: list[int], most: int) -> list[HeavyHitter]:
    """Items with the amounts of their users, and of the size that these imply: nobody adds more than `most`."""
    pairs = list(zip(found, numbers, strict=True))
    of_items = {hitter.item: hitter.at_least_users or 0 for hitter, number in pairs if number}
    whole = []
    for hitter in (hitter for hitter, number in pairs if not number):
        amount = of_items.get(hitter.item, 0)
        users = -(-amount // most)
        users = max(hitter.at_least_users or 0, users if users >= FEWEST_STATED else 0)
        whole.append(hitter._replace(at_least_weight=amount, at_least_users=users))
    return whole


def _with_its_facets(hitter: HeavyHitter, numbered: list[tuple[int, Facet]]) -> HeavyHitter:
    facets = tuple(facet for _, facet in numbered)
    users = max(hitter.at_least_users or 0, *(facet.at_least_users for facet in facets), 0)
    return hitter._replace(facets=facets, at_least_users=users)
