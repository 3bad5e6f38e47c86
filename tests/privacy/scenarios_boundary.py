"""Boundary outcomes: the wrapper and two runs on neighbouring inputs, alone and in a stream, and faults."""

from __future__ import annotations

import math
from collections.abc import Hashable
from typing import Any

from dp_transforms.accounting.composition import optimal_composition_delta
from dp_transforms.accounting.discrete_laplace_law import not_prior_probability
from dp_transforms.papers.noise_source import NoiseSource
from dp_transforms.papers.private_computation import (
    BOUNDARY,
    BoundaryWrapper,
    FiniteMechanism,
    OwnTarget,
    TwoRuns,
)
from dp_transforms.papers.target_charging import TargetCharging
from tests.privacy.scenarios import Scenario
from tests.privacy.scenarios_target_charging import _LN3, _RESPONSE, Transcript, _finite, _game, _halts, _hits

_CLASSES = ("cat", "dog", "owl")
_SURE = BoundaryWrapper(_finite(_CLASSES, (80, 10, 10), (40, 30, 30), 3))
_UNSURE = BoundaryWrapper(_finite(_CLASSES, (70, 20, 10), (30, 60, 10), 3))
# One rare outcome falls while the boundary takes more: what the cap at 1/3 is for.
_MANY = _finite(tuple("abcdefghij"), (10_000, 240, *[220] * 8), (3152, 48, *[1100] * 8), 5)
# A step so small that q as printed in [CL23] Lemma 2.9, with e^(t-1) for e^t - 1, exceeds 1.
_TWENTIETH = BoundaryWrapper(
    FiniteMechanism(("a", "b"), lambda user: (1370, 630) if user else (1400, 600), math.log(1.05))
)


class _Uncapped(BoundaryWrapper):
    """Broken: the boundary has probability pi/(1 + pi), without min(1/3, .)."""

    def run(self, data: Any, noise: NoiseSource) -> Hashable:
        weights = self.mechanism.checked_weights(data)
        chosen = noise.choose([sum(weights) - max(weights), *weights])
        return self.mechanism.outcomes[chosen - 1] if chosen else BOUNDARY


def _classes(charging: TargetCharging, transcript: Transcript) -> None:
    """Asks about what was unsure again, and else about the other one."""
    wrapped = _SURE
    for _ in range(6):
        transcript.append(charging.ask(wrapped, wrapped.target))
        wrapped = _UNSURE if transcript[-1] == "cat" else _SURE


def _pairs(charging: TargetCharging, transcript: Transcript) -> None:
    twice = TwoRuns(_RESPONSE)
    for _ in range(4):
        transcript.append(charging.ask(twice, twice.target))


def _until_the_boundary(charging: TargetCharging, transcript: Transcript) -> None:
    """With the q that is claimed, a call that touches the data is a hit."""
    for _ in range(9):
        transcript.append(charging.ask(_TWENTIETH, OwnTarget(_TWENTIETH, BOUNDARY, 1.0)))


_WRAPPER_Q, _TWICE_Q = _SURE.target.q, not_prior_probability(2 * _LN3)

SCENARIOS = [
    Scenario(
        "wrapper, one call",
        "BoundaryWrapper, [CL23] Lemma 2.8",
        BoundaryWrapper(_MANY).epsilon,
        0.0,
        lambda noise, with_user: BoundaryWrapper(_MANY).run(with_user, noise),
    ),
    Scenario(
        "wrapper without the min",
        "[CL23] Algorithm 4 with pi/(1 + pi) for min(1/3, pi/(1 + pi))",
        BoundaryWrapper(_MANY).epsilon,
        0.0,
        lambda noise, with_user: _Uncapped(_MANY).run(with_user, noise),
        private=False,
    ),
    Scenario(
        "wrapper, a stream",
        'TargetCharging with BoundaryWrapper, docs/proofs.md, "The boundary with probabilities"',
        _SURE.epsilon,
        _game(_SURE.epsilon, _WRAPPER_Q, 2, _SURE.epsilon),
        _halts(_classes, _hits(2, _SURE.epsilon, _WRAPPER_Q)),
    ),
    Scenario(
        "target q too large (wrapper)",
        "BoundaryWrapper with q as printed in [CL23] Lemma 2.9, which exceeds 1 here: a hit for each call with data",
        _TWENTIETH.epsilon,
        optimal_composition_delta(_TWENTIETH.epsilon, 1, _TWENTIETH.epsilon),
        _halts(_until_the_boundary, _hits(1, _TWENTIETH.epsilon)),
        private=False,
    ),
    Scenario(
        "two runs, a stream",
        'TargetCharging with TwoRuns, docs/proofs.md, "The boundary without probabilities"',
        _LN3,
        _game(2 * _LN3, _TWICE_Q, 1, _LN3),
        _halts(_pairs, _hits(1, 2 * _LN3, _TWICE_Q)),
    ),
]
