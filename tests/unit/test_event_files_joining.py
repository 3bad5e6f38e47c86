"""Small blocks and small chunks together: the same events, positions and pairs in fewer messages, in bounded memory."""

import itertools
import random
import weakref
from collections import Counter

import numpy as np
import pyarrow as pa
import pytest

from dp_transforms.logs import (
    EventFields,
    JoinedChunks,
    ReadBlock,
    cut_chunks,
    discovery,
    find_log_chunks,
    parquet,
    read_joined,
    spread_chunks,
    text_files,
)
from dp_transforms.logs.discovery import join_blocks
from dp_transforms.logs.id_columns import empty_batch
from dp_transforms.logs.rejected_events import RejectedEvents
from dp_transforms.monitor.event_batch import EventBatch
from dp_transforms.monitor.pairs import ItemPairs, UserPairs
from dp_transforms.plan.window_schedule import WindowSchedule
from dp_transforms.stages.read_pairs import PackPairs, ReadPairsStep
from dp_transforms.stages.stage import Sharding
from tests.helpers.event_files_oracle import read_chunks, write_avro, write_csv, write_json, write_parquet
from tests.helpers.small_runs import SECRET

FIELDS = EventFields(time_unit="s")
HOUR = 3600
SCHEDULE = WindowSchedule(0, 9 * HOUR, 2 * HOUR, HOUR)
LIMIT = 10
WRITERS = {
    "csv": write_csv,
    "jsonl": write_json,
    "avro": lambda path, rows: write_avro(path, rows, ["string", ["null", "string"], "long"], "deflate", 200),
    "parquet": lambda path, rows: write_parquet(path, rows, (pa.string(), pa.string(), pa.int64()), 40),
}


def rows_of(count, seed):
    draws = random.Random(seed)
    return [
        (f"u{draws.randrange(30)}", None if number % 11 == 0 else f"i{draws.randrange(9)}", draws.randrange(9 * HOUR))
        for number in range(count)
    ]


def block_of(count, first=0, width=0, rejected=0):
    """Users have names of their own, so none can be lost or be there twice."""
    users = [f"u{first + number}".ljust(width, "-") for number in range(count)]
    batch = EventBatch.of_columns(users, ["i"] * count, np.arange(first, first + count)) if count else empty_batch()
    bad = (RejectedEvents("log", tuple(range(rejected)), "broken line"),) if rejected else ()
    return ReadBlock(batch, bad, count + rejected, 7 * count)


def blocks_of(sizes, width=0):
    firsts = np.cumsum([0, *sizes]).tolist()
    return [block_of(size, first, width, rejected=first % 3) for size, first in zip(sizes, firsts, strict=False)]


def events_of(blocks):
    return sorted(
        event
        for block in blocks
        for event in zip(
            block.batch.user.to_pylist(), block.batch.item.to_pylist(), block.batch.time_micros.tolist(), strict=True
        )
    )


def lengths(blocks):
    return [len(block.batch) for block in blocks]


@pytest.mark.parametrize(
    ("sizes", "joined"),
    [
        ([3, 3, 3, 3], [0, 0, 0, 12]),
        ([3, 3, 3], [0, 0, 0, 9]),
        ([9, 9, 9], [0, 18, 0, 9]),
        ([10, 3, 40, 6, 1], [10, 0, 40, 0, 10]),
        ([0, 4, 0, 6, 0], [0, 0, 0, 10, 0]),
        ([0, 0], [0, 0]),
        ([], []),
        ([1] * 25, [*[0] * 9, 10, *[0] * 9, 10, *[0] * 5, 5]),
    ],
)
def test_events_of_small_blocks_wait_and_nothing_else_does(sizes, joined):
    blocks = blocks_of(sizes)
    found = list(join_blocks(blocks, LIMIT))
    assert lengths(found) == joined
    assert events_of(found) == events_of(blocks)
    said = [(block.rejected, block.rows, block.bytes) for block in found]
    assert said[: len(blocks)] == [(block.rejected, block.rows, block.bytes) for block in blocks]
    assert said[len(blocks) :] in ([], [((), 0, 0)])


def test_wide_rows_are_joined_up_to_some_bytes(monkeypatch):
    """Each event takes its id of 1,000 bytes, and some 30 more."""
    monkeypatch.setattr(discovery, "_JOINED_BYTES", 10_000)
    blocks = blocks_of([4, 4, 4, 4, 20, 1], width=1000)
    found = list(join_blocks(blocks, 1_000_000))
    assert lengths(found) == [0, 0, 12, 0, 20, 0, 5]
    assert events_of(found) == events_of(blocks)


def test_what_was_joined_is_not_kept_while_the_next_block_is_read():
    seen = []

    def read():
        for first in range(0, 40, 5):
            assert not [batch for batch in seen if batch() is not None]
            yield block_of(5, first)

    for block in join_blocks(read(), LIMIT):
        if len(block.batch):
            seen.append(weakref.ref(block.batch))
        del block
    assert len(seen) == 4


@pytest.fixture
def small_limits(monkeypatch):
    monkeypatch.setattr(discovery, "JOINED_ROWS", 100)
    monkeypatch.setattr(discovery, "_BYTES_PER_ROW", 20)
    monkeypatch.setattr(parquet, "_JOINED_ROWS", 40)
    monkeypatch.setattr(text_files, "BLOCK_BYTES", 300)
    monkeypatch.setattr(text_files, "_LEAST_BYTES", 1 << 9)
    monkeypatch.setattr(text_files, "_MOST_BYTES", 1 << 12)


