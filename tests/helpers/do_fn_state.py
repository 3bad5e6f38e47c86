"""State, timers and the secret of a keyed DoFn, held in memory by a test that calls the DoFn itself."""

from __future__ import annotations

from collections import Counter

import apache_beam as beam
from apache_beam.pvalue import TaggedOutput

from dp_transforms.beam.assign_windows import PackPairsDoFn
from dp_transforms.beam.threshold_monitor import ThresholdMonitorEvolvingDoFn
from dp_transforms.monitor.sharding import Sharding
from dp_transforms.stages.read_pairs import PackPairs
from dp_transforms.stages.release_stages import stages_of
from dp_transforms.stages.stage import AtOnceStep
from tests.helpers.small_runs import SECRET, batch_of, settings_of

SHARDS = 2


class HeldSecret(beam.Secret):
    """`SECRET`, without a file."""

    def get_secret_bytes(self):
        return SECRET


class Bag:
    """A bag state."""

    def __init__(self):
        self.content = []

    def read(self):
        return iter(list(self.content))

    def add(self, value):
        self.content.append(value)

    def clear(self):
        self.content = []


class Cell:
    """A state that holds one value."""

    def __init__(self):
        self.content = None

    def read(self):
        return self.content

    def write(self, value):
        self.content = value

    def clear(self):
        self.content = None


class Timer:
    """A timer that fires when the test says so. at: the timestamp that it was set to."""

    def __init__(self):
        self.at = None

    def set(self, timestamp):
        self.at = timestamp


class Monitor:
    """One key of `ThresholdMonitorEvolvingDoFn`, with its state."""

    def __init__(self, settings, *, is_bounded=False):
        stage = stages_of(settings, None).windows
        self.do_fn = ThresholdMonitorEvolvingDoFn(stage, HeldSecret(), is_bounded=is_bounded)
        self.do_fn.setup()
        self.state = {"near": Bag(), "far": Bag(), "waiting": Cell(), "counters": Bag(), "progress": Cell()}

    def take(self, *parts):
        """Reports with their timestamps."""
        found = [output for part in parts for output in self.do_fn.process(("events", part), **self.state)]
        return [(output.value, output.timestamp) for output in found if not isinstance(output, TaggedOutput)]


def candidates_of(plan, log):
    """What the stages before the monitor find: packed candidates by window."""
    schedule, settings = plan.schedule, settings_of(plan)
    users, items, _ = stages_of(settings, None)
    pack = PackPairsDoFn(settings, PackPairs(schedule, Sharding(1, SHARDS)), HeldSecret())
    pack.setup()
    sent = pack.process(batch_of(log))
    for stage, to in ((users, SHARDS), (items, 1)):
        step = AtOnceStep(stage, Sharding(1, SHARDS), Sharding(1, to)).start(SECRET)
        sent = [output for group in grouped_by_key(sent) for output in step(group, Counter())]
    return {window: blobs for (window, _), blobs in grouped_by_key(sent)}


def parts_of(candidates, horizon):
    """An element of the monitor for each window, in order, also for one without candidates."""
    return [(window, 1, candidates.get(window, [])) for window in range(horizon)]


def grouped_by_key(pairs):
    groups = {}
    for key, value in pairs:
        groups.setdefault(key, []).append(value)
    return sorted(groups.items())
