"""What laws of noise, purses, plans and accountants refuse, as a table: each argument by its kind, one at a time."""

import functools
from decimal import Decimal

import pytest

from dp_transforms.accounting.charging_game import GameAccountant, capped_game_delta, charging_game_delta
from dp_transforms.accounting.composition import MOST_CALLS, OptimalComposition
from dp_transforms.accounting.kms21_accountant import ThresholdMonitorAccountant, calibrate_threshold_monitor
from dp_transforms.accounting.mixed_charging import (
    CallKind,
    MixedChargingAccountant,
    MixedChargingFilter,
    largest_support,
    target_charge,
)
from dp_transforms.accounting.purse.look_prices import level_price, look_price
from dp_transforms.accounting.purse.open_threshold import smallest_open_threshold
from dp_transforms.accounting.purse.price_list import PriceList, make_price_list, order_budget
from dp_transforms.accounting.purse.purse_choice import choose_purse
from dp_transforms.mechanisms.exponential_power import ExponentialPower
from dp_transforms.mechanisms.noise_table import NoiseTable
from dp_transforms.mechanisms.priced_weights import PURSE_UNITS
from dp_transforms.plan.lifetime_cost import delta_units, epsilon_units
from tests.helpers.calibrated_plans import DOMAIN, calibrated_plan, looks_plan
from tests.helpers.refusals import (
    FRACTION,
    INFINITE,
    NAN,
    NO_NUMBER,
    NOT_NEGATIVE,
    POSITIVE,
    WHOLE,
    assert_refused,
    name_of,
)

ONE = 1 << 128
NOISE_1000 = ExponentialPower(2.0, 1000)  # standard deviation 707
LAST = PURSE_UNITS
PRICES = {
    "noise": ExponentialPower(2.5, 10_000),
    **{"order": 17.0, "budget": 0.9, "weights": (5, 9), "units": (10**10, LAST), "spacing": 40_000},
}
PURSE = {"noise": ExponentialPower(2.5, 100), "order": 17.0, "budget": 0.9, "most_looks": 10}
LOOK = {"order": 17.0, "weight": 10}
LOOKS = {"order": [1.0, NAN, 1001.0], "weight": [0]}
OF_OTHERS = {"usual_looks": 1, "most_looks": 1, "forget_after": 1, "known_error": 1, "size_error": 1}
PROVED = {"wide_epsilon": 0.0016, "narrow_epsilon": 0.1, "cap": 60, "hits": 1, "grid": 5}
CALL = {"epsilon_per_query": 0.1, "target_probability": 0.4, "hits": 3}
CALLS = {"epsilon_per_query": POSITIVE, "target_probability": [0.4751, *POSITIVE], "hits": WHOLE}

