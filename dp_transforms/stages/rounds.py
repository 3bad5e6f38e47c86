"""The first two stages where looks come in rounds: they are run once for each round, and get what was named before.
What round 0 names may be reported by itself.

Of a whole run, or of a part of it: then each user has left in the purse of each round what earlier parts left there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from dp_transforms.mechanisms.randomness import StreamKeys
from dp_transforms.monitor.item_domain import DomainTable
from dp_transforms.monitor.item_holders import weights_of
from dp_transforms.monitor.item_sums import ItemSums
from dp_transforms.monitor.named_items import NamedItems
from dp_transforms.monitor.operator_counts import PAIRS_UNPAID
from dp_transforms.monitor.pairs import ItemPairs
from dp_transforms.monitor.purses import Purses
from dp_transforms.monitor.round_candidates import Candidates, WindowBlocks
from dp_transforms.monitor.round_namer import RoundNamer
from dp_transforms.plan.plan import Plan
from dp_transforms.runs.run_part import RunPart
from dp_transforms.runs.state_cells import Kind
from dp_transforms.stages.stage import Reported, Span, StageWork


class _InRound(NamedTuple):
    """What earlier rounds leave. blocks: of the windows of the part. candidates: what is drawn for, None in round 0.
    named: in windows so far."""

    blocks: WindowBlocks
    candidates: Candidates | None
    named: NamedItems


class _OfUsers(NamedTuple):
    """The same, and what earlier parts leave. purses: of the round, of the users that are here; stored as this kind."""

    now: _InRound
    purses: Purses
    kind: Kind


class _RoundWork(StageWork):
    """What users and items share: both know what is drawn for."""

    takes_turns = False

    def load(self, part: RunPart, columns: Any, span: Span) -> Any:
        """Raises ValueError for a later round: it would spend its purse on blocks."""
        if span.round:
            raise ValueError(f"round {span.round} of looks must be told what earlier rounds have named.")
        blocks = WindowBlocks.of(self.plan, span.first, span.end)
        return self._state(_InRound(blocks, None, NamedItems.none()), part, columns, span)

    def recall(
        self, part: RunPart, columns: Any, span: Span, in_blocks: Sequence[bytes], in_windows: Sequence[bytes]
    ) -> Any:
        named = NamedItems.of_messages(in_windows)
        blocks = WindowBlocks.of(self.plan, span.first, span.end)
        candidates = Candidates.of_names(blocks, NamedItems.of_messages(in_blocks), named)
        return self._state(_InRound(blocks, candidates, named), part, columns, span)

    def _state(self, now: _InRound, part: RunPart, columns: Any, span: Span) -> Any:
        return now


class WeighRound(_RoundWork):
    """`ItemPairs` of a part of a run -> `ItemSums`: each user spends its purse of the round at its own pace, in round 0
    on its items in blocks of windows, later on those of its pairs that are drawn for. All items are drawn for by their
    shards, also by one to which nobody adds anything."""

    TAKES = ItemPairs
    wakes_all = True

    def _state(self, now: _InRound, part: RunPart, columns: ItemPairs, span: Span) -> _OfUsers:
        kind, units = Kind.purses_of_round(span.round), self.plan.paid_rounds.units[span.round]
        held = part.purses(columns.users, kind)
        return _OfUsers(now, Purses.of_entries(self.plan, self.keys, held, span.first, units), kind)

    def advance(self, state: _OfUsers, columns: ItemPairs, span: Span, counts: Counter[str]) -> ItemSums:
        candidates = state.now.candidates
        if candidates is None:
            pairs = columns.in_windows(state.now.blocks.of_windows(columns.windows))
        else:
            pairs = candidates.pairs_of(columns)
        terms = state.purses.spend_on_lists(pairs, span.first, span.end)
        counts[PAIRS_UNPAID] += int((terms == 0).sum())
        return ItemSums.of_weights(pairs, weights_of(terms), self.keys)

    def cells(self, state: _OfUsers) -> Iterator[tuple[Kind, bytes]]:
        return ((state.kind, cell) for cell in state.purses.rewritten_cells())


class NameRound(_RoundWork):
    """`ItemSums` -> `NamedItems`: in round 0 of blocks of windows, later of windows, with what earlier rounds named
    (`monitor.round_namer`)."""

    TAKES = ItemSums
    keeps_state = False

    def __init__(self, plan: Plan, keys: StreamKeys, domain: DomainTable | None) -> None:
        super().__init__(plan, keys, domain)
        self._namer = RoundNamer(plan, keys)

    def advance(self, state: _InRound, columns: ItemSums, span: Span, counts: Counter[str]) -> NamedItems:
        if state.candidates is None:
            return self._namer.name_in_blocks(columns)
        found = self._namer.name_in_windows(span.round, columns, state.candidates, span.shard, span.shards)
        before = [part for shard, part in state.named.shard_by_item(span.shards) if shard == span.shard]
        return NamedItems.merge([*before, found])


class ReleaseBlocks(StageWork):
    """`NamedItems` of blocks -> a report of each block, which costs nothing more: the theorem has the names of round 0
    among what is published (docs/guarantee.md, "Rounds")."""

    TAKES = NamedItems
    keeps_state = False

    def advance(self, state: None, columns: NamedItems, span: Span, counts: Counter[str]) -> Iterator[Reported]:
        ends = WindowBlocks.of(self.plan, span.first, span.end).ends(columns.windows)
        return columns.window_reports(self.plan, self.keys.stream, lasts=ends - 1)
