"""The steps of a stream: what each keeps in Beam's state, and that windows are reported when the watermark passes them.

`TestStream` runs on `BundleBasedDirectRunner` alone. Whole logs, also with state that comes back in any order:
tests/conformance.
"""

import itertools

import apache_beam as beam
import msgspec
import pytest

from dp_transforms.beam import in_order
from dp_transforms.beam.in_order import InOrderDoFn, ReleaseStagesInOrder, ReportInOrderDoFn
from dp_transforms.beam.threshold_monitor import ThresholdMonitorEvolvingDoFn
from dp_transforms.core.pack_contributions import contributions_of_events
from dp_transforms.core.stage import ToShard, messages_of
from dp_transforms.core.stages import stages_of
from dp_transforms.errors import StreamError
from tests.helpers.beam_pipelines import Collected, Script, holders, local_pipeline
from tests.helpers.contributions_plans import small_contributions_plan
from tests.helpers.do_fn_state import Bag, Cell, HeldSecret, Timer
from tests.helpers.small_runs import SECRET, batch_of, key_file, random_log, settings_of, small_plan
from tests.reference.run import reference

SHARDS = 2
PLAN = small_plan()
MODES = {"hits": settings_of(PLAN), "contributions": settings_of(small_contributions_plan())}


class Unread(Bag):
    def read(self):
        raise AssertionError("the state is read")


def step_of(mode, number=0, shards=SHARDS):
    """Of users, of items, or the last one."""
    stages, secret = stages_of(MODES[mode], None), HeldSecret()
    step = (
        InOrderDoFn(stages.users, secret, shards, 1, shards),
        InOrderDoFn(stages.items, secret, shards, 1, 1),
        ReportInOrderDoFn(stages, secret, 1),
    )[number]
    step.setup()
    return step


def new_state(cells=Bag):
    return {**{name: Bag() for name in ("pending", "soon", "far")}, "cells": cells(), "progress": Cell()}


def test_the_state_of_users_is_not_read_for_a_window_without_events():
    """It is the largest that a stream has, and most windows of a quiet shard are empty."""
    for mode, number in (("hits", 2), ("contributions", 0)):
        step, state = step_of(mode, number), new_state(Unread)
        for window in range(3):
            for message in messages_of(window, []):
                list(step.process((0, message), **state))
    keys, cut = MODES["contributions"].stream_keys(SECRET), {"windows_per_range": 1, "shards": 1}
    packed = contributions_of_events(batch_of(random_log(PLAN, seed=3)), PLAN.schedule, keys, **cut)
    (blob,) = (part.to_bytes() for window, _, part in packed if window == 3)
    with pytest.raises(AssertionError, match="is read"):
        list(step.process((0, *messages_of(3, [blob])), **state))


def test_a_window_takes_messages_as_there_are_shards_of_users_and_not_as_their_square(monkeypatch):
    """With 160 shards, for 160 million users, there were 25,600 in each: on Flink 6.3 s of CPU, and now 2.4 s."""
    sent = []
    monkeypatch.setattr(in_order, "messages_of", lambda *args: sent.append(args) or messages_of(*args))
    shards, windows, pipeline, ended = 24, PLAN.schedule.horizon, local_pipeline(), Collected()
    nothing = [(shard, (window, 1, b"")) for window in range(windows) for shard in range(shards)]
    messages = pipeline | beam.Create(nothing, reshuffle=False).with_output_types(ToShard)
    release = ReleaseStagesInOrder(stages_of(MODES["contributions"], None), HeldSecret(), shards, senders=1)
    _ = (messages | release).ended | ended.sink()
    pipeline.run().wait_until_finish()
    assert [told.windows for told in ended.values] == [windows]
    assert 0 < len(sent) <= 9 * shards * windows


def test_the_state_of_other_shards_is_refused_since_user_budgets_would_be_full_again_in_them():
    state, (message,) = new_state(), messages_of(0, [])
    list(step_of("contributions").process((1, message), **state))
    with pytest.raises(StreamError, match=r"stored state is of shards=2, got shards=3\. Give the same"):
        list(step_of("contributions", shards=3).process((1, message), **state))


@pytest.mark.parametrize("stored", [bytes(8 * 5), msgspec.msgpack.encode(["turns 0", 1]), b""])
def test_a_state_of_another_version_is_refused_since_what_users_have_paid_would_be_forgotten(stored):
    (message,) = messages_of(0, [])
    state = new_state()
    state["progress"].write(stored)
    for number in range(3):
        with pytest.raises(StreamError, match=r"state is of another version\. Start a new run"):
            list(step_of("hits", number).process((0, message), **state))
    monitor, of_key = ThresholdMonitorEvolvingDoFn(MODES["hits"], HeldSecret()), {**state, "close": Timer()}
    del of_key["cells"]
    with pytest.raises(StreamError, match="state is of another version"):
        monitor.process(("key", (0, 0, [])), **of_key)


# --- By the watermark of a stream that Beam reads, by contributions; hits: test_threshold_monitor.py


def expected(plan, *groups):
    return reference(list(itertools.chain(*groups)), plan, (), in_order=True)


def test_a_window_is_reported_when_the_watermark_passes_its_end_and_what_is_late_changes_nothing(tmp_path):
    """Late: new items, more holders of a published item, a window that had no event in time."""
    plan = small_contributions_plan(8, forget_after=0)
    groups = [holders(window, range(60 * window, 60 * window + 50)) for window in (0, 1, 3, 4, 6)]
    first, second, fourth, fifth, seventh = expected(plan, *groups)
    script = Script(plan).events(groups[1]).events(groups[0]).watermark(59.998).mark("nearly").watermark(60)
    script.mark("first is due").events(holders(0, range(500, 540), "too late")).events(holders(0, range(600, 650)))
    script.watermark(119).mark("second is open").events(groups[2]).watermark(120)
    script.mark("second is due").events(groups[4]).events(groups[3]).watermark(330)
    script.mark("a jump over four windows").events(holders(2, range(700, 750))).watermark(480).mark("end")
    assert script.run(key_file(tmp_path)) == [
        *("nearly", first, "first is due", "second is open", second, "second is due"),
        *(fourth, fifth, "a jump over four windows", seventh, "end"),
    ]


@pytest.mark.parametrize(
    "plan", [small_plan(10, hits_per_user=2), small_contributions_plan(10)], ids=["hits", "contributions"]
)
def test_one_user_cannot_decide_whether_late_events_of_others_count(tmp_path, plan):
    """Three windows with 60 holders that come when the watermark stands at the very end of the window: behind nobody,
    behind one user in time, and behind one late user. None may be reported."""
    script = Script(plan)
    for window, in_time, late in ((1, [], []), (3, [7], []), (5, [], [7])):
        script.events(holders(window, in_time, "whatever")).watermark(60 * (window + 1))
        script.events(holders(window, late, "whatever")).events(holders(window, range(100, 160)))
    in_time = holders(7, range(200, 250))
    lone = [event for window in (3,) for event in holders(window, [7], "whatever")]
    assert script.events(in_time).run(key_file(tmp_path)) == expected(plan, lone, in_time) != []
