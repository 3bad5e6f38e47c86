"""Items as keyed 128-bit hashes with their labels."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dp_transforms.core.columns import BYTES, HASHES, WHOLE, WORDS, check_unpacked, group_slices, group_starts
from dp_transforms.core.randomness import IdHasher, Words

TABLE_KINDS = (HASHES, (*WORDS, *WHOLE), BYTES)  # of `ItemTable.arrays`
_OFFSETS_LIMIT = 2**32
_JOINED_BYTES = 32 << 20  # labels of smaller tables are joined: one take is faster than many


@dataclasses.dataclass(frozen=True, eq=False)
class ItemTable:
    """k distinct items in the order of their keyed hashes, which is also the canonical order of candidates.

    hashes: uint64[k, 2]. places: int64[k], of the label of each item in all ``parts``, one after the other.

    A log can have gigabytes of labels, of which few are ever published. So tables are merged and cut without copying
    them; `labels` and `arrays` do, of their own items alone. Offsets of labels have 64 bits.
    """

    hashes: Words
    parts: tuple[pa.LargeStringArray, ...]
    places: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.hashes)

    @classmethod
    def none(cls) -> ItemTable:
        """No items."""
        return cls.with_labels(np.zeros((0, 2), dtype=np.uint64), pa.array([], pa.large_string()))

    @classmethod
    def with_labels(cls, hashes: Words, labels: pa.StringArray | pa.LargeStringArray) -> ItemTable:
        """Items that are in order, each with its label."""
        return cls(hashes, (labels.cast(pa.large_string()),), np.arange(len(hashes)))

    @functools.cached_property
    def labels(self) -> pa.LargeStringArray:
        """The label of each item."""
        if len(self.parts) == 1:
            return self.parts[0].take(pa.array(self.places))
        begins = np.cumsum([0, *map(len, self.parts)])
        part_of_item = np.searchsorted(begins, self.places, side="right") - 1
        order = np.argsort(part_of_item, kind="stable")
        found = [pa.array([], pa.large_string())]
        for items in group_slices(part_of_item[order]):
            part = int(part_of_item[order[items.start]])
            found.append(self.parts[part].take(pa.array(self.places[order[items]] - begins[part])))
        return pa.concat_arrays(found).take(pa.array(np.argsort(order)))

    @functools.cached_property
    def _high(self) -> npt.NDArray[np.uint64]:
        return np.ascontiguousarray(self.hashes[:, 0])

    def contains(self, hashes: Words) -> npt.NDArray[np.bool_]:
        """Whether each item is in the table. hashes: uint64[n, 2]. Returns bool[n]."""
        at, found = np.searchsorted(self._high, hashes[:, 0]), np.zeros(len(hashes), dtype=np.bool_)
        while True:  # again only if two items of the table share a high word
            place = np.minimum(at, len(self) - 1)
            same_high = (at < len(self)) & (self._high[place] == hashes[:, 0])
            found |= same_high & (self.hashes[place, 1] == hashes[:, 1])
            if not np.any(same_high & ~found):
                return found
            at = at + 1

    def take(self, items: npt.NDArray[np.integer] | npt.NDArray[np.bool_] | slice) -> ItemTable:
        """The sub-table of these positions (ascending ones, a slice, or bool[k])."""
        return ItemTable(self.hashes[items], self.parts, self.places[items])

    @classmethod
    def of_labels(cls, labels: pa.StringArray, hash_items: IdHasher) -> tuple[ItemTable, npt.NDArray[np.int64]]:
        """The table of these labels (duplicates are one item), and the position of each label in it."""
        hashes = hash_items(labels)
        all_of_them = cls.with_labels(hashes, labels)
        return all_of_them._distinct(np.argsort(hashes[:, 0], kind="stable"))

    @classmethod
    def merge(cls, tables: Sequence[ItemTable]) -> tuple[ItemTable, list[npt.NDArray[np.int64]]]:
        """The union, and for each table the int64 positions of its items in the union."""
        if len(tables) == 1:
            return tables[0], [np.arange(len(tables[0]))]
        hashes = np.concatenate([table.hashes for table in tables])
        by_high_word = np.argsort(hashes[:, 0], kind="stable")  # finds that each table is in order
        all_of_them = cls(hashes, *_joined(tables))
        union, positions = all_of_them._distinct(by_high_word)
        ends = np.cumsum([len(table) for table in tables])
        return union, np.split(positions, ends[:-1])

    def _distinct(self, by_high_word: npt.NDArray[np.int64]) -> tuple[ItemTable, npt.NDArray[np.int64]]:
        """The table of items that are in no order, and where each is in it."""
        order = _by_both_words(self.hashes, by_high_word)
        ordered = self.hashes.take(order, axis=0)  # several times as fast as hashes[order]
        is_first = np.zeros(len(ordered), dtype=np.bool_)
        is_first[group_starts(ordered[:, 0], ordered[:, 1])] = True
        positions = np.empty(len(ordered), dtype=np.int64)
        positions[order] = np.cumsum(is_first) - 1
        return ItemTable(ordered[is_first], self.parts, self.places[order[is_first]]), positions

    def arrays(self) -> tuple[npt.NDArray, ...]:
        """For `pack_arrays`; `from_arrays` is the inverse."""
        labels = self.labels
        offsets = np.frombuffer(labels.buffers()[1], dtype=np.int64)[labels.offset : labels.offset + len(labels) + 1]
        content = labels.buffers()[2]
        text = np.frombuffer(content, dtype=np.uint8) if content is not None else np.zeros(0, np.uint8)
        offsets = offsets if len(offsets) else np.zeros(1, np.int64)
        used = text[offsets[0] : offsets[-1]]
        offsets = offsets - offsets[0]
        return self.hashes.reshape(-1), offsets.astype(np.uint32) if offsets[-1] < _OFFSETS_LIMIT else offsets, used

    @classmethod
    def from_arrays(
        cls, hashes: Words, offsets: npt.NDArray[np.uint32] | npt.NDArray[np.int64], text: npt.NDArray[np.uint8]
    ) -> ItemTable:
        """Raises ValueError unless each hash has a label of UTF-8 within the text. The labels are views of it."""
        check_unpacked(len(offsets) > 0 and len(hashes) == 2 * (len(offsets) - 1))
        buffers = [None, pa.py_buffer(offsets.astype(np.int64)), pa.py_buffer(text)]
        try:
            labels = pa.Array.from_buffers(pa.large_string(), len(offsets) - 1, buffers)
            labels.validate(full=True)
        except pa.ArrowException:
            check_unpacked(False)
        return cls.with_labels(hashes.reshape(-1, 2), labels)


def _joined(tables: Sequence[ItemTable]) -> tuple[tuple[pa.LargeStringArray, ...], npt.NDArray[np.int64]]:
    """The labels of all tables: parts, of which each is one or is small, and places."""
    parts: list[pa.LargeStringArray] = []
    some: list[pa.LargeStringArray] = []
    places, begin, size = [], 0, 0
    for table in tables:
        is_whole = len(table) == sum(map(len, table.parts))
        places.append((table.places if is_whole else np.arange(len(table))) + begin)
        begin += len(table)
        for part in table.parts if is_whole else (table.labels,):
            if some and size + part.nbytes > _JOINED_BYTES:
                parts.append(_in_one(some))
                some, size = [], 0
            some.append(part)
            size += part.nbytes
    return (*parts, _in_one(some)), np.concatenate(places)


def _in_one(parts: Sequence[pa.LargeStringArray]) -> pa.LargeStringArray:
    return parts[0] if len(parts) == 1 else pa.concat_arrays(parts)


def _by_both_words(hashes: Words, by_high_word: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Positions that sort 128-bit hashes as integers, from those that sort them by the high word, which nearly always
    are these. hashes: uint64[n, 2]. Both int64[n]; equal hashes keep their order."""
    high, low = hashes[:, 0].take(by_high_word), hashes[:, 1].take(by_high_word)
    if np.any((high[1:] == high[:-1]) & (low[1:] < low[:-1])):  # two items with equal high words
        return np.lexsort((hashes[:, 1], hashes[:, 0]))
    return by_high_word
