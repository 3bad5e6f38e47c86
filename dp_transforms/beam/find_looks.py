"""Find: all holders of some items -> the candidates among them, in release mode `names` where users pay for hits.

In an open domain an item that passed lately is drawn for in every window, held or not: so a shard of items takes its
windows in order.
"""

from __future__ import annotations

from collections.abc import Iterator

import apache_beam as beam

from dp_transforms.beam.answer_in_order import AnsweringDoFn
from dp_transforms.beam.gather_counted import GatherCounted
from dp_transforms.beam.gather_in_order import Part, Turn, parts_of_shard
from dp_transforms.beam.run_steps import run_step
from dp_transforms.beam.set_up_workers import DomainSource
from dp_transforms.beam.write_state import STATE
from dp_transforms.monitor.counted_messages import Key, Sent, holder_messages
from dp_transforms.monitor.item_holders import ItemHolders
from dp_transforms.monitor.known_items import KnownItems
from dp_transforms.monitor.look_candidates import LookCandidates
from dp_transforms.monitor.naming_settings import NamingSettings
from dp_transforms.monitor.sharding import Sharding
from dp_transforms.monitor.zero_items import ZeroItemsOfWindows
from dp_transforms.runs.run_part import RunPart
from dp_transforms.runs.state_cells import Kind
from dp_transforms.workers.groups import FindLooksStep


class FindLooks(beam.PTransform):
    """``((0, shard of items), packed ItemHolders)`` -> ``(stream, (slab, shard, packed candidates))``; bounded input.

    sharding: into which slabs of windows the candidates are cut on their way to the monitor.
    """

    def __init__(
        self, settings: NamingSettings, noise_key: beam.Secret, sharding: Sharding, pool: str | None = None
    ) -> None:
        super().__init__()
        self._do_fn = run_step(FindLooksStep(settings, sharding.windows_per_slab), noise_key, pool)

    def expand(self, packed: beam.PCollection) -> beam.PCollection:
        return (
            packed
            | "GroupByItemShard" >> beam.GroupByKey()
            | "DrawPassBits" >> beam.ParDo(self._do_fn).with_output_types(tuple[str, tuple[int, int, bytes]])
        )


class FindLooksCounted(beam.PTransform):
    """The same of a stream, with counted messages: ``((window, shard of items), message)`` -> ``((window, 0),
    message)``.

    Each shard of items sends to its window, even if it has no candidates. domain: of a plan with a known domain; the
    items that nobody holds are added here, window by window.
    """

    def __init__(
        self,
        settings: NamingSettings,
        noise_key: beam.Secret,
        shards: int,
        domain: DomainSource | None = None,
        part: RunPart | None = None,
    ) -> None:
        super().__init__()
        self._do_fn = FindLooksCountedDoFn(settings, noise_key, shards, domain, part)
        self._shards = shards

    def expand(self, messages: beam.PCollection) -> beam.pvalue.DoOutputsTuple:
        return (
            messages
            | "GatherItemShard" >> GatherCounted(self._shards)
            | "ByItemShard" >> beam.FlatMap(parts_of_shard).with_output_types(tuple[int, Part])
            | "DrawPassBits"
            >> beam.ParDo(self._do_fn).with_output_types(tuple[Key, Sent]).with_outputs(STATE, main="messages")
        )


class FindLooksCountedDoFn(AnsweringDoFn[ItemHolders]):
    """Finds the candidates of a window when those of all windows before it are found. What passed is known here."""

    KIND = Kind.PASSED

    def __init__(
        self,
        settings: NamingSettings,
        noise_key: beam.Secret,
        shards: int,
        domain: DomainSource | None,
        part: RunPart | None = None,
    ) -> None:
        super().__init__(settings, noise_key, shards, domain, part)
        self._candidates: LookCandidates
        self._zero_items: ZeroItemsOfWindows | None = None

    def setup(self) -> None:
        super().setup()
        self._candidates = LookCandidates(self._settings, self._keys)
        if self._domain is not None:
            self._zero_items = ZeroItemsOfWindows(self._domain, self._settings, self._keys, self._shards)

    def find(self, shard: int, turn: Turn, known: KnownItems, first: int, end: int) -> ItemHolders:
        parts = [ItemHolders.from_bytes(blob) for _, blobs in turn.windows for blob in blobs]
        if self._zero_items is not None:
            drawn = (self._zero_items.cells(window, shard) for window, _ in turn.windows)
            parts += [cells for cells in drawn if cells is not None]
        cells = ItemHolders.merge(parts) if parts else ItemHolders.none()
        return self._candidates.find(cells, known, first, end)

    def pack(self, found: ItemHolders) -> Iterator[bytes]:
        return holder_messages(found)
