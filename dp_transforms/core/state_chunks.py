"""What users and items carry from one part of a run to the next, as chunks: byte strings under 10 MB.

Of each kind, entries of one user or item are joined by taking the later one, which has less left, more hits, or was
named later. The result depends neither on the order of the chunks nor on how often one is there. So a part hands over
only what it has changed, a step that runs twice hands it over twice, and neither matters.

Entries are in buckets, by keyed hash. In how many shards a part works does not matter either: a shard takes the entries
of its users or items out of the buckets that can have some.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import numpy.typing as npt

from dp_transforms.core.columns import WHOLE, Packed, check_unpacked, pack_arrays, unpack_arrays
from dp_transforms.core.contribution_counters import HitEntries
from dp_transforms.core.named_items import FollowedItems
from dp_transforms.core.user_budgets import BudgetEntries
from dp_transforms.plan.records import MOST_ROUNDS

BUCKETS = 64
MOST_CHUNK_BYTES = 10_000_000

Entries = BudgetEntries | HitEntries | FollowedItems


class Kind(enum.StrEnum):
    """Of what a chunk is: `BudgetEntries`, where tests come in rounds those of round 0, and then of the others;
    `HitEntries`; `FollowedItems`; and the hit bound of `MonitorState`, a number. The numbers and values are stored."""

    USER_BUDGETS = "user_budgets"
    USER_BUDGETS_1 = "user_budgets_1"
    USER_BUDGETS_2 = "user_budgets_2"
    USER_BUDGETS_3 = "user_budgets_3"
    HITS = "contribution_counters"
    FOLLOWED = "followed"
    HIT_BOUND = "hit_bound"
    USER_BUDGETS_4 = "user_budgets_4"

    @classmethod
    def budgets_of_round(cls, number: int) -> Kind:
        return cls(f"user_budgets_{number}" if number else "user_budgets")

    @property
    def is_of_items(self) -> bool:
        """Whether its entries are forgotten in time."""
        return self is Kind.FOLLOWED


_KINDS = tuple(Kind)
_TABLES: dict[Kind, type[BudgetEntries | HitEntries | FollowedItems]] = {
    **{Kind.budgets_of_round(number): BudgetEntries for number in range(MOST_ROUNDS)},
    Kind.HITS: HitEntries,
    Kind.FOLLOWED: FollowedItems,
}


def pack_chunk(kind: Kind, bucket: int, chunk: Packed) -> bytes:
    """What a step hands over, as bytes that are never empty: the numbers of the kind and the bucket, then the chunk."""
    return bytes((_KINDS.index(kind), bucket)) + chunk


def unpack_chunk(data: bytes) -> tuple[Kind, int, memoryview]:
    """Inverse of `pack_chunk`."""
    return _KINDS[data[0]], data[1], memoryview(data)[2:]


def pack_by_bucket(chunks: Iterable[tuple[Kind, Packed]]) -> Iterator[bytes]:
    """Each chunk by bucket, as `pack_chunk` packs it: what a part hands over."""
    for kind, chunk in chunks:
        if kind is Kind.HIT_BOUND:
            yield pack_chunk(kind, 0, chunk)
            continue
        for bucket, of_bucket in chunks_by_bucket(entries_of_chunk(kind, chunk)):
            yield pack_chunk(kind, bucket, of_bucket)


def chunks_by_bucket(entries: Entries) -> Iterator[tuple[int, bytes]]:
    """The entries by bucket of their users or items, ``(bucket, chunk)``."""
    for bucket, of_bucket in entries.by_group((hashes_of(entries) % np.uint64(BUCKETS)).astype(np.int64)):
        yield from ((bucket, chunk) for chunk in of_bucket.to_chunks())


def buckets_of_shard(shard: int, shards: int) -> list[int]:
    """The buckets that can have users or items of this shard: a hash h is in bucket h % 64 and in shard h % shards."""
    step = math.gcd(BUCKETS, shards)
    return [bucket for bucket in range(BUCKETS) if bucket % step == shard % step]


def hashes_of(entries: Entries) -> npt.NDArray[np.uint64]:
    """By which buckets and shards of users and items go."""
    return entries.table.hashes[:, 1] if isinstance(entries, FollowedItems) else entries.users


def entries_of_chunk(kind: Kind, chunk: Packed) -> Entries:
    """Raises ValueError for other bytes."""
    return _TABLES[kind].from_bytes(chunk)


def join_chunks(kind: Kind, chunks: Sequence[Packed], *, named_from: int = 0) -> list[bytes]:
    """The entries of these chunks, each user or item once: a function of the entries alone; none for no entry.

    named_from: items that were last named before this window are left out: they are forgotten.
    Raises ValueError for other bytes.
    """
    if kind is Kind.HIT_BOUND:
        bounds = [hit_bound_of_chunk(chunk) for chunk in chunks]
        return [hit_bound_chunk(max(bounds))] if bounds else []
    joined = _TABLES[kind].of_messages(chunks)
    return (joined.since(named_from) if isinstance(joined, FollowedItems) else joined).to_chunks()


def hit_bound_chunk(bound: int) -> bytes:
    return pack_arrays(np.array([bound], dtype=np.int64))


def hit_bound_of_chunk(chunk: Packed) -> int:
    (bound,) = unpack_arrays(chunk, WHOLE)
    check_unpacked(len(bound) == 1 and bool(bound[0] >= 0))
    return int(bound[0])
