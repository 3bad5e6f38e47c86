"""Target charging, conditional release, one-shot top-k: what is charged and published, and when a call is refused."""

import contextlib
import dataclasses
import itertools
import math
import threading
from typing import Any

import pytest

from dp_transforms.papers.noise_source import Halted, SecretNoise
from dp_transforms.papers.private_computation import NotPrior, OwnTarget, TwoRuns
from dp_transforms.papers.target_charging import (
    ConditionalRelease,
    HitLimit,
    OneShotTopK,
    Price,
    Selected,
    TargetCharging,
)
from tests.helpers.scripted import Scripted


def test_only_hits_are_charged_and_the_last_one_ends_it():
    limit = HitLimit(2, epsilon=0.5)
    charging = TargetCharging(None, limit)
    computation = Scripted([0, 0, 7, 0, 8, 0])
    assert [charging.ask(computation, NotPrior(0)) for _ in range(5)] == [0, 0, 7, 0, 8]
    assert limit.used == 2
    for _ in range(2):
        with pytest.raises(Halted):
            charging.ask(computation, NotPrior(0))
    assert computation.runs == 5, "a refused call does not touch the data"


def test_a_delta_that_does_not_fit_is_refused_before_anything_is_run():
    charging = TargetCharging(None, HitLimit(5, epsilon=0.5), delta_limit=1e-6)
    computation = Scripted([0, 0, 0], delta=4e-7)
    charging.ask(computation, NotPrior(0))
    charging.ask(computation, NotPrior(0))
    with pytest.raises(Halted, match="delta_limit"):
        charging.ask(computation, NotPrior(0))
    assert computation.runs == 2
    assert charging.delta_spent == pytest.approx(8e-7)
    cheaper = Scripted([0, 0, 0], delta=2e-7)
    charging.ask(cheaper, NotPrior(0))
    assert charging.delta_spent == 1e-6
    with pytest.raises(Halted):
        charging.ask(dataclasses.replace(cheaper, delta=1e-15), NotPrior(0))
    assert charging.ask(Scripted([3]), NotPrior(0)) == 3  # pure computations go on


def test_two_runs_pay_both_deltas_and_are_hit_when_they_differ():
    limit = HitLimit(5, epsilon=1.0)
    charging = TargetCharging(None, limit, delta_limit=1e-6)
    twice = TwoRuns(Scripted([3, 3, 3, 4], delta=1e-7))
    assert [charging.ask(twice, twice.target) for _ in range(2)] == [(3, 3), (3, 4)]
    assert limit.used == 1
    assert charging.delta_spent == pytest.approx(4e-7)


def test_the_deltas_are_compared_exactly():
    """As floats the sum would be 1e-6 again."""
    charging = TargetCharging(None, HitLimit(5, epsilon=0.5), delta_limit=1e-6)
    charging.ask(Scripted([0], delta=1e-6), NotPrior(0))
    with pytest.raises(Halted, match="delta_limit"):
        charging.ask(Scripted([0], delta=1e-30), NotPrior(0))


class _Raises:
    """After the data were touched, or on the way out."""

    epsilon, delta = 0.5, 0.0

    def __init__(self, error=KeyError):
        self.error = error

    def run(self, data, noise):
        raise self.error("the data are like this")


class _RaisingTarget(NotPrior):
    def hit(self, result):
        raise KeyError("the result is like this")


@pytest.mark.parametrize("error", [KeyError, Halted, KeyboardInterrupt])
def test_an_exception_is_charged_as_all_that_the_call_could_have_cost(error):
    limit = HitLimit(3, epsilon=0.5)
    charging = TargetCharging(None, limit)
    with pytest.raises(error):
        charging.ask(_Raises(error), NotPrior(0))
    assert limit.used == 1
    with pytest.raises(KeyError):
        charging.ask(Scripted([0]), _RaisingTarget(0))
    assert limit.used == 2
    assert charging.ask(Scripted([0]), NotPrior(0)) == 0, "it goes on, for what was not a hit"
    assert limit.used == 2

    limit = HitLimit(3, epsilon=0.5)
    with pytest.raises(error):
        TargetCharging(None, limit).perform(Price(0.5, 0.4, most_hits=3), _Raises(error).run, len)
    assert limit.used == 3


def test_an_exception_is_charged_to_every_limit_that_admitted_the_call():
    limits = [HitLimit(1, epsilon=0.5), HitLimit(5, epsilon=0.5), HitLimit(5, epsilon=0.5)]
    charging = TargetCharging(None, *limits)
    charging.ask(Scripted([1]), NotPrior(0), NotPrior(1), NotPrior(1))
    assert [limit.used for limit in limits] == [1, 0, 0]
    with pytest.raises(KeyError):
        charging.ask(_Raises(), *[NotPrior(0)] * 3)
    assert [limit.used for limit in limits] == [1, 1, 1], "the first one is full and vouches for nothing any more"
    with pytest.raises(KeyError):  # the target before the one that raises is not charged twice
        charging.ask(Scripted([1]), NotPrior(0), NotPrior(0), _RaisingTarget(0))
    assert [limit.used for limit in limits] == [1, 2, 2]


