"""`MonitorStream` with a plan of names publishes what the oracle names with the weights of each user's own pace."""

from __future__ import annotations

import random
from typing import NamedTuple

import pytest

from dp_transforms.monitor.item_domain import ItemDomain
from dp_transforms.monitor.operator_counts import EVENTS_OUTSIDE_DOMAIN, LATE_BATCHES, PAIRS_UNPAID, WINDOWS_CLOSED
from dp_transforms.monitor.window_report import RunEnded, WindowReport
from tests.helpers.memory_stream import Arrival, MemoryStream
from tests.helpers.names_plans import small_names_plan
from tests.helpers.naming_oracle import Named, oracle_names, reports_of
from tests.helpers.pace_oracle import Wallet, stream_weights
from tests.helpers.small_runs import MICROS, SECRET, START, ordered_log, settings_of
from tests.helpers.stream_runs import Ran, arrivals_of, spread

DOMAIN = (*(f"item-{number}" for number in range(0, 12, 2)), *(f"nobody's-{number}" for number in range(30)))
HALF_DAY = 12 * 3600


class Expected(NamedTuple):
    reports: list[WindowReport]
    named: list[Named]
    wallets: dict[str, Wallet]


def expected_of(log, plan, domain=()):
    settings, wallets = settings_of(plan), {}
    keys = settings.stream_keys(SECRET)
    log = [event for event in log if not domain or event[1] in domain]
    named = oracle_names(stream_weights(log, settings, keys, wallets), settings, keys, domain)
    return Expected(reports_of(named, settings), named, wallets)


@pytest.mark.parametrize("sliding", [1, 3])
def test_the_transcript_is_that_of_the_log_however_the_stream_is_cut(tmp_path, sliding):
    """Partitions, sizes of polls, shards, order in a partition below the lateness, and events that come twice."""
    plan = small_names_plan(18, sliding=sliding, window_seconds=HALF_DAY * sliding, forget_after=4, most_looks=16)
    log = ordered_log(plan, 6)
    source = random.Random(2)
    in_disorder = [Arrival(event, event[2] + source.randrange(20 * MICROS)) for event in log]
    in_disorder.sort(key=lambda arrival: arrival.micros)
    twice = sorted([*in_disorder, *in_disorder], key=lambda arrival: arrival.micros)
    ran = Ran(
        tmp_path,
        {
            "one partition": (MemoryStream.of([arrivals_of(log)], 10**6), plan, {}),
            "five, tiny polls": (MemoryStream.of(spread(arrivals_of(log), 5), 17), plan, {"shards": 3}),
            "disorder": (MemoryStream.of(spread(in_disorder, 2)), plan, {"shards": 4}),
            "one is empty": (MemoryStream.of([[], in_disorder]), plan, {"shards": 2}),
            "twice": (MemoryStream.of(spread(twice, 3)), plan, {}),
        },
    )
    expected = expected_of(log, plan)
    for name, reports in ran.reports.items():
        assert reports == expected.reports, name
        assert ran.stamps[name] == [report.window_end - 1 for report in expected.reports]
        assert ran.ended[name] == [RunEnded("events", plan.schedule.horizon, reports=len(expected.reports))]
        assert not ran.rejected[name]
    assert ran.counts[WINDOWS_CLOSED] == 5 * plan.schedule.horizon
    assert ran.counts["events_read"] == 6 * len(log)
    assert not ran.counts.get(LATE_BATCHES)
    # Without these the equality would say little.
    assert sum(entry.was_known and not entry.nobody for entry in expected.named) > 10
    assert ran.counts[PAIRS_UNPAID] > 0
    assert any(wallet.left < 2 * plan.units[0] for wallet in expected.wallets.values())


def test_a_known_domain_and_windows_without_events(tmp_path):
    plan = small_names_plan(sliding=3, domain=DOMAIN)
    log = ordered_log(plan, 5)
    ran = Ran(
        tmp_path,
        {
            "busy": (MemoryStream.of(spread(arrivals_of(log), 3)), plan, {"shards": 3}),
            "no event": (MemoryStream.of([[]]), plan, {}),
        },
        domain=ItemDomain.of_ids(DOMAIN),
    )
    for name, events in (("busy", log), ("no event", [])):
        expected = expected_of(events, plan, DOMAIN)
        assert sum(entry.nobody for entry in expected.named) > 5
        assert ran.reports[name] == expected.reports, name
        assert len(ran.ended[name]) == 1
    assert ran.counts[EVENTS_OUTSIDE_DOMAIN] > 0


def test_known_items_are_looked_at_in_windows_without_events_and_forgotten_ones_are_not(tmp_path):
    """Twelve items are held in the first window, and nothing is held in the seventeen after it."""
    plan = small_names_plan(18, forget_after=4, known_error=0.12)
    log = [(f"u{user}", f"i{user % 12}", (START + 1) * MICROS) for user in range(120)]
    ran = Ran(
        tmp_path,
        {
            "silence": (MemoryStream.of([arrivals_of(log)]), plan, {"shards": 3}),
            "no event": (MemoryStream.of([[], []]), plan, {"shards": 2}),
        },
    )
    assert (ran.reports["no event"], ran.ended["no event"]) == ([], [RunEnded("events", 18, 0)])
    expected = expected_of(log, plan)
    assert {entry.window for entry in expected.named if not entry.nobody} == {0}
    assert len({entry.window for entry in expected.named if entry.nobody}) > 3
    assert ran.reports["silence"] == expected.reports


def test_items_are_not_followed_where_the_plan_says_so(tmp_path):
    plan = small_names_plan(7, forget_after=0)
    log = ordered_log(plan, 3, 300)
    ran = Ran(tmp_path, {"stream": (MemoryStream.of([arrivals_of(log)]), plan, {})})
    expected = expected_of(log, plan)
    assert not any(entry.was_known for entry in expected.named)
    assert ran.reports["stream"] == expected.reports != []
