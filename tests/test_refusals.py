"""What laws of noise, plans, accountants and mechanisms refuse: each argument by its kind, one at a time."""

import functools
import math
import re
from decimal import Decimal

import numpy as np
import pytest

from dp_transforms.accounting.charging_game import GameAccountant
from dp_transforms.accounting.exponential_power import ExponentialPower
from dp_transforms.accounting.kms21_accountant import ThresholdMonitorAccountant, calibrate_threshold_monitor
from dp_transforms.accounting.price_bounds import Published
from dp_transforms.accounting.price_list import PriceList, check_prices, make_price_list, price_list_of_amounts
from dp_transforms.accounting.priced_weights import BUDGET_UNITS
from dp_transforms.papers.exponential_mechanism import ExponentialMechanism
from dp_transforms.papers.individual_charging import IndividualCharging
from dp_transforms.papers.mixed_charging import (
    CallKind,
    MixedChargingAccountant,
    MixedChargingFilter,
    largest_support,
    target_charge,
)
from dp_transforms.papers.multiplicative_weights import (
    OfflineMultiplicativeWeights,
    OnlineMultiplicativeWeights,
)
from dp_transforms.papers.noise_source import SecretNoise
from dp_transforms.papers.private_computation import (
    FiniteMechanism,
    NoisyAnswer,
    NoisyTest,
    NoisyZoneTest,
    exponential_choice,
)
from dp_transforms.papers.query import LinearQuery, Marginals, RealQuery, epsilon_per_unit, units_up
from dp_transforms.papers.sparse_vector import AboveThreshold, NumericSparse, Sparse, epsilon_per_run
from dp_transforms.papers.synthetic_data import SmallDatabase
from dp_transforms.papers.target_charging import HitLimit, OneShotTopK, Price, TargetCharging
from dp_transforms.papers.threshold_monitor import ThresholdMonitor, ThresholdMonitorEvolving, UserCounters
from dp_transforms.plan.plan import Plan
from dp_transforms.runs.lifetime_cost import delta_units, epsilon_units
from tests.helpers.calibrated_plans import HOURLY, PUBLIC, calibrated_plan, contributions_plan

SAID = (
    r"must|cannot be (outcomes|used)|too (wide|small)|Raise epsilon|lower hits|coarser grid|may be at most|at least one"
    r"|(one length|fewer hits|again and again|Use a larger scale|no order pays|the mass of)"
)
NAN, INFINITE = math.nan, math.inf
NO_NUMBER = [NAN, INFINITE, -INFINITE, True, "1"]
POSITIVE = [0.0, -1.0, *NO_NUMBER]
NOT_NEGATIVE = [-1e-9, None, Decimal(1), *NO_NUMBER]
FRACTION = [0.0, 1.0, -0.1, 2.0, *NO_NUMBER]
MAY_BE_ZERO = [-1e-9, 1.0, *NO_NUMBER]
WHOLE = [0, -1, 1.5, 2.0, 2**63, *NO_NUMBER]
COUNT = [-1, *WHOLE[2:]]
HISTOGRAM = [[], [-1, 2], [0.5, 2], [[1, 2]]]

WRONG = {
    **dict.fromkeys(("epsilon", "epsilon_per_query", "wide_epsilon", "narrow_epsilon", "budget", "lam"), POSITIVE),
    **dict.fromkeys(("hits", "records", "size", "users", "zone_width", "most_hits", "k"), WHOLE),
    **dict.fromkeys(("delta", "accuracy"), FRACTION),
    **dict.fromkeys(("cap", "count", "gap"), COUNT),
    "epsilon_per_call": [1e-9, *POSITIVE],
    "target_probability": [1.1, *POSITIVE],
    "sensitivity_units": [0, -1, 1.5, True],
    "cutoff": [2**31 + 1, *WHOLE],
    "updates": [2**31 + 1, *WHOLE],
    "order": [1.0, *POSITIVE],
    "threshold": [2.0**40 + 1, -(2.0**41), np.bool_(True), 1j, *NO_NUMBER],
    "grid": [2**20 + 1, *WHOLE],
    "histogram": HISTOGRAM,
}
"""What an argument of this name may not be, where a case says nothing else."""

