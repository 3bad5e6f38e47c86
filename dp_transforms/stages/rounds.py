"""The first two stages where looks come in rounds: they are run once for each round, and get what was named before."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from dp_transforms.mechanisms.randomness import StreamKeys
from dp_transforms.monitor.item_domain import DomainTable
from dp_transforms.monitor.item_sums import ItemSums
from dp_transforms.monitor.named_items import NamedItems
from dp_transforms.monitor.operator_counts import PAIRS_UNPAID
from dp_transforms.monitor.pairs import ItemPairs
from dp_transforms.monitor.replay_weights import choose_replay, weigh_replay
from dp_transforms.monitor.round_candidates import Candidates, WindowBlocks
from dp_transforms.monitor.round_namer import RoundNamer
from dp_transforms.plan.plan import Plan
from dp_transforms.stages.stage import Span, StageWork


class _InRound(NamedTuple):
    """What earlier rounds leave. candidates: what is drawn for. named: in windows so far."""

    candidates: Candidates
    named: NamedItems


class _RoundWork(StageWork):
    """The state is what earlier rounds leave; None in round 0."""

    takes_turns = keeps_state = False

    def _check_round(self, state: _InRound | None, span: Span) -> None:
        """Raises ValueError for a later round that was not told what is named: it would spend its purse on blocks."""
        if (state is None) != (span.round == 0):
            raise ValueError(
                f"round {span.round} of looks must be told what earlier rounds have named, and round 0 not."
            )

    def recall(self, in_blocks: Sequence[bytes], in_windows: Sequence[bytes]) -> _InRound:
        named = NamedItems.of_messages(in_windows)
        return _InRound(Candidates.of_names(self.plan, NamedItems.of_messages(in_blocks), named), named)


class WeighRound(_RoundWork):
    """`ItemPairs` of the whole run -> `ItemSums`: each user spends its purse of the round evenly, in round 0 on its
    items in blocks of windows, later on those of its pairs that are drawn for. All items are drawn for by their shards,
    also by one to which nobody adds anything."""

    TAKES = ItemPairs
    wakes_all = True

    def advance(self, state: _InRound | None, columns: ItemPairs, span: Span, counts: Counter[str]) -> ItemSums:
        self._check_round(state, span)
        if state is None:
            pairs = columns.in_windows(WindowBlocks.of(self.plan).of_windows(columns.windows))
        else:
            pairs = state.candidates.pairs_of(columns)
        purse, in_round = self.plan.paid_rounds.units[span.round], pairs.counts
        counts[PAIRS_UNPAID] += int((in_round - choose_replay(in_round, self.plan, purse).looks).sum())
        return weigh_replay(pairs, self.plan, self.keys, purse)


class NameRound(_RoundWork):
    """`ItemSums` -> `NamedItems`: in round 0 of blocks of windows, later of windows, with what earlier rounds named
    (`monitor.round_namer`)."""

    TAKES = ItemSums

    def __init__(self, plan: Plan, keys: StreamKeys, domain: DomainTable | None) -> None:
        super().__init__(plan, keys, domain)
        self._namer = RoundNamer(plan, keys)

    def advance(self, state: _InRound | None, columns: ItemSums, span: Span, counts: Counter[str]) -> NamedItems:
        self._check_round(state, span)
        if state is None:
            return self._namer.name_in_blocks(columns)
        found = self._namer.name_in_windows(span.round, columns, state.candidates, span.shard, span.shards)
        before = [part for shard, part in state.named.shard_by_item(span.shards) if shard == span.shard]
        return NamedItems.merge([*before, found])
