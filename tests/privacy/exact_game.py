"""All that the real code can publish, with exact probabilities: the enumerator of runs in stages (windows, rounds).

`ChosenKeys` gives uniforms that a test has chosen; all the rest is the real code. The 128-bit uniforms of a draw are
cut wherever a result can change. Both ends of each range are run, and a range's probability is its length.
"""

from __future__ import annotations

import functools
import itertools
import math
import types
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np

from dp_transforms.accounting.exponential_power import ExponentialPower
from dp_transforms.accounting.price_bounds import Published
from dp_transforms.accounting.price_list import PriceList, make_price_list, order_budget
from dp_transforms.core.contributions import Contributions
from dp_transforms.core.named_items import NamedItems
from tests.helpers.rounds_runs import contributions_of
from tests.helpers.small_runs import MICROS, SECRET
from tests.helpers.trial_plan import TrialPlan
from tests.reference.exact_law import Law, hockey_sticks
from tests.reference.log import ONE, Tails, words_of
from tests.reference.prices import delta_of_budget

Held = Mapping[str, Sequence[tuple[int, str]]]  # of each user: windows and items
TARGET = "x'"  # the user that the neighbouring logs differ in
_ROUNDING = 1e-12  # of the float sums


class ChosenKeys:
    """`StreamKeys`, but for `chosen` uniforms: of tests of contributions by window and keyed hash; of hits by the
    second word of an item's hash, (pass, noise); under "empty" the number of empty items, and words that say which."""

    def __init__(self, trial: TrialPlan) -> None:
        self._keys = trial.stream_keys(SECRET)
        self.chosen: Mapping[Any, Any] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._keys, name)

    def window_uniforms(self) -> Any:
        return lambda windows, hashes, digests: words_of(
            *(self.chosen[place] for place in zip(windows.tolist(), map(bytes, hashes), strict=True))
        )

    block_uniforms = window_uniforms

    def round_uniforms(self, number: int) -> Any:
        return self.window_uniforms()

    def pass_uniforms(self, window: int) -> Any:
        return self._of_hits(0)

    def noise_uniforms(self, window: int) -> Any:
        return self._of_hits(1)

    def _of_hits(self, which: int) -> Any:
        of_pairs = lambda first, second: words_of(*(self.chosen[item][which] for item in first[:, 1].tolist()))  # noqa: E731
        return types.SimpleNamespace(of_pairs=of_pairs)

    def empty_item_uniforms(self) -> Any:
        def uniforms(blocks: np.ndarray) -> np.ndarray:
            number, words = self.chosen["empty"]
            return words_of(*(words[(at - 1) % len(words)] << 64 if at else number for _, at in blocks.tolist()))

        return uniforms


class Piece(NamedTuple):
    """A result of one draw: its probability, and the first and the last uniforms that lead to it."""

    share: Fraction
    ends: tuple[Any, Any]


def pieces_between(cuts: Iterable[int], rare: int = 0) -> list[Piece]:
    """All uniforms, in ranges that begin at these numbers. rare: of ranges at both edges, which count as their
    neighbours."""
    bounds = [0, *sorted({cut for cut in cuts if rare < cut < ONE - rare}), ONE]
    return [
        Piece(Fraction(high - low, ONE), (max(low, rare), min(high, ONE - rare) - 1))
        for low, high in itertools.pairwise(bounds)
    ]