def write_files(folder, sizes):
    """Files of so many rows, in the order of their names."""
    for seed, (name, rows) in enumerate(sizes.items()):
        WRITERS[name.partition(".")[2]](folder / name, rows_of(rows, seed))
    return find_log_chunks([str(folder)], FIELDS)


def flat(spread):
    return [chunk for joined in spread for chunk in joined.chunks]


@pytest.mark.parametrize("ending", WRITERS)
@pytest.mark.parametrize("workers", [1, 2, 3])
def test_small_files_are_joined_as_far_as_workers_have_enough(tmp_path, ending, workers, small_limits):
    chunks = write_files(tmp_path, {f"{number:02}.{ending}": 6 + number % 5 for number in range(60)})
    spread = spread_chunks(chunks, FIELDS, workers)
    assert flat(spread) == chunks, "in their order"
    assert spread_chunks(chunks, FIELDS, workers) == spread, "what was begun ahead is found again"
    assert 4 * workers <= len(spread) <= len(chunks) // 2
    share = sum(chunk.bytes for chunk in chunks) // (4 * workers) if workers > 1 else 1 << 30

    def is_small(chunks):
        rows = sum(chunk.bytes // 20 if chunk.events is None else chunk.events for chunk in chunks)
        return rows <= 100 and sum(chunk.bytes for chunk in chunks) <= share

    assert all(is_small(joined.chunks) for joined in spread)
    assert not any(is_small((*joined.chunks, after.chunks[0])) for joined, after in itertools.pairwise(spread))


def test_small_row_groups_are_joined(tmp_path, small_limits):
    """40 rows each; with the next one more than 100."""
    chunks = write_files(tmp_path, {"a.parquet": 400})
    assert [len(joined.chunks) for joined in spread_chunks(chunks, FIELDS, 1)] == [2] * 5
    blocks = [block for joined in spread_chunks(chunks, FIELDS, 1) for block in read_joined(joined, FIELDS)]
    assert len([block for block in blocks if len(block.batch)]) == 5


def test_large_chunks_are_cut_and_their_parts_stay_alone(tmp_path, small_limits):
    chunks = write_files(tmp_path, {"a.jsonl": 3, "b.jsonl": 600, "c.jsonl": 3, "d.jsonl": 3})
    spread = spread_chunks(chunks, FIELDS, 2)
    assert flat(spread) == cut_chunks(chunks, FIELDS, 2)
    alone = [joined.chunks[0] for joined in spread if len(joined.chunks) == 1]
    assert len([chunk for chunk in alone if chunk.span is not None]) >= 8
    assert [chunk.path[-7] for chunk in spread[-1].chunks] == ["c", "d"]


def test_no_chunks_are_no_work():
    assert spread_chunks([], FIELDS, 1) == []
    assert spread_chunks([], FIELDS, 2) == []


SMALL_FILES = {f"{number:02}.{ending}": 40 for number in range(4) for ending in WRITERS}


@pytest.mark.parametrize("workers", [1, 2])
def test_what_is_read_together_has_the_events_and_positions_of_its_chunks(tmp_path, workers, small_limits):
    chunks = write_files(tmp_path, SMALL_FILES)
    events, rejected = read_chunks(chunks, FIELDS)
    blocks = [block for joined in spread_chunks(chunks, FIELDS, workers) for block in read_joined(joined, FIELDS)]
    assert events_of(blocks) == sorted(events)
    assert sum(block.rows for block in blocks) == 40 * len(SMALL_FILES)
    assert sum(block.bytes for block in blocks) == sum(chunk.bytes for chunk in chunks)
    found = sorted((part.source, part.positions) for block in blocks for part in block.rejected)
    assert len({source for source, _ in found}) == len(SMALL_FILES)
    assert sorted(at for _, positions in found for at in positions) == sorted(itertools.chain(*rejected.values()))


def pack(chunks, *, by_item):
    """What goes to each shard."""
    sharding = Sharding(SCHEDULE.horizon, 4) if by_item else Sharding(3, 4)
    work = ReadPairsStep(PackPairs(SCHEDULE, sharding, by_item=by_item), FIELDS).start(SECRET)
    messages = {}
    for joined in chunks:
        for output in work(joined, Counter()):
            if not isinstance(output, RejectedEvents):
                messages.setdefault(output[0], []).append(output[1])
    return messages


@pytest.mark.parametrize("by_item", [True, False])
def test_shards_get_the_same_pairs_in_fewer_messages(tmp_path, by_item, small_limits):
    chunks = write_files(tmp_path, {**SMALL_FILES, "large.jsonl": 900})
    kind = ItemPairs if by_item else UserPairs
    joined = pack(spread_chunks(chunks, FIELDS, 2), by_item=by_item)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(discovery, "JOINED_ROWS", 1)
        single = pack([JoinedChunks((chunk,)) for chunk in chunks], by_item=by_item)
    merged = [{shard: kind.of_messages(blobs).to_bytes() for shard, blobs in each.items()} for each in (joined, single)]
    assert merged[0] == merged[1]
    assert len(merged[0]) == (4 if by_item else 4 * -(-SCHEDULE.horizon // 3))
    assert 2 * sum(map(len, joined.values())) < sum(map(len, single.values()))
    sizes = [sum(len(blob) for blobs in each.values() for blob in blobs) for each in (joined, single)]
    assert sizes[0] < sizes[1]
