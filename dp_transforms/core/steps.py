"""The steps that every driver runs. One goes from what users hold to what they add to each item, the next one from
there to the items that are named, or may be. `core.stages` says which steps a run has; those of a stream that tests
twice are in `core.two_tests`.

Where a plan has rounds, both steps are run once for each round, and are given what the rounds before have named. Which
items are drawn for, held or not, is in docs/proofs.md, "Public items beside open ones".
"""

from __future__ import annotations

import abc
import dataclasses
import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from dp_transforms.accounting.priced_weights import BUDGET_UNITS
from dp_transforms.core.columns import check_unpacked, group_slices
from dp_transforms.core.contributions import Contributions, bound_contributions, keep_by_hash
from dp_transforms.core.heavy_hitter_monitor import find_candidates
from dp_transforms.core.hit_noise import query_noise
from dp_transforms.core.item_namer import ItemNamer
from dp_transforms.core.item_sums import ItemHolders, ItemSums
from dp_transforms.core.item_table import ItemTable
from dp_transforms.core.named_items import FollowedItems, NamedItems
from dp_transforms.core.operator_counts import BUDGET_STATE_BYTES, CONTRIBUTIONS_UNPAID, FOLLOWED_ITEMS
from dp_transforms.core.public_items import EmptyItems
from dp_transforms.core.randomness import StreamKeys
from dp_transforms.core.round_candidates import Candidates, WindowBlocks
from dp_transforms.core.stage import Counts, Messages, Sent, Span, Step
from dp_transforms.core.state_chunks import Kind
from dp_transforms.core.user_budgets import ENTRY_BYTES, UserBudgets
from dp_transforms.plan.plan import Plan
from dp_transforms.plan.rounds import public_threshold

Whole = npt.NDArray[np.int64]
Weighed = tuple[Contributions, Whole]
"""The contributions that are tested, and the weight of each, 0 for one that is not paid."""


# ---------------------------------------------------------------------------------------------------------------------
# Where users pay for hits
# ---------------------------------------------------------------------------------------------------------------------


class BoundUsers(Step):
    """`Contributions` -> `ItemHolders`: at most L items of each user in each window."""

    TAKES = Contributions

    def process(self, state: None, columns: Contributions, span: Span, counts: Counts, *named: Messages) -> ItemHolders:
        most = self.plan.charged_hits.max_items_per_user
        return ItemHolders.of_contributions(bound_contributions(columns, most, self.keys))


class FindCandidates(Step):
    """`ItemHolders` -> the candidates among them (docs/guarantee.md, "Draws in two stages"). With public items, also
    such of them as nobody holds."""

    TAKES = ItemHolders

    @functools.cached_property
    def _empty(self) -> EmptyItems | None:
        items, noise = self.public_items, query_noise(self.plan, self.keys)
        uniforms = self.keys.empty_item_uniforms()
        return None if items is None else EmptyItems(items, noise.empty_item_tail(), uniforms)

    def process(self, state: None, columns: ItemHolders, span: Span, counts: Counts, *named: Messages) -> ItemHolders:
        if self._empty is not None:
            columns = ItemHolders.merge([columns, self._empty.without_holders(*dataclasses.astuple(span))])
        return find_candidates(columns, self.plan, self.keys)


# ---------------------------------------------------------------------------------------------------------------------
# Where users pay for tests of their contributions
# ---------------------------------------------------------------------------------------------------------------------


class _WeighingStep(Step):
    """Each user adds a weight to the items that it holds, so much as its budget pays for."""

    TAKES = Contributions

    @abc.abstractmethod
    def weigh(self, state: Any, columns: Contributions, span: Span, *named: Messages) -> Weighed: ...

    def process(self, state: Any, columns: Contributions, span: Span, counts: Counts, *named: Messages) -> Sent:
        contributions, weights = self.weigh(state, columns, span, *named)
        counts[CONTRIBUTIONS_UNPAID] += int((weights == 0).sum())
        return self.added(contributions, weights)

    def added(self, contributions: Contributions, weights: Whole) -> Sent:
        return ItemSums.of_weights(contributions, weights, self.keys)


class WeighReplay(_WeighingStep):
    """`Contributions` of the whole run -> `ItemSums`: each user spends its budget evenly on all its contributions
    of the run, also on later ones (`replay_weights`)."""

    def weigh(self, state: None, columns: Contributions, span: Span, *named: Messages) -> Weighed:
        return columns, replay_weights(columns, self.plan, self.keys)


