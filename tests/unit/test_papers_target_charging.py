"""Target charging: what is charged, when a call is refused, and that nothing is run then."""

import contextlib
import dataclasses
import threading

import pytest

from dp_transforms.mechanisms.papers.noise_source import Halted
from dp_transforms.mechanisms.papers.private_computation import NotPrior, OwnTarget, TwoRuns
from dp_transforms.mechanisms.papers.target_charging import HitLimit, MultiTargetCharging, Price, TargetCharging
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


@pytest.mark.parametrize("counted", [-1, 3, 10**9])
def test_more_hits_than_the_price_says_are_an_error_and_charged(counted):
    limit = HitLimit(5, epsilon=0.5)
    with pytest.raises(ValueError, match=r"must lie in 0 \.\. 2") as raised:
        TargetCharging(None, limit).perform(Price(0.5, 0.4, most_hits=2), lambda *_: "x", lambda _: counted)
    assert limit.used == 2
    assert str(counted) not in str(raised.value)


def test_an_exception_is_charged_to_every_limit_that_admitted_the_call():
    limits = [HitLimit(1, epsilon=0.5), HitLimit(5, epsilon=0.5), HitLimit(5, epsilon=0.5)]
    charging = MultiTargetCharging(None, limits)
    charging.ask(Scripted([1]), [NotPrior(0), NotPrior(1), NotPrior(1)])
    assert [limit.used for limit in limits] == [1, 0, 0]
    with pytest.raises(KeyError):
        charging.ask(_Raises(), [NotPrior(0)] * 3)
    assert [limit.used for limit in limits] == [1, 1, 1], "the first one is full and vouches for nothing any more"
    with pytest.raises(KeyError):  # the target before the one that raises is not charged twice
        charging.ask(Scripted([1]), [NotPrior(0), NotPrior(0), _RaisingTarget(0)])
    assert [limit.used for limit in limits] == [1, 2, 2]


@pytest.mark.parametrize("multi", [False, True])
def test_the_last_hit_is_given_once_to_two_threads(multi):
    both = threading.Barrier(2, timeout=0.3)

    class Slow:
        epsilon, delta = 0.5, 0.0

        def run(self, data, noise):
            with contextlib.suppress(threading.BrokenBarrierError):
                both.wait()  # for a second thread that was admitted too
            return 1

    limit = HitLimit(1, epsilon=0.5)
    one, many = TargetCharging(None, limit), MultiTargetCharging(None, [limit])
    outcomes = []

    def ask():
        try:
            outcomes.append(many.ask(Slow(), [NotPrior(0)]) if multi else one.ask(Slow(), NotPrior(0)))
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
    charging = MultiTargetCharging(None, limits)
    computation = Scripted([1, 1, 1, 1, 0, 1, 0, 1])
    targets = [NotPrior(0), NotPrior(1)]
    assert [charging.ask(computation, targets) for _ in range(7)] == [1, 1, 1, 1, 0, 1, 0]
    assert [limit.used for limit in limits] == [2, 2], "a full counter is not charged further"
    with pytest.raises(Halted):
        charging.ask(computation, targets)
    assert computation.runs == 7


def test_a_limit_that_once_refused_cannot_vouch_for_what_follows():
    class Refuses(HitLimit):
        def admits(self, epsilon, target_probability, hits=1):
            return epsilon <= 0.3 and super().admits(epsilon, target_probability, hits)

    charging = MultiTargetCharging(None, [Refuses(2, epsilon=0.5), HitLimit(1, epsilon=0.5)])
    charging.ask(Scripted([0], epsilon=0.5), [NotPrior(0), NotPrior(0)])
    charging.ask(Scripted([1], epsilon=0.3), [NotPrior(0), NotPrior(0)])
    with pytest.raises(Halted):  # the first limit would admit it, but not the first call
        charging.ask(Scripted([0], epsilon=0.3), [NotPrior(0), NotPrior(0)])


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
        assert MultiTargetCharging(confidence, limits).ask(Labelling(), targets).confidence == 0.5
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
