"""State, timers and the secret of a keyed DoFn, held in memory by a test that calls the DoFn itself."""

from __future__ import annotations

import apache_beam as beam
from apache_beam.utils.windowed_value import PaneInfo, PaneInfoTiming

from dp_transforms.beam.assign_windows import PackPairsDoFn
from dp_transforms.beam.bound_contributions import BoundContributionsDoFn
from dp_transforms.beam.find_candidates import FindCandidatesDoFn
from dp_transforms.beam.monitor_heavy_hitters import ThresholdMonitorEvolvingDoFn
from dp_transforms.monitor.sharding import Sharding
from dp_transforms.workers.pack_pairs import PackPairs
from tests.helpers.small_runs import SECRET, batch_of, settings_of

SHARDS = 2
ON_TIME = PaneInfo(True, True, PaneInfoTiming.ON_TIME, 0, 0)


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
    """One key of the DoFn: its state, and a runner that fires its timer when the test says so."""

    def __init__(self, plan, *, settings=None, is_bounded=False):
        settings = settings or settings_of(plan)
        self.do_fn = ThresholdMonitorEvolvingDoFn(settings, HeldSecret(), Sharding(1, SHARDS), is_bounded=is_bounded)
        self.do_fn.setup()
        self.state = {"pending": Bag(), "budgets": Bag(), "progress": Cell(), "due": Cell(), "close": Timer()}

    def take(self, *candidates):
        for slab, shard, blob in candidates:
            state = {name: held for name, held in self.state.items() if name != "budgets"}
            assert self.do_fn.process(("events", (slab, shard, blob)), **state) is None
        return self

    def fire(self):
        """Reports with their timestamps."""
        self.state["close"].at = None
        return [(stamped.value, stamped.timestamp) for stamped in self.do_fn.close_due_windows(**self.state)]

    def drain(self):
        """Fires as long as a timer is set; returns the reports."""
        reports = []
        while self.state["close"].at is not None:
            reports += [report for report, _ in self.fire()]
        return reports


def candidates_of(plan, log):
    """What the steps before hand to the monitor: ``(slab, shard, blob)``, in order."""
    steps = [
        PackPairsDoFn(settings_of(plan), PackPairs(plan.schedule, Sharding(1, SHARDS)), HeldSecret(), stamp=False),
        BoundContributionsDoFn(settings_of(plan), HeldSecret(), Sharding(1, SHARDS)),
        FindCandidatesDoFn(settings_of(plan), HeldSecret()),
    ]
    for do_fn in steps:
        do_fn.setup()
    grouped = grouped_by_key(steps[0].process(batch_of(log)))
    grouped = grouped_by_key(out for group in grouped for out in steps[1].process(group, ON_TIME))
    return sorted(candidates for group in grouped for _, candidates in steps[2].process(group, ON_TIME))


def grouped_by_key(pairs):
    groups = {}
    for key, value in pairs:
        groups.setdefault(key, []).append(value)
    return sorted(groups.items())
