"""The papers' `ThresholdMonitorEvolving` and the pipeline with ``noise="printed"``, on one log with one noise.

The paper's class has users as positions, one query after the other, and a `NoiseSource`. Here the source hands it the
pipeline's own draws: those of the window, the item and the holders that the class itself still counts. So both name the
same items exactly as long as both charge, remove, add noise, compare and go through the queries alike.
"""

import random
from collections import defaultdict

import numpy as np
import pyarrow as pa
import pytest

from dp_transforms.core.contributions import bound_contributions
from dp_transforms.core.heavy_hitter_monitor import HeavyHitterMonitor, MonitorState, find_candidates
from dp_transforms.core.hit_noise import digests_of_groups
from dp_transforms.core.item_sums import ItemHolders
from dp_transforms.core.noise_table import WideDiscreteLaplace, wide_discrete_laplace
from dp_transforms.core.pack_contributions import contributions_of_events
from dp_transforms.papers.query import LinearQuery
from dp_transforms.papers.threshold_monitor import ThresholdMonitorEvolving
from dp_transforms.plan.plan import Plan
from dp_transforms.plan.window_schedule import WindowSchedule
from tests.helpers.beam_pipelines import batches_source, run_monitor
from tests.helpers.small_runs import MICROS, SECRET, START, batch_of, batches_of, key_file, settings_of
from tests.helpers.trials import changed

ITEMS = ("a", "film", "music", "sport")  # under this key they lie in both shards of the monitor
WINDOWS = 120


@pytest.fixture(scope="module")
def plan():
    """Real noise: scales of 150 and 7, a cap of 11 and a threshold of 867 users."""
    return Plan.for_hits(
        epsilon=40,
        delta=0.5,
        schedule=WindowSchedule(START, START + WINDOWS * 60, 60, 60),
        hits_per_user=2,
        max_items_per_user=len(ITEMS),
        noise="printed",
        max_users=100_000,
        max_items=100,
    )


@pytest.fixture(scope="module")
def quiet(plan):
    """The same with so little noise that each part of it decides about some item: no plan would allow that."""
    return changed(
        settings_of(plan),
        threshold=60,
        wide_epsilon_per_query=0.5,
        epsilon_per_query=0.1,
        noise_cap=4,
        epsilon_after_hits=(0.0,) * 3,  # not looked at here
    )


