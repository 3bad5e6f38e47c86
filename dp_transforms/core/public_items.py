"""The declared items of a run, if they are known beforehand: a public list. Nothing is taken from the data.

Every public item is tested in every window, whether anybody holds it or not. So the guarantee needs no share of delta
for public items of a single user (docs/guarantee.md, "Public items"). It holds only if the list does not depend on the
log. Events with other items are left out, unless the plan takes open items, too.
"""

from __future__ import annotations

import dataclasses
import decimal
import functools
import hashlib
import os
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dp_transforms.accounting.discrete_laplace_law import UNIFORM_BITS
from dp_transforms.core.event_batch import ID_RULE, MAX_ID_BYTES, are_ids, id_column
from dp_transforms.core.item_sums import ItemHolders, ItemSums
from dp_transforms.core.item_table import ItemTable
from dp_transforms.core.noise_table import Inversion
from dp_transforms.core.randomness import BlockFunction, IdKeys
from dp_transforms.plan.plan import Plan
from dp_transforms.stores.files import full_name, read_file

MOST_PUBLIC_ITEMS = 10_000_000
MOST_PUBLIC_BYTES = 1 << 29
_MOST_BYTES_IN_JOB_GRAPH = 5_000_000
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_ONE = 1 << UNIFORM_BITS
_WINDOWS_AT_ONCE = 1 << 16
_DIGITS = 100  # relative errors of the sums below stay under 2^-200
Whole = npt.NDArray[np.int64]


class PublicItems:
    """A public list of items. The order of the list does not matter.

    labels: ids in any order, perhaps several times; then, as an attribute, distinct and in the order of their UTF-8
        bytes. name: of the list, for errors. Raises ValueError for what is no id, and for none or too many.

    >>> items = PublicItems.of_ids(["pear", "apple", "pear", 7])
    >>> items.labels.to_pylist()
    ['7', 'apple', 'pear']
    """

    def __init__(self, labels: pa.StringArray, name: str = "the list of items") -> None:
        if not isinstance(labels, pa.StringArray) or labels.null_count or not are_ids(labels):
            raise ValueError(f"each public item must be {ID_RULE}, none of them missing. Use PublicItems.of_ids(...).")
        labels = labels.take(pc.array_sort_indices(labels))
        if len(labels):  # equal ones are neighbours now: a third of the memory of pc.unique
            is_new = pc.not_equal(labels[1:], labels[:-1])
            if not pc.all(is_new).as_py():
                labels = labels.filter(pa.concat_arrays([pa.array([True]), is_new]))
        if not 0 < len(labels) <= MOST_PUBLIC_ITEMS:
            raise ValueError(
                f"{name} must hold 1 to {MOST_PUBLIC_ITEMS:,} different items, got {len(labels):,}. Give such a list."
            )
        self.labels = labels

    @classmethod
    def of_ids(cls, ids: pa.Array | Sequence[Any]) -> PublicItems:
        """From texts or whole numbers (7 and "7" are the same id). Raises ValueError for anything else."""
        if not isinstance(ids, (pa.Array, pa.ChunkedArray)):
            is_whole = (int, np.integer)
            texts = [str(one) if isinstance(one, is_whole) and not isinstance(one, bool) else one for one in ids]
            ids = texts or pa.array([], pa.string())
        column = id_column("the list of items", ids)
        return cls(column.dictionary_decode())

    @classmethod
    def of_text(cls, text: bytes, name: str) -> PublicItems:
        """From lines of UTF-8, one id a line; empty lines and repeated ids are skipped. name: of the file, for errors.

        Raises ValueError, which contains the number of the line and never its content.
        """
        if len(text) > MOST_PUBLIC_BYTES:
            raise ValueError(f"{name} must have at most {MOST_PUBLIC_BYTES >> 20} MB. Give a shorter list of items.")
        text = text.removeprefix(_BYTE_ORDER_MARK)
        try:
            text.decode()
        except UnicodeDecodeError as error:
            line = text.count(b"\n", 0, error.start) + 1
            raise ValueError(f"{name} must be UTF-8 text, one item a line; line {line:,} is not.") from None
        text = text.replace(b"\r\n", b"\n")
        lines = pc.split_pattern(pa.array([text], pa.binary()).cast(pa.string()), "\n").flatten()
        too_long = pc.index(pc.greater(pc.binary_length(lines), MAX_ID_BYTES), True).as_py()
        if too_long >= 0:
            raise ValueError(
                f"{name} must hold ids of at most {MAX_ID_BYTES:,} bytes; line {too_long + 1:,} is longer."
            )
        return cls(lines.filter(pc.greater(pc.binary_length(lines), 0)), name)

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> PublicItems:
        """`of_text` of a local regular file, or of a URL. Raises ValueError also for a file that cannot be read."""
        try:
            return cls.of_text(read_file(path, MOST_PUBLIC_BYTES), os.fspath(path))
        except OSError as error:
            raise ValueError(f"{os.fspath(path)} cannot be read: {error.strerror}.") from None

    def checked(self, size: int, fingerprint: str) -> PublicItems:
        """Itself. Raises ValueError unless it is the list of a plan, whose threshold depends on the size too."""
        if (self.size, self.fingerprint) != (size, fingerprint):
            raise ValueError(
                f"the list ({self.size:,} items) is not that of the plan ({size:,} items). Give the list that"
                " the plan was made for, or make a new plan."
            )
        return self

    @property
    def size(self) -> int:
        return len(self.labels)

    @functools.cached_property
    def fingerprint(self) -> str:
        """Hex SHA-256 of the sorted ids, each with its length: equal for equal lists only."""
        lengths = pc.binary_length(self.labels).to_numpy(zero_copy_only=False).astype("<i4")
        offsets = np.frombuffer(self.labels.buffers()[1], np.int32)[self.labels.offset :][: self.size + 1]
        text = self.labels.buffers()[2][offsets[0] : offsets[-1]]
        return hashlib.sha256(lengths.tobytes() + text.to_pybytes()).hexdigest()


