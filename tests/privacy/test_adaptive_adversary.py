"""The best adaptive adversary against the real monitor stays below the claim of the game accountant, and every planted
fault is found. Nothing here is random."""

from __future__ import annotations

import functools
import math

import numpy as np
import pytest

from tests.helpers.trial_plan import TrialPlan
from tests.helpers.trials import changed
from tests.privacy.adversary import Action, Kernel, best_adversary, extract_kernel
from tests.privacy.exact_hits import claim_of, settings_for

ROUNDS = 80
STEPS_PER_EPSILON = 20
CASES = [("hits", 0.25, 2), ("hits-with-counts", 0.25, 1)]
# Both tests of a case run in one process, and extract its kernel once.
each_case = pytest.mark.parametrize(
    ("mode", "epsilon", "hits"),
    [pytest.param(*case, marks=pytest.mark.xdist_group(f"kernel of {case}")) for case in CASES],
)


def _settings(mode: str, epsilon: float, hits: int) -> TrialPlan:
    # A threshold so high that one holder alone is out of the question: an open item is paid by delta_open.
    return settings_for(mode, epsilon, hits, math.ceil(12 / epsilon), math.ceil(2 / epsilon))


def _actions(settings: TrialPlan) -> list[Action]:
    """Distances of the others' count from the threshold, far below to far above, dense around the zone's edges."""
    epsilon, threshold, zone = settings.hits.epsilon_per_query, settings.threshold, settings.hits.zone_width
    far = math.ceil(8 / epsilon)
    distances = {*range(-far, far + 1, max(1, far // 4)), *range(-3, 3), *range(zone - 3, zone + 3), zone // 2}
    actions = [Action(threshold + distance) for distance in sorted(distances)]
    # Raw counts above the number of the active: the bit is drawn for all holders, the noise then for those that count.
    return [*actions, Action(threshold - 1, 3), Action(threshold + zone - 1, 2), Action(threshold + far // 4, 5)]


@functools.cache
def _kernel_of(mode: str, epsilon: float, hits: int) -> tuple[TrialPlan, Kernel]:
    settings = _settings(mode, epsilon, hits)
    return settings, extract_kernel(settings, _actions(settings))


def _ratios(claimed: TrialPlan, kernel: Kernel) -> list[float]:
    """Attained delta over claimed delta, at the worst epsilon: of the run with the user against that without, and
    reversed."""
    each = claimed.hits.epsilon_per_query
    epsilons = [each / 2 * index for index in range(49)]  # claims from 0.2 down to 1e-7
    claims = np.array([claim_of(claimed, epsilon) for epsilon in epsilons])
    curves = [
        best_adversary(kernel, step=each / STEPS_PER_EPSILON, rounds=ROUNDS, epsilons=epsilons, adds_target=adds_target)
        for adds_target in (True, False)
    ]
    return [float((curve.deltas / claims).max()) for curve in curves]


@each_case
def test_no_adaptive_adversary_exceeds_the_claim(mode: str, epsilon: float, hits: int) -> None:
    """It attains a good part of the claim, in both directions."""
    settings, kernel = _kernel_of(mode, epsilon, hits)
    ratios = _ratios(settings, kernel)
    assert max(ratios) <= 1 + 1e-12
    assert min(ratios) >= (0.9 if mode == "hits" else 0.7)


@each_case
def test_kernel_is_one_query_of_a_charged_mechanism(mode: str, epsilon: float, hits: int) -> None:
    """Every window alone is epsilon-DP, costs at most one hit, and does not depend on a user that has paid all."""
    kernel = _kernel_of(mode, epsilon, hits)[-1]
    assert sorted(kernel) == list(range(hits + 1))
    for paid, by_action in kernel.items():
        for results in by_action:
            for with_target in (True, False):
                total = math.fsum(entry.with_user if with_target else entry.without_user for entry in results)
                assert total == pytest.approx(1.0, abs=1e-12)
            largest = max(abs(entry.log_ratio) for entry in results)
            if paid == hits:
                assert largest == 0
                continue
            assert largest <= epsilon * (1 + 1e-12)
            assert {entry.charged for entry in results} == {0, 1}


@pytest.mark.xdist_group(f"kernel of {CASES[0]}")
def test_a_hit_more_is_found() -> None:
    assert max(_ratios(_settings("hits", 0.25, 1), _kernel_of("hits", 0.25, 2)[-1])) > 1.1


def test_half_the_noise_is_found() -> None:
    claimed = _settings("hits-with-counts", 0.25, 1)
    actions = [action for action in _actions(claimed) if not action.excluded_others]
    assert max(_ratios(claimed, extract_kernel(changed(claimed, epsilon_per_query=0.5), actions))) > 1.1