def log_around(threshold, windows):
    """Items of about as many holders as the threshold; users come, and go once they are used up."""
    source = random.Random(1)
    return [
        (f"u{user}", item, (START + 60 * window + source.randrange(60)) * MICROS)
        for window in range(windows)
        for item in ITEMS
        for user in source.sample(
            range(window * threshold // 2, window * threshold // 2 + 3 * threshold),
            round(threshold * source.uniform(0.8, 2.2)),
        )
    ]


class PipelineNoise:
    """A `NoiseSource` of the pipeline's W and V of one item in one window, in the place of fresh ones."""

    def __init__(self, settings, users):
        self._keys = settings.stream_keys(SECRET)
        self._users = self._keys.hash_users(pa.array(users, pa.string()))[:, 0]
        self._epsilons = (settings.hits.noise.wide_epsilon_per_query, settings.hits.epsilon_per_query)
        self._draws = []

    def turn_to(self, window, item_hash, is_active):
        """is_active: which users hold the item and still count."""
        members = self._keys.widen_users(self._users[is_active])
        digest = digests_of_groups(members, np.array([0, len(members)]))
        each, item = WideDiscreteLaplace.UNIFORMS, item_hash[np.newaxis]
        functions = [self._keys.noise_pair_uniforms(window, part) for part in range(2 * each)]
        uniforms = np.stack([function.of_pairs(item, digest) for function in functions], axis=1)
        self._draws = [
            (epsilon, int(wide_discrete_laplace(epsilon).sample(part)[0]))
            for epsilon, part in zip(self._epsilons, (uniforms[:, :each], uniforms[:, each:]), strict=True)
        ]

    def discrete_laplace(self, epsilon):
        expected, drawn = self._draws.pop(0)
        assert epsilon == expected
        return drawn


def named_by_the_paper(log, settings, *, backwards=False, **changed):
    """``{window: items}``. backwards: the items of a window in the wrong order. changed: arguments of the class."""
    users = sorted({user for user, _, _ in log})
    place = {user: number for number, user in enumerate(users)}
    holders = defaultdict(list)
    for user, item, time in log:
        holders[(time // MICROS - START) // 60, item].append(place[user])
    hashes = settings.stream_keys(SECRET).hash_items(pa.array(ITEMS, pa.string()))
    hash_of = dict(zip(ITEMS, hashes, strict=True))
    noise = PipelineNoise(settings, users)
    arguments = {
        "hits": settings.hits_per_user,
        "threshold": settings.threshold,
        "wide_epsilon": settings.hits.noise.wide_epsilon_per_query,
        "narrow_epsilon": settings.hits.epsilon_per_query,
        "cap": settings.hits.noise.noise_cap,
    }
    monitor = ThresholdMonitorEvolving(len(users), noise=noise, **(arguments | changed))
    named = defaultdict(list)
    for window in sorted({window for window, _ in holders}):
        for item in sorted(ITEMS, key=lambda item: tuple(hash_of[item]), reverse=backwards):
            weights = np.zeros(len(users), dtype=np.int64)
            weights[holders[window, item]] = 1
            is_active = (weights > 0) & monitor.active()
            if not is_active.any():
                continue  # the pipeline does not test what nobody holds any more
            noise.turn_to(window, hash_of[item], is_active)
            if monitor.ask(LinearQuery(weights)):
                named[window].append(item)
    return {window: sorted(items) for window, items in named.items()}


def named_in(reports):
    return {
        (report.window_start // MICROS - START) // 60: sorted(found.item for found in report.heavy_hitters)
        for report in reports
    }


def candidates_of(plan, log):
    """What the steps before hand to the monitor, window by window: in parts of two shards of items."""
    settings, keys, windows = settings_of(plan), settings_of(plan).stream_keys(SECRET), defaultdict(list)
    for window, _, pairs in contributions_of_events(batch_of(log), plan.schedule, keys, windows_per_range=1, shards=1):
        held = ItemHolders.of_contributions(bound_contributions(pairs, plan.charged_hits.max_items_per_user, keys))
        windows[window] += [find_candidates(part, settings, keys) for _, part in held.by_shard(2)]
    return sorted(windows.items())


def named_by_the_monitor(candidates, settings):
    """By what `ThresholdMonitorEvolvingDoFn` adapts to Beam."""
    monitor = HeavyHitterMonitor(settings, settings.stream_keys(SECRET))
    parts = (ItemHolders.merge(of_window) for _, of_window in candidates)
    return named_in(report for _, report in monitor.close_windows(parts, MonitorState()))


def test_the_transform_and_the_monitor_name_what_the_algorithm_of_the_paper_names(tmp_path, plan):
    """With the noise of a real plan, on a runner; users are used up and removed all the time. tests/conformance has
    the other drivers."""
    settings = settings_of(plan)
    log = log_around(plan.threshold, 5)
    expected = named_by_the_paper(log, settings)
    held = len({(item, time // MICROS // 60) for _, item, time in log})
    assert 3 < sum(map(len, expected.values())) < held - 3
    assert expected != named_by_the_paper(log, settings, hits=2**20), "no user was removed"

    found = run_monitor(
        batches_source(batches_of(log, 20_000)), plan, noise_key=key_file(tmp_path), runner="FnApiRunner"
    )
    assert named_in(found.reports) == expected
    assert named_by_the_monitor(candidates_of(plan, log), settings) == expected


def test_with_less_noise_too(plan, quiet):
    """Each of these changes of the paper's algorithm would be seen."""
    log = log_around(quiet.threshold, WINDOWS)
    expected = named_by_the_paper(log, quiet)
    assert named_by_the_monitor(candidates_of(plan, log), quiet) == expected
    for other in ({"hits": quiet.hits_per_user + 1}, {"threshold": quiet.threshold + 1}, {"backwards": True}):
        assert named_by_the_paper(log, quiet, **other) != expected, other
