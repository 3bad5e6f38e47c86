"""The first stage: the pairs of some users -> what they add to each item, at most what a bound or a purse allows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

import numpy as np
import numpy.typing as npt

from dp_transforms.monitor.columns import used
from dp_transforms.monitor.equal_rows import group_slices
from dp_transforms.monitor.item_holders import ItemHolders
from dp_transforms.monitor.item_sums import ItemSums
from dp_transforms.monitor.operator_counts import PAIRS_UNPAID, PURSE_STATE_BYTES
from dp_transforms.monitor.pairs import ItemPairs, UserPairs, bound_contributions
from dp_transforms.monitor.purses import Purses
from dp_transforms.monitor.replay_weights import choose_replay, weigh_replay
from dp_transforms.runs.run_part import RunPart
from dp_transforms.runs.state_cells import Cell, Kind
from dp_transforms.stages.stage import Span, StageWork


class BoundUsers(StageWork):
    """`UserPairs` -> `ItemHolders`: at most L items of each user in each window, where users pay for hits."""

    takes_turns = keeps_state = False
    TAKES = UserPairs

    def advance(self, state: None, columns: UserPairs, span: Span, counts: Counter[str]) -> ItemHolders:
        return ItemHolders.of_pairs(bound_contributions(columns, self.plan.charged_hits.max_items_per_user, self.keys))


class WeighReplay(StageWork):
    """`ItemPairs` of the whole run -> `ItemSums`: each user spends its purse evenly on all its pairs of the run, also
    on later ones (`monitor.replay_weights`)."""

    takes_turns = keeps_state = False
    TAKES = ItemPairs

    def advance(self, state: None, columns: ItemPairs, span: Span, counts: Counter[str]) -> ItemSums:
        in_run = columns.counts
        counts[PAIRS_UNPAID] += int((in_run - choose_replay(in_run, self.plan).looks).sum())
        return weigh_replay(columns, self.plan, self.keys)


class SpendPurses(StageWork):
    """`UserPairs` -> `ItemSums`: window after window, each user at its own pace (`monitor.pace`). The state is what
    each user has left."""

    TAKES = UserPairs

    def load(self, part: RunPart, columns: UserPairs, span: Span) -> Purses:
        return Purses.of_entries(self.plan, self.keys, part.purses(columns.users), part.first)

    def read(self, cells: Iterable[tuple[Kind, Cell]], first: int) -> Purses:
        return Purses(self.plan, self.keys, [cell for _, cell in cells])

    def advance(self, state: Purses, columns: UserPairs, span: Span, counts: Counter[str]) -> ItemSums:
        weights = np.zeros(len(columns), dtype=np.int64)
        for window, rows, of_window in pairs_by_window(columns):
            weights[rows] = state.spend(of_window, window)
        counts[PAIRS_UNPAID] += int((weights == 0).sum())
        return ItemSums.of_weights(columns, weights, self.keys)

    def cells(self, state: Purses) -> Iterator[tuple[Kind, bytes]]:
        return ((Kind.PURSES, cell) for cell in state.rewritten_cells())

    def changed(self, state: Purses, span: Span) -> Iterator[tuple[Kind, bytes]]:
        return ((Kind.PURSES, cell) for cell in state.changed_cells())

    def measures(self, state: Purses) -> dict[str, int]:
        return {PURSE_STATE_BYTES: state.entry_bytes}


def pairs_by_window(pairs: UserPairs) -> Iterator[tuple[int, npt.NDArray[np.int64], UserPairs]]:
    """Each window in order, with the rows of its pairs, ascending, and with these pairs. The table stays whole, so that
    the cost is that of the pairs, however many windows they lie in."""
    order = np.argsort(pairs.windows, kind="stable")
    for found in group_slices(pairs.windows[order]):
        rows = order[found]
        users, codes = used(len(pairs.users), pairs.codes[rows])
        windows, items = pairs.windows[rows], pairs.items[rows]
        of_window = pairs.users if users is None else pairs.users[users]
        yield int(windows[0]), rows, UserPairs(of_window, codes, windows, items, pairs.table)
