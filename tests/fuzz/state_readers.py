"""Readers of what an engine keeps for a run and hands back: the state of partitions, batches and packed messages."""

from __future__ import annotations

import functools
import os
import pathlib
import re
import tempfile
from typing import Any

import numpy as np

from dp_transforms.core.contribution_counters import ContributionCounters, HitEntries
from dp_transforms.core.contributions import Contributions
from dp_transforms.core.event_batch import EventBatch
from dp_transforms.core.item_namer import ItemNamer
from dp_transforms.core.item_sums import ItemHolders, ItemSums
from dp_transforms.core.item_table import ItemTable
from dp_transforms.core.named_items import FollowedItems, NamedItems
from dp_transforms.core.pack_contributions import contributions_of_events
from dp_transforms.core.randomness import StreamKeys
from dp_transforms.core.state_chunks import Kind, chunks_by_bucket, hit_bound_chunk
from dp_transforms.core.user_budgets import BudgetEntries, UserBudgets
from dp_transforms.errors import StreamError
from dp_transforms.logs.streams.partition_poller import PartitionPoller
from dp_transforms.logs.streams.partition_progress import CLOCK_BEGIN, CLOCK_END, StreamClock
from dp_transforms.runs.fingerprints import sealing_key
from dp_transforms.runs.records import StateError
from dp_transforms.runs.state_file import StateFile, StateHeader, write_state
from tests.fuzz import format_mutators
from tests.fuzz.log_readers import check_batch
from tests.fuzz.reader import FaultError, Reader, Sample, place_bytes, place_file
from tests.helpers.looks_plans import small_looks_plan
from tests.helpers.memory_stream import Arrival, MemoryPartition, poller_of
from tests.helpers.small_runs import MICROS, SECRET, START, batch_of, random_log, settings_of, small_plan
from tests.helpers.trials import changed

_CLOCK = StreamClock("arrival", 7, 3, 20, 15)
_SHARDS = 2
_LOG = random_log(small_plan(), 3, events=60)


def _poller(confirm: bool) -> PartitionPoller:
    settings = settings_of(small_plan())
    return poller_of(settings, settings.stream_keys(SECRET), _CLOCK, _SHARDS, confirm=confirm, source="fuzz")


@functools.cache
def _reader() -> Any:
    arrivals = sorted((Arrival(event, event[2]) for event in _LOG), key=lambda arrival: arrival.micros)
    return MemoryPartition("p", tuple(arrivals), 20)


@functools.cache
def _progress_samples() -> list[Sample]:
    """At the beginning, on the way, with windows that wait, with a stop, with an intent, and at the end."""
    states, poller = [], _poller(True)
    progress = poller.start()
    for step in range(7):
        states.append(progress.to_bytes())
        stop = (START + 500) * MICROS if step > 1 else None
        now = (START + 10**6) * MICROS
        poller.step_at("p", progress, _reader().open(), now, find_stop=lambda stop=stop: stop, is_confirmed=step > 3)
    if not any(b'"intent":{' in state for state in states) or not progress.is_over:
        raise AssertionError("no intent, or no end, among the samples")
    # The name of an intent is random, and a mutated input is to be the same in every process.
    states = [re.sub(rb'"[0-9a-f]{32}"', b'"%s"' % (b"7e" * 16), state) for state in (*states, progress.to_bytes())]
    mutators = (*format_mutators.JSON, *[format_mutators.nudge_number] * 4)  # few others are accepted
    return [Sample(f"step {step}", state, "", mutators) for step, state in enumerate(states)]


