"""Scenarios of target charging: adaptive streams of calls, conditional release, selection, and boundary outcomes.

The data are whether the user is there; computations with few outcomes have whole weights, so that laws are exact.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Hashable, Sequence
from fractions import Fraction
from typing import Any

from dp_transforms.accounting.charging_game import GameAccountant
from dp_transforms.accounting.discrete_laplace_law import not_prior_probability
from dp_transforms.papers.mixed_charging import MixedChargingAccountant, MixedChargingFilter
from dp_transforms.papers.noise_source import Halted, NoiseSource
from dp_transforms.papers.private_computation import FiniteMechanism, NotPrior
from dp_transforms.papers.target_charging import (
    ConditionalRelease,
    HitLimit,
    OneShotTopK,
    Price,
    TargetCharging,
)
from tests.helpers.charging_game_oracle import capped_game_delta
from tests.privacy.scenarios import Scenario

Transcript = list[Hashable]
Stream = Callable[[TargetCharging, Transcript], None]


def _finite(outcomes: tuple, without: tuple[int, ...], with_user: tuple[int, ...], factor: int) -> FiniteMechanism:
    """An ln(factor)-DP choice, checked exactly."""
    for one, other in zip(without, with_user, strict=True):
        ratio = Fraction(one * sum(with_user), other * sum(without))
        assert Fraction(1, factor) <= ratio <= factor
    return FiniteMechanism(outcomes, lambda user: with_user if user else without, math.log(factor))


_LN3 = math.log(3)
_RESPONSE = _finite(("up", "down"), (1, 3), (3, 1), 3)  # randomised response
_Q3 = not_prior_probability(_LN3)


def _halts(stream: Stream, limit: Callable[[], Any], **arguments: Any) -> Any:
    """A run of target charging that publishes what the stream appends, and whether it was halted."""

    def run(noise: NoiseSource, with_user: bool) -> Hashable:
        transcript: Transcript = []
        try:
            stream(TargetCharging(with_user, limit(), noise=noise, **arguments), transcript)
        except Halted:
            transcript.append("halted")
        return tuple(transcript)

    return run


def _hits(hits: int, epsilon: float, q: float | None = None) -> Callable[[], HitLimit]:
    return lambda: HitLimit(hits, epsilon=epsilon, target_probability=q)


def _responses(charging: TargetCharging, transcript: Transcript) -> None:
    """Pays for "down" while "up" leads, and stops once it leads by far."""
    lead = 0
    for _ in range(10):
        transcript.append(charging.ask(_RESPONSE, NotPrior("up" if lead > -2 else "down")))
        lead += 1 if transcript[-1] == "up" else -1
        if lead == 5:
            return


def _multi_target(noise: NoiseSource, with_user: bool) -> Hashable:
    charging = TargetCharging(with_user, *(HitLimit(1, epsilon=_LN3) for _ in range(2)), noise=noise)
    transcript: Transcript = []
    try:
        for _ in range(9):
            transcript.append(charging.ask(_RESPONSE, NotPrior("up"), NotPrior("down")))
    except Halted:
        pass
    return tuple(transcript)


# ---------------------------------------------------------------------------------------------------------------------
# Conditional release and selection
# ---------------------------------------------------------------------------------------------------------------------

_HALVES = _finite(("a", "b", "c", "d"), (3, 3, 1, 1), (1, 1, 3, 3), 3)  # _RESPONSE; each answer in two halves


class _RevisesFree(ConditionalRelease):
    """Broken: a result that is published by a later ask is not charged."""

    def ask(self, target: Callable[[Any], bool]) -> Any:
        if self._asked and not self._published:
            price = Price(self._computation.epsilon, not_prior_probability(self._computation.epsilon))
            hidden = self._result
            published = self._charging.perform(price, lambda *_: hidden if target(hidden) else None, lambda _: 0)
            self._published = published is not None
            return published
        return super().ask(target)


def _revisions(kind: type[ConditionalRelease], draws: list[FiniteMechanism], targets: Sequence[str]) -> Stream:
    """Widens the targets of all draws bit by bit, in turns: first all for the first outcome, and so on."""

    def stream(charging: TargetCharging, transcript: Transcript) -> None:
        held = [kind(charging, draw) for draw in draws]
        published: set[int] = set()
        for outcome in targets:
            for number, one in enumerate(held):
                if number not in published:
                    result = one.ask(lambda value, outcome=outcome: value == outcome)
                    transcript.append(result)
                    published |= {number} if result is not None else set()

    return stream


_SCORES = _finite((0, 1, 2), (1, 2, 3), (3, 2, 1), 3)  # with the user, low scores


def _selection(k: int, gap: int | None = None, charged: int | None = None) -> Stream:
    def stream(charging: TargetCharging, transcript: Transcript) -> None:
        best = OneShotTopK(charging, k, gap)
        if charged is not None:  # broken: fewer hits are charged than results published
            price = Price(_LN3, _Q3, most_hits=charged)
            transcript.append(
                charging.perform(price, lambda *world: tuple(best._sweep([_SCORES] * 4, *world)), lambda _: charged)
            )
        else:
            transcript.append(tuple(best.ask([_SCORES] * 4)))

    return stream


# ---------------------------------------------------------------------------------------------------------------------
# Deltas, and calls of several kinds
# ---------------------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class _Leaks:
    """With probability delta it tells all, else nothing."""

    delta: float
    epsilon: float = 0.1

    def run(self, data: bool, noise: NoiseSource) -> Hashable:
        return f"user: {data}" if noise.bernoulli(self.delta) else "nothing"


class _ChecksDeltaLast(TargetCharging):
    """Broken: publishes the result with which the deltas exceed their limit, and then halts."""

    def _perform(self, *call: Any) -> Any:
        if self.delta_spent > self._delta_limit:
            raise Halted("the deltas exceed their limit.")
        limit, self._delta_limit = self._delta_limit, 1.0
        try:
            return super()._perform(*call)
        finally:
            self._delta_limit = limit


def _leaks(kind: type[TargetCharging]) -> Callable[[NoiseSource, bool], Hashable]:
    def run(noise: NoiseSource, with_user: bool) -> Hashable:
        charging = kind(with_user, HitLimit(1, epsilon=0.1), delta_limit=0.1, noise=noise)
        transcript: Transcript = []
        try:
            for _ in range(5):
                transcript.append(charging.ask(_Leaks(0.05), NotPrior("nothing")))
        except Halted:
            pass
        return tuple(transcript)

    return run


_STEP = math.log(11 / 9)
_SMALL = FiniteMechanism(("up", "down"), lambda user: (11, 9) if user else (9, 11), _STEP)
_LARGE = FiniteMechanism(("up", "down"), lambda user: (121, 81) if user else (81, 121), 2 * _STEP)
_MIXED = MixedChargingAccountant(
    order=2.2,
    budget=3.01 * MixedChargingAccountant(2.2, 1.0).charge(_STEP, not_prior_probability(_STEP))
    + MixedChargingAccountant(2.2, 1.0).charge(2 * _STEP, not_prior_probability(2 * _STEP)),
)


def _mixed(charging: TargetCharging, transcript: Transcript) -> None:
    lead = 0
    for _ in range(9):
        call = _LARGE if lead < 2 else _SMALL
        transcript.append(charging.ask(call, NotPrior("up")))
        lead += (1 if transcript[-1] == "up" else -1) * (2 if call is _LARGE else 1)


def _game(epsilon_per_query: float, q: float, hits: int, epsilon: float) -> float:
    return GameAccountant(epsilon_per_query, q, hits).delta(epsilon)


SCENARIOS = [
    Scenario(
        "target charging, not prior",
        "TargetCharging with NotPrior targets that change, [CL23] Algorithm 1",
        3 * _LN3,
        _game(_LN3, _Q3, 2, 3 * _LN3),
        _halts(_responses, _hits(2, _LN3)),
    ),
    Scenario(
        "target charging, several targets",
        "TargetCharging with two limits, [CL23] Lemma 2.7: twice the delta",
        2 * _LN3,
        2 * _game(_LN3, _Q3, 1, 2 * _LN3),
        _multi_target,
    ),
    Scenario(
        "target charging, deltas",
        "TargetCharging with delta_limit, [CL23] Algorithm 6",
        2.0,
        _game(0.1, not_prior_probability(0.1), 1, 2.0) + 0.1,
        _leaks(TargetCharging),
    ),
    Scenario(
        "target charging, delta checked after publishing",
        "[CL23] Algorithm 6 with the check after the result is out",
        2.0,
        _game(0.1, not_prior_probability(0.1), 1, 2.0) + 0.1,
        _leaks(_ChecksDeltaLast),
        private=False,
    ),
    Scenario(
        "target charging, calls of two kinds",
        'MixedChargingFilter, docs/proofs.md, "Theorem of mixed calls"',
        1.0,
        _MIXED.delta(1.0),
        _halts(_mixed, lambda: MixedChargingFilter(_MIXED)),
    ),
    Scenario(
        "revise charged at epsilon",
        'ConditionalRelease, docs/proofs.md, "Theorem of kept results": in [CL23] Lemma 2.5 it costs 2 epsilon',
        2.5 * _LN3,
        capped_game_delta(_LN3, _Q3, 2, 5, 2.5 * _LN3),
        _halts(_revisions(ConditionalRelease, [_HALVES] * 5, "ab"), _hits(2, _LN3)),
    ),
    Scenario(
        "revise not charged",
        "ConditionalRelease whose later asks publish for nothing",
        2 * _LN3,
        _game(_LN3, _Q3, 1, 2 * _LN3),
        _halts(_revisions(_RevisesFree, [_RESPONSE] * 8, ["nothing", "up", "down"]), _hits(1, _LN3)),
        private=False,
    ),
    Scenario(
        "one-shot top-k",
        "OneShotTopK with ties, k hits at epsilon: in [CL23] Lemma 2.6 they are at 2 epsilon",
        2.5 * _LN3,
        capped_game_delta(_LN3, _Q3, 2, 4, 2.5 * _LN3),
        _halts(_selection(2), _hits(2, _LN3)),
    ),
    Scenario(
        "one-shot top-k, stop at a gap",
        "OneShotTopK with gap",
        _LN3,
        capped_game_delta(_LN3, _Q3, 3, 4, _LN3),
        _halts(_selection(3, gap=0), _hits(3, _LN3)),
    ),
    Scenario(
        "one-shot top-k, one hit for two results",
        "OneShotTopK that is charged half",
        0.5 * _LN3,
        capped_game_delta(_LN3, _Q3, 1, 1, 0.5 * _LN3),
        _halts(_selection(2, charged=1), _hits(1, _LN3)),
        private=False,
    ),
]
