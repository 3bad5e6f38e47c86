"""What users and items carry from one part of a run to the next, as cells: byte strings under 10 MB.

Of each kind, entries of one user or item are joined by taking the later one, which has less left, more hits, or was
named later (`join_chunks`). The result depends neither on the order of the cells nor on how often one is there. So a
part hands over only what it has changed, a step that runs twice hands it over twice, and neither matters.

Entries are in buckets, by keyed hash. In how many shards a part works does not matter either: a shard takes the entries
of its users or items out of the buckets that can have some.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from dp_transforms.core.contribution_counters import Hits
from dp_transforms.core.followed_items import FollowedItems
from dp_transforms.core.messages import WHOLE, Packed, check_unpacked, pack_arrays, unpack_arrays
from dp_transforms.core.tables import ByUser
from dp_transforms.core.user_budgets import BudgetEntries
from dp_transforms.plan.records import MOST_ROUNDS

BUCKETS = 64
MOST_CHUNK_BYTES = 10_000_000

Cell = Packed
_HEAD_BYTES = 2


class Kind(enum.StrEnum):
    """purses: `BudgetEntries`; where looks come in rounds, those of round 0, and then of the others. budgets: the
    `Hits`
    that users have paid. known: items that were named lately. hit_bound: of `MonitorState`, one number."""

    PURSES = "purses"
    PURSES_1 = "purses_1"
    PURSES_2 = "purses_2"
    PURSES_3 = "purses_3"
    BUDGETS = "budgets"
    KNOWN = "known"
    HIT_BOUND = "hit_bound"
    PURSES_4 = "purses_4"

    @classmethod
    def purses_of_round(cls, number: int) -> Kind:
        return (cls.PURSES, cls.PURSES_1, cls.PURSES_2, cls.PURSES_3, cls.PURSES_4)[number]

    @property
    def is_of_items(self) -> bool:
        """Whether its entries are forgotten in time."""
        return _TABLES.get(self) is FollowedItems


_KINDS = tuple(Kind)
_TABLES: dict[Kind, type[ByUser] | type[FollowedItems]] = {
    **{Kind.purses_of_round(number): BudgetEntries for number in range(MOST_ROUNDS + 1)},
    Kind.BUDGETS: Hits,
    Kind.KNOWN: FollowedItems,
}


def pack_chunk(kind: Kind, bucket: int, cell: bytes) -> bytes:
    """What a step hands over, as bytes that are never empty: the numbers of the kind and the bucket, then the cell."""
    return bytes((_KINDS.index(kind), bucket)) + cell


def unpack_chunk(data: bytes) -> tuple[Kind, int, memoryview]:
    """Inverse of `pack_chunk`."""
    return _KINDS[data[0]], data[1], memoryview(data)[_HEAD_BYTES:]


def join_chunks(kind: Kind, cells: Sequence[Cell], *, named_from: int = 0) -> list[bytes]:
    """The entries of these cells, each user or item once: a function of the entries alone; none for no entry.

    named_from: known items whose window lies before this one are left out: they are forgotten.
    Raises ValueError for other bytes.
    """
    if kind is Kind.HIT_BOUND:
        bounds = [hit_bound_of_chunk(cell) for cell in cells]
        return [hit_bound_chunk(max(bounds))] if bounds else []
    if kind.is_of_items:
        return followed_of_chunks(cells, named_from).to_chunks()
    table: Any = _TABLES[kind]
    joined: list[bytes] = table.of_messages(cells).to_chunks()
    return joined


def followed_of_chunks(cells: Iterable[Cell], named_from: int) -> FollowedItems:
    """The items of these cells, in whatever order and however often they come, but for those that are forgotten."""
    return FollowedItems.of_messages(cells).since(named_from)


def hit_bound_chunk(bound: int) -> bytes:
    return pack_arrays(np.array([bound], dtype=np.int64))


def hit_bound_of_chunk(cell: Cell) -> int:
    (bound,) = unpack_arrays(cell, WHOLE)
    check_unpacked(len(bound) == 1 and bool(bound[0] >= 0))
    return int(bound[0])


# ---------------------------------------------------------------------------------------------------------------------
# Buckets
# ---------------------------------------------------------------------------------------------------------------------


def pack_by_bucket(cells: Iterable[tuple[Kind, Cell]]) -> Iterator[bytes]:
    """Each cell by bucket, as `pack_chunk` packs it: what a part hands over."""
    for kind, cell in cells:
        for bucket, of_bucket in _cells_by_bucket(kind, cell):
            yield pack_chunk(kind, bucket, of_bucket)


def _cells_by_bucket(kind: Kind, cell: Cell) -> Iterable[tuple[int, bytes]]:
    return [(0, bytes(cell))] if kind is Kind.HIT_BOUND else cells_by_bucket(_TABLES[kind].from_bytes(cell))


def cells_by_bucket(entries: ByUser | FollowedItems) -> Iterator[tuple[int, bytes]]:
    """The entries by bucket of their users or items, ``(bucket, cell)``."""
    hashes = entries.users if isinstance(entries, ByUser) else entries.table.hashes[:, 1]
    for bucket, rows in _by_bucket(hashes):
        yield from ((bucket, cell) for cell in entries.select(rows).to_chunks())


def are_of_bucket(hashes: npt.NDArray[np.uint64], bucket: int) -> bool:
    return bool((hashes % np.uint64(BUCKETS) == bucket).all())


def buckets_of_shard(shard: int, shards: int) -> list[int]:
    """The buckets that can have users or items of this shard: a hash h is in bucket h % 64 and in shard h % shards."""
    step = math.gcd(BUCKETS, shards)
    return [bucket for bucket in range(BUCKETS) if bucket % step == shard % step]


def _by_bucket(hashes: npt.NDArray[np.uint64]) -> Iterable[tuple[int, npt.NDArray[np.int64]]]:
    buckets = (hashes % np.uint64(BUCKETS)).astype(np.uint8)
    order = np.argsort(buckets, kind="stable")
    ends = np.cumsum(np.bincount(buckets, minlength=BUCKETS))
    for bucket, rows in enumerate(np.split(order, ends[:-1])):
        if len(rows):
            yield bucket, rows