# ---------------------------------------------------------------------------------------------------------------------
# In a worker: keyed hashes in order, with their labels
# ---------------------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class PublicItemsSource:
    """The public items of a plan, as they travel to workers: the path or URL of a file that every worker can read, or
    the list itself. also_open: other items count, too."""

    items: PublicItems | str
    size: int
    fingerprint: str
    also_open: bool = False

    @classmethod
    def of_plan(cls, items: PublicItems | str | os.PathLike[str] | None, plan: Plan) -> PublicItemsSource | None:
        """None for a plan without. Raises ValueError unless they are those of the plan, and for a list of more than 5
        MB, which would have to travel in the graph of a job; workers check it again. And for what is no plan."""
        if not isinstance(plan, Plan):
            raise ValueError(
                f"plan must be a Plan, got a {type(plan).__name__}."
                " Use Plan.for_contributions(...) or Plan.for_hits(...)."
            )
        if items is None:
            if plan.public_item_count:
                raise ValueError(f"the plan has {plan.public_item_count:,} public items. Give public_items=PATH.")
            return None
        if not isinstance(items, (PublicItems, str, os.PathLike)):
            raise ValueError(f"public_items must be a path or PublicItems, got a {type(items).__name__}.")
        if plan.public_items is None:
            raise ValueError("the plan has no public items. Make one for this list of items, or give no public_items.")
        if isinstance(items, PublicItems) and items.labels.nbytes > _MOST_BYTES_IN_JOB_GRAPH:
            raise ValueError(
                f"public_items that travel in the job graph must have at most {_MOST_BYTES_IN_JOB_GRAPH / 1e6:g} MB,"
                f" got {items.labels.nbytes / 1e6:.1f} MB. Write it to a file, one item a line, and give its path."
            )
        given = items if isinstance(items, PublicItems) else full_name(os.fspath(items))
        source = cls(given, plan.public_items.size, plan.public_items.fingerprint, plan.takes_open_items)
        source._checked()
        return source

    def table(self, keys: IdKeys) -> ItemTable:
        """Its items by their keyed hashes: once in a process, for all steps of a run that need them. Raises ValueError
        unless they are those of the plan."""
        # Differs from key to key, and does not reveal the key: the keyed hash of a fixed text.
        of_key = keys.hash_items(pa.array(["which item hashes are these?"])).tobytes()
        which = self.size, self.fingerprint, of_key
        with _LOCK:
            if which not in _TABLES:
                labels = self._checked().labels
                _TABLES.clear()
                _TABLES[which] = ItemTable.of_labels(labels, keys.hash_items)[0]
            return _TABLES[which]

    def all_items(self, keys: IdKeys) -> ItemTable | None:
        """`table`, where no other items count."""
        return None if self.also_open else self.table(keys)

    def _checked(self) -> PublicItems:
        items = self.items if isinstance(self.items, PublicItems) else PublicItems.read(self.items)
        return items.checked(self.size, self.fingerprint)


_TABLES: dict[tuple[int, str, bytes], ItemTable] = {}  # at most one
_LOCK = threading.Lock()


