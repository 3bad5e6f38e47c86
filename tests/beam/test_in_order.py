"""What a stage of a stream keeps in Beam's state: a set of cells, of which a later one counts.

An engine may give them back in any order, and one that it stored twice twice. Now and then the state is rewritten.
"""

import dataclasses
import random

import apache_beam as beam
import msgspec
import pyarrow as pa
import pytest

from dp_transforms.beam import in_order, turns
from dp_transforms.beam.in_order import InOrderDoFn, ReleaseStagesInOrder, ReportInOrderDoFn
from dp_transforms.beam.threshold_monitor import ThresholdMonitorEvolvingDoFn
from dp_transforms.core.item_table import ItemTable
from dp_transforms.core.pack_contributions import contributions_of_events
from dp_transforms.core.stage import ToShard, messages_of
from dp_transforms.core.steps import NameItems, stages_of
from dp_transforms.errors import StreamError
from tests.helpers.beam_pipelines import Collected, local_pipeline
from tests.helpers.do_fn_state import Bag, Cell, HeldSecret, Timer
from tests.helpers.naming_runs import naming_settings
from tests.helpers.small_runs import SECRET, batch_of, random_log, settings_of, small_plan
from tests.helpers.trials import changed

SHARDS = 2
PLAN = small_plan()
NAMES = dataclasses.replace(
    naming_settings(most_tests=40, forget_after=3, threshold=50, followed_threshold=35), schedule=PLAN.schedule
)
MODES = {"hits": settings_of(PLAN), "looks": NAMES}
LOG = random_log(PLAN, seed=3)
WAITING = {"pending": Bag, "soon": Bag, "far": Bag}  # arguments that hold what waits


class TwiceInAnyOrder(Bag):
    def read(self):
        found = [*self.content, *self.content]
        random.Random(len(found)).shuffle(found)
        return iter(found)


class Steps:
    """The steps of a stream behind its source, each with its state, called one after the other."""

    def __init__(self, settings, bag=Bag, domain=None):
        self.bag, self.states = bag, {}
        stages = stages_of(settings, domain)
        self.steps = [
            InOrderDoFn(stages.users, HeldSecret(), SHARDS, 1, SHARDS),
            InOrderDoFn(stages.items, HeldSecret(), SHARDS, 1, 1),
            ReportInOrderDoFn(settings, HeldSecret(), 1),
        ]
        for step in self.steps:
            step.setup()

    def advance(self, number, window, shard, blobs):
        """By messages of one sender."""
        kinds = {**WAITING, "cells": self.bag, "progress": Cell}
        state = self.states.setdefault((number, shard), {name: kind() for name, kind in kinds.items()})
        for message in messages_of(window, blobs):
            yield from self.steps[number].process((shard, message), **state)

    def run(self, pairs, horizon):
        """Reports, of packed pairs by window and shard."""
        found = []
        for window in range(horizon):
            sent = {shard: pairs.get((window, shard), []) for shard in range(SHARDS)}
            for number in range(2):
                received = {}
                for shard, blobs in sorted(sent.items()):
                    for to, (_, _, blob) in self.advance(number, window, shard, blobs):
                        received.setdefault(to, []).extend([blob] if blob else [])
                sent = received
            found += list(self.advance(2, window, 0, sent[0]))
        return [output.value for output in found]


def pairs_of(settings):
    found = {}
    keys = settings.stream_keys(SECRET)
    for window, shard, pairs in contributions_of_events(
        batch_of(LOG), settings.schedule, keys, windows_per_range=1, shards=SHARDS
    ):
        found.setdefault((window, shard), []).append(pairs.to_bytes())
    return found


@pytest.fixture(params=MODES)
def case(request):
    """Settings, packed pairs, and what is released of them."""
    settings = MODES[request.param]
    pairs = pairs_of(settings)
    released = Steps(settings).run(pairs, PLAN.schedule.horizon)
    assert len(released) > 2, "something is reported, and the end of the run"
    return settings, pairs, released


def test_cells_that_come_twice_and_in_any_order_change_nothing(case):
    settings, pairs, released = case
    assert Steps(settings, TwiceInAnyOrder).run(pairs, PLAN.schedule.horizon) == released


def test_whether_a_state_is_rewritten_changes_nothing(case, monkeypatch):
    settings, pairs, released = case
    appending = Steps(settings)
    monkeypatch.setattr(turns, "_CHUNKS_BEFORE_REWRITING", 10_000)
    assert appending.run(pairs, PLAN.schedule.horizon) == released
    rewriting = Steps(settings)
    monkeypatch.setattr(turns, "_CHUNKS_BEFORE_REWRITING", -10_000)
    assert rewriting.run(pairs, PLAN.schedule.horizon) == released
    assert stored(rewriting) < stored(appending)


def stored(steps):
    """How many cells there are in all states."""
    return sum(len(state["cells"].content) for state in steps.states.values())


class Unread(Bag):
    def read(self):
        raise AssertionError("the state is read")


