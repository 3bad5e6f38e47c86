"""Whole replays in release mode `names` publish what the oracle names, however the work is cut or repeated."""

from __future__ import annotations

import random
from collections import Counter

import apache_beam as beam
import pytest

from dp_transforms.beam.name_heavy_hitters import NameHeavyHitters
from dp_transforms.beam.set_up_workers import DomainSource, KeyFile, operator_counts
from dp_transforms.monitor.event_batch import EventBatch
from dp_transforms.monitor.item_domain import ItemDomain
from dp_transforms.monitor.operator_counts import EVENTS_OUTSIDE_DOMAIN, EVENTS_OUTSIDE_RANGE, EVENTS_READ, PAIRS_UNPAID
from tests.helpers.beam_pipelines import Collected, local_pipeline, plain
from tests.helpers.core_runs import MICROS, START
from tests.helpers.naming_oracle import oracle_counts, oracle_names, replay_weights
from tests.helpers.naming_runs import naming_settings
from tests.helpers.oracle import items_by_window_and_user
from tests.helpers.small_runs import SECRET, batch_of, batches_of, key_file, small_plan

WINDOWS = 12
DOMAIN = (*(f"item-{number}" for number in range(0, 12, 2)), *(f"nobody's-{number}" for number in range(30)))
REPEATED = ("--direct_runner_bundle_repeat=1",)


def busy_log(seed, events=700):
    """Skewed items of 40 users that shift with time, and some events outside of the range."""
    source = random.Random(seed)
    log = []
    for _ in range(events):
        time = source.randrange((START - 5) * MICROS, (START + 10 * WINDOWS + 5) * MICROS)
        rank = min(int(source.expovariate(0.7)), 11)
        log.append((f"user-{source.randrange(40)}", f"item-{(rank + time // MICROS // 40) % 12}", time))
    return log


def oracle_of(log, chosen, domain=()):
    keys = chosen.stream_keys(SECRET)
    log = [event for event in log if not domain or event[1] in domain]
    return oracle_names(replay_weights(log, chosen, keys), chosen, keys, domain)


def rows_of(reports, chosen):
    """(window, item, level, users) of reports; each window has one, with its own times."""
    starts = {chosen.schedule.window_start_micros(window): window for window in range(chosen.schedule.horizon)}
    found = []
    windows = [starts[report.window_start] for report in reports]
    assert len(set(windows)) == len(windows)
    for window, report in zip(windows, map(plain, reports), strict=True):
        assert report[2] == chosen.schedule.window_end_micros(window)
        assert report[4:] == (chosen.epsilon_total, chosen.delta, chosen.epsilon_total)
        found += [(window, item, level, users) for item, zone, count, level, users in report[3]]
        assert all(zone is None and count is None for _, zone, count, *_ in report[3])
    return sorted(found)


class Branches:
    """Several replays in one pipeline."""

    def __init__(self, key, flags=()):
        self._pipeline, self._key = local_pipeline(flags), KeyFile(key)
        self._found = {}

    def add(self, name, batches, chosen, **arguments):
        source = self._pipeline | f"Batches {name}" >> beam.Create(batches, reshuffle=False).with_output_types(
            EventBatch
        )
        collected = self._found[name] = Collected()
        reports = source | f"Name {name}" >> NameHeavyHitters(chosen, self._key, **arguments)
        _ = reports | f"See {name}" >> collected.sink()

    def run(self):
        """The reports of each with their timestamps, and the result."""
        result = self._pipeline.run()
        result.wait_until_finish()
        return {name: collected.stamped for name, collected in self._found.items()}, result


@pytest.mark.parametrize("sliding", [1, 3])
def test_replays_equal_the_oracle(tmp_path, sliding):
    branches, expected, logs = Branches(key_file(tmp_path)), {}, {}
    settings = {
        f"{most_looks} looks, {forget_after}": naming_settings(
            WINDOWS, most_looks=most_looks, forget_after=forget_after, sliding=sliding
        )
        for most_looks, forget_after in ((5, 3), (12, 0))
    }
    for seed, (name, chosen) in enumerate(settings.items()):
        logs[name] = busy_log(seed)
        expected[name] = oracle_of(logs[name], chosen)
        branches.add(name, batches_of(logs[name], 150), chosen)
    found, result = branches.run()

    unpaid = outside = 0
    for name, chosen in settings.items():
        reports = [report for report, _ in found[name]]
        assert [stamp.micros for _, stamp in found[name]] == [report.window_end - 1 for report in reports]
        assert rows_of(reports, chosen) == sorted(named.published for named in expected[name])
        assert len(expected[name]) > 10
        declared = range(START * MICROS, (START + 10 * WINDOWS) * MICROS)
        outside += sum(time not in declared for _, _, time in logs[name])
        looks = Counter(
            user
            for users in items_by_window_and_user(logs[name], chosen).values()
            for user, items in users.items()
            for _ in items
        )
        unpaid += sum(max(0, count - chosen.most_looks) for count in looks.values())
    assert unpaid > 0 < outside
    read = sum(map(len, logs.values()))
    assert operator_counts(result) == {EVENTS_READ: read, EVENTS_OUTSIDE_RANGE: outside, PAIRS_UNPAID: unpaid}


