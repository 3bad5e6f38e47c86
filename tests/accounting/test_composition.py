"""Composition and the solver, each against an independent figure."""

import math

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution

from dp_transforms.accounting.composition import (
    optimal_composition_delta,
    smallest_safe_argument,
)
from tests.helpers.charging_bounds import calls_exceed_probability, chernoff_tail


@pytest.mark.parametrize(("epsilon_per_query", "calls"), [(0.5, 1), (0.1, 29), (0.25, 35), (1.0, 7), (0.1, 400)])
def test_optimal_composition_against_dp_accounting(epsilon_per_query, calls):
    # The loss is a multiple of epsilon_per_query, so this discretisation loses nothing.
    single = privacy_loss_distribution.from_privacy_parameters(
        privacy_loss_distribution.common.DifferentialPrivacyParameters(epsilon_per_query),
        value_discretization_interval=epsilon_per_query / 10,
    )
    composed = single.self_compose(calls)
    for fraction in (0.0, 0.1, 0.4, 0.9):
        epsilon = fraction * calls * epsilon_per_query
        oracle = composed.get_delta_for_epsilon(epsilon)
        assert optimal_composition_delta(epsilon_per_query, calls, epsilon) == pytest.approx(
            oracle, rel=1e-6, abs=1e-12
        )


def unsafe_answers():
    """Those of the solver at which delta is larger than it may be, of 80 problems."""
    unsafe = []
    for delta in np.geomspace(0.5, 1e-15, 40).tolist():
        for guess in (1e-3, 100.0):
            found = smallest_safe_argument(lambda x: math.exp(-x), delta, guess=guess, lowest=0.0, highest=1e6)
            assert found == pytest.approx(-math.log(delta), rel=1e-5)
            unsafe += [found] * (math.exp(-found) > delta)
    return unsafe


def test_solver_returns_the_safe_side():
    assert unsafe_answers() == []
    assert smallest_safe_argument(lambda x: 0.0, 0.1, guess=5.0, lowest=2.0, highest=9.0) == 2.0
    with pytest.raises(ValueError, match="no argument up to 9"):
        smallest_safe_argument(lambda x: 0.5, 0.1, guess=5.0, lowest=2.0, highest=9.0)


def test_solver_survives_jumps():
    """The zone of labels has whole numbers, so its delta jumps."""
    found = smallest_safe_argument(lambda x: 0.5 if x < 3.0 else 1e-12, 1e-6, guess=1.0, lowest=0.0, highest=50.0)
    assert 3.0 <= found <= 3.0 * (1 + 1e-5)


def test_a_chernoff_tail_holds_with_the_floor_of_the_calls():
    """``Pr[Binomial(floor(r), q) < hits] <= exp(-alpha^2 hits / (2 (1 + alpha)))`` at ``r = (1 + alpha) hits / q``."""
    for q in (0.499, 0.3, 0.05):
        for hits in (1, 2, 10, 100):
            alpha = np.linspace(0.0, 30.0, 500)
            calls = (1 + alpha) * hits / q
            bound = chernoff_tail(calls, hits, q)
            assert bound == pytest.approx(np.exp(-(alpha**2) * hits / (2 * (1 + alpha))), rel=1e-9)
            whole = calls_exceed_probability(np.floor(calls).astype(np.int64), hits, q)
            assert (whole <= bound * (1 + 1e-9)).all()
            assert (chernoff_tail(np.array([0.0, hits / q / 2]), hits, q) == 1.0).all(), "nothing below the mean"
