"""The first stage: the pairs of some users -> what they add to each item, at most what a bound or a purse allows."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from dp_transforms.accounting.priced_weights import BUDGET_UNITS
from dp_transforms.core.contributions import Contributions, bound_contributions, keep_by_hash
from dp_transforms.core.equal_rows import group_slices
from dp_transforms.core.followed_items import FollowedItems
from dp_transforms.core.heavy_hitter_monitor import find_candidates
from dp_transforms.core.item_namer import EmptyItems, ItemNamer
from dp_transforms.core.item_sums import ItemHolders, ItemSums
from dp_transforms.core.named_items import NamedItems
from dp_transforms.core.operator_counts import BUDGET_STATE_BYTES, CONTRIBUTIONS_UNPAID, FOLLOWED_ITEMS
from dp_transforms.core.public_items import PublicItemsTable
from dp_transforms.core.query_noise import query_noise
from dp_transforms.core.randomness import StreamKeys
from dp_transforms.core.run_part import RunPart
from dp_transforms.core.stage import Reported, Span, StageWork
from dp_transforms.core.state_chunks import Cell, Kind, followed_of_chunks
from dp_transforms.core.user_budgets import UserBudgets
from dp_transforms.plan.plan import Plan

# The weights of a replay: each user spends its purse evenly on all its pairs of the run (docs/guarantee.md,
# "Weights").
#
# Guarantee: the looks of a user never cost more than a full purse; its weights depend on its own events alone. That
# they depend on its later events too is no harm: the log is fixed, and nothing in it can react to a report.


class ReplayChoice(NamedTuple):
    """For u users. looks: how many of its pairs count. weights: of each of these. Both int64[u]."""

    looks: npt.NDArray[np.int64]
    weights: npt.NDArray[np.int64]


def choose_replay(pairs: npt.NDArray[np.int64], plan: Plan) -> ReplayChoice:
    """pairs: how many pairs each user has in the whole run, at least 1, int64[u].

    A user with n pairs has in each the largest weight of which a full purse pays n. Of more than `most_looks` pairs so
    many count.
    """
    listed = plan.paid_contributions.listed
    looks = np.minimum(pairs, BUDGET_UNITS // listed.units[0])
    weights, _ = listed.largest(BUDGET_UNITS // looks)
    return ReplayChoice(looks, weights)


def weigh_replay(pairs: Contributions, plan: Plan, keys: StreamKeys) -> ItemSums:
    """What these users add to their items. ``pairs`` must contain all pairs of its users in the whole run. Which pairs
    count is chosen by keyed hash."""
    looks, weights = choose_replay(pairs.counts, plan)
    kept = keep_by_hash(pairs, looks, keys)
    return ItemSums.of_weights(pairs, weights[pairs.codes] * kept, keys)


class BoundUsers(StageWork):
    """`Contributions` -> `ItemHolders`: at most L items of each user in each window, where users pay for hits."""

    keeps_state = False
    TAKES = Contributions

    def advance(self, state: None, columns: Contributions, span: Span, counts: Counter[str]) -> ItemHolders:
        return ItemHolders.of_contributions(
            bound_contributions(columns, self.plan.charged_hits.max_items_per_user, self.keys)
        )


class WeighReplay(StageWork):
    """`Contributions` of the whole run -> `ItemSums`: each user spends its purse evenly on all its pairs of the
    run, also
    on later ones (`core.users`)."""

    keeps_state = False
    TAKES = Contributions

    def advance(self, state: None, columns: Contributions, span: Span, counts: Counter[str]) -> ItemSums:
        in_run = columns.counts
        counts[CONTRIBUTIONS_UNPAID] += int((in_run - choose_replay(in_run, self.plan).looks).sum())
        return weigh_replay(columns, self.plan, self.keys)


class SpendBudgets(StageWork):
    """`Contributions` -> `ItemSums`: window after window, each user at its own pace (`core.user_budgets`). The
    state is what
    each user has left."""

    TAKES = Contributions

    def load(self, part: RunPart, columns: Contributions, span: Span) -> UserBudgets:
        return UserBudgets.of_entries(self.plan, self.keys, part.purses(columns.users), part.first)

    def read(self, cells: Iterable[tuple[Kind, Cell]], first: int) -> UserBudgets:
        return UserBudgets(self.plan, self.keys, [cell for _, cell in cells])

    def advance(self, state: UserBudgets, columns: Contributions, span: Span, counts: Counter[str]) -> ItemSums:
        weights = np.zeros(len(columns), dtype=np.int64)
        for rows in group_slices(columns.windows):
            weights[rows] = state.spend(columns.select_users(rows), int(columns.windows[rows.start]))
        counts[CONTRIBUTIONS_UNPAID] += int((weights == 0).sum())
        return ItemSums.of_weights(columns, weights, self.keys)

    def cells(self, state: UserBudgets) -> Iterator[tuple[Kind, bytes]]:
        return ((Kind.PURSES, cell) for cell in state.rewritten_cells())

    def changed(self, state: UserBudgets, span: Span) -> Iterator[tuple[Kind, bytes]]:
        return ((Kind.PURSES, cell) for cell in state.changed_cells())

    def measures(self, state: UserBudgets) -> dict[str, int]:
        return {BUDGET_STATE_BYTES: state.entry_bytes}


# The second stage: what all users add to some items -> which of them are named, or candidates of the monitor.


class FindCandidates(StageWork):
    """`ItemHolders` -> the candidates among them (docs/guarantee.md, "Draws in two stages"), where users pay for hits.
    In a known domain, also of items that nobody holds."""

    TAKES = ItemHolders
    keeps_state = False

    def __init__(self, plan: Plan, keys: StreamKeys, domain: PublicItemsTable | None, number: int = 0) -> None:
        super().__init__(plan, keys, domain, number)
        self._empty = None if domain is None else EmptyItems(domain, query_noise(plan, keys).empty_item_tail(), keys)

    def unpacked(self, blobs: Sequence[bytes]) -> list[ItemHolders]:
        return [ItemHolders.from_bytes(blob) for blob in blobs]

    def advance(self, state: None, columns: list[ItemHolders], span: Span, counts: Counter[str]) -> ItemHolders:
        nobody = () if self._empty is None else (self._empty.without_holders(*dataclasses.astuple(span)),)
        return find_candidates(ItemHolders.merge([*columns, *nobody]), self.plan, self.keys)


@dataclasses.dataclass
class _Followed:
    known: FollowedItems


class NameItems(StageWork):
    """`ItemSums` -> `NamedItems`, where users pay for looks (`core.item_namer`). Known items are looked at in every
    window, held or not: in a known domain all, else those that were named lately, which are the state."""

    TAKES = ItemSums

    def __init__(self, plan: Plan, keys: StreamKeys, domain: PublicItemsTable | None, number: int = 0) -> None:
        super().__init__(plan, keys, domain, number)
        self._namer = ItemNamer(plan, keys)
        self._empty = None if domain is None else EmptyItems(domain, self._namer.empty_item_tail, keys)
        self._are_followed = plan.known is not None
        self.runs_on_empty |= self._are_followed

    def unpacked(self, blobs: Sequence[bytes]) -> list[ItemSums]:
        return [ItemSums.from_bytes(blob) for blob in blobs]

    def load(self, part: RunPart, columns: list[ItemSums] | None, span: Span) -> _Followed:
        return _Followed(part.known(span.shard, span.shards) if self._are_followed else FollowedItems.none())

    def read(self, cells: Iterable[tuple[Kind, Cell]], first: int) -> _Followed:
        return _Followed(followed_of_chunks([cell for _, cell in cells], first - self.plan.followed_for))

    def advance(self, state: _Followed, columns: list[ItemSums], span: Span, counts: Counter[str]) -> NamedItems:
        nobody = () if self._empty is None else (self._empty.without_sums(*dataclasses.astuple(span)),)
        sums = ItemSums.merge([*columns, *nobody])
        named = self._namer.name_windows(sums, state.known, span.first, span.end)
        if self._are_followed:
            state.known = state.known.after(named, span.end, self.plan.followed_for)
        return named

    def cells(self, state: _Followed) -> Iterator[tuple[Kind, bytes]]:
        return ((Kind.KNOWN, cell) for cell in state.known.to_chunks())

    def changed(self, state: _Followed, span: Span) -> Iterator[tuple[Kind, bytes]]:
        return ((Kind.KNOWN, cell) for cell in state.known.since(span.first).to_chunks())

    def measures(self, state: _Followed) -> dict[str, int]:
        return {FOLLOWED_ITEMS: len(state.known)} if self._are_followed else {}


class ReleaseNames(StageWork):
    """`NamedItems` -> reports, where users pay for looks: what is named is published."""

    keeps_state = False
    TAKES = NamedItems

    def advance(self, state: None, columns: NamedItems, span: Span, counts: Counter[str]) -> Iterator[Reported]:
        return columns.window_reports(self.plan, self.keys.stream)
