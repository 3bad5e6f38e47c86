"""What a user attains in all rounds of looks together, exactly: every transcript, at the worst counts of each round.

The user holds some pairs, each of an item of its own, that are alike: in a round others add the same to each. In round
0 it is drawn for each; with blocks, those that are named are its candidates, in windows the others are. Each later
round draws for those that are left, with the weight that its purse buys for so many; before the last one some are left
out. Of a look only the name is used, not the level, which can but lose.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Mapping

import numpy as np

from dp_transforms.audit.look_law import ROUNDING, NoiseLaw, Values, Whole, log_choose
from dp_transforms.audit.mechanism import LooksMechanism, with_lone_items

_SURE = 1e-13  # probability of what the counts of others can make next to certain
_COARSE, _STARTS = 7, 5  # counts of each round that are tried with all of the others; the worst of all these
_MOST_SECOND = 3  # pairs of which second looks are followed; of more, what they cost goes to the other looks
_STEPS = (3, 8, 40)  # of counts tried near these, for each unit of scale
_NEAR = 4  # steps
_NEVER = -1e4  # ``ln`` of 0, which may be multiplied by 0
_SPLITS = 8  # of the purse of round 0, between items that the user holds alone and another one
_States = Mapping[tuple[int, int], Values]  # by the number of pairs that the next round draws for, and of named ones


@dataclasses.dataclass(frozen=True)
class RoundLooks:
    """So many pairs of a user in all rounds, and the delta that they attain at the claimed epsilon.

    weights: in each round, while all pairs are left. margins: the threshold of each round, then that of second looks,
    less what others add.
    """

    pairs: int
    weights: tuple[int, ...]
    margins: tuple[int, ...]
    delta: float
    adds_user: bool


def worst_in_rounds(law: NoiseLaw, mechanism: LooksMechanism, pairs: int, epsilon: float) -> RoundLooks:
    """Of both directions."""
    return max(_worst(law, mechanism, pairs, epsilon), key=lambda each: each.delta)


def _worst(law: NoiseLaw, mechanism: LooksMechanism, pairs: int, epsilon: float) -> list[RoundLooks]:
    """The worst that was found with the user added, and removed: a coarse grid of the counts of all rounds, and then
    from the worst ones on those of one round after the other, while those of the others stay."""
    reach, rounds = law.smallest_margin(_SURE), mechanism.rounds
    highest = [min(reach, margin) for margin in mechanism.highest_margins]
    highest.insert(len(rounds), reach)
    weights = tuple(listed.replay_weight(pairs) for listed in rounds)
    grid = [np.linspace(-reach, high, _COARSE).astype(int).tolist() for high in highest[: len(rounds)]]
    coarse = list(itertools.product(*grid, *([0] for _ in highest[len(rounds) :])))
    transcripts_at = _transcripts(law, mechanism, pairs)

    @functools.cache
    def deltas_at(margins: tuple[int, ...]) -> tuple[float, float]:
        transcripts = transcripts_at(margins)
        return _delta(transcripts, epsilon, adds_user=True), _delta(transcripts, epsilon, adds_user=False)

    found = []
    for adds_user in (True, False):

        def delta_of(margins: tuple[int, ...], adds_user: bool = adds_user) -> float:
            return deltas_at(margins)[not adds_user]

        starts = sorted(coarse, key=delta_of)[-_STARTS:]
        margins = max((_refined(start, highest, law.scale, delta_of) for start in starts), key=delta_of)
        found.append(RoundLooks(pairs, weights, margins, delta_of(margins), adds_user))
    return found


def _refined(
    margins: tuple[int, ...], highest: list[int], scale: int, delta_of: Callable[[tuple[int, ...]], float]
) -> tuple[int, ...]:
    for step in (max(1, scale // steps) for steps in _STEPS):
        for number in reversed(range(len(margins))):
            near = range(margins[number] - _NEAR * step, min(highest[number], margins[number] + _NEAR * step) + 1, step)
            tried = [margins, *((*margins[:number], margin, *margins[number + 1 :]) for margin in near)]
            margins = max(tried, key=delta_of)
    return margins


def together_in_rounds(law: NoiseLaw, mechanism: LooksMechanism, epsilon: float) -> float:
    """Some items that the user alone holds, at which the first round looks, and one that others hold, which all rounds
    draw for."""
    if not mechanism.tests_lone_items:
        return 0.0
    first, margins = mechanism.rounds[0], _worst(law, mechanism, 1, epsilon)[0].margins
    # In round 0 others make its name certain: what is left of it there counts for nothing.
    transcripts = _transcripts(law, mechanism, 1)((-law.smallest_margin(_SURE), *margins[1:]))
    delta_of = functools.partial(_delta, transcripts, adds_user=True)
    best = 0.0
    for part in range(_SPLITS + 1):
        looks = (first.most_tests - 1) * part // _SPLITS
        each = law.tail(mechanism.threshold - first.replay_weight(looks + 1))
        of_none = looks * math.log1p(-min(each, 1 - 1e-16))
        best = max(best, with_lone_items(-math.expm1(of_none), epsilon, delta_of))
    return best * (1 - ROUNDING)


def _transcripts(law: NoiseLaw, mechanism: LooksMechanism, pairs: int) -> Callable[[tuple[int, ...]], Values]:
    """At these margins ``ln`` of the probability of each, with the user and without: float64[2, n]. A transcript says
    of each round how many of the pairs are named, and how many left out; of how many of those that are named a second
    look shows a size."""
    last = len(mechanism.rounds) - 1

    @functools.cache
    def weight_of(number: int, drawn: int, done: int) -> int:
        looks = max(1, drawn)
        return mechanism.rounds[number].replay_weight(looks) if number < last else mechanism.last_weight(looks, done)

    def after_round(number: int, before: _States, margin: int, margin_of_second: int = 0) -> _States:
        after = collections.defaultdict(list)
        for (drawn, done), logs in before.items():
            of_named = _log_binomial(law, weight_of(number, drawn, done), drawn, margin)
            if number == last and done:
                of_last = mechanism.last_weight(drawn, done, is_second=True)
                of_second = _log_binomial(law, of_last, done, margin_of_second)
                logs = (logs[:, :, None] + of_second[:, None]).reshape(2, -1)
            for named in range(drawn + 1):
                left, again = (drawn - named, done + named) if number else (named, 0)
                to, here = again if pairs <= _MOST_SECOND else 0, logs + of_named[:, named, None]
                if not mechanism.leaves_out(number):
                    after[left, to].append(here)
                    continue
                of_left = _log_left_out(law, weight_of(number, drawn, done), left, margin, mechanism.spacing)
                for out in range(left + 1):
                    after[left - out, to].append(here + of_left[:, out, None])
        return {left: np.concatenate(found, axis=1) for left, found in after.items()}

    @functools.lru_cache(maxsize=64)  # of the margins that are tried many begin alike
    def after_rounds(margins: tuple[int, ...]) -> _States:
        """What is left after these."""
        if not margins:
            return {(pairs, 0): np.zeros((2, 1))}
        return after_round(len(margins) - 1, after_rounds(margins[:-1]), margins[-1])

    def transcripts_at(margins: tuple[int, ...]) -> Values:
        states = after_round(last, after_rounds(margins[:last]), margins[last], margins[last + 1])
        return np.concatenate([*states.values()], axis=1)

    return transcripts_at


@functools.lru_cache(maxsize=4096)  # a grid of counts has the same ones again and again
def _log_binomial(law: NoiseLaw, weight: int, looks: int, margin: int) -> Values:
    """``ln`` of the probability that so many of these looks are named: float64[2, looks + 1]."""
    named: Whole = np.arange(looks + 1)
    hit, miss = law.log_tail(np.array([[margin - weight, margin], [1 - margin + weight, 1 - margin]]))
    return np.asarray(log_choose(looks, named) + hit[:, None] * named + miss[:, None] * (looks - named))


@functools.lru_cache(maxsize=4096)
def _log_left_out(law: NoiseLaw, weight: int, looks: int, margin: int, spacing: int) -> Values:
    """The same of how many are left out, of so many that are not named: float64[2, looks + 1]."""
    margins, out = np.array([margin - weight, margin]), np.arange(looks + 1)
    below, all_of_these = law.log_tail(1 - margins + spacing), law.log_tail(1 - margins)
    chances = np.maximum(_NEVER, [below - all_of_these, law.log_mass(margins - spacing, margins) - all_of_these])
    return np.asarray(log_choose(looks, out) + chances[0][:, None] * out + chances[1][:, None] * (looks - out))


def _delta(transcripts: Values, epsilon: float, *, adds_user: bool) -> float:
    p, q = transcripts if adds_user else transcripts[::-1]
    return float(np.sum(np.exp(p) * -np.expm1(np.minimum(0.0, epsilon + q - p)))) * (1 - ROUNDING)
