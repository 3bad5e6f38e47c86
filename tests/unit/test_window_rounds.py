"""Looks in rounds in each window: the numbers of a plan, and each condition of the theorem (docs/guarantee.md,
"Rounds"). The exact game of sub-purses is in test_rounds.py.

That all ways to run it publish what the slow reference says is in tests/conformance.
"""

import dataclasses
import functools
from collections import Counter

import numpy as np
import pytest

from dp_transforms import Plan
from dp_transforms.accounting.purse.open_threshold import smallest_open_threshold
from dp_transforms.accounting.purse.price_list import make_price_list
from dp_transforms.mechanisms.exponential_power import ExponentialPower
from dp_transforms.mechanisms.priced_weights import PURSE_UNITS
from dp_transforms.monitor.named_items import NamedItems
from dp_transforms.monitor.pairs import UserPairs, pairs_of_events
from dp_transforms.plan.records import WindowRounds
from dp_transforms.stages.items import NameItems
from dp_transforms.stages.stage import Span
from dp_transforms.stages.users import SpendPurses
from tests.helpers.naming_oracle import reports_of
from tests.helpers.naming_runs import naming_settings
from tests.helpers.rounds_oracle import WindowRoundsOracle
from tests.helpers.rounds_runs import SCHEDULE, WINDOWS, at, busy_log, cells_of
from tests.helpers.small_runs import SECRET, batch_of

ROUNDS = 3


# --- The plan


@functools.cache
def calibrated():
    return Plan.calibrate(epsilon=2, delta=1e-9, schedule=SCHEDULE, window_rounds=True)


def thresholds_of(plan):
    return (plan.threshold, *plan.window_rounds.later_thresholds)


def test_a_plan_with_rounds_in_windows_is_read_again_as_it_is():
    plan = calibrated()
    assert plan.units_of_rounds == (5 * 10**10, 2 * 10**11, 75 * 10**10)
    assert Plan.from_json(plan.to_json()) == plan
    assert plan.paid_looks.most_looks == 30_000  # of all rounds
    noise, size_error = plan.paid_looks.noise, plan.paid_looks.size_error
    assert plan.known_threshold < min(thresholds_of(plan))
    assert plan.known_threshold == noise.smallest_margin(1e-5 / ROUNDS)  # three draws have the rate of one
    assert [terms.threshold for terms in plan.terms_in_windows] == list(thresholds_of(plan))
    followed = 2 * plan.known_for * plan.max_users * plan.paid_looks.most_looks
    for terms, units in zip(plan.terms_in_windows, plan.units_of_rounds, strict=True):
        listed = zip(plan.paid_looks.weights, plan.paid_looks.units, strict=True)
        weights = {weight: paid for weight, paid in listed if paid <= units}
        assert terms.largest_weight == max(weights)
        wrong = plan.max_users * max(
            units / paid * noise.upper_tail(terms.likely_noise + 1 + 4 * (terms.largest_weight - weight))
            for weight, paid in weights.items()
        )
        wrong += followed * noise.upper_tail(terms.likely_noise + 1 + 4 * terms.largest_weight)
        assert 0.9 < wrong / (size_error / (ROUNDS + 1)) <= 1
    hundred = plan.terms_of_second_looks(100, 1)
    assert hundred.threshold == hundred.likely_noise + 4 * hundred.largest_weight + 1
    assert 0.9 < 100 * SCHEDULE.horizon * noise.upper_tail(hundred.likely_noise + 1) / (size_error / (ROUNDS + 1)) <= 1


def test_the_threshold_of_each_round_is_the_least_that_is_safe():
    """Each round pays with its own purse for a third of delta_open."""
    plan = calibrated()
    prices, noise = plan.paid_looks.prices, plan.paid_looks.noise
    for number, (threshold, units) in enumerate(zip(thresholds_of(plan), plan.units_of_rounds, strict=True)):
        for weight, paid in zip(prices.weights, prices.units, strict=True):
            if paid <= units:
                assert noise.upper_tail(threshold - weight) <= plan.delta_open / ROUNDS * paid / units
        lower = list(thresholds_of(plan))
        lower[number] -= 1
        rounds = WindowRounds(units=plan.units_of_rounds, later_thresholds=tuple(lower[1:]))
        with pytest.raises(ValueError, match=f"threshold must be >= {threshold}"):
            dataclasses.replace(plan, threshold=lower[0], window_rounds=rounds)


