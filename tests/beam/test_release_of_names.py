"""`ShiftingHeavyHitters` with a plan of names: from a calibrated plan to reports, for every kind of input."""

from __future__ import annotations

import functools
import random

import pytest

from dp_transforms.beam.release_heavy_hitters import ShiftingHeavyHitters
from dp_transforms.monitor.item_domain import ItemDomain
from dp_transforms.monitor.run_settings import settings_of_plan
from dp_transforms.plan.names_plan import NamesPlan
from dp_transforms.plan.release_plan import ReleasePlan
from dp_transforms.plan.window_schedule import WindowSchedule
from tests.helpers.beam_pipelines import batches_source, pairs_source, plain, run_monitor
from tests.helpers.naming_oracle import oracle_names, replay_weights
from tests.helpers.small_runs import MICROS, MINUTE, RUN_ID, SECRET, START, batches_of, key_file

WINDOWS = 8
DOMAIN = (*(f"item-{number}" for number in range(0, 6, 2)), *(f"nobody's-{number}" for number in range(9)))
REPEATED = ("--direct_runner_bundle_repeat=1",)


@functools.cache
def plan_of(domain=(), sliding=1):
    schedule = WindowSchedule(START, START + WINDOWS * MINUTE // sliding, MINUTE, MINUTE // sliding)
    return ReleasePlan.calibrate(
        epsilon=20,
        delta=1e-2,
        schedule=schedule,
        release="names",
        usual_looks=(1, 10),
        most_looks=12,
        domain=ItemDomain.of_ids(domain) if domain else None,
        max_users=1000,
        max_items=1000,
    )


def busy_log(seed, sliding=1, events=400):
    source = random.Random(seed)
    end = START + WINDOWS * MINUTE // sliding
    return [
        (
            f"user-{source.randrange(40)}",
            f"item-{min(int(source.expovariate(0.7)), 5)}",
            source.randrange((START - 5) * MICROS, (end + 5) * MICROS),
        )
        for _ in range(events)
    ]


def expected(log, plan, domain=()):
    chosen = settings_of_plan(plan, stream="events", run_id=RUN_ID)
    keys = chosen.stream_keys(SECRET)
    log = [event for event in log if not domain or event[1] in domain]
    named = [entry.published for entry in oracle_names(replay_weights(log, chosen, keys), chosen, keys, domain)]
    assert named
    return sorted((chosen.schedule.window_start_micros(window), *rest) for window, *rest in named)


def rows_of(reports):
    rows = [(report[1], item, level, users) for report in map(plain, reports) for item, _, _, level, users in report[3]]
    return sorted(rows)


@pytest.mark.parametrize("sliding", [1, 2])
def test_pairs_and_batches_give_what_the_oracle_names(tmp_path, sliding):
    plan, log, key = plan_of((), sliding), busy_log(1, sliding), key_file(tmp_path)
    assert isinstance(plan, NamesPlan)
    for source in (pairs_source(log), batches_source(batches_of(log, 90))):
        found = run_monitor(source, plan, noise_key=key)
        assert rows_of(found.reports) == expected(log, plan)
        assert all(stamp.micros == report.window_end - 1 for report, stamp in found.stamped)
        assert all(plain(report)[4:] == (20.0, 1e-2, 20.0) for report in found.reports)
        assert found.rejected == []


def test_a_known_domain(tmp_path):
    plan, log = plan_of(DOMAIN), busy_log(2)
    domain = ItemDomain.of_ids(DOMAIN)
    found = run_monitor(
        batches_source(batches_of(log, 90)), plan, noise_key=key_file(tmp_path), domain=domain, shards=3
    )
    assert rows_of(found.reports) == expected(log, plan, DOMAIN)
    with pytest.raises(ValueError, match="Give domain=PATH"):
        ShiftingHeavyHitters(plan)


def test_a_bundle_that_runs_twice_publishes_one_answer(tmp_path):
    plan, log = plan_of(), busy_log(3)
    for arguments in ({"noise_key": key_file(tmp_path)}, {}):  # a key of a file, and a fresh one
        found = run_monitor(batches_source(batches_of(log, 90)), plan, flags=REPEATED, **arguments)
        once = {str(plain(report)) for report in found.reports}
        assert len(found.reports) == 2 * len(once) == 2 * len({report.window_start for report in found.reports})


def test_two_runs_draw_different_noise(tmp_path):
    plan, log, key = plan_of(), busy_log(4), key_file(tmp_path)
    runs = [run_monitor(batches_source(batches_of(log, 90)), plan, noise_key=key, run_id=run) for run in "ab"]
    assert rows_of(runs[0].reports) != rows_of(runs[1].reports)
