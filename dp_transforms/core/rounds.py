"""The first two stages where looks come in rounds over blocks of windows: they are run once for each round, and get
what was named before. What round 0 names may be reported by itself.

Of a whole run, or of a part of it: then each user has left in the purse of each round what earlier parts left there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from dp_transforms.core.contributions import Contributions
from dp_transforms.core.item_sums import ItemSums
from dp_transforms.core.named_items import NamedItems
from dp_transforms.core.operator_counts import CONTRIBUTIONS_UNPAID
from dp_transforms.core.public_items import PublicItemsTable
from dp_transforms.core.randomness import StreamKeys
from dp_transforms.core.round_candidates import Candidates, WindowBlocks
from dp_transforms.core.round_namer import RoundNamer, SizingTests
from dp_transforms.core.run_part import RunPart
from dp_transforms.core.stage import Reported, Span, StageWork
from dp_transforms.core.state_chunks import Kind
from dp_transforms.core.tables import Table
from dp_transforms.core.user_budgets import UserBudgets
from dp_transforms.plan.plan import Plan

Whole = npt.NDArray[np.int64]


class InRound(NamedTuple):
    """What comes in a round. columns: `Contributions` or `ItemSums`. in_blocks: what round 0 named. in_windows:
    what later
    ones named or left out."""

    columns: Any
    in_blocks: NamedItems
    in_windows: NamedItems

    def candidates(self, plan: Plan, span: Span) -> Candidates:
        """What a later round draws for."""
        return Candidates.of_names(WindowBlocks.of(plan, span.first, span.end), self.in_blocks, self.in_windows)


class _RoundWork(StageWork):
    """What users and items share: both know what is drawn for."""

    def told(self, columns: Table, *named: Sequence[bytes]) -> InRound:
        """Raises ValueError for a later round without names: it would spend its purse on blocks."""
        if bool(named) != bool(self.round):
            raise ValueError(f"round {self.round} must be told what earlier rounds have named.")
        in_blocks, in_windows = (*named, (), ())[:2]
        return InRound(columns, NamedItems.of_messages(in_blocks), NamedItems.of_messages(in_windows))

    @property
    def is_sizing(self) -> bool:
        """Whether it is the last round, in which what is named already is looked at again."""
        return 0 < self.round == len(self.plan.units_of_rounds) - 1


class WeighRound(_RoundWork):
    """`Contributions` of a part of a run -> `ItemSums`: each user spends its purse of the round at its own pace,
    in round 0
    on its items in blocks of windows, later on those of its pairs, that are drawn for. All
    items are drawn for by their shards, also by one to which nobody adds anything. The state is what each user that is
    here has left of the round.
    """

    TAKES = Contributions
    sends_to_all = True

    @property
    def _kind(self) -> Kind:
        return Kind.purses_of_round(self.round)

    def load(self, part: RunPart, columns: InRound, span: Span) -> UserBudgets:
        held = part.purses(columns.columns.users, self._kind)
        return UserBudgets.of_entries(self.plan, self.keys, held, span.first, self.plan.units_of_rounds[self.round])

    def advance(self, state: UserBudgets, columns: InRound, span: Span, counts: Counter[str]) -> ItemSums:
        pairs = columns.columns
        if self.round:
            pairs = columns.candidates(self.plan, span).pairs_of(pairs, with_sizing=self.is_sizing)
        else:
            pairs = pairs.in_windows(WindowBlocks.of(self.plan, span.first, span.end).of_windows(pairs.windows))
        spend = state.spend_with_sizing if self.is_sizing else state.spend
        weights = spend(pairs, span.first, span.end)
        counts[CONTRIBUTIONS_UNPAID] += int((weights == 0).sum())
        return ItemSums.of_weights(pairs, weights, self.keys)

    def cells(self, state: UserBudgets) -> Iterator[tuple[Kind, bytes]]:
        return ((self._kind, cell) for cell in state.rewritten_cells())


class NameRound(_RoundWork):
    """`ItemSums` -> `NamedItems`: in round 0 of blocks of windows, later of windows, with what earlier rounds named
    (`core.round_namer`)."""

    TAKES = ItemSums
    keeps_state = False

    def __init__(self, plan: Plan, keys: StreamKeys, domain: PublicItemsTable | None, number: int = 0) -> None:
        super().__init__(plan, keys, domain, number)
        self._namer = RoundNamer(plan, keys)

    def advance(self, state: None, columns: InRound, span: Span, counts: Counter[str]) -> NamedItems:
        if not self.round:
            return self._namer.name_in_blocks(columns.columns)
        candidates, sums = columns.candidates(self.plan, span), columns.columns
        named = columns.in_windows.of_shard(span.shard, span.shards)
        if self.is_sizing:
            named = named.without_left_out()
            drawn = len(columns.in_windows.without_left_out())
            named, sums = SizingTests(self.plan, self.keys).size(named, sums, drawn, span.end - span.first)
        found = self._namer.name_in_windows(self.round, sums, candidates, span.shard, span.shards)
        return NamedItems.merge([named, found])


class ReleaseBlocks(StageWork):
    """`NamedItems` of blocks -> a report of each block, which costs nothing more: the theorem has the names of round 0
    among what is published (docs/guarantee.md, "Rounds")."""

    TAKES = NamedItems
    keeps_state = False

    def advance(self, state: None, columns: NamedItems, span: Span, counts: Counter[str]) -> Iterator[Reported]:
        ends = WindowBlocks.of(self.plan, span.first, span.end).ends(columns.windows)
        return columns.window_reports(self.plan, self.keys.stream, lasts=ends - 1)