FIRST = LinearQuery([1, 0])
QUERIES = [[], [LinearQuery([1, 0, 1])], [FIRST, LinearQuery([1, 2], grid=2)]]
NOISE = {"hits": 1, "threshold": 1, "wide_epsilon": 0.05, "narrow_epsilon": 0.5, "cap": 2, "grid": 1}
LEARNER = {"histogram": [1, 2], "records": 3, "accuracy": 0.5}
PROVED = {"wide_epsilon": 0.0016, "narrow_epsilon": 0.1, "cap": 60, "hits": 1, "grid": 5}
CALL = {"epsilon_per_query": 0.1, "target_probability": 0.4, "hits": 3}
AT_MOST_HALF = {"target_probability": [0.4751, *POSITIVE]}  # of a query with that epsilon
PRICES = {
    "noise": ExponentialPower(2.5, 10_000),
    **{"order": 17.0, "budget": 0.9, "weights": (5, 9), "units": (10**10, BUDGET_UNITS), "spacing": 40_000},
}
BUDGET = {"published": Published(ExponentialPower(2.5, 100), 17.0, 500), "budget": 0.9, "most_tests": 10}
OF_CONTRIBUTIONS = (
    "usual_contributions",
    "most_contributions",
    "forget_after",
    "false_name_error",
    "size_error",
    "least_users",
)
# Arguments of which an error speaks in other words.
CALLED = {"epsilon_per_query": "epsilon", "histogram": "data", "kinds": "hits", "mix": "kind", "queries": "query"}
CALLED |= {"most_tests": "tests", "records": "data|number of elements", "zone_width": "threshold"}
CALLED |= {"value": "max_epsilon|answers|threshold"}
BUDGETS = [0, -0.0, -1.5, 5e-324, 2.2e-308, None, "", "nan", "1e-320", "1e400", [1], *NO_NUMBER[:-1]]

