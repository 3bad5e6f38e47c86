"""Conditional release with revisions, and one-shot top-k: what they publish, and that a hit is worth epsilon."""

import dataclasses
import itertools
import math
from typing import Any

import pytest

from dp_transforms.mechanisms.papers.noise_source import Halted, SecretNoise
from dp_transforms.mechanisms.papers.target_charging import (
    ConditionalRelease,
    HitLimit,
    OneShotTopK,
    Selected,
    TargetCharging,
)


@dataclasses.dataclass
class _Fixed:
    result: Any
    epsilon: float = 0.5
    delta: float = 0.0
    runs: int = 0

    def run(self, data, noise):
        self.runs += 1
        return self.result


def _charging(hits=3, delta_limit=0.0):
    limit = HitLimit(hits, epsilon=0.5)
    return TargetCharging(None, limit, delta_limit=delta_limit, noise=SecretNoise(bytes(32))), limit


def test_nothing_is_drawn_or_published_when_no_hit_is_left():
    charging, limit = _charging(hits=1)
    held, computation = ConditionalRelease(charging, _Fixed(1)), _Fixed(2)
    assert held.ask(lambda value: False) is None
    assert ConditionalRelease(charging, _Fixed(5)).ask(lambda value: True) == 5
    with pytest.raises(Halted):
        held.ask(lambda value: True)
    with pytest.raises(Halted):
        ConditionalRelease(charging, computation).ask(lambda value: True)
    assert (computation.runs, limit.used) == (0, 1)


def test_a_predicate_that_raises_is_charged_and_ends_it():
    """Else bisection by exceptions finds the result for nothing: 14 asks of 10,000 values."""
    charging, limit = _charging(hits=3)
    held, other = ConditionalRelease(charging, _Fixed(6789)), ConditionalRelease(charging, _Fixed(4))

    def raises_from(edge):
        def target(value):
            if value >= edge:
                raise KeyError("found")
            return False

        return target

    assert held.ask(raises_from(8000)) is None
    assert limit.used == 0
    with pytest.raises(KeyError):
        held.ask(raises_from(5000))
    assert limit.used == 1
    with pytest.raises(Halted, match="or an exception charged"):
        held.ask(raises_from(7000))
    assert limit.used == 1
    assert other.ask(lambda value: True) == 4


def test_a_computation_that_raises_is_not_drawn_again():
    class Raises(_Fixed):
        def run(self, data, noise):
            super().run(data, noise)
            raise KeyError("the data are like this")

    charging, limit = _charging(hits=3)
    computation = Raises(1)
    held = ConditionalRelease(charging, computation)
    with pytest.raises(KeyError):
        held.ask(lambda value: True)
    with pytest.raises(Halted):
        held.ask(lambda value: True)
    assert (computation.runs, limit.used) == (1, 1)


def test_a_score_that_raises_is_charged_as_all_hits():
    charging, limit = _charging(hits=3)
    with pytest.raises(ZeroDivisionError):
        OneShotTopK(charging, 2, score=lambda result: 1 // (result - 5)).ask([_Fixed(5), _Fixed(6), _Fixed(7)])
    assert limit.used == 2


# --- One-shot top-k


def _positions(scores, k, gap=None):
    charging, limit = _charging(hits=10)
    selected = OneShotTopK(charging, k, gap).ask([_Fixed(score) for score in scores])
    assert limit.used == len(selected)
    assert all(one == Selected(one.position, scores[one.position]) for one in selected)
    return [one.position for one in selected]


def test_the_best_k_in_order_ties_by_position():
    assert _positions([3, 9, 5, 9, 1], 3) == [1, 3, 2]
    assert _positions([3, 9, 5, 9, 1], 1) == [1]
    assert _positions([3, 9], 5) == [1, 0]
    assert _positions([4, 4, 4], 2) == [0, 1]


def test_the_sweep_stops_at_a_gap():
    assert _positions([10, 7, 3, 2], 4, gap=3) == [0, 1]
    assert _positions([10, 7, 3, 2], 4, gap=4) == [0, 1, 2, 3]
    assert _positions([10, 7, 3, 2], 4, gap=2) == [0]
    assert _positions([10, 10, 9], 3, gap=0) == [0, 1]


def _literal_sweep(scores, k, gap):
    """The sweep itself, with `ConditionalRelease` objects: what the one-shot form must equal."""
    charging, limit = _charging(hits=k)
    held = [ConditionalRelease(charging, _Fixed(score)) for score in scores]
    published = []
    threshold = 20
    while threshold >= -20 and limit.used < min(k, len(scores)):
        if gap is not None and published and threshold < scores[published[-1]] - gap:
            break
        for position, one in enumerate(held):
            if position in published or limit.used == k:
                continue
            if one.ask(lambda score, threshold=threshold: score >= threshold) is not None:
                published.append(position)
        threshold -= 1
    return published


def test_it_is_the_sweep():
    for scores in itertools.product((-2, 0, 1, 5), repeat=3):
        for k, gap in itertools.product((1, 2, 4), (None, 0, 1, 3)):
            assert _positions(list(scores), k, gap) == _literal_sweep(list(scores), k, gap)


def test_results_may_be_more_than_scores():
    charging, _ = _charging()
    candidates = [_Fixed(("x", 3)), _Fixed(("y", 8))]
    best = OneShotTopK(charging, 1, score=lambda result: result[1]).ask(candidates)
    assert best == [(1, ("y", 8))]


def test_the_price_of_a_selection():
    charging, limit = _charging(hits=3, delta_limit=1e-6)
    with pytest.raises(ValueError, match="at most"):
        OneShotTopK(charging, 1).ask([_Fixed(1), _Fixed(2, epsilon=0.6)])
    candidates = [_Fixed(score, delta=2e-7) for score in (1, 2, 3, 4)]
    with pytest.raises(Halted):  # a hit is kept for each that may be published
        OneShotTopK(charging, 4).ask(candidates)
    assert OneShotTopK(charging, 4, gap=0).charging is charging
    assert [one.position for one in OneShotTopK(charging, 2).ask(candidates)] == [3, 2]
    assert (limit.used, charging.delta_spent) == (2, pytest.approx(8e-7))
    with pytest.raises(Halted, match="delta_limit"):
        OneShotTopK(charging, 1).ask(candidates)
    assert [candidate.runs for candidate in candidates] == [1] * 4


@pytest.mark.parametrize("score", [0.5, math.nan, "7", None])
def test_scores_must_be_whole(score):
    charging, limit = _charging(hits=10)
    with pytest.raises(ValueError, match="every score must be a whole number: the"):
        OneShotTopK(charging, 1, score=lambda result: score).ask([_Fixed(1), _Fixed(2)])
    assert limit.used == 1, "an exception after the data were touched is charged"