def _read_progress(_sample: Sample, data: bytes) -> Any:
    """A state that is accepted is one that a run can go on from, and that is stored again as it is."""
    poller = _poller(True)
    progress = poller.restore(data)
    stored = progress.to_bytes()
    if poller.restore(stored).to_bytes() != stored:
        raise FaultError("again", "a state that is another one when stored")
    horizon = small_plan().schedule.horizon
    if not 0 <= progress.next_window <= horizon or not CLOCK_BEGIN <= progress.clock_micros <= CLOCK_END:
        raise FaultError("state", f"window {progress.next_window}, clock {progress.clock_micros}")
    if progress.position is not None and not isinstance(progress.position, str):
        raise FaultError("state", f"a position of type {type(progress.position).__name__}")
    closed = progress.close_windows(1000)
    if any(len(sent) != _SHARDS or min(sent) < 0 for _, sent in closed):
        raise FaultError("state", "counts of messages of no shard")
    return [stored, repr(closed), progress.is_over]


@functools.cache
def _batch_samples() -> list[Sample]:
    batches = [batch_of(_LOG[:size]) for size in (0, 1, 40)]
    return [Sample(f"{len(batch)} events", batch.to_bytes()) for batch in batches]


def _read_batch(_sample: Sample, data: bytes) -> Any:
    batch = EventBatch.from_bytes(data)
    check_batch(batch)
    return batch.time_micros.tolist()


def _check_table(table: ItemTable, items: np.ndarray) -> None:
    table.labels.validate(full=True)
    if len(table.labels) != len(table.hashes) or (len(items) and not 0 <= items.min() <= items.max() < len(table)):
        raise FaultError("packed", "items that no label has")


def _keys() -> StreamKeys:
    return settings_of(small_plan()).stream_keys(SECRET)


def _pairs() -> list[Contributions]:
    schedule = small_plan().schedule
    return [
        pairs
        for _, _, pairs in contributions_of_events(batch_of(_LOG), schedule, _keys(), windows_per_range=4, shards=1)
    ]


@functools.cache
def _packed_samples() -> list[Sample]:
    pairs = _pairs()
    samples = [Sample(f"pairs {index}", blob, "", (), "pairs") for index, blob in enumerate(pairs[0].messages(400))]
    holders = ItemHolders.of_contributions(pairs[0])
    samples += [Sample(f"holders {n}", blob, "", (), "holders") for n, blob in enumerate(holders.messages(400))]
    users, hits = np.arange(20, dtype=np.uint64) * 77, np.ones(20, np.uint32)
    return [*samples, *(Sample("budgets", blob, "", (), "budgets") for blob in HitEntries(users, hits).to_chunks())]


def _read_packed(sample: Sample, data: bytes) -> Any:
    """Unpacked and used, as a DoFn does."""
    if sample.context == "budgets":
        budgets = ContributionCounters(map(HitEntries.from_bytes, (data, sample.data)))
        return [budgets.chunks(), len(budgets)]
    if sample.context == "pairs":
        pairs = Contributions.from_bytes(data)
        _check_table(pairs.table, pairs.items)
        merged = Contributions.merge([pairs, Contributions.from_bytes(sample.data)])
        return [ItemHolders.of_contributions(merged).to_bytes(), merged.counts.tolist()]
    holders = ItemHolders.from_bytes(data)
    _check_table(holders.table, holders.items)
    merged_holders = ItemHolders.merge([holders, ItemHolders.from_bytes(sample.data)])
    return [
        merged_holders.to_bytes(),
        [merged_holders.select_range(part).counts.tolist() for _, part in merged_holders.by_window()],
    ]


@functools.cache
def _naming_samples() -> list[Sample]:
    """What a stream of names keeps, and what its steps send."""
    settings = changed(settings_of(small_looks_plan()), threshold=1, followed_threshold=1)
    keys = settings.stream_keys(SECRET)
    purses, parts, schedule = UserBudgets(settings, keys), [], small_plan().schedule
    for window, _, pairs in contributions_of_events(batch_of(_LOG), schedule, keys, windows_per_range=1, shards=1):
        parts.append(ItemSums.of_weights(pairs, purses.spend(pairs, window), keys))
    sums = ItemSums.merge(parts)
    named = ItemNamer(settings, keys).name_windows(sums, FollowedItems.none(), 0, schedule.horizon)
    known = FollowedItems.none().after(named, schedule.horizon, schedule.horizon)
    return [
        *(Sample("purses", cell, "", (), "purses") for cell in purses.delta()),
        *(Sample(f"sums {n}", blob, "", (), "sums") for n, blob in enumerate(sums.messages(400))),
        *(Sample(f"named {n}", blob, "", (), "named") for n, blob in enumerate(named.messages())),
        *(Sample("known", cell, "", (), "known") for cell in known.to_chunks()),
    ]


