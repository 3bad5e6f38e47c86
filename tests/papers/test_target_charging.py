"""Target charging, conditional release, one-shot top-k, pay only for change: what is charged, published and refused."""

import contextlib
import dataclasses
import itertools
import math
import threading

import pytest

from dp_transforms.accounting.discrete_laplace_law import not_prior_probability
from dp_transforms.papers.noise_source import Halted
from dp_transforms.papers.pay_for_change import PayForChange
from dp_transforms.papers.private_computation import NotPrior, OwnTarget, TwoRuns
from dp_transforms.papers.target_charging import (
    ConditionalRelease,
    HitLimit,
    OneShotTopK,
    Price,
    Selected,
    TargetCharging,
)
from tests.papers.scripted import Given, Scripted

Q = not_prior_probability(0.5)  # of a scripted computation


def charging_of(hits, **arguments):
    limit = HitLimit(hits, epsilon=0.5)
    return TargetCharging(None, limit, **arguments), limit


class Noting:
    """A limit that admits so many calls, and notes what it is asked."""

    def __init__(self, admitted=10**6):
        self.calls = []
        self._admitted = admitted

    def admits(self, *given):
        self.calls.append(("admits", *given))
        self._admitted -= 1
        return self._admitted >= 0

    def charge(self, *given):
        self.calls.append(("charge", *given))


def test_a_call_is_admitted_at_its_price_and_charged_at_it():
    limit, noise = Noting(), Given()
    charging = TargetCharging("data", limit, delta_limit=1e-6, noise=noise)
    charging.ask(Scripted([5]), NotPrior(0))
    charging.ask(Scripted([0]), NotPrior(0))
    assert limit.calls == [("admits", 0.5, Q, 1), ("charge", 0.5, Q, 1), ("admits", 0.5, Q, 1), ("charge", 0.5, Q, 0)]
    price = Price(0.2, 0.4, 1e-7, 3)
    assert charging.perform(price, lambda *given: given, lambda result: 2) == ("data", noise)
    assert limit.calls[4:] == [("admits", 0.2, 0.4, 3), ("charge", 0.2, 0.4, 2)]
    assert charging.delta_spent == 1e-7
    for hits in (-1, 4):
        with pytest.raises(ValueError, match=r"must lie in 0 \.\. 3"):
            charging.perform(price, lambda *_: 7, lambda result, hits=hits: hits)
        assert limit.calls[-1] == ("charge", 0.2, 0.4, 3), "all that it could have been"


def test_each_limit_of_several_is_charged_at_the_price_of_its_target():
    limits = [Noting(), Noting(1), Noting()]
    charging = TargetCharging(None, *limits)
    computation = Scripted([1, 2])
    targets = [NotPrior(0), NotPrior(0), OwnTarget(computation, 2, 0.3)]
    assert [charging.ask(computation, *targets) for _ in range(2)] == [1, 2]
    asked, paid = ("admits", 0.5, Q, 1), ("charge", 0.5, Q, 1)
    assert [limit.calls for limit in limits[:2]] == [[asked, paid] * 2, [asked, paid, asked]]
    last = [("admits", 0.5, 0.3, 1), ("charge", 0.5, 0.3, 0), ("admits", 0.5, 0.3, 1), ("charge", 0.5, 0.3, 1)]
    assert limits[2].calls == last
    with pytest.raises(ValueError, match="there must be 3 targets, one for each limit, got 2"):
        charging.ask(computation, *targets[:2])
    for refused in ([], [limits[0]] * 2):
        with pytest.raises(ValueError, match="a different one for each target"):
            TargetCharging(None, *refused)


def test_deltas_are_added_exactly_and_one_too_many_is_refused_before_anything_is_run():
    charging, _ = charging_of(5, delta_limit=1e-6)
    computation = Scripted([0, 0, 0], delta=4e-7)
    for _ in range(2):
        charging.ask(computation, NotPrior(0))
    with pytest.raises(Halted, match="delta_limit"):
        charging.ask(computation, NotPrior(0))
    assert computation.runs == 2
    assert charging.delta_spent == pytest.approx(8e-7)
    charging.ask(Scripted([0], delta=2e-7), NotPrior(0))
    with pytest.raises(Halted):  # as floats the sum would be 1e-6 again
        charging.ask(Scripted([0], delta=1e-30), NotPrior(0))
    assert charging.ask(Scripted([3]), NotPrior(0)) == 3, "pure computations go on"


class RaisingTarget(NotPrior):
    def hit(self, result):
        raise KeyError("the result is like this")