CASES = [
    # Noise and purses.
    (ExponentialPower, {"shape": 2.0, "scale": 10}, {"shape": [0.99, 4.01, NAN, True], "scale": [0, 100_001, 1.5]}),
    (ExponentialPower(2.0, 10).hazard_bounds, {"margin": 1}, {"margin": [0]}),
    (ExponentialPower(2.0, 10).smallest_margin, {"probability": 0.5}, {"probability": [1.0]}),
    (
        NoiseTable,
        {"upper_tails": [ONE // 3, ONE // 9]},
        {
            "upper_tails": [
                *([], [ONE // 2 + 1], [100, 200], [ONE // 2, ONE // 4, ONE // 4, ONE // 8]),  # the last one has a gap
                [ONE // 4, ONE // 8, ONE // 9],  # and this one a lump at its end
            ]
        },
    ),
    (functools.partial(look_price, ExponentialPower(2.0, 10)), LOOK, LOOKS),
    (
        functools.partial(level_price, NOISE_1000, 17.0),
        {"weight": 10, "spacing": 4000},
        {"spacing": [1414, 10**11], "weight": [4001]},
    ),
    (
        PriceList,
        PRICES,
        {
            "weights": [(), (5,), (9, 5)],
            "units": [(7, 7), (7, LAST + 1)],
            **{"spacing": [-1], "budget": [0.0], "order": [1.0]},
        },
    ),
    (make_price_list, PURSE, {"most_looks": [10**6]}),
    (
        choose_purse,
        {"epsilon": 2.0, "delta": 1e-9},
        {
            **{"usual_looks": [(0, 5), (1, 3001), 5], "most_looks": [0]},
            **{"epsilon": [-1.0, 0.0], "delta": [1.0]},
        },
    ),
    (smallest_open_threshold, {"prices": make_price_list(**PURSE), "delta_open": 1e-9}, {"delta_open": [0.0]}),
    (
        order_budget,
        {"order": 2, "epsilon": 1.0, "delta": 0.5},
        {"order": [1], "epsilon": [INFINITE], "delta": [0.0]},
    ),
    *(
        (
            functools.partial(units, "max_epsilon"),
            {"value": 1.0},
            {"value": [0, -0.0, -1.5, 5e-324, 2.2e-308, None, "", "nan", "1e-320", "1e400", [1], *NO_NUMBER[:-1]]},
        )
        for units in (epsilon_units, delta_units)
    ),
    # Plans.
    (
        calibrated_plan,
        {},
        {
            **{"epsilon": [0.0, -1.0, INFINITE, NAN, 40.1], "delta": [0.0, 1.0, NAN, 1e-12]},
            **{"hits_per_user": [0, 20_000], "max_items_per_user": [0], "threshold": [0], "max_users": [0]},
            **{"max_items": [-1], "mode": ["histogram"], "domain": ["items.txt"], "schedule": [384]},
        },
    ),
    (functools.partial(calibrated_plan, domain=DOMAIN), {}, {"max_items": [999], "threshold": [0]}),
    (functools.partial(calibrated_plan, hits_per_user=100), {}, {"epsilon": [1e-4]}),
    *(
        (
            functools.partial(calibrated_plan, mode=mode),
            {},
            {**{name: [value] for name, value in OF_OTHERS.items()}, "epsilon": [1e-4]},
        )
        for mode in ("hits", "hits-with-counts", "kms21")
    ),
    (
        looks_plan.__wrapped__,
        {},
        {
            **{"hits_per_user": [3], "max_items_per_user": [3], "threshold": [500], "most_looks": [0]},
            **{"usual_looks": [100, (0, 10), ("a", "b")], "forget_after": [-1, 385], "known_error": [0.0, 0.01]},
            **{"size_error": [1.0], "epsilon": [41.0, 1e-9], "delta": [1e-12]},
        },
    ),
    (functools.partial(looks_plan.__wrapped__, most_looks=5), {"usual_looks": (1, 5)}, {"usual_looks": [(1, 9)]}),
    (functools.partial(looks_plan.__wrapped__, forget_after=0), {}, {"known_error": [1e-5]}),
    (functools.partial(looks_plan.__wrapped__, domain=DOMAIN), {}, {"forget_after": [5], "max_items": [999]}),
    # Accountants.
    (
        MixedChargingAccountant.for_mix,
        {"epsilon": 9.0, "delta": 1e-6, "mix": [CallKind(0.1, 0.4, 1)]},
        {"mix": [[]], "epsilon": [0.01]},
    ),
    (largest_support, {"kinds": [CallKind(0.1, 0.4, 1)]}, {"kinds": [[CallKind(0.1, 0.4, 0)]]}),
    (GameAccountant, CALL | {"participations": 9}, CALLS | {"participations": WHOLE}),
    (charging_game_delta, CALL | {"epsilon": 1.5}, CALLS | {"epsilon": NOT_NEGATIVE}),
    (
        capped_game_delta,
        CALL | {"participations": 9, "epsilon": 1.5},
        CALLS | {"participations": WHOLE, "epsilon": NOT_NEGATIVE},
    ),
    (
        OptimalComposition,
        {"epsilon_per_query": 0.1, "calls": 3},
        {"epsilon_per_query": POSITIVE, "calls": [MOST_CALLS + 1, *WHOLE]},
    ),
    *(
        (accountant.delta, {"epsilon": 1.0}, {"epsilon": NOT_NEGATIVE})
        for accountant in (GameAccountant(**CALL), OptimalComposition(0.1, 3), ThresholdMonitorAccountant(**PROVED))
    ),
    *(
        (accountant.epsilon, {"delta": 0.1}, {"delta": [None, Decimal("0.1"), *FRACTION]})
        for accountant in (GameAccountant(**CALL), OptimalComposition(0.1, 3), ThresholdMonitorAccountant(**PROVED))
    ),
    (
        ThresholdMonitorAccountant,
        PROVED,
        {
            "wide_epsilon": [0.02, *POSITIVE],
            "narrow_epsilon": [0.11, *POSITIVE],
            "cap": [5, *WHOLE],
            "hits": WHOLE,
            "grid": WHOLE,
        },
    ),
    (
        calibrate_threshold_monitor,
        {"epsilon": 1.0, "delta": 1e-6, "hits": 1, "grid": 1},
        {"epsilon": [1e-6, *POSITIVE], "delta": FRACTION, "hits": [10**9, *WHOLE], "grid": [2**27, *WHOLE]},
    ),
    (MixedChargingAccountant, {"order": 2.0, "budget": 1.0}, {"order": [1.01, *POSITIVE], "budget": POSITIVE}),
    (
        MixedChargingAccountant.calibrate,
        {"epsilon": 1.0, "delta": 1e-6, "order": 40.0},
        {"epsilon": NOT_NEGATIVE, "delta": FRACTION, "order": [1.5, *POSITIVE]},
    ),
    (
        MixedChargingFilter(MixedChargingAccountant(2.0, 1.0)).admits,
        {"epsilon_per_query": 0.1, "target_probability": 0.4, "hits": 1},
        {"epsilon_per_query": POSITIVE, "target_probability": [1.1, 0.0, -0.1, NAN, True], "hits": WHOLE},
    ),
    (
        target_charge,
        {"epsilon_per_query": 0.1, "target_probability": 0.4, "lam": 1.0},
        {"epsilon_per_query": POSITIVE, "target_probability": POSITIVE, "lam": POSITIVE},
    ),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: name_of(case[0]))
def test_an_argument_out_of_its_range_is_refused(case):
    assert_refused(*case)