@pytest.mark.parametrize(("share", "threshold"), [(0.05, 4.383733), (0.75, 4.387084)])
def test_the_thresholds_of_the_reference(share, threshold):
    """Of a purse for 3,000 looks in each round."""
    noise, units = ExponentialPower(2.25, 20_000), int(share * PURSE_UNITS)
    amounts = [int(units / 1.02**step) for step in range(405)]
    prices = make_price_list(noise, 15.92424, 0.837468, int(PURSE_UNITS / (units / 3000)), amounts=amounts)
    found = smallest_open_threshold(prices, 2.98e-10 / 3, open_units=units)
    assert found / noise.scale == pytest.approx(threshold, rel=1e-3)


def test_a_plan_that_would_break_the_proof_is_refused():
    plan = calibrated()
    units, later = plan.window_rounds.units, plan.window_rounds.later_thresholds
    for changed, told in (
        ({"units": (units[0] + 1, *units[1:])}, "the rounds must cost at most a purse together"),
        ({"units": (*units[:2], 1, 1), "later_thresholds": (*later, 9)}, "2 to 3 rounds"),
        ({"later_thresholds": later[:1]}, "each round but the first must have a threshold"),
        ({"units": (plan.paid_looks.units[0] - 1, *units[1:])}, "each round must pay for a look"),
        ({"later_thresholds": (later[0], plan.known_threshold - 1)}, "known items must be at most"),
    ):
        with pytest.raises(ValueError, match=told):
            dataclasses.replace(plan, window_rounds=dataclasses.replace(plan.window_rounds, **changed))


def test_noise_alone_follows_no_item_for_ever():
    """The claim of sizes counts the draws of all rounds: a known item has one in each."""
    choices = {"epsilon": 2, "delta": 1e-9, "schedule": SCHEDULE, "window_rounds": True, "forget_after": 100}
    plan = Plan.calibrate(known_error=0.0049, **choices)
    assert 0.45 < ROUNDS * plan.known_for * plan.known_error <= 0.5
    with pytest.raises(ValueError, match="too low for forget_after = 100"):
        Plan.calibrate(known_error=0.0051, **choices)


@pytest.mark.parametrize("choices", [{"hits_per_user": 3}, {"counts_for": 3}, {"rounds": True}, {"mode": "hits"}])
def test_what_rounds_in_windows_do_not_go_with_is_refused(choices):
    with pytest.raises(ValueError, match="cannot be used with"):
        Plan.calibrate(epsilon=2, delta=1e-9, schedule=SCHEDULE, window_rounds=True, **choices)


# --- The conditions, by the stages that run


@pytest.mark.parametrize(("seed", "sliding", "forget_after"), [(1, 1, 3), (2, 3, 5), (3, 1, 0), (4, 1, 12)])
def test_the_stages_name_what_the_reference_says(seed, sliding, forget_after):
    """However windows and items are cut: all at once, or one by one with what is stored between them."""
    trial, log = trial_with_rounds(sliding=sliding, forget_after=forget_after), busy_log(seed)
    oracle = WindowRoundsOracle(log, trial, trial.stream_keys(SECRET))
    expected = oracle.names()
    assert len(expected) > 20
    assert oracle.shown_more > 2 or sliding > 1
    if forget_after:
        assert any(entry.nobody for entry in expected), "known items that nobody holds are drawn for"
        assert oracle.known[0] != oracle.known[2], "a round knows what those up to it have named, and no more"
    horizon = trial.schedule.horizon
    for shards, ends in ((1, [horizon]), (3, range(1, horizon + 1)), (2, [4, 5, horizon])):
        named = Run(trial, shards).take(log, ends)[-1]
        found = [report for _, report in named.window_reports(trial, "events")]
        assert found == reports_of(expected, trial)


@pytest.mark.parametrize("seed", range(2))
def test_a_user_never_pays_more_than_the_purse_of_a_round(seed):
    """And what it adds is a function of its own pairs and of what was named."""
    trial, log = trial_with_rounds(), busy_log(seed)
    price = dict(zip(trial.looks.weights, trial.looks.units, strict=True))
    ends = range(1, WINDOWS + 1)
    run = Run(trial)
    told = [set(cells_of(named)) for named in run.take(log, ends)]
    for user in ["busy", *(f"user-{number}" for number in range(0, 40, 8))]:
        alone, others = Run(trial, told=told), Run(trial, told=told)
        alone.take([event for event in log if event[0] == user], ends)
        others.take([event for event in log if event[0] != user], ends)
        for number, units in enumerate(trial.units_of_rounds):
            assert sum(price[weight] for weight in alone.sums[number].values()) <= units
            assert run.sums[number] == alone.sums[number] + others.sums[number]
            assert bool(number and told[number - 1] & run.sums[number].keys()) == (number == ROUNDS - 1)