class EmptyItems:
    """The public items that are published in a window although nobody holds them, as cells without holders or without a
    sum: the same whenever and wherever drawn, and drawn without visiting the others.

    A public item that nobody holds is tested like every other: the noise alone reaches the threshold with probability
    p, a coin for each. So in a window with n items their number is drawn from Binomial(n, p), and then so many of them:
    the same law (docs/guarantee.md, "Claim (empty items)"), up to ``empty_items_total_variation`` of
    `discrete_laplace_law` a window. The draws do not depend on the data: an item with holders is tested by a draw of
    its own, and `ItemHolders.merge` and `ItemSums.merge` drop the one that was drawn here.

    items: all public ones. tail: p, in units of 2^-128. uniforms: keyed function of pairs (window, number): number 0
    decides how many items are drawn, and 1, 2, ... which.
    """

    def __init__(self, items: ItemTable, tail: int, uniforms: BlockFunction) -> None:
        self._items, self._uniforms = items, uniforms
        self._count = Inversion(binomial_integers(len(items), tail))
        self._drawn = functools.lru_cache(maxsize=1)(self._draw_windows)  # for one shard after the other

    def without_holders(self, first: int, end: int, shard: int = 0, shards: int = 1) -> ItemHolders:
        """Those of the windows ``first .. end - 1`` in one shard of items."""
        windows, items = self._of_shard(first, end, shard, shards)
        return ItemHolders.without_holders(windows, items, self._items).select(slice(None))

    def without_sums(self, first: int, end: int, shard: int = 0, shards: int = 1) -> ItemSums:
        """The same as cells with sum 0 and digest 0."""
        windows, items = self._of_shard(first, end, shard, shards)
        digests = np.zeros((len(items), 2), dtype=np.uint64)
        return ItemSums(windows, items, np.zeros_like(items), digests, self._items).select(slice(None))

    def _of_shard(self, first: int, end: int, shard: int, shards: int) -> tuple[Whole, Whole]:
        windows, items = self._drawn(first, end)
        rows = np.flatnonzero(self._items.hashes[items, 1] % np.uint64(shards) == shard)
        return windows[rows], items[rows]

    def _draw_windows(self, first: int, end: int) -> tuple[Whole, Whole]:
        drawn = list(self.by_window(first, end))
        windows = np.repeat([window for window, _ in drawn], [len(items) for _, items in drawn]).astype(np.int64)
        return windows, np.concatenate([np.zeros(0, dtype=np.int64), *(items for _, items in drawn)])

    def by_window(self, first: int, end: int) -> Iterator[tuple[int, Whole]]:
        """The windows ``first .. end - 1`` in which any is drawn, each with the positions of its items, ascending."""
        if not len(self._count):
            return  # the probability is too small for any 128-bit number
        for low in range(first, end, _WINDOWS_AT_ONCE):
            windows = np.arange(low, min(end, low + _WINDOWS_AT_ONCE))
            counts = self._count.count_not_above(self._draw(windows, np.zeros_like(windows)))
            for at in np.flatnonzero(counts):
                yield int(windows[at]), self._positions(int(windows[at]), int(counts[at]))

    def _positions(self, window: int, count: int) -> Whole:
        """A uniform subset of `count` positions: the first different ones in a sequence of uniform positions."""
        size = len(self._items)
        if 2 * count > size:
            return np.setdiff1d(np.arange(size), self._positions(window, size - count))
        # High words above the largest multiple of the list's size are skipped: what is left is exactly uniform.
        largest = np.uint64((1 << 64) // size * size - 1)
        drawn = 2 * count + 8
        while True:
            numbers = np.arange(1, drawn + 1)
            high = self._draw(np.full(drawn, window), numbers)[:, 0]
            positions = (high[high <= largest] % np.uint64(size)).astype(np.int64)
            _, first = np.unique(positions, return_index=True)
            if len(first) >= count:
                return np.sort(positions[np.sort(first)[:count]])
            drawn *= 2

    def _draw(self, windows: Whole, numbers: Whole) -> npt.NDArray[np.uint64]:
        return self._uniforms(np.stack([windows, numbers], axis=1).astype(np.uint64))


def binomial_integers(trials: int, tail: int) -> list[int]:
    """``floor(2^128 Pr[N <= k])`` for k = 0, 1, ... and N ~ Binomial(trials, tail / 2^128), until it is 2^128.

    The number of entries at most a uniform 128-bit integer is then N, up to one unit of 2^-128 an entry.
    """
    context = decimal.Context(prec=_DIGITS, Emin=-(10**15), Emax=10**15)
    success, failure = decimal.Decimal(tail), decimal.Decimal(_ONE - tail)
    odds = context.divide(success, failure)
    mass = context.power(context.divide(failure, decimal.Decimal(_ONE)), trials)
    total, entries = mass, []
    for successes in range(trials):
        entry = int(context.multiply(total, decimal.Decimal(_ONE)))
        if entry >= _ONE - 1:
            break
        entries.append(entry)
        mass = context.multiply(mass, odds)
        mass = context.divide(context.multiply(mass, decimal.Decimal(trials - successes)), successes + 1)
        total = context.add(total, mass)
    return entries