def cuts_of_levels(tails: Tails, value: int, thresholds: Iterable[int], spacing: int) -> set[int]:
    """Where a noisy sum reaches a threshold, or a boundary of levels above it or one below."""
    steps = range(-1, 2 + (2 * tails.reach + value) // spacing)
    return {tails.tail(threshold - value + step * spacing) for threshold in thresholds for step in steps}


class Outcome(NamedTuple):
    share: Fraction
    state: Any


def outcomes_of(
    run: Callable[[dict[Any, Any]], tuple[Hashable, Any]], *cases: Mapping[Any, Sequence[Piece]]
) -> dict[Hashable, Outcome]:
    """By all that one stage can show. run: what it shows and the state that it leaves, of the uniforms of each draw.
    cases: of draws, all together for certain."""
    shares, states = Counter[Hashable](), {}
    for draws in cases:
        for pieces in itertools.product(*draws.values()):
            ends = ([piece.ends[end] for piece in pieces] for end in (0, 1))
            first, last = (run(dict(zip(draws, of_end, strict=True))) for of_end in ends)
            assert first == last, "one range of uniforms, two results"
            shares[first[0]] += math.prod(piece.share for piece in pieces)
            assert states.setdefault(*first) == first[1], "one transcript, two states"
    assert sum(shares.values()) == 1
    return {shown: Outcome(share, states[shown]) for shown, share in shares.items()}


def law_of(stages: int, start: Hashable, outcomes: Callable[[int, Any], Mapping[Hashable, Outcome]]) -> Law:
    """The probability of every transcript. outcomes: of a stage, by the state before it."""

    @functools.cache
    def of_stage(stage: int, state: Hashable) -> list[tuple[Hashable, float, Any]]:
        found = outcomes(stage, state).items()
        return [(shown, float(outcome.share), outcome.state) for shown, outcome in found if outcome.share]

    level: list[tuple[tuple[Hashable, ...], float, Any]] = [((), 1.0, start)]
    for stage in range(stages):
        level = [
            ((*before, shown), probability * share, after)
            for before, probability, state in level
            for shown, share, after in of_stage(stage, state)
        ]
    law = {transcript: probability for transcript, probability, _ in level}
    assert len(law) == len(level)
    assert math.isclose(math.fsum(law.values()), 1.0, abs_tol=_ROUNDING)
    return law


def worst_ratio(with_user: Law, without: Law, claim: Callable[[float], float], epsilons: Sequence[float]) -> float:
    """The largest delta / claim over both directions and these epsilons: at most 1 where the claim is true."""
    deltas = hockey_sticks(with_user, without, epsilons)
    return max((delta - _ROUNDING) / claim(epsilon) for delta, epsilon in zip(deltas, epsilons, strict=True))


# --- Users pay for tests of contributions: their claim, logs and answers

ORDER, EPSILON, DELTA_TESTS, DELTA_OPEN = 8.0, 2.0, 0.01, 0.01
BUDGET = order_budget(ORDER, EPSILON, DELTA_TESTS)


@functools.cache
def prices_of(noise: ExponentialPower, deviations: float, most_tests: int) -> PriceList:
    """deviations: between the boundaries of levels."""
    spacing = math.ceil(deviations * noise.standard_deviation)
    return make_price_list(Published(noise, ORDER, spacing), BUDGET, most_tests)


def claim(epsilon: float, delta_open: float = DELTA_OPEN) -> float:
    """Of one budget, and of lone items."""
    return delta_of_budget(ORDER, BUDGET, epsilon) + delta_open


def ratio_of_logs(law: Callable[[Held], Law], held: Held, claimed: Callable[[float], float] = claim) -> float:
    """The `worst_ratio` of a log with x' and without."""
    return worst_ratio(law(held), law(without_target(held)), claimed, [0.1 * index for index in range(41)])


def without_target(held: Held) -> Held:
    return {user: places for user, places in held.items() if user != TARGET}


def held_by(held: Held, settings: TrialPlan) -> Contributions:
    """Through the columns of a log."""
    log = [
        (user, item, settings.schedule.window_end_micros(window) - MICROS // 2)
        for user, places in held.items()
        for window, item in places
    ]
    return contributions_of(log, settings)


def shown_of(named: NamedItems) -> tuple[Any, ...]:
    """What is public of it."""
    labels = named.table.labels.to_pylist()
    columns = (named.windows.tolist(), named.items.tolist(), named.levels.tolist(), named.at_least_users.tolist())
    return tuple(sorted((window, labels[item], *rest) for window, item, *rest in zip(*columns, strict=True)))
