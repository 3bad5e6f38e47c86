"""The steps of a stream of names on state that the test holds: each window once and in its turn, whenever it comes."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from dp_transforms.beam.gather_counted import GatherCountedDoFn
from dp_transforms.beam.gather_in_order import parts_of_shard, parts_of_window
from dp_transforms.beam.name_counted import NameCountedDoFn
from dp_transforms.beam.release_counted import ReleaseCountedDoFn
from dp_transforms.beam.spend_purses import SpendPursesDoFn
from dp_transforms.monitor import purses
from dp_transforms.monitor.counted_messages import pair_messages
from dp_transforms.monitor.operator_counts import LATE_BATCHES
from dp_transforms.monitor.user_pairs import pairs_of_events
from dp_transforms.monitor.window_report import RunEnded
from tests.helpers.beam_pipelines import LocalCounter
from tests.helpers.do_fn_state import Bag, Cell, HeldSecret
from tests.helpers.names_plans import small_names_plan
from tests.helpers.naming_oracle import oracle_names, reports_of
from tests.helpers.pace_oracle import stream_weights
from tests.helpers.small_runs import SECRET, batch_of, ordered_log, settings_of

SHARDS = 3


class Steps:
    """From the groups of user shards to reports. order: shuffles what each step is handed."""

    def __init__(self, settings, order):
        self.order = order
        self.spend = SpendPursesDoFn(settings, HeldSecret(), SHARDS)
        self.name = NameCountedDoFn(settings, HeldSecret(), SHARDS, None)
        self.release = ReleaseCountedDoFn(settings)
        for do_fn in (self.spend, self.name):
            do_fn.setup()
        self.gather, self.states = GatherCountedDoFn(SHARDS), {}

    def state(self, step, key, **more):
        kinds = {"near": Bag, "far": Bag, "waiting": Cell, **more}
        return self.states.setdefault((step, key), {name: kind() for name, kind in kinds.items()})

    def spent(self, parts):
        for part in parts:
            yield from self.spend.process(part, **self.state("spend", part[0], purses=Bag, progress=Cell))

    def named(self, parts):
        for part in parts:
            yield from self.name.process(part, **self.state("name", part[0], known=Bag, next_window=Cell))

    def released(self, parts):
        for part in parts:
            yield from self.release.process(part, **self.state("release", "", progress=Cell))

    def gathered(self, messages, parts_of):
        held, parts = {}, []
        for message in self.shuffled(messages):
            for group in self.gather.process(message, *held.setdefault(message[0], (Bag(), Cell()))):
                parts += parts_of(group)
        return self.shuffled(parts)

    def shuffled(self, elements):
        elements = list(elements)
        self.order.shuffle(elements)
        return elements

    def run(self, parts):
        items = self.gathered(self.spent(self.shuffled(parts)), parts_of_shard)
        windows = self.gathered(self.named(items), lambda group: parts_of_window(group, "events"))
        return [output.value for output in self.released(windows)]


def user_parts(log, settings, most_bytes):
    """All windows of all shards of users, also those without events."""
    keys, blobs = settings.stream_keys(SECRET), {}
    for window, shard, pairs in pairs_of_events(
        batch_of(log), settings.schedule, keys, windows_per_slab=1, shards=SHARDS
    ):
        blobs[window, shard] = list(pair_messages(pairs, most_bytes))
    for window in range(settings.schedule.horizon):
        for shard in range(SHARDS):
            yield from parts_of_shard(((window, shard), blobs.get((window, shard), [])))


@pytest.mark.parametrize("most_bytes", [10**6, 1])
@pytest.mark.parametrize("seed", range(3))
def test_windows_in_any_order_give_the_transcript_of_the_oracle(seed, most_bytes, monkeypatch):
    """At each step; also in parts, and with purses that are rewritten again and again."""
    monkeypatch.setattr("dp_transforms.beam.gather_in_order.MOST_MESSAGE_BYTES", most_bytes)
    monkeypatch.setattr(purses, "_SPARE_CELLS", seed)
    monkeypatch.setattr(purses, "_USERS_PER_CELL", 10**9 if seed else 5)
    settings = settings_of(small_names_plan(30, sliding=3, window_seconds=36 * 3600, forget_after=4, most_looks=16))
    log = ordered_log(settings, seed)
    keys = settings.stream_keys(SECRET)
    named = oracle_names(stream_weights(log, settings, keys), settings, keys)
    expected = reports_of(named, settings)
    assert any(entry.was_known for entry in named)
    steps = Steps(settings, random.Random(seed))
    parts = list(user_parts(log, settings, most_bytes))
    assert (len(parts) > SHARDS * settings.schedule.horizon) == (most_bytes == 1)
    horizon = settings.schedule.horizon
    assert steps.run(parts) == [*expected, RunEnded("events", horizon, len(expected))]
    assert not any(state[kind].content for state in steps.states.values() for kind in ("near", "far"))


def test_a_window_that_comes_again_is_dropped_and_counted_at_each_step(monkeypatch):
    counts: Counter[str] = LocalCounter.install(monkeypatch)
    for module in ("spend_purses", "answer_in_order", "release_counted"):
        monkeypatch.setattr(f"dp_transforms.beam.{module}.operator_counter", LocalCounter)
    settings = settings_of(small_names_plan(6))
    steps = Steps(settings, random.Random(1))
    parts = list(user_parts(ordered_log(settings, 2, 300), settings, 10**6))
    steps.run(parts)
    before = {key: {name: state.content for name, state in held.items()} for key, held in steps.states.items()}
    assert counts[LATE_BATCHES] == 0
    for window in range(6):
        again = (window, 1, [])
        assert [*steps.spent([(0, again)]), *steps.named([(0, again)]), *steps.released([("events", again)])] == []
    assert counts[LATE_BATCHES] == 18
    after = {key: {name: state.content for name, state in held.items()} for key, held in steps.states.items()}
    assert after == before


def test_purses_are_not_read_for_windows_without_events():
    class Unread(Bag):
        def read(self):
            raise AssertionError("240 MB are read for nothing")

    settings = settings_of(small_names_plan(40))
    steps = Steps(settings, random.Random(1))
    for shard in range(SHARDS):
        steps.state("spend", shard, purses=Unread, progress=Cell)
    assert steps.run(user_parts([], settings, 1)) == [RunEnded("events", 40, 0)]


def test_state_of_another_kind_is_refused():
    settings = settings_of(small_names_plan(6))
    steps = Steps(settings, random.Random(1))
    state = steps.state("spend", 0, purses=Bag, progress=Cell)
    state["purses"].add(b"hits of another run")
    (part, *_) = (part for part in user_parts(ordered_log(settings, 2, 300), settings, 10**6) if part[0] == 0)
    with pytest.raises(ValueError, match="not packed arrays"):
        list(steps.spent([part]))