@pytest.mark.parametrize("error", [KeyError, Halted, KeyboardInterrupt])
def test_an_exception_is_charged_as_all_that_the_call_could_have_cost(error):
    charging, limit = charging_of(6)
    with pytest.raises(error):
        charging.ask(Scripted([error()]), NotPrior(0))
    assert limit.used == 1
    with pytest.raises(KeyError):
        charging.ask(Scripted([0]), RaisingTarget(0))
    assert limit.used == 2
    assert charging.ask(Scripted([0]), NotPrior(0)) == 0, "it goes on, for what was not a hit"
    with pytest.raises(error):
        charging.perform(Price(0.5, 0.4, most_hits=3), Scripted([error()]).run, len)
    assert limit.used == 5


def test_an_exception_is_charged_to_every_limit_that_admitted_the_call():
    limits = [HitLimit(1, epsilon=0.5), HitLimit(5, epsilon=0.5), HitLimit(5, epsilon=0.5)]
    charging = TargetCharging(None, *limits)
    charging.ask(Scripted([1]), NotPrior(0), NotPrior(1), NotPrior(1))
    assert [limit.used for limit in limits] == [1, 0, 0]
    with pytest.raises(KeyError):
        charging.ask(Scripted([KeyError()]), *[NotPrior(0)] * 3)
    assert [limit.used for limit in limits] == [1, 1, 1], "the first one is full and vouches for nothing any more"
    with pytest.raises(KeyError):  # the target before the one that raises is not charged twice
        charging.ask(Scripted([1]), NotPrior(0), NotPrior(0), RaisingTarget(0))
    assert [limit.used for limit in limits] == [1, 2, 2]


def test_the_last_hit_is_given_once_to_two_threads():
    both = threading.Barrier(2, timeout=0.3)

    class Slow(Scripted):
        def run(self, data, noise):
            with contextlib.suppress(threading.BrokenBarrierError):
                both.wait()  # for a second thread that was admitted too
            return 1

    charging, limit = charging_of(1)
    outcomes = []

    def ask():
        try:
            outcomes.append(charging.ask(Slow([]), NotPrior(0)))
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
    charging, limit = charging_of(1)
    with pytest.raises(RuntimeError, match="cannot call the charging that runs it"):
        charging.perform(Price(0.5, 0.4), lambda *_: charging.ask(Scripted([1]), NotPrior(0)), lambda _: 1)
    assert limit.used == 1


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
class Label:
    name: str
    confidence: float = dataclasses.field(compare=False)


def test_what_is_free_tells_nothing_beyond_being_equal():
    """Equal results are published as one object: a field that == does not see would be free of charge."""
    prior, drawn = Label("cat", 0.5), Label("cat", 0.75)
    charging, _ = charging_of(1)
    assert charging.ask(Scripted([drawn]), NotPrior(prior)) is prior
    both = TargetCharging(None, HitLimit(1, epsilon=0.5), HitLimit(1, epsilon=0.5))
    assert both.ask(Scripted([drawn]), NotPrior(Label("dog", 0.1)), NotPrior(prior)) is prior
    twice, limit = TwoRuns(Scripted([drawn, Label("cat", 0.9)])), HitLimit(1, epsilon=1.0)
    first, second = TargetCharging(None, limit).ask(twice, twice.target)
    assert first is second
    assert limit.used == 0


@pytest.mark.parametrize(("result", "is_hit"), [(1, True), (1.0, True), (True, True), (0, False), ("1", False)])
def test_its_own_target_is_hit_by_its_outcome_and_not_prior_by_all_others(result, is_hit):
    """A hit is charged, a miss is not; and what equals the outcome is published as the outcome."""
    computation = Scripted([result] * 2)
    for target, hits in ((OwnTarget(computation, 1, Q), is_hit), (NotPrior(1), not is_hit)):
        charging, limit = charging_of(1)
        assert charging.ask(computation, target) is (1 if is_hit else result)
        assert limit.used == hits


def test_a_limit_of_hits_to_its_edges():
    limit = HitLimit(3, epsilon=0.5)
    assert limit.target_probability == Q
    limit.charge(0.5, Q)
    limit.charge(0.5, Q, 0)
    assert (limit.used, limit.admits(0.5, Q, 2), limit.admits(0.5, Q, 3)) == (1, True, False)
    with pytest.raises(ValueError, match=r"must be at most 0\.5, that of the limit"):
        limit.admits(math.nextafter(0.5, 1), Q)
    with pytest.raises(ValueError, match="the q of a target must be at least"):
        limit.admits(0.5, math.nextafter(Q, 0))


def test_a_release_that_waits_draws_once_pays_its_delta_once_and_publishes_once():
    limit = Noting()
    charging = TargetCharging(None, limit, delta_limit=1e-6)
    computation = Scripted([105], delta=1e-7)
    held = ConditionalRelease(charging, computation)
    assert computation.runs == 0
    assert held.ask(lambda result: result > 105) is None
    assert held.ask(lambda result: result > 104) == 105
    assert (computation.runs, charging.delta_spent) == (1, 1e-7)
    assert limit.calls == [("admits", 0.5, Q, 1), ("charge", 0.5, Q, 0), ("admits", 0.5, Q, 1), ("charge", 0.5, Q, 1)]
    with pytest.raises(Halted):
        held.ask(lambda result: True)


