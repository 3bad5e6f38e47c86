"""Renyi target charging: the charge against the real sparse vector and all plays; the conversion against integrals."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from dp_transforms.accounting.charging_game import not_prior_probability
from dp_transforms.accounting.mixed_charging import largest_lam, target_charge

EPSILONS = (0.02, 0.3, 1.0, 3.0)


def _sparse_vector_charge(epsilon: float, lam: float) -> float:
    """``sup ln(A / (1 - B))`` over counts near the threshold, from the probabilities of discrete Laplace noise."""
    a = math.exp(-epsilon)
    far = math.ceil(3 / epsilon) + 1
    noise = np.arange(-60 * far, 60 * far + 1)
    charges = []
    for margin in range(-far, far + 1):  # threshold minus the count without the user
        without = (1 - a) / (1 + a) * a ** np.abs(noise)
        with_user = (1 - a) / (1 + a) * a ** np.abs(noise - 1)
        for first, second in ((with_user, without), (without, with_user)):
            top = noise >= margin
            reported = float((first[top] * (first[top] / second[top]) ** lam).sum())
            silent = float(first[~top].sum() * (first[~top].sum() / second[~top].sum()) ** lam)
            charges.append(math.log(reported / (1 - silent)) if silent < 1 else math.inf)
    return max(charges)


@pytest.mark.parametrize("epsilon", EPSILONS)
@pytest.mark.parametrize("share", [0.05, 0.5, 0.95])
def test_charge_is_that_of_the_sparse_vector(epsilon: float, share: float) -> None:
    q = not_prior_probability(epsilon)
    lam = share * largest_lam(epsilon, q)
    assert target_charge(epsilon, q, lam) == pytest.approx(_sparse_vector_charge(epsilon, lam), rel=1e-6)


@pytest.mark.parametrize("epsilon", EPSILONS)
@pytest.mark.parametrize("portion", [1.0, 0.86, 0.2])
def test_charge_is_the_smallest_for_all_plays(epsilon: float, portion: float) -> None:
    """With it every play is a supermartingale, on a grid of the polygon and its corners; with less one is not."""
    p = math.exp(epsilon) / (1 + math.exp(epsilon))
    q = portion * (1 - p)
    edge = q / (1 - p)
    plays = [
        (h0, h1)
        for h0, h1 in itertools.product(np.linspace(0, 1, 41).tolist(), repeat=2)
        if p * h1 + (1 - p) * h0 >= q and (1 - p) * h1 + p * h0 >= q
    ]
    plays += [(edge, 0.0), (0.0, edge), (q, q)]
    for share in (0.02, 0.5, 0.9):
        lam = share * largest_lam(epsilon, q)

        def growth(charge: float, lam: float = lam) -> float:
            rise, fall = p * math.exp(lam * epsilon), (1 - p) * math.exp(-lam * epsilon)
            keeps = math.exp(-charge)
            return max(rise * (1 - h1 + h1 * keeps) + fall * (1 - h0 + h0 * keeps) for h0, h1 in plays)

        charge = target_charge(epsilon, q, lam)
        assert growth(charge) <= 1 + 1e-12
        assert growth(charge * 0.999) > 1


def test_largest_order() -> None:
    for epsilon in EPSILONS:
        q = not_prior_probability(epsilon)
        assert largest_lam(epsilon, q) == pytest.approx(math.log1p(math.exp(-epsilon)) / epsilon, rel=1e-12)
        for portion in (1.0, 0.3):
            limit = largest_lam(epsilon, portion * q)
            assert math.isfinite(target_charge(epsilon, portion * q, limit * (1 - 1e-6)))
            assert target_charge(epsilon, portion * q, limit * (1 + 1e-12)) == math.inf
    # Small lam: e^eps - 1 for each unit of lam eps, twice a noisy release ([CL23]'s 1/q without its slack).
    assert target_charge(1e-4, not_prior_probability(1e-4), 1e-3) == pytest.approx(
        1e-3 * 1e-4 * math.expm1(1e-4), rel=1e-3
    )
