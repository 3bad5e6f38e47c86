"""Plans with rounds: their units, thresholds and sizes."""

import contextlib
import dataclasses
import math

import numpy as np
import pytest

from dp_transforms import Plan, PublicItems, WindowSchedule
from dp_transforms.accounting.accountants import sampling_delta
from dp_transforms.accounting.price_list import smallest_open_threshold
from dp_transforms.accounting.priced_weights import stated_users
from dp_transforms.plan.calibration import checked_contributions, later_tests_of
from dp_transforms.plan.records import Rounds
from dp_transforms.plan.rounds import (
    public_threshold,
    terms_of_round,
    terms_of_sizing,
    why_one_round,
)
from tests.helpers.calibrated_plans import PUBLIC, short_contributions_plan
from tests.helpers.modes import units_of_shares
from tests.helpers.rounds_runs import SCHEDULE, calibrated


def test_a_plan_with_rounds_is_read_again_as_it_is():
    plan = calibrated()
    assert plan.paid_rounds == Rounds(
        block_seconds=86_400, units=(10**11, 45 * 10**9, 171 * 10**9, 684 * 10**9), false_names=0.75
    )
    assert Plan.from_json(plan.to_json()) == plan
    assert plan.paid_contributions.most_tests == 30_000  # of all rounds
    assert plan.paid_contributions.shape == 2.75
    assert plan.threshold / plan.paid_contributions.scale == pytest.approx(3.282908, rel=1e-3), "by another program"
    days = Plan.for_contributions(
        epsilon=2, delta=1e-9, schedule=WindowSchedule.fixed("2026-01-01", "2026-01-31", 86_400)
    )
    assert days.paid_rounds.block_seconds == 30 * 86_400
    assert Plan.for_contributions(epsilon=2, delta=1e-9, schedule=SCHEDULE, use="parts") == plan