def test_the_state_of_users_is_not_read_for_a_window_without_events():
    """It is the largest that a stream has, and most windows of a quiet shard are empty."""
    for mode, number in (("hits", 2), ("looks", 0)):
        steps = Steps(MODES[mode], Unread)
        for window in range(3):
            list(steps.advance(number, window, 0, []))
    with pytest.raises(AssertionError, match="is read"):
        list(steps.advance(0, 3, 0, pairs_of(MODES["looks"])[3, 0]))


@pytest.mark.parametrize("mode", MODES)
def test_a_window_takes_messages_as_there_are_shards_of_users_and_not_as_their_square(mode, monkeypatch):
    """With 160 shards, for 160 million users, there were 25,600 in each: on Flink 6.3 s of CPU, and now 2.4 s."""
    sent = []
    monkeypatch.setattr(in_order, "messages_of", lambda *args: sent.append(args) or messages_of(*args))
    shards, windows, pipeline, ended = 24, PLAN.schedule.horizon, local_pipeline(), Collected()
    nothing = [(shard, (window, 1, b"")) for window in range(windows) for shard in range(shards)]
    messages = pipeline | beam.Create(nothing, reshuffle=False).with_output_types(ToShard)
    release = ReleaseStagesInOrder(stages_of(MODES[mode], None), HeldSecret(), shards, senders=1)
    _ = (messages | release).ended | ended.sink()
    pipeline.run().wait_until_finish()
    assert [told.windows for told in ended.values] == [windows]
    assert 0 < len(sent) <= 9 * shards * windows


def test_the_state_of_other_shards_is_refused_since_purses_would_be_full_again_in_them():
    steps = Steps(MODES["looks"])
    pairs = pairs_of(MODES["looks"])
    list(steps.advance(0, 0, 1, pairs[0, 1]))
    cut = InOrderDoFn(stages_of(MODES["looks"], None).users, HeldSecret(), SHARDS + 1, 1, 1)
    cut.setup()
    with pytest.raises(StreamError, match=r"stored state is of shards=2, got shards=3\. Give the same"):
        list(cut.process((1, (1, 1, pairs[1, 1][0])), **steps.states[0, 1]))


@pytest.mark.parametrize("stored", [bytes(8 * 5), bytes(8 * 8), msgspec.msgpack.encode(["turns 0", 1]), b""])
def test_a_state_of_another_version_is_refused_since_what_users_have_paid_would_be_forgotten(stored):
    """It had 5 or 8 numbers once."""
    older = Cell()
    older.write(stored)
    for step in Steps(MODES["hits"]).steps:
        state = {name: kind() for name, kind in WAITING.items()}
        (message,) = messages_of(0, [])
        with pytest.raises(StreamError, match=r"state is of another version\. Start a new run"):
            list(step.process((0, message), **state, cells=Bag(), progress=older))
    monitor = ThresholdMonitorEvolvingDoFn(MODES["hits"], HeldSecret())
    waiting = {**{name: kind() for name, kind in WAITING.items()}, "close": Timer(), "progress": older}
    with pytest.raises(StreamError, match="state is of another version"):
        monitor.process(("key", (0, 0, [])), **waiting)


def test_where_nothing_is_followed_no_item_is_known():
    settings = changed(NAMES, forget_after=0)
    steps = Steps(settings)
    assert steps.run(pairs_of(settings), PLAN.schedule.horizon)
    assert steps.steps[1]._step.runs_on_empty is False
    assert isinstance(steps.steps[1]._step, NameItems)
    assert all(not state["cells"].content for (number, _), state in steps.states.items() if number == 1)


class Domain:
    """Of items that nobody holds."""

    def table(self, keys):
        labels = [f"nobody's {number}" for number in range(40)]
        return ItemTable.of_labels(pa.array(labels), keys.hash_items)[0]


def test_hits_that_nobody_paid_count_for_what_is_said_to_be_spent():
    """With or without a state in between: all windows of bounded input have one turn."""
    settings = changed(MODES["hits"], threshold=3, domain_size=40)
    horizon = PLAN.schedule.horizon
    in_order = Steps(settings, domain=Domain()).run({}, horizon)
    at_once = Steps(settings, domain=Domain())
    found = [at_once.advance(1, window, shard, []) for window in range(horizon) for shard in range(SHARDS)]
    blobs = [blob for sent in found for _, (_, _, blob) in sent if blob]
    monitor = ThresholdMonitorEvolvingDoFn(settings, HeldSecret())
    monitor.setup()
    waiting, progress, timer = {name: kind() for name, kind in WAITING.items()}, Cell(), Timer()
    _ = monitor.process(("trial", (horizon - 1, 0, blobs)), **waiting, progress=progress, close=timer)
    fired = monitor.close_windows("trial", timer.at, **waiting, counters=Bag(), progress=progress, close=timer)
    expected = [output.value[1] for output in fired]
    assert expected[-1].epsilon_spent == in_order[-2].epsilon_spent
    assert [report.epsilon_spent for report in expected] == [report.epsilon_spent for report in in_order[:-1]]
    assert len({report.epsilon_spent for report in expected}) > 1
