"""Spend: all pairs of some users, window by window -> what these users add to their items, and what they have left.

Where users pay for looks alone, what they add travels as sums; where they pay for hits too, holder by holder.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Any

import apache_beam as beam
from apache_beam.coders import BytesCoder
from apache_beam.transforms.userstate import BagStateSpec, ReadModifyWriteStateSpec

from dp_transforms.beam.gather_counted import GatherCounted
from dp_transforms.beam.gather_in_order import FAR, NEAR, WAITING, Part, parts_of_shard, take_turn
from dp_transforms.beam.set_up_workers import KeyedDoFn, operator_counter, operator_gauge
from dp_transforms.beam.write_state import STATE, state_messages
from dp_transforms.monitor.counted_messages import Key, Sent, ending_messages, holder_messages, messages_of
from dp_transforms.monitor.item_holders import ItemHolders, weights_of
from dp_transforms.monitor.item_sums import ItemSums, sum_messages
from dp_transforms.monitor.naming_settings import NamingSettings
from dp_transforms.monitor.operator_counts import LATE_BATCHES, PAIRS_UNPAID, PURSE_STATE_BYTES
from dp_transforms.monitor.purses import PurseEntries, Purses
from dp_transforms.monitor.user_pairs import UserPairs
from dp_transforms.runs.run_part import RunPart
from dp_transforms.runs.state_cells import Kind, pack_cell, purse_cells

_PROGRESS = struct.Struct("<qq")  # next_window, entries_when_rewritten


class SpendPurses(beam.PTransform):
    """``((window, shard of users), message)`` -> ``((window, shard of items), message)``, with counted messages.

    senders: how many senders each shard of users has. Each shard of users sends to every shard of items of its window,
    even if it has nothing. So each shard of items has as many senders as there are shards.

    part: of a run that is taken in parts. What users have left after it is sent to `STATE`.
    """

    def __init__(
        self,
        settings: NamingSettings,
        noise_key: beam.Secret,
        shards: int,
        senders: int,
        part: RunPart | None = None,
    ) -> None:
        super().__init__()
        if settings.counts_for:
            raise ValueError(
                "counts_for cannot be used with a stream: counts are paid for when all names of the run are known. Make"
                " the plan without it."
            )
        self._do_fn = SpendPursesDoFn(settings, noise_key, shards, part)
        self._senders = senders

    def expand(self, messages: beam.PCollection) -> beam.pvalue.DoOutputsTuple:
        return (
            messages
            | "GatherUserShard" >> GatherCounted(self._senders)
            | "ByUserShard" >> beam.FlatMap(parts_of_shard).with_output_types(tuple[int, Part])
            | "SpendInOrder"
            >> beam.ParDo(self._do_fn).with_output_types(tuple[Key, Sent]).with_outputs(STATE, main="messages")
        )


class SpendPursesDoFn(KeyedDoFn):
    """Stateful, keyed by shard of users, without timers: pays for each window when all windows before it are paid.

    What is left of the purses and which window comes next are stored together with what is sent. So if a worker dies,
    a window is paid again from the same purses, and sends the same. What comes for a window that is paid is dropped and
    counted. Windows without events are passed on in their turn, and the purses are not read for them.
    """

    PURSES = BagStateSpec("purses_v1", BytesCoder())
    PROGRESS = ReadModifyWriteStateSpec("progress_v1", BytesCoder())

    _settings: NamingSettings

    def __init__(
        self, settings: NamingSettings, noise_key: beam.Secret, shards: int, part: RunPart | None = None
    ) -> None:
        super().__init__(settings, noise_key)
        self._shards = shards
        self._part = part or RunPart.whole(settings.schedule)
        self._late = operator_counter(LATE_BATCHES)
        self._unpaid = operator_counter(PAIRS_UNPAID)
        self._purse_bytes = operator_gauge(PURSE_STATE_BYTES)

    def process(
        self,
        element: tuple[int, Part],
        near: Any = beam.DoFn.StateParam(NEAR),
        far: Any = beam.DoFn.StateParam(FAR),
        waiting: Any = beam.DoFn.StateParam(WAITING),
        purses: Any = beam.DoFn.StateParam(PURSES),
        progress: Any = beam.DoFn.StateParam(PROGRESS),
    ) -> Iterator[object]:
        shard, part = element
        if (stored := progress.read()) is None:
            next_window, entries = self._part.first, self._load(shard, purses)
            progress.write(_PROGRESS.pack(next_window, entries))
        else:
            next_window, entries = _PROGRESS.unpack(stored)
        turn = take_turn(part, next_window, near, far, waiting)
        self._late.inc(turn.dropped)
        if not turn:
            return
        if any(blobs for _, blobs in turn.windows):
            held = Purses(self._settings, self._keys, purses.read())
            for window, blobs in turn.windows:
                yield from self._messages(window, self._pay(window, blobs, held) if blobs else {})
            entries = self._store(held, entries, purses)
        else:
            for window, _ in turn.windows:
                yield from self._messages(window, {})
        end = next_window + len(turn.windows)
        progress.write(_PROGRESS.pack(end, entries))
        if turn.ends:
            yield from ending_messages(end, self._shards)
            left = Purses(self._settings, self._keys, purses.read()).rewritten_cells()
            packed = [
                pack_cell(Kind.PURSES, bucket, of_bucket)
                for cell in left
                for bucket, of_bucket in purse_cells(PurseEntries.from_cell(cell))
            ]
            yield from state_messages(end, packed)

    def _load(self, shard: int, purses: Any) -> int:
        """Puts the purses before the part into the state. Returns how many entries there are."""
        entries = self._part.purses_of_shard(shard, self._shards)
        for cell in Purses.of_entries(self._settings, self._keys, entries, self._part.first).rewritten_cells():
            purses.add(cell)
        return len(entries)

    def _pay(self, window: int, blobs: Sequence[bytes], purses: Purses) -> dict[int, list[bytes]]:
        """What the users of a window add to their items, packed, by shard of items."""
        pairs = UserPairs.merge([UserPairs.from_bytes(blob) for blob in blobs])
        terms = purses.spend_on_lists(pairs, window)
        if unpaid := int((terms == 0).sum()):
            self._unpaid.inc(unpaid)
        if self._settings.hits_per_user:
            held = ItemHolders.of_terms(pairs, terms)
            return {shard: list(holder_messages(part)) for shard, part in held.shard_by_item(self._shards)}
        sums = ItemSums.of_weights(pairs, weights_of(terms), self._keys)
        return {shard: list(sum_messages(part)) for shard, part in sums.shard_by_item(self._shards)}

    def _messages(self, window: int, packed: dict[int, list[bytes]]) -> Iterator[tuple[Key, Sent]]:
        for shard in range(self._shards):
            for message in messages_of(packed.get(shard, [])):
                yield (window, shard), message

    def _store(self, held: Purses, entries_when_rewritten: int, purses: Any) -> int:
        """Appends what has changed, or rewrites all. Returns how many entries there were after the last rewriting."""
        if held.is_scattered(entries_when_rewritten):
            cells = held.rewritten_cells()
            entries_when_rewritten = held.entries
            purses.clear()
        else:
            cells = held.changed_cells()
        for cell in cells:
            purses.add(cell)
        self._purse_bytes.set(held.entry_bytes)
        return entries_when_rewritten
