"""The best adaptive adversary against the real monitor, in windows as many as the participation cap allows, stays below
the claim of the game with that cap; with more windows it does not. Nothing here is random."""

from __future__ import annotations

import math

import numpy as np
import pytest

from dp_transforms.accounting.charging_game import capped_game_delta
from tests.helpers.adversary import Action, Kernel, best_adversary, extract_kernel
from tests.helpers.exact_monitor import settings_for, target_probability

_EPSILON = 0.25
_EPSILONS = [0.125 * step for step in range(25)]


def _kernel(mode: str, hits: int) -> tuple[float, Kernel]:
    settings = settings_for(mode, _EPSILON, hits, math.ceil(12 / _EPSILON), math.ceil(2 / _EPSILON))
    edges = (0, settings.hits.zone_width)
    distances = {*range(-32, 33, 8), *(edge + near for edge in edges for near in (-2, -1, 0, 1))}
    actions = [Action(settings.threshold + distance) for distance in sorted(distances)]
    return target_probability(settings), extract_kernel(settings, actions)


@pytest.mark.parametrize(("mode", "hits"), [("hits", 2), ("hits-with-counts", 1)])
def test_no_adversary_exceeds_the_claim_of_a_cap(mode: str, hits: int) -> None:
    q, kernel = _kernel(mode, hits)
    for participations in (1, 3, 8, 20):
        claims = np.array([capped_game_delta(_EPSILON, q, hits, participations, at) for at in _EPSILONS])
        ratios = []
        for rounds in (participations, participations + 2):
            attained = [
                best_adversary(
                    kernel,
                    step=_EPSILON / 40,
                    rounds=rounds,
                    epsilons=_EPSILONS,
                    adds_target=adds_target,
                ).deltas
                for adds_target in (True, False)
            ]
            possible = claims > 1e-12
            ratios.append(float((np.maximum(*attained)[possible] / claims[possible]).max()))
        assert 0.7 < ratios[0] <= 1 + 1e-9
        if participations < 20:
            assert ratios[1] > 1.01  # the twin: two windows too many are seen