def test_a_sum_of_a_pair_that_is_named_already_is_refused():
    trial = trial_with_rounds()
    keys = trial.stream_keys(SECRET)
    users, first, second = SpendPurses(trial, keys, None), *(NameItems(trial, keys, None, n) for n in (0, 1))
    pairs, span = users.told(pairs_of([("somebody", item, at(0)) for item in "ab"], trial)), Span(0, 1)
    sums = users.advance(users.read([], 0), pairs, span, Counter())
    named = NamedItems(sums.windows[:1], sums.items[:1], sums.sums[:1], sums.sums[:1], sums.table).select(slice(None))
    first.advance(first.read([], 0), first.told([sums]), span, Counter())
    with pytest.raises(ValueError, match="a pair that an earlier round has named"):
        second.advance(second.read([], 0), second.told([sums], [named.to_bytes()]), span, Counter())
    for work in (second, SpendPurses(trial, keys, None, 1)):
        with pytest.raises(ValueError, match="round 1 of looks must be told"):
            work.columns([])


# --- Plans, logs and runs


def trial_with_rounds(*, sliding=1, forget_after=3):
    """Windows of 10 seconds, and little noise: it names some known items alone."""
    trial = naming_settings(
        WINDOWS, most_looks=60, threshold=60, known_threshold=40, forget_after=forget_after, sliding=sliding, scale=30
    )
    units = tuple(PURSE_UNITS * percent // 100 for percent in (20, 30, 50))
    return dataclasses.replace(trial, window_rounds=WindowRounds(units=units, later_thresholds=(55, 50)))


def pairs_of(log, trial):
    keys, schedule = trial.stream_keys(SECRET), trial.schedule
    found = pairs_of_events(batch_of(list(log)), schedule, keys, windows_per_slab=schedule.horizon, shards=1)
    return UserPairs.merge([pairs for _, _, pairs in found])


class Run:
    """The stages of all rounds, in this process: from window to window the state is what was stored.

    told: what is named up to each round, whatever is added here. sums: of each round, by window and item.
    """

    def __init__(self, trial, shards=1, told=None):
        self._trial, self._shards, self._told = trial, shards, told
        keys = trial.stream_keys(SECRET)
        self._users = [SpendPurses(trial, keys, None, number) for number in range(ROUNDS)]
        self._items = [NameItems(trial, keys, None, number) for number in range(ROUNDS)]
        self._stored = {}
        self.sums = [Counter() for _ in range(ROUNDS)]

    def take(self, log, ends):
        """What is named up to each round, of all windows. ends: where windows are taken together."""
        pairs, first = pairs_of(log, self._trial), 0
        found = [[] for _ in range(ROUNDS)]
        for end in ends:
            here = pairs.select((pairs.windows >= first) & (pairs.windows < end))
            before = []
            for number in range(ROUNDS):
                named = self._round(number, here, Span(first, end), before)
                found[number].append(named)
                before = [[named.to_bytes()]]
            first = end
        return [NamedItems.merge(parts) for parts in found]

    def _round(self, number, pairs, span, before):
        sums = self._advance("users", self._users[number], self._users[number].told(pairs, *before), span)
        labels = cells_of(sums)
        self.sums[number].update(dict(zip(labels, sums.sums.tolist(), strict=True)))
        if self._told is not None:
            return self._as_told(number, pairs, span)
        work, parts = self._items[number], []
        for shard in range(self._shards):
            here = dataclasses.replace(span, shard=shard, shards=self._shards)
            parts.append(self._advance("items", work, work.told([sums.of_shard(shard, self._shards)], *before), here))
        return NamedItems.merge(parts)

    def _advance(self, name, work, columns, span):
        stored = self._stored.setdefault((name, work.round, span.shard), [])
        state = work.read(stored, span.first)
        found = work.advance(state, columns, span, Counter())
        stored += work.changed(state, span)
        return found

    def _as_told(self, number, pairs, span):
        cells = zip(pairs.windows.tolist(), pairs.table.labels.take(pairs.items).to_pylist(), strict=True)
        is_named = np.array([cell in self._told[number] for cell in cells], dtype=np.bool_)
        here = pairs.select(is_named)
        _, rows = np.unique(here.windows * max(1, len(here.table)) + here.items, return_index=True)
        ones = np.ones(len(rows), dtype=np.int64)
        return NamedItems(here.windows[rows], here.items[rows], ones, ones, here.table).select(slice(None))