def test_nothing_is_drawn_or_published_when_no_hit_is_left():
    charging, limit = charging_of(1)
    held, computation = ConditionalRelease(charging, Scripted([1])), Scripted([2])
    assert held.ask(lambda value: False) is None
    assert ConditionalRelease(charging, Scripted([5])).ask(lambda value: True) == 5
    for one in (held, ConditionalRelease(charging, computation)):
        with pytest.raises(Halted):
            one.ask(lambda value: True)
    assert (computation.runs, limit.used) == (0, 1)


def test_what_raises_is_charged_and_ends_it():
    """Else bisection by exceptions finds the result for nothing: 14 asks of 10,000 values."""
    charging, limit = charging_of(9)
    held, other = ConditionalRelease(charging, Scripted([6789])), ConditionalRelease(charging, Scripted([4]))

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
    computation = Scripted([KeyError(), 1])
    raising = ConditionalRelease(charging, computation)
    for expected in (KeyError, Halted):
        with pytest.raises(expected):
            raising.ask(lambda value: True)
    assert (computation.runs, limit.used) == (1, 3), "nor is a computation that raises drawn again"


def one_shot(scores, k, gap):
    charging, limit = charging_of(10)
    selected = OneShotTopK(charging, k, gap).ask([Scripted([score]) for score in scores])
    assert limit.used == len(selected)
    assert all(one == Selected(one.position, scores[one.position]) for one in selected)
    return [one.position for one in selected]


def literal_sweep(scores, k, gap):
    """[CL23] Algorithm 3 with `ConditionalRelease` objects: what the one-shot form must equal."""
    charging, limit = charging_of(k)
    held = [ConditionalRelease(charging, Scripted([score])) for score in scores]
    published = []
    for threshold in range(6, -4, -1):
        if limit.used == min(k, len(scores)):
            break
        if gap is not None and published and threshold < scores[published[-1]] - gap:
            break
        for position, one in enumerate(held):
            if position in published or limit.used == k:
                continue
            if one.ask(lambda score, threshold=threshold: score >= threshold) is not None:
                published.append(position)
    return published


def test_one_shot_top_k_is_the_sweep():
    for scores in itertools.product((-2, 0, 1, 5), repeat=3):
        for k, gap in itertools.product((1, 2, 4), (None, 0, 1, 3)):
            assert one_shot(scores, k, gap) == literal_sweep(scores, k, gap)


def test_the_price_of_a_selection():
    """A hit is kept for each result that may be published, and the deltas of all candidates are paid."""
    charging, limit = charging_of(3, delta_limit=1e-6)
    with pytest.raises(ValueError, match="at most"):
        OneShotTopK(charging, 1).ask([Scripted([1]), Scripted([2], epsilon=0.6)])
    candidates = [Scripted([("name", score)], delta=2e-7) for score in (1, 2, 3, 4)]
    best = [OneShotTopK(charging, k, score=lambda result: result[1]) for k in (1, 2, 4)]
    with pytest.raises(Halted):
        best[2].ask(candidates)
    assert best[1].ask(candidates) == [(3, ("name", 4)), (2, ("name", 3))]
    assert (limit.used, charging.delta_spent) == (2, pytest.approx(8e-7))
    with pytest.raises(Halted, match="delta_limit"):
        best[0].ask(candidates)
    assert [candidate.runs for candidate in candidates] == [1] * 4


@pytest.mark.parametrize("score", [0.5, math.nan, "7", None])
def test_a_score_that_is_not_whole_is_charged_as_all_hits(score):
    charging, limit = charging_of(10)
    with pytest.raises(ValueError, match="every score must be a whole number: the"):
        OneShotTopK(charging, 2, score=lambda result: score).ask([Scripted([1]), Scripted([2]), Scripted([3])])
    assert limit.used == 2


def test_only_changes_are_charged_and_the_last_one_ends_it():
    limit = HitLimit(3, epsilon=0.5)
    answers = PayForChange(TargetCharging(None, limit), prior=4)
    computation = Scripted([4, 4, 7, 7, 7, 4, 5, 5])
    used = []
    for expected in (4, 4, 7, 7, 7, 4, 5):
        assert answers.ask(computation) == answers.prior == expected
        used.append(limit.used)
    assert used == [0, 0, 1, 1, 1, 2, 3]
    with pytest.raises(Halted):
        answers.ask(computation)
    assert computation.runs == 7, "a refused step does not touch the data"


def test_an_exception_is_a_change_and_the_last_answer_stays():
    limit = HitLimit(3, epsilon=0.5)
    answers = PayForChange(TargetCharging(None, limit), prior="a")
    with pytest.raises(KeyError):
        answers.ask(Scripted([KeyError()]))
    assert (answers.prior, limit.used) == ("a", 1)