@pytest.mark.parametrize(
    ("usual", "shapes"),
    [((1, 30), (3.0, 3.0, 2.5, 2.0)), ((1, 1000), (3.5, 3.5, 3.5, 3.0, 2.5)), ((100, 1000), (4.0,) * 4)],
)
def test_a_replay_has_rounds_with_shapes_of_their_own_by_the_declared_activity(usual, shapes):
    """Early rounds have many small contributions, the last one few large ones."""
    plan = Plan.for_contributions(epsilon=2, delta=1e-9, schedule=SCHEDULE, usual_contributions=usual)
    assert tuple(prices.noise.shape for prices in plan.prices_of_rounds)[: len(shapes)] == shapes
    assert plan.paid_rounds.later[0] == later_tests_of(plan.prices_of_rounds[1])
    paid = zip(plan.prices_of_rounds, plan.paid_rounds.units, strict=True)
    assert 25_000 < sum(units // prices.units[0] for prices, units in paid) <= 30_000
    assert Plan.from_json(plan.to_json()) == plan
    assert plan.threshold == smallest_open_threshold(
        plan.prices_of_rounds[0], plan.delta_open, open_units=plan.paid_rounds.units[0]
    )


@pytest.mark.parametrize("number", range(4))
def test_a_later_round_that_charges_too_little_is_refused(number):
    """Its own noise and prices are checked, not those of the first round."""
    plan = Plan.for_contributions(epsilon=2, delta=1e-9, schedule=SCHEDULE)
    rounds, tests = plan.paid_rounds, plan.paid_rounds.later[number]
    for wrong in (
        {"units": (*tests.units[:-1], math.floor(tests.units[-1] * 0.99))},
        {"shape": tests.shape + 0.1},
        {"weights": (*tests.weights[:-1], tests.weights[-1] + 99)},
    ):
        later = (*rounds.later[:number], dataclasses.replace(tests, **wrong), *rounds.later[number + 1 :])
        with pytest.raises(ValueError, match="costs more than its"):
            dataclasses.replace(plan, rounds=dataclasses.replace(rounds, later=later))
    with pytest.raises(ValueError, match="later must be the tests of 4 rounds, got 3"):
        dataclasses.replace(rounds, later=rounds.later[1:])


def test_the_share_of_sampling_pays_for_the_draws_of_each_round_by_its_own_noise():
    """Tails of a smaller shape are longer, and the last round has most tests: the noise of the first would ask less."""
    plan = Plan.for_contributions(epsilon=2, delta=1e-9, schedule=SCHEDULE)
    paid = [
        units // prices.units[0] * prices.noise.sampling_total_variation
        for prices, units in zip(plan.prices_of_rounds, plan.paid_rounds.units, strict=True)
    ]
    needed = sampling_delta(2, sum(paid), SCHEDULE.horizon, 0)
    for share in (needed, needed * 0.999):
        shares = dataclasses.replace(plan.shares, sampling=share)
        with contextlib.nullcontext() if share == needed else pytest.raises(ValueError, match="share sampling must be"):
            dataclasses.replace(plan, shares=shares)


def test_the_threshold_of_the_first_round_is_the_least_that_is_safe():
    """Tests of open items cost a tenth of a user budget: with the whole, the threshold would be higher."""
    plan = calibrated()
    prices, units = plan.paid_contributions.prices, plan.paid_rounds.units[0]
    delta_open = plan.delta_open / units
    for weight, paid in zip(prices.weights, prices.units, strict=True):
        if paid <= units:
            assert plan.paid_contributions.noise.upper_tail(plan.threshold - weight) <= delta_open * paid
    assert plan.threshold < smallest_open_threshold(prices, plan.delta_open)
    with pytest.raises(ValueError, match=f"threshold must be >= {plan.threshold}"):
        dataclasses.replace(plan, threshold=plan.threshold - 1)


def test_a_purse_that_is_spent_twice_is_refused():
    plan = calibrated()
    units = list(plan.paid_rounds.units)
    units[1] += 1
    with pytest.raises(ValueError, match="the rounds must cost at most a user budget together"):
        dataclasses.replace(plan.paid_rounds, units=tuple(units))
    small = (plan.paid_contributions.units[0] - 1, *units[2:])
    with pytest.raises(ValueError, match="round 0 must pay for a test"):
        dataclasses.replace(plan, rounds=dataclasses.replace(plan.paid_rounds, units=small))
    with pytest.raises(ValueError, match="block_seconds must be at least 3600"):
        dataclasses.replace(plan, rounds=dataclasses.replace(plan.paid_rounds, block_seconds=3599))


IN_PARTS = "parts of a run are shorter than its blocks where windows are a day or longer"


@pytest.mark.parametrize(
    ("schedule", "given", "reason"),
    [
        (SCHEDULE, {"use": "parts"}, ""),
        (SCHEDULE, {"use": "stream"}, "a stream cannot go over its windows again"),
        (SCHEDULE, {"usual_contributions": (1, 3)}, ""),
        (SCHEDULE, {"most_contributions": 2}, "users have at most 2 contributions"),
        (SCHEDULE, {"most_contributions": 10_001}, "users may have too many contributions for rounds"),
        (SCHEDULE, {"public_items": 1}, "rounds do not go with public items alone"),
        (SCHEDULE, {"public_items": 10**7 // 16, "also_open": True}, ""),
        (SCHEDULE, {"public_items": 10**7 // 16 + 1, "also_open": True}, "there are too many public items for rounds"),
        (SCHEDULE, {"declares_followed": True}, "rounds do not follow named items as declared"),
        (WindowSchedule.fixed("2026-01-01", "2026-01-31", 4 * 3600), {}, ""),
        (WindowSchedule.fixed("2026-01-01", "2026-01-31", 6 * 3600), {}, "a block of windows has only 4 of them"),
        (WindowSchedule.sliding("2026-01-01", "2026-01-31", 86_400, 3600), {}, ""),
        (WindowSchedule.fixed("2026-01-01", "2026-01-06", 86_400), {}, "a block of windows has only 5 of them"),
        (WindowSchedule.fixed("2026-01-01", "2026-01-07", 86_400), {}, ""),
        (WindowSchedule.fixed("2026-01-01", "2026-01-07", 86_400), {"use": "parts"}, IN_PARTS),
    ],
)
def test_declared_numbers_choose_between_rounds_and_one(schedule, given, reason):
    usual, most = checked_contributions(given.pop("usual_contributions", None), given.pop("most_contributions", None))
    assert why_one_round(schedule, usual, most, **{"use": "replay", **given}) == reason


def test_a_plan_that_is_for_one_round_has_none():
    for choices in ({"use": "stream"}, {"forget_after": 0}, {"false_name_error": 1e-5}, {"public_items": PUBLIC}):
        plan = short_contributions_plan(**{"use": "replay", **choices})
        assert plan.rounds is None
    with pytest.raises(ValueError, match="the plan has no rounds"):
        _ = plan.paid_rounds
    with pytest.raises(ValueError, match="use must be one of replay, parts, stream, got 'night'"):
        Plan.for_contributions(epsilon=2, delta=1e-9, schedule=SCHEDULE, use="night")


@pytest.mark.parametrize("windows", [SCHEDULE.horizon, 24])
def test_the_noise_that_a_stated_size_allows_is_the_least_that_is_safe(windows):
    """The bound of docs/guarantee.md, "Rounds": of all that is drawn for, and as if all parts drew as much. A fifth of
    the error: four rounds, and sizing rounds."""
    plan, drawn, units = calibrated(), 50_000, calibrated().paid_rounds.units
    tests, most = plan.paid_contributions, plan.paid_contributions.size_error / 5
    second = terms_of_sizing(plan, drawn, windows)
    assert stated_users(np.array([second.threshold - 1, second.threshold]), *second[1:3]).tolist() == [0, 5]
    for terms, paid in ((terms_of_round(plan, 2, drawn, windows), units[2]), (second, units[3] // 64)):
        listed = zip(tests.weights, tests.units, strict=True)
        assert terms.largest_weight == max(weight for weight, price in listed if price <= paid)
        errors = [drawn * SCHEDULE.horizon / windows * tests.noise.upper_tail(terms.likely_noise + n) for n in (1, 0)]
        assert errors[0] <= most < errors[1]


def test_what_is_left_out_is_a_level_below_the_threshold_of_the_round_before_the_last():
    """The price of a look covers boundaries that lie whole levels apart. Two rounds leave nothing out, nor does a round
    with less than a fifth of what the last one has."""
    choices = {(10, 5, 20, 100): {2}, (10, 100): set(), (10, 20, 100): {1}, (10, 15, 100): set()}
    for shares, leaves_out in choices.items():
        plan = calibrated(units=units_of_shares(*shares))
        for number in range(len(plan.paid_rounds.units)):
            terms = terms_of_round(plan, number, 1000, 24)
            below = terms.threshold - plan.paid_contributions.spacing
            assert terms.least == (below if number in leaves_out else None)


def test_the_noise_that_a_size_of_a_block_allows_is_the_least_that_is_safe():
    """It is not known how many items are held, so the tests of users pay for wrong sizes."""
    plan = calibrated()
    tests, paid, terms = plan.paid_contributions, plan.paid_rounds.units[0], terms_of_round(plan, 0, 0, 24)
    payable = [(weight, units) for weight, units in zip(tests.weights, tests.units, strict=True) if units <= paid]
    assert payable[-1][0] == terms.largest_weight

    def error(likely):
        beyond = (likely + 1 + 4 * (terms.largest_weight - weight) for weight, _ in payable)
        tails = map(tests.noise.upper_tail, beyond)
        return plan.max_users * max(tail * paid / units for tail, (_, units) in zip(tails, payable, strict=True))

    assert error(terms.likely_noise) <= tests.size_error / 5 < error(terms.likely_noise - 2)


@pytest.mark.parametrize(
    ("shares", "tests"), [((10, 5, 20, 100), 10), ((10, 5, 1, 100), 100), ((10, 17, 100), 100), ((10, 100), 10)]
)
def test_so_many_users_of_a_named_item_are_named_in_a_window_unless_it_is_left_out(shares, tests):
    plan = calibrated(units=units_of_shares(*shares))
    assert 0.95 <= _found(plan, plan.found_from(tests, followed=True), tests) < 0.985


def _found(plan, users, tests):
    """With which probability an item that is named in its block is named in a window, by the law of each round."""
    is_left, found = 1.0, 0.0
    for number, units in enumerate(plan.paid_rounds.units[1:], start=1):
        terms, prices = terms_of_round(plan, number, 10**6, SCHEDULE.horizon), plan.prices_of_rounds[number]
        weight, tail = int(prices.listed.largest(np.array([units // tests]))[0][0]), prices.noise.upper_tail
        named = tail(terms.threshold - users * weight)
        found += is_left * named
        is_left *= (1 if terms.least is None else tail(terms.least - users * weight)) - named
    return found


def test_each_later_round_names_what_states_least_users():
    """Levels are counted as without them, and what is left out stays a level below the threshold."""
    usual, plan = (
        Plan.for_contributions(epsilon=2, delta=1e-9, schedule=SCHEDULE, least_users=least) for least in (None, 40)
    )
    assert plan.threshold == usual.threshold, "blocks are not published"
    for number in range(1, len(plan.paid_rounds.units)):
        terms, before = (terms_of_round(each, number, 1000, 24) for each in (plan, usual))
        around = stated_users(np.array([terms.threshold, terms.threshold - 1]), *terms[1:3])
        assert around.tolist() == [40, 39]
        assert (terms.raised, before.raised) == (terms.threshold - before.threshold, 0)
        assert terms.least == (None if before.least is None else terms.threshold - terms.spacing)
    for tests in (1, 10, 100):  # of many contributions an earlier round names some, so that fewer users do
        assert _found(plan, plan.found_from(tests, followed=True), tests) >= 0.95
    assert _found(plan, math.floor(plan.found_from(1, followed=True) * 0.9), 1) < 0.95
    assert Plan.from_json(plan.to_json()) == plan


def test_all_parts_together_have_the_false_names_of_one_run():
    plan = calibrated()
    horizon, noise = plan.schedule.horizon, plan.paid_contributions.noise
    for drawn in (1000, 10**6):
        whole, night = terms_of_round(plan, 1, drawn, horizon), terms_of_round(plan, 1, drawn, 24)
        assert night.threshold == terms_of_round(plan, 1, 16 * drawn, horizon).threshold > whole.threshold
        assert night.likely_noise > whole.likely_noise
        assert 16 * drawn * noise.upper_tail(night.threshold) <= plan.paid_rounds.false_names
        sizing = terms_of_sizing(plan, drawn, 24)
        assert sizing == terms_of_sizing(plan, 16 * drawn, horizon) != terms_of_sizing(plan, drawn, horizon)


def test_public_items_in_blocks_have_few_false_names_of_all_that_are_drawn_for_in_a_run():
    items = PublicItems.of_ids([f"item-{number}" for number in range(1000)])
    plan = Plan.for_contributions(epsilon=2, delta=1e-9, schedule=SCHEDULE, public_items=items, also_open=True)
    noise, horizon = plan.prices_of_rounds[0].noise, plan.schedule.horizon
    whole = public_threshold(plan, 16, horizon)
    assert public_threshold(plan, 1, horizon // 16) == whole, "a part has its share"
    assert 16_000 * noise.upper_tail(whole) <= plan.paid_rounds.false_names < 16_000 * noise.upper_tail(whole - 1)