def test_the_last_hit_is_given_once_to_two_threads():
    both = threading.Barrier(2, timeout=0.3)

    class Slow:
        epsilon, delta = 0.5, 0.0

        def run(self, data, noise):
            with contextlib.suppress(threading.BrokenBarrierError):
                both.wait()  # for a second thread that was admitted too
            return 1

    limit = HitLimit(1, epsilon=0.5)
    charging = TargetCharging(None, limit)
    outcomes = []

    def ask():
        try:
            outcomes.append(charging.ask(Slow(), NotPrior(0)))
        except Halted:
            outcomes.append("halted")

    workers = [threading.Thread(target=ask) for _ in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert sorted(outcomes, key=str) == [1, "halted"]
    assert limit.used == 1


def test_a_computation_cannot_ask_the_charging_that_runs_it():
    """It would be admitted for a hit that the outer call is admitted for."""
    limit = HitLimit(1, epsilon=0.5)
    charging = TargetCharging(None, limit)
    with pytest.raises(RuntimeError, match="cannot call the charging that runs it"):
        charging.perform(Price(0.5, 0.4), lambda *_: charging.ask(Scripted([1]), NotPrior(0)), lambda _: 1)
    assert limit.used == 1


def test_multi_target_charging_goes_on_until_the_last_counter_is_full():
    limits = [HitLimit(2, epsilon=0.5) for _ in range(2)]
    charging = TargetCharging(None, *limits)
    computation = Scripted([1, 1, 1, 1, 0, 1, 0, 1])
    targets = [NotPrior(0), NotPrior(1)]
    assert [charging.ask(computation, *targets) for _ in range(7)] == [1, 1, 1, 1, 0, 1, 0]
    assert [limit.used for limit in limits] == [2, 2], "a full counter is not charged further"
    with pytest.raises(Halted):
        charging.ask(computation, *targets)
    assert computation.runs == 7


def test_a_call_at_one_price_is_charged_to_each_limit():
    limits = [HitLimit(3, epsilon=0.5), HitLimit(2, epsilon=0.5)]
    charging = TargetCharging(None, *limits)
    assert charging.perform(Price(0.5, 0.4, most_hits=2), lambda *_: 2, lambda hits: hits) == 2
    assert [limit.used for limit in limits] == [2, 2]
    with pytest.raises(Halted):
        charging.perform(Price(0.5, 0.4, most_hits=2), lambda *_: 0, lambda hits: hits)
    for refused in ([], [limits[0]] * 2):
        with pytest.raises(ValueError, match="a different one for each target"):
            TargetCharging(None, *refused)


def test_a_limit_that_once_refused_cannot_vouch_for_what_follows():
    class Refuses(HitLimit):
        def admits(self, epsilon, target_probability, hits=1):
            return epsilon <= 0.3 and super().admits(epsilon, target_probability, hits)

    charging = TargetCharging(None, Refuses(2, epsilon=0.5), HitLimit(1, epsilon=0.5))
    charging.ask(Scripted([0], epsilon=0.5), NotPrior(0), NotPrior(0))
    charging.ask(Scripted([1], epsilon=0.3), NotPrior(0), NotPrior(0))
    with pytest.raises(Halted):  # the first limit would admit it, but not the first call
        charging.ask(Scripted([0], epsilon=0.3), NotPrior(0), NotPrior(0))


@dataclasses.dataclass(frozen=True)
class _Label:
    name: str
    confidence: float = dataclasses.field(compare=False)


def test_what_is_free_tells_nothing_beyond_being_equal():
    """Equal results are published as one object: a field that == does not see would be free of charge."""

    @dataclasses.dataclass(frozen=True)
    class Labelling:
        epsilon: float = 1.0
        delta: float = 0.0

        def run(self, data, noise):
            return _Label("cat", data)

    prior = _Label("cat", 0.5)
    for confidence in (0.75, 0.26):
        limits = [HitLimit(1, epsilon=1.0), HitLimit(1, epsilon=1.0)]
        alone = TargetCharging(confidence, limits[0]).ask(Labelling(), NotPrior(prior))
        assert alone.confidence == 0.5
        targets = [NotPrior(_Label("dog", 0.1)), NotPrior(prior)]
        assert TargetCharging(confidence, *limits).ask(Labelling(), *targets).confidence == 0.5
        twice = TwoRuns(Labelling())
        limit = HitLimit(1, epsilon=2.0)
        first, second = TargetCharging(confidence, limit).ask(twice, twice.target)
        assert first is second
        assert limit.used == 0


@pytest.mark.parametrize(("result", "is_hit"), [(1, True), (1.0, True), (True, True), (0, False), ("1", False)])
def test_its_own_target_is_hit_by_its_outcome_and_not_prior_by_all_others(result, is_hit):
    """What equals the outcome is published as the outcome; nothing else may tell them apart."""
    own, not_prior = OwnTarget(Scripted([1]), 1, 0.3), NotPrior(1)
    assert own.hit(result) is is_hit
    assert not_prior.hit(result) is not is_hit
    for target in (own, not_prior):
        published = target.published(result)
        assert published is (1 if is_hit else result)


def test_a_hit_of_its_own_target_is_charged_and_a_miss_is_not():
    """A target that is never hit would let a user be seen any number of times."""
    for result, hits in (("between", 1), ("below", 0), ("above", 0)):
        computation = Scripted([result])
        limit = HitLimit(2, epsilon=0.5, target_probability=0.25)
        assert TargetCharging([], limit).ask(computation, OwnTarget(computation, "between", 0.25)) == result
        assert limit.used == hits


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


def _positions(scores, k, gap=None):
    charging, limit = _charging(hits=10)
    selected = OneShotTopK(charging, k, gap).ask([_Fixed(score) for score in scores])
    assert limit.used == len(selected)
    assert all(one == Selected(one.position, scores[one.position]) for one in selected)
    return [one.position for one in selected]


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