def test_replays_do_not_depend_on_how_the_work_is_cut(tmp_path):
    """One pipeline, a branch for each number of shards, size of a batch and order."""
    chosen = naming_settings(WINDOWS)
    log = busy_log(5)
    shuffled = random.Random(6).sample(log, len(log))
    cuts = {
        "one shard, one batch": (1, batches_of(log, len(log))),
        "three shards, small batches": (3, batches_of(shuffled, 61)),
        "seven shards, tiny batches": (7, batches_of(sorted(log), 23)),
        "default shards, backwards": (None, batches_of(log[::-1], 400)[::-1]),
        "each event in two batches": (None, [*batches_of(log, 500), *batches_of(shuffled, 300)]),
    }
    branches = Branches(key_file(tmp_path))
    for name, (shards, batches) in cuts.items():
        branches.add(name, batches, chosen, shards=shards)
    found, _ = branches.run()
    expected = sorted(named.published for named in oracle_of(log, chosen))
    assert expected
    for name, stamped in found.items():
        assert rows_of([report for report, _ in stamped], chosen) == expected, name


@pytest.mark.parametrize("domain", [(), DOMAIN], ids=["open", "known"])
def test_the_largest_items_are_counted_however_the_work_is_cut_or_repeated(tmp_path, domain):
    log = busy_log(9)
    chosen = naming_settings(WINDOWS, counts_for=1, domain=domain, known_threshold=45)
    source = DomainSource(ItemDomain.of_ids(DOMAIN), small_plan(domain=DOMAIN)) if domain else None
    branches = Branches(key_file(tmp_path), REPEATED)
    for name, shards in (("one shard", 1), ("five shards", 5)):
        branches.add(name, batches_of(log, 130), chosen, shards=shards, domain=source)
    found, _ = branches.run()
    keys = chosen.stream_keys(SECRET)
    counted = oracle_counts(
        [event for event in log if not domain or event[1] in domain], oracle_of(log, chosen, domain), chosen, keys
    )
    expected = sorted(
        (*named.published, counted.get((named.window, named.item))) for named in oracle_of(log, chosen, domain)
    )
    assert None in {row[-1] for row in expected}
    assert len(counted) > 8
    starts = {chosen.schedule.window_start_micros(window): window for window in range(WINDOWS)}
    for name, stamped in found.items():
        once = {report.window_start: report for report, _ in stamped}
        assert len(stamped) == 2 * len(once)
        rows = [
            (starts[start], item, level, users, count)
            for start, report in once.items()
            for item, _, count, level, users in plain(report)[3]
        ]
        assert sorted(rows, key=lambda row: row[:2]) == expected, name
        assert [plain(report) for report, _ in stamped if report != once[report.window_start]] == []


def test_a_known_domain_equals_the_oracle_and_a_bundle_that_runs_twice_publishes_one_answer(tmp_path):
    log = busy_log(8)
    (tmp_path / "domain.txt").write_text("\n".join(DOMAIN))
    plan = small_plan(domain=DOMAIN)
    branches, settings = Branches(key_file(tmp_path), REPEATED), {}
    for name, domain in (("path", str(tmp_path / "domain.txt")), ("items", ItemDomain.of_ids(DOMAIN)), ("open", None)):
        settings[name] = naming_settings(WINDOWS, domain=DOMAIN if domain else (), known_threshold=45)
        source = DomainSource(domain, plan) if domain else None
        branches.add(name, batches_of(log, 150), settings[name], shards=3, domain=source)
    found, result = branches.run()
    for name, chosen in settings.items():
        domain = DOMAIN if chosen.domain_size else ()
        expected = oracle_of(log, chosen, domain)
        assert len(expected) > 10
        if domain:
            assert len({named.item for named in expected if named.nobody}) > 3
        reports = [report for report, _ in found[name]]
        once = {plain(report)[1]: report for report in reports}
        assert len(reports) == 2 * len(once)
        assert sorted(str(plain(report)) for report in reports) == sorted(
            str(plain(report)) for report in once.values() for _ in range(2)
        )
        assert rows_of([*once.values()], chosen) == sorted(named.published for named in expected)
    foreign = sum(item not in DOMAIN and START * MICROS <= time < (START + 120) * MICROS for _, item, time in log)
    assert operator_counts(result)[EVENTS_OUTSIDE_DOMAIN] == 2 * foreign > 0


def test_a_log_without_events_has_no_reports_in_an_open_domain(tmp_path):
    branches, chosen = Branches(key_file(tmp_path)), naming_settings(WINDOWS)
    branches.add("empty", [batch_of([])], chosen)
    branches.add("nothing", [], chosen)
    found, _ = branches.run()
    assert found == {"empty": [], "nothing": []}


def test_pairs_that_are_not_paid_because_of_counts_are_told_to_the_operator(tmp_path):
    log, chosen = busy_log(4), naming_settings(WINDOWS, counts_for=1)
    branches = Branches(key_file(tmp_path))
    branches.add("a run", batches_of(log, 400), chosen, shards=1)
    _, result = branches.run()
    pairs = Counter(
        user for users in items_by_window_and_user(log, chosen).values() for user, items in users.items() for _ in items
    )
    paid = sum(map(len, replay_weights(log, chosen, chosen.stream_keys(SECRET)).values()))
    assert paid < sum(min(count, chosen.most_looks) for count in pairs.values())
    assert operator_counts(result)[PAIRS_UNPAID] == sum(pairs.values()) - paid