def _read_naming(sample: Sample, data: bytes) -> Any:
    """Unpacked and used, as a DoFn does."""
    if sample.context == "purses":
        entries = BudgetEntries.merge([BudgetEntries.from_bytes(data), BudgetEntries.from_bytes(sample.data)])
        if len(entries) and entries.left.min() < 0:
            raise FaultError("purses", "less than nothing is left")
        return entries.to_chunks()
    if sample.context == "sums":
        sums = ItemSums.from_bytes(data)
        _check_table(sums.table, sums.items)
        return ItemSums.merge([sums, ItemSums.from_bytes(sample.data)]).to_bytes()
    if sample.context == "named":
        named = NamedItems.from_bytes(data)
        _check_table(named.table, named.items)
        return NamedItems.merge([named, NamedItems.from_bytes(sample.data)]).to_bytes()
    known = FollowedItems.from_bytes(data)
    _check_table(known.table, np.arange(len(known)))
    return known.to_chunks()


@functools.cache
def _run_state_samples() -> list[Sample]:
    """A state without chunks, and one with chunks of two kinds."""
    settings = settings_of(small_looks_plan())
    purses = UserBudgets(settings, settings.stream_keys(SECRET))
    for pairs in _pairs()[:1]:
        window = int(pairs.windows[0])
        purses.spend(pairs.select(pairs.windows == window), window)
    entries = BudgetEntries.from_bytes(purses.delta()[0])
    cells = [
        (Kind.HIT_BOUND, 0, hit_bound_chunk(5)),
        *((Kind.USER_BUDGETS, *cell) for cell in chunks_by_bucket(entries)),
    ]
    samples = []
    with tempfile.TemporaryDirectory() as folder:
        for name, held in (("empty", []), ("full", cells)):
            write_state(f"{folder}/{name}", StateHeader("run-1", 3), held, sealing_key(SECRET))
            samples.append(Sample(name, pathlib.Path(folder, name).read_bytes()))
    return samples


def _place_private(folder: str, name: str, sample: Sample, data: bytes) -> str:
    path = place_file(folder, name, sample, data)
    os.chmod(path, 0o600)
    return path


def _read_run_state(sample: Sample, path: str) -> Any:
    """Whole. What is accepted is what was written: what was changed is padding."""
    read = []
    for each in (path, _place_private(os.path.dirname(path), f"{os.path.basename(path)}.whole", sample, sample.data)):
        state = StateFile(each)
        read.append([state.header, [(row.kind, row.bucket, state.chunk(row)) for row in state.rows]])
    if read[0] != read[1]:
        raise FaultError("state", "another state than the one that was written")
    return repr(read[0])


def state_readers() -> list[Reader]:
    own = {"place": place_bytes, "marks": ()}
    return [
        Reader("progress", _progress_samples, (StreamError,), read=_read_progress, cost=0.5, **own),
        Reader("batch", _batch_samples, (ValueError,), read=_read_batch, cost=0.3, **own),
        Reader("packed", _packed_samples, (ValueError,), read=_read_packed, cost=0.3, **own),
        Reader("run-state", _run_state_samples, (StateError,), _place_private, _read_run_state, marks=()),
        Reader("naming", _naming_samples, (ValueError,), read=_read_naming, cost=0.3, **own),
    ]