def replay_weights(contributions: Contributions, plan: Plan, keys: StreamKeys) -> Whole:
    """The weight of each contribution in a replay, 0 for one that does not count (docs/guarantee.md, "Weights").
    ``contributions`` must contain all of its users in the whole run.

    A user with n of them has in each the largest weight of which a full budget pays n. Of more than it can pay for so
    many count, chosen by keyed hash.

    Guarantee: the tests of a user never cost more than a full budget; its weights depend on its own events alone. That
    they depend on its later events too is no harm: the log is fixed, and nothing in it can react to a report.
    """
    listed = plan.paid_contributions.prices.listed
    tests = np.minimum(contributions.counts, BUDGET_UNITS // listed.units[0])
    weights, _ = listed.largest(BUDGET_UNITS // tests)
    return np.asarray(weights[contributions.codes] * keep_by_hash(contributions, tests, keys))


class SpendBudgets(_WeighingStep):
    """`Contributions` -> `ItemSums`: window after window, each user at its own pace (`core.user_budgets`). The
    state is what each user has left."""

    KIND = Kind.USER_BUDGETS

    def restore(self, entries: Sequence[Any], first: int) -> UserBudgets:
        return UserBudgets(self.plan, self.keys, entries, first, self.round)

    def weigh(self, state: UserBudgets, columns: Contributions, span: Span, *named: Messages) -> Weighed:
        weights = np.zeros(len(columns), dtype=np.int64)
        for rows in group_slices(columns.windows):
            weights[rows] = state.spend(columns.select_users(rows), int(columns.windows[rows.start]))
        return columns, weights

    def measures(self, state: UserBudgets) -> dict[str, int]:
        return {BUDGET_STATE_BYTES: ENTRY_BYTES * len(state)}


def _are_of(items: ItemTable, sums: ItemSums) -> npt.NDArray[np.bool_]:
    """Whether the item of each row is one of these."""
    return items.contains(sums.table.hashes)[sums.items]


@dataclasses.dataclass
class Followed:
    """The followed items of a shard; what was named since the window ``first`` has changed."""

    items: FollowedItems
    first: int

    @classmethod
    def before(cls, plan: Plan, entries: Sequence[FollowedItems], first: int) -> Followed:
        """Of what was stored. Raises ValueError for entries that no run of this plan can have made."""
        items = FollowedItems.merge(entries).since(first - plan.followed_for)
        check_unpacked(bool((items.last_named < first).all() and (items.last_named >= 0).all()))
        return cls(items, first)

    def delta(self) -> list[bytes]:
        return self.items.since(self.first).to_chunks()

    def chunks(self) -> list[bytes]:
        return self.items.to_chunks()


class FollowingStep(Step):
    """Items that were named lately are tested in every window, held or not; they are the state."""

    KIND = Kind.FOLLOWED

    @functools.cached_property
    def _namer(self) -> ItemNamer:
        return ItemNamer(self.plan, self.keys, self.round)

    @property
    def runs_on_empty(self) -> bool:
        return self.public_items is not None or self.plan.followed is not None

    def restore(self, entries: Sequence[Any], first: int) -> Any:
        return Followed.before(self.plan, entries, first)

    def measures(self, state: Any) -> dict[str, int]:
        return {} if self.plan.followed is None else {FOLLOWED_ITEMS: len(state.items)}


class NameItems(FollowingStep):
    """`ItemSums` -> `NamedItems` (`core.item_namer`). Public items are tested in every window, too."""

    TAKES = ItemSums

    @functools.cached_property
    def _empty(self) -> EmptyItems | None:
        items, uniforms = self.public_items, self.keys.empty_item_uniforms()
        return None if items is None else EmptyItems(items, self._namer.empty_item_tail, uniforms)

    def process(self, state: Followed, columns: ItemSums, span: Span, counts: Counts, *named: Messages) -> NamedItems:
        public = NamedItems.none()
        if self.public_items is not None and self._empty is not None:
            columns = ItemSums.merge([columns, self._empty.without_sums(*dataclasses.astuple(span))])
            is_public = _are_of(self.public_items, columns)
            public, columns = self._namer.name_public(columns.select(is_public)), columns.select(~is_public)
        found = self._namer.name_windows(columns, state.items, span.first, span.end)
        if self.plan.followed is not None:
            state.items = state.items.after(found, span.end, self.plan.followed_for)
        return NamedItems.merge([public, found])


# ---------------------------------------------------------------------------------------------------------------------
# The same in rounds
# ---------------------------------------------------------------------------------------------------------------------


class EarlierNames(NamedTuple):
    """in_windows: what earlier rounds have named or left out. candidates: what the next round draws for."""

    in_windows: NamedItems
    candidates: Candidates


@functools.lru_cache(maxsize=1)
def _earlier_names(blocks: WindowBlocks, in_blocks: tuple[bytes, ...], in_windows: tuple[bytes, ...]) -> EarlierNames:
    """Made once in a process, for all shards of users and items of a round."""
    named = NamedItems.of_messages(in_windows)
    return EarlierNames(named, Candidates.of_names(blocks, NamedItems.of_messages(in_blocks), named))


class _RoundStep(Step):
    """What users and items share: both know what is drawn for."""

    @property
    def is_sizing(self) -> bool:
        """Whether it is the last round, in which what is named already is tested again, for its size."""
        return 0 < self.round == len(self.plan.units_of_rounds) - 1

    def earlier(self, span: Span, *earlier_names: Messages) -> EarlierNames | None:
        """None in round 0. Raises ValueError for a later round without names: it would spend its budget on blocks."""
        if bool(earlier_names) != bool(self.round):
            raise ValueError(f"round {self.round} must be told what earlier rounds have named.")
        if not self.round:
            return None
        # Copies, where names lie in memory that is given back (`local`).
        in_blocks, in_windows = (*(tuple(map(bytes, messages)) for messages in earlier_names), ())[:2]
        return _earlier_names(WindowBlocks.of(self.plan, span.first, span.end), in_blocks, in_windows)


class WeighRound(_RoundStep, SpendBudgets):
    """`Contributions` of a run, or of a part of one -> `ItemSums`: each user spends its budget of the round, in round 0
    on its items in blocks of windows, later on those of its contributions that are drawn for; in a part it keeps some
    back for windows to come (`BudgetPacing`). All items are drawn for by their shards, also one to which nobody adds
    anything. The state is what each user has left of the round.
    """

    sends_to_all = True

    @property
    def state_kind(self) -> Kind:
        return Kind.budgets_of_round(self.round)

    def weigh(self, state: UserBudgets, columns: Contributions, span: Span, *named: Messages) -> Weighed:
        if names := self.earlier(span, *named):
            columns = names.candidates.contributions_of(columns, with_sizing=self.is_sizing)
        else:
            columns = columns.in_windows(WindowBlocks.of(self.plan, span.first, span.end).of_windows(columns.windows))
        return columns, state.spend(columns, span.first, span.end, with_sizing=self.is_sizing)


class NameRound(_RoundStep):
    """`ItemSums` -> `NamedItems`: in round 0 of blocks of windows, later of windows, with what earlier rounds named
    (`core.item_namer`). Public items are tested in every block, held or not."""

    TAKES = ItemSums

    @functools.cached_property
    def _namer(self) -> ItemNamer:
        return ItemNamer(self.plan, self.keys, self.round)

    def process(self, state: None, columns: ItemSums, span: Span, counts: Counts, *named: Messages) -> NamedItems:
        names = self.earlier(span, *named)
        if names is None:
            return self._name_blocks(columns, span)
        already = names.in_windows.of_shard(span.shard, span.shards)
        if self.is_sizing:
            already = already.without_left_out()
            drawn = len(names.in_windows.without_left_out())
            already, columns = self._namer.size(already, columns, drawn, span.end - span.first)
        found = self._namer.name_in_windows(columns, names.candidates, span.shard, span.shards)
        return NamedItems.merge([already, found])

    def _name_blocks(self, sums: ItemSums, span: Span) -> NamedItems:
        if self.public_items is None:
            return self._namer.name_in_blocks(sums)
        of_windows, is_public = WindowBlocks.of(self.plan, span.first, span.end), _are_of(self.public_items, sums)
        blocks = np.unique(of_windows.of_windows(np.arange(span.first, span.end)))
        of_shard = np.flatnonzero(self.public_items.hashes[:, 1] % np.uint64(span.shards) == span.shard)
        drawn = NamedItems.in_all(blocks, self.public_items.take(of_shard))
        least = public_threshold(self.plan, len(blocks), span.end - span.first)
        public = self._namer.name_public_in_blocks(drawn, sums.select(is_public), least)
        return NamedItems.merge([self._namer.name_in_blocks(sums.select(~is_public)), public])
