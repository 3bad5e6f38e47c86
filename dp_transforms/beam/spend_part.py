"""Spend: all pairs of some users in a part of a run -> what these users add to their items, and what they have left.

The rule of a stream (`monitor.pace`) on bounded input: windows one after the other, each user at its own pace. So a
part needs nothing of later ones, and what users have left is all that it hands over.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import apache_beam as beam
import numpy as np

from dp_transforms.beam.set_up_workers import KeyedDoFn, operator_counter
from dp_transforms.beam.write_state import STATE
from dp_transforms.monitor.counted_messages import holder_messages
from dp_transforms.monitor.equal_rows import group_slices, group_starts
from dp_transforms.monitor.item_holders import ItemHolders, weights_of
from dp_transforms.monitor.item_sums import ItemSums, sum_messages
from dp_transforms.monitor.naming_settings import NamingSettings
from dp_transforms.monitor.operator_counts import PAIRS_UNPAID
from dp_transforms.monitor.purses import PurseEntries, Purses
from dp_transforms.monitor.sharding import Sharding
from dp_transforms.monitor.user_pairs import UserPairs
from dp_transforms.runs.run_part import RunPart
from dp_transforms.runs.state_cells import Kind, pack_cell, purse_cells


class SpendPart(beam.PTransform):
    """``((0, shard of users), packed UserPairs)`` -> ``((0, shard of items), packed ItemSums)``, and packed cells
    tagged `STATE`: the purses of the users of this part.

    Where users pay for hits, who holds what matters later: then it is packed `ItemHolders`.

    sharding: one slab of all windows of the run.
    """

    def __init__(self, settings: NamingSettings, noise_key: beam.Secret, sharding: Sharding, part: RunPart) -> None:
        super().__init__()
        self._do_fn = SpendPartDoFn(settings, noise_key, sharding, part)

    def expand(self, packed: beam.PCollection) -> beam.pvalue.DoOutputsTuple:
        return (
            packed
            | "GroupByUserShard" >> beam.GroupByKey()
            | "SpendInOrder"
            >> beam.ParDo(self._do_fn).with_output_types(tuple[tuple[int, int], bytes]).with_outputs(STATE, main="held")
        )


class SpendPartDoFn(KeyedDoFn):
    """Adapts `Purses` to groups, each with all windows of a shard of users."""

    _settings: NamingSettings

    def __init__(self, settings: NamingSettings, noise_key: beam.Secret, sharding: Sharding, part: RunPart) -> None:
        super().__init__(settings, noise_key)
        self._sharding = sharding
        self._part = part
        self._unpaid = operator_counter(PAIRS_UNPAID)

    def process(self, group: tuple[tuple[int, int], Iterable[bytes]]) -> Iterator[object]:
        _, blobs = group
        pairs = UserPairs.merge([UserPairs.from_bytes(blob) for blob in blobs])
        held = Purses.of_entries(self._settings, self._keys, self._part.purses(pairs.users), self._part.first)
        terms = np.zeros(len(pairs), dtype=np.int64)
        for window, rows, of_window in pairs_by_window(pairs):
            terms[rows] = held.spend_on_lists(of_window, window)
        if unpaid := int((terms == 0).sum()):
            self._unpaid.inc(unpaid)
        for shard, packed in self._packed(pairs, terms):
            yield (0, shard), packed
        for cell in held.changed_cells():
            for bucket, of_bucket in purse_cells(PurseEntries.from_cell(cell)):
                yield beam.pvalue.TaggedOutput(STATE, pack_cell(Kind.PURSES, bucket, of_bucket))

    def _packed(self, pairs: UserPairs, terms: np.ndarray) -> Iterator[tuple[int, bytes]]:
        shards = self._sharding.shards
        if self._settings.hits_per_user:
            for shard, holders in ItemHolders.of_terms(pairs, terms).shard_by_item(shards):
                yield from ((shard, packed) for packed in holder_messages(holders))
            return
        for shard, sums in ItemSums.of_weights(pairs, weights_of(terms), self._keys).shard_by_item(shards):
            yield from ((shard, packed) for packed in sum_messages(sums))


def pairs_by_window(pairs: UserPairs) -> Iterator[tuple[int, np.ndarray, UserPairs]]:
    """Each window in order, with the rows of its pairs, ascending, and with these pairs. The table stays whole, so that
    the cost is that of the pairs, however many windows they lie in."""
    order = np.argsort(pairs.windows, kind="stable")
    codes = pairs.user_codes()
    for found in group_slices(pairs.windows[order]):
        rows = order[found]
        starts = group_starts(codes[rows])
        splits = np.append(starts, len(rows))
        windows, items = pairs.windows[rows], pairs.items[rows]
        yield int(windows[0]), rows, UserPairs(pairs.users[codes[rows[starts]]], splits, windows, items, pairs.table)
