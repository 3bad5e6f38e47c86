"""Items as keyed 128-bit hashes with their labels."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dp_transforms.mechanisms.randomness import IdHasher, Words
from dp_transforms.monitoring.equal_rows import group_starts, hash_order
from dp_transforms.monitoring.packed_arrays import BYTES, HASHES, WORDS, check_unpacked

TABLE_KINDS = (HASHES, WORDS, BYTES)  # of `ItemTable.arrays`


@dataclasses.dataclass(frozen=True, eq=False)
class ItemTable:
    """k distinct items in the order of their keyed hashes, which is also the canonical order of candidates.

    hashes: uint64[k, 2]. labels: pyarrow string array of length k.
    """

    hashes: Words
    labels: pa.StringArray

    def __len__(self) -> int:
        return len(self.hashes)

    @classmethod
    def none(cls) -> ItemTable:
        """No items."""
        return cls(np.zeros((0, 2), dtype=np.uint64), pa.array([], pa.string()))

    def take(self, items: npt.NDArray[np.integer]) -> ItemTable:
        """The sub-table of these (ascending) positions."""
        return ItemTable(self.hashes[items], self.labels.take(pa.array(items)))

    @classmethod
    def of_labels(cls, labels: pa.StringArray, hash_items: IdHasher) -> tuple[ItemTable, npt.NDArray[np.int64]]:
        """The table of these labels (duplicates are one item), and the position of each label in it."""
        hashes = hash_items(labels)
        return cls._distinct(hashes, labels, hash_order(hashes[:, 0]))

    @classmethod
    def merge(cls, tables: Sequence[ItemTable]) -> tuple[ItemTable, list[npt.NDArray[np.int64]]]:
        """The union, and for each table the int64 positions of its items in the union."""
        if len(tables) == 1:
            return tables[0], [np.arange(len(tables[0]))]
        hashes = np.concatenate([table.hashes for table in tables])
        by_high_word = np.argsort(hashes[:, 0], kind="stable")  # finds that each table is in order
        union, positions = cls._distinct(hashes, pa.concat_arrays([table.labels for table in tables]), by_high_word)
        ends = np.cumsum([len(table) for table in tables])
        return union, np.split(positions, ends[:-1])

    @classmethod
    def _distinct(
        cls, hashes: Words, labels: pa.StringArray, by_high_word: npt.NDArray[np.int64]
    ) -> tuple[ItemTable, npt.NDArray[np.int64]]:
        order = _by_both_words(hashes, by_high_word)
        ordered = hashes.take(order, axis=0)  # several times as fast as hashes[order]
        is_first = np.zeros(len(ordered), dtype=np.bool_)
        is_first[group_starts(ordered[:, 0], ordered[:, 1])] = True
        positions = np.empty(len(ordered), dtype=np.int64)
        positions[order] = np.cumsum(is_first) - 1
        return cls(ordered[is_first], labels.take(pa.array(order[is_first]))), positions

    def arrays(self) -> tuple[npt.NDArray, ...]:
        """For `pack_arrays`; `from_arrays` is the inverse."""
        labels = self.labels
        offsets = np.frombuffer(labels.buffers()[1], dtype=np.int32)[labels.offset : labels.offset + len(labels) + 1]
        content = labels.buffers()[2]
        text = np.frombuffer(content, dtype=np.uint8) if content is not None else np.zeros(0, np.uint8)
        offsets = offsets if len(offsets) else np.zeros(1, np.int32)
        used = text[offsets[0] : offsets[-1]]
        return self.hashes.reshape(-1), (offsets - offsets[0]).astype(np.uint32), used

    @classmethod
    def from_arrays(cls, hashes: Words, offsets: npt.NDArray[np.uint32], text: npt.NDArray[np.uint8]) -> ItemTable:
        """Raises ValueError unless each hash has a label of UTF-8 within the text."""
        check_unpacked(len(offsets) > 0 and len(hashes) == 2 * (len(offsets) - 1))
        buffers = [None, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(text)]
        try:
            labels = pa.Array.from_buffers(pa.string(), len(offsets) - 1, buffers)
            labels.validate(full=True)
        except pa.ArrowException:
            check_unpacked(False)
        return cls(hashes.reshape(-1, 2), labels)


def _by_both_words(hashes: Words, by_high_word: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Positions that sort 128-bit hashes as integers, from those that sort them by the high word, which nearly always
    are these. hashes: uint64[n, 2]. Both int64[n]; equal hashes keep their order."""
    high, low = hashes[:, 0].take(by_high_word), hashes[:, 1].take(by_high_word)
    if np.any((high[1:] == high[:-1]) & (low[1:] < low[:-1])):  # two items with equal high words
        return np.lexsort((hashes[:, 1], hashes[:, 0]))
    return by_high_word