# What is called, with which arguments, and what each of them may not be besides what WRONG says of its name.
CASES = [
    # Noise and prices.
    (ExponentialPower, {"shape": 2.0, "scale": 10}, {"shape": [0.99, 4.01, NAN, True], "scale": [0, 100_001, 1.5]}),
    (ExponentialPower(2.0, 10).smallest_margin, {"probability": 0.5}, {"probability": [1.0]}),
    (
        lambda **changed: check_prices(PriceList(**changed)),
        PRICES,
        {
            **{"spacing": [-1, 9_000, 10**11], "budget": [0.0], "order": [1.0, NAN, 1001.0]},
            **{"noise": [], "weights": [], "units": []},
        },
    ),
    (make_price_list, BUDGET, {"most_tests": [10**6], "published": [], "budget": []}),
    (
        functools.partial(price_list_of_amounts, amounts=[10**6]),
        BUDGET,
        {"most_tests": [10**6], "published": [], "budget": []},
    ),
    (functools.partial(epsilon_units, "max_epsilon"), {"value": 1.0}, {"value": BUDGETS}),
    (functools.partial(delta_units, "max_epsilon"), {"value": 1.0}, {"value": BUDGETS}),
    # Plans.
    (
        calibrated_plan,
        {},
        {
            **{"epsilon": [0.0, -1.0, INFINITE, NAN, 40.1, 1e-4], "delta": [0.0, 1.0, NAN, 1e-12]},
            **{"hits_per_user": [0, 20_000], "max_items_per_user": [0], "threshold": [0], "max_users": [0]},
            **{"max_items": [-1], "noise": ["histogram"], "public_items": ["items.txt"], "schedule": [384]},
            **{name: [1] for name in OF_CONTRIBUTIONS},
        },
    ),
    (
        functools.partial(Plan.for_hits, noise="printed", epsilon=2.0, delta=1e-9, schedule=HOURLY),
        {"counts": False},
        {"counts": [True]},
    ),
    (functools.partial(calibrated_plan, public_items=PUBLIC), {}, {"max_items": [999], "threshold": [0]}),
    (functools.partial(calibrated_plan, hits_per_user=100), {}, {"epsilon": [1e-4]}),
    *(
        (functools.partial(calibrated_plan, mode=mode), {}, {"epsilon": [1e-4]})
        for mode in ("hits-with-counts", "kms21")
    ),
    (
        contributions_plan.__wrapped__,
        {},
        {
            **{"hits_per_user": [3], "max_items_per_user": [3], "threshold": [500], "most_contributions": [0]},
            **{"usual_contributions": [100, (0, 10), ("a", "b")], "forget_after": [-1, 385]},
            **{
                "false_name_error": [0.0, 0.01],
                "size_error": [1.0],
                "least_users": [4, 10**9 + 1, 5.5],
                "epsilon": [41.0, 1e-9],
                "delta": [1e-12],
            },
        },
    ),
    (functools.partial(contributions_plan.__wrapped__, most_contributions=5), {}, {"usual_contributions": [(1, 9)]}),
    (functools.partial(contributions_plan.__wrapped__, forget_after=0), {}, {"false_name_error": [1e-5]}),
    (
        functools.partial(contributions_plan.__wrapped__, public_items=PUBLIC),
        {},
        {"forget_after": [5], "max_items": [999]},
    ),
    (functools.partial(contributions_plan.__wrapped__, public_items=PUBLIC, also_open=True), {}, {"forget_after": [0]}),
    # Accountants.
    (GameAccountant, CALL, AT_MOST_HALF),
    (GameAccountant(**CALL).delta, {"epsilon": 1.0}, {"epsilon": NOT_NEGATIVE}),
    (ThresholdMonitorAccountant(**PROVED).delta, {"epsilon": 1.0}, {"epsilon": NOT_NEGATIVE}),
    (GameAccountant(**CALL).epsilon, {"delta": 0.1}, {"delta": [None, Decimal("0.1"), *FRACTION]}),
    (ThresholdMonitorAccountant(**PROVED).epsilon, {"delta": 0.1}, {"delta": [None, Decimal("0.1"), *FRACTION]}),
    (
        ThresholdMonitorAccountant,
        PROVED,
        {"wide_epsilon": [0.02, *POSITIVE], "narrow_epsilon": [0.11, *POSITIVE], "cap": [5, *WHOLE], "grid": WHOLE},
    ),
    (
        calibrate_threshold_monitor,
        {"epsilon": 1.0, "delta": 1e-6, "hits": 1, "grid": 1},
        {"epsilon": [1e-6, *POSITIVE], "hits": [10**9, *WHOLE], "grid": [2**27, *WHOLE]},
    ),
    (MixedChargingAccountant, {"order": 2.0, "budget": 1.0}, {}),
    (
        MixedChargingAccountant.calibrate,
        {"epsilon": 1.0, "delta": 1e-6, "order": 40.0},
        {"epsilon": NOT_NEGATIVE, "order": [1.5, *POSITIVE]},
    ),
    (MixedChargingFilter(MixedChargingAccountant(2.0, 1.0)).admits, CALL | {"hits": 1}, {}),
    (
        MixedChargingAccountant.for_mix,
        {"epsilon": 9.0, "delta": 1e-6, "mix": [CallKind(0.1, 0.4, 1)]},
        {"mix": [[]], "epsilon": [0.01], "delta": []},
    ),
    (largest_support, {"kinds": [CallKind(0.1, 0.4, 1)]}, {"kinds": [[CallKind(0.1, 0.4, 0)]]}),
    (
        target_charge,
        {"epsilon_per_query": 0.1, "target_probability": 0.4, "lam": 1.0},
        {"target_probability": POSITIVE},
    ),
    # The papers' toolkit.
    (
        ExponentialMechanism,
        {"scores": [1, 2], "epsilon": 1.0, "sensitivity_units": 1},
        {"scores": [[], [1.5], [True, 2]]},
    ),
    (OnlineMultiplicativeWeights, LEARNER | {"epsilon": 1.0}, {}),
    (OfflineMultiplicativeWeights, LEARNER | {"queries": [FIRST], "epsilon_per_call": 1.0}, {"queries": QUERIES}),
    (
        SmallDatabase,
        {"histogram": [1, 2], "queries": [FIRST], "records": 3, "size": 2, "epsilon": 1.0},
        {"queries": QUERIES},
    ),
    (
        AboveThreshold,
        {"data": None, "epsilon": 1.0, "threshold": 0, "grid": 1, "sensitivity_units": 1},
        {"data": [], "sensitivity_units": WHOLE},
    ),
    *(
        (
            kind,
            {"data": None, "epsilon": 1.0, "threshold": 0, "cutoff": 1, "delta": 0.0},
            {"data": [], "delta": MAY_BE_ZERO},
        )
        for kind in (Sparse, NumericSparse)
    ),
    (lambda **given: ThresholdMonitor([1], **given), NOISE, {}),
    (lambda **given: ThresholdMonitorEvolving(1, **given), NOISE, {}),
    (lambda records: ThresholdMonitor(records, **NOISE), {"records": [1]}, {"records": [*HISTOGRAM, "ab", [2**62]]}),
    (lambda users: ThresholdMonitorEvolving(users, **NOISE), {"users": 1}, {}),
    (
        IndividualCharging,
        {"users": 1, "hits": 1, "epsilon_per_query": 1.0, "zone_width": 1, "grid": 1},
        {"epsilon_per_query": [1e-9, *POSITIVE]},
    ),
    (UserCounters, {"users": 1, "limit": 1}, {"users": [2**41, *WHOLE], "limit": [2**61, *WHOLE]}),
    (
        UserCounters(2, 1).charge,
        {"amounts": np.array([1, 1])},
        {"amounts": [np.array([1]), np.array([1, -1]), np.array([[1, 1]])]},
    ),
    (HitLimit, {"hits": 1, "epsilon": 0.5, "target_probability": 0.3}, {}),
    (
        HitLimit(3, epsilon=0.5).charge,
        {"epsilon": 0.5, "target_probability": 0.4, "hits": 0},
        {"epsilon": [], "target_probability": [], "hits": COUNT},
    ),
    (epsilon_per_run, {"epsilon": 1.0, "delta": 0.0, "cutoff": 2}, {"epsilon": [], "delta": MAY_BE_ZERO}),
    (
        Price,
        {"epsilon": 0.5, "target_probability": 0.1, "delta": 0.0, "most_hits": 1},
        {"target_probability": POSITIVE, "delta": MAY_BE_ZERO},
    ),
    (
        lambda delta_limit: TargetCharging(None, HitLimit(1, epsilon=0.5), delta_limit=delta_limit),
        {"delta_limit": 0.0},
        {"delta_limit": MAY_BE_ZERO},
    ),
    (lambda k, gap: OneShotTopK(TargetCharging(None, HitLimit(1, epsilon=0.5)), k, gap), {"k": 1, "gap": 0}, {}),
    (NoisyAnswer, {"query": FIRST, "epsilon": 0.5}, {"query": [], "epsilon": [1e-9, *POSITIVE]}),
    (NoisyTest, {"query": FIRST, "threshold": 1, "epsilon": 0.5}, {"query": []}),
    (
        NoisyZoneTest,
        {"query": FIRST, "threshold": 1, "zone_width": 1, "epsilon": 0.5},
        {"query": [], "zone_width": [0, -1, *WRONG["threshold"]]},
    ),
    (
        FiniteMechanism,
        {"outcomes": ("a",), "weights": lambda data: [1], "epsilon": 0.5},
        {"outcomes": [(), ("a", "a"), ("a", "boundary"), (None,), ["a"]], "weights": []},
    ),
    (
        exponential_choice,
        {"outcomes": ("a",), "scores": lambda data: [1], "epsilon": 0.5, "sensitivity_units": 1},
        {"outcomes": [], "scores": []},
    ),
    (SecretNoise, {"key": bytes(32)}, {"key": [b"", bytes(31), "x" * 32, 32, [0] * 32]}),
    (
        SecretNoise().discrete_laplace_array,
        {"epsilon": 1.0, "count": 2},
        {"epsilon": [33, 1e-9, None, 1j, *POSITIVE]},
    ),
    (SecretNoise().uniforms, {"count": 3}, {}),
    (SecretNoise().bernoulli, {"probability": 0.5}, {"probability": [-1e-300, 1 + 1e-15, None, *NO_NUMBER]}),
    (
        SecretNoise().choose,
        {"weights": [1, 0]},
        {"weights": [[], [0], [0, 0], [1, -1], [0.5, 0.5], [NAN], ["a"], [None], np.array([1.0])]},
    ),
    (
        LinearQuery,
        {"weights": [1], "grid": 1},
        {"weights": [[], [[1]], [0.5], ["a"], [None], [-1], [2], [NAN], [10**30], 1, None]},
    ),
    (
        LinearQuery.of,
        {"values": [0.5], "grid": 2},
        {"values": [[], [[0.5]], [1.0001], [-1e-9], [NAN], [INFINITE], 0.5]},
    ),
    (
        FIRST.answer,
        {"data": [1, 2]},
        {"data": [[1], [1, 2, 3], [[1, 2]], [0.5, 1], [-1, 0], [None, 1], [10**30, 1], [2**62, 2**62], None, 3]},
    ),
    (RealQuery, {"function": float, "grid": 1}, {"function": []}),
    (
        lambda value: RealQuery(lambda data: data).answer(value),
        {"value": 3},
        {"value": [0.5, 1e-300, NAN, INFINITE, 2.0**62, -(2**62), None, "3", 1j, [3]]},
    ),
    (units_up, {"value": 1, "grid": 1}, {"value": [None, *WRONG["threshold"]], "grid": []}),
    (epsilon_per_unit, {"epsilon": 1.0, "units": 1}, {"epsilon": [1e-9, None, *POSITIVE], "units": []}),
    (
        Marginals,
        {"attributes": ("a", "b"), "order": 1},
        {"attributes": [(), ("a", "a"), tuple(map(str, range(21)))], "order": [3, *COUNT]},
    ),
    (Marginals(("a", "b"), 1).histogram, {"records": [[1, 0]]}, {"records": [[[1, 2]], [[1, 0, 1]], [1, 0]]}),
]


def name_of(case):
    call = getattr(case[0], "func", case[0])
    return getattr(call, "__qualname__", type(call).__name__)


@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_an_argument_out_of_its_range_is_refused(case):
    call, good, wrong = case
    call(**good)
    for name, values in {**{name: WRONG.get(name) for name in good}, **wrong}.items():
        for value in values:
            with pytest.raises(ValueError, match=SAID) as refusal:
                call(**{**good, name: value})
            assert re.search(rf"\b({name}|{CALLED.get(name, name)})\b", str(refusal.value))
            assert not re.search(r"\w\. [a-z]", str(refusal.value)), "a sentence begins with a capital letter"
