"""What the papers' mechanisms ask of their noise, and what they make of draws that are given, to the last unit.

Tests of laws see only what changes a probability by much; a sign, or a share of delta left out, shows here at once.
"""

import math

import pytest

from dp_transforms.accounting.discrete_laplace_law import ROUNDING, not_prior_probability
from dp_transforms.papers.multiplicative_weights import (
    OfflineMultiplicativeWeights,
    OnlineMultiplicativeWeights,
    offline_records_needed,
    online_records_needed,
    update_limit,
)
from dp_transforms.papers.noise_source import Halted
from dp_transforms.papers.private_computation import NoisyAnswer, NoisyTest, NoisyZoneTest, NotPrior
from dp_transforms.papers.query import LinearQuery, RealQuery, epsilon_per_unit
from dp_transforms.papers.sparse_vector import AboveThreshold, NumericSparse, Sparse, epsilon_per_run
from dp_transforms.papers.synthetic_data import (
    LARGEST_UNIVERSE,
    MultiplicativeWeights,
    SmallDatabase,
    _check_size,
)
from dp_transforms.papers.target_charging import (
    ConditionalRelease,
    HitLimit,
    Price,
    TargetCharging,
)


class Given:
    """Draws that are given, one after the other; it notes for what they were asked."""

    def __init__(self, *draws):
        self._draws = list(draws)
        self.epsilons = []
        self.weights = []

    def discrete_laplace(self, epsilon):
        self.epsilons.append(epsilon)
        return self._draws.pop(0) if self._draws else 0

    def choose(self, weights):
        self.weights.append(list(weights))
        return self._draws.pop(0)


ANSWER = LinearQuery([1, 0])
DATA = [100, 7]


@pytest.mark.parametrize(("query", "units"), [(ANSWER, 1), (LinearQuery([4, 0], grid=4), 4)])
def test_an_answer_is_what_is_true_and_its_noise(query, units):
    noise = Given(-9, 5)
    answer = NoisyAnswer(query, epsilon=0.3)
    assert [answer.run(DATA, noise) for _ in range(2)] == [100 * units - 9, 100 * units + 5]
    assert noise.epsilons == [epsilon_per_unit(0.3, units)] * 2


@pytest.mark.parametrize(("draw", "is_reached"), [(4, False), (5, True), (6, True)])
def test_a_noisy_answer_at_the_threshold_reaches_it(draw, is_reached):
    noise = Given(draw)
    test = NoisyTest(ANSWER, threshold=104.5, epsilon=0.3)
    assert test.run(DATA, noise) is is_reached
    assert noise.epsilons == [epsilon_per_unit(0.3, 1)]


@pytest.mark.parametrize(("draw", "zone"), [(-1, "below"), (0, "between"), (2, "between"), (3, "above")])
def test_a_zone_holds_its_lower_edge_and_not_its_upper_one(draw, zone):
    noise = Given(draw)
    test = NoisyZoneTest(ANSWER, threshold=99.2, zone_width=2.5, epsilon=0.3)
    assert test.run(DATA, noise) == zone
    assert noise.epsilons == [epsilon_per_unit(0.3, 1)]
    wanted = -math.expm1(-3 * epsilon_per_unit(0.3, 1)) * not_prior_probability(0.3) * (1 - ROUNDING)
    assert test.target.probability(test) == pytest.approx(wanted, rel=1e-15)


@pytest.mark.parametrize(
    ("epsilon", "delta", "cutoff"), [(1.0, 0.0, 5), (1.0, 1e-6, 500), (1.0, 1e-6, 3), (300.0, 1e-3, 400)]
)
def test_the_epsilon_of_a_run_by_hand(epsilon, delta, cutoff):
    """For the third budget basic composition is better; for the last one the published epsilon is too large."""
    wanted = epsilon / cutoff
    if delta:
        log_inverse = -math.log(delta)
        published = epsilon / math.sqrt(8 * cutoff * log_inverse)
        root = math.sqrt(2 * log_inverse)
        advanced = (math.sqrt(2 * log_inverse + 2 * epsilon) - root) / math.sqrt(cutoff)
        assert cutoff * advanced**2 / 2 + advanced * math.sqrt(2 * cutoff * log_inverse) == pytest.approx(epsilon)
        wanted = min(published, max(wanted, advanced))
    assert epsilon_per_run(epsilon, delta, cutoff) == pytest.approx(wanted * (1 - ROUNDING), rel=1e-13)


@pytest.mark.parametrize(("grid", "units"), [(1, 1), (4, 5)])
def test_a_stream_of_comparisons_draws_for_its_threshold_and_each_answer(grid, units):
    """A new threshold after each top but the last."""
    noise = Given(3, 2, 3, -1, -1)
    stream = Sparse(DATA, epsilon=1.2, delta=1e-6, threshold=100, cutoff=2, grid=grid, noise=noise)
    query = LinearQuery([grid, 0], grid=grid)
    assert [stream.ask(query) for _ in range(3)] == [False, True, True]
    run = epsilon_per_run(1.2, 1e-6, 2)
    threshold, answer = epsilon_per_unit(run / 2, units), epsilon_per_unit(run / 4, units)
    assert noise.epsilons == [threshold, answer, answer, threshold, answer]


@pytest.mark.parametrize("cutoff", [1, 2, 3])
def test_a_comparison_at_the_threshold_is_above_it_and_the_last_one_ends_the_stream(cutoff):
    run = epsilon_per_run(1.0, 0.0, cutoff)
    threshold, answer = epsilon_per_unit(run / 2, 1), epsilon_per_unit(run / 4, 1)
    noise = Given(*[4, 3, 4] * cutoff)  # the threshold's, an answer just below it, and one at it
    kind = AboveThreshold if cutoff == 1 else Sparse
    more = {} if cutoff == 1 else {"cutoff": cutoff}
    stream = kind(DATA, epsilon=1.0, threshold=100, noise=noise, **more)
    assert [stream.ask(ANSWER) for _ in range(2 * cutoff)] == [False, True] * cutoff
    assert noise.epsilons == [threshold, answer, answer] * cutoff
    assert (stream.halted, stream.tops) == (True, cutoff)
    with pytest.raises(Halted):
        stream.ask(ANSWER)


@pytest.mark.parametrize(("grid", "units", "delta"), [(1, 1, 0.0), (4, 5, 0.0), (1, 1, 1e-6)])
def test_a_value_has_noise_of_its_own(grid, units, delta):
    noise = Given(0, 9, 0, 5, -9, 7, -6)
    stream = NumericSparse(DATA, epsilon=2.0, delta=delta, threshold=100, cutoff=2, grid=grid, noise=noise)
    query = LinearQuery([grid, 0], grid=grid)
    assert [stream.ask(query) for _ in range(3)] == [100 + 5 / grid, None, 100 - 6 / grid]
    share = 8 / 9 if delta == 0 else math.sqrt(512) / (math.sqrt(512) + 1)
    run = epsilon_per_run(share * 2.0, delta / 2, 2)
    threshold, answer = epsilon_per_unit(run / 2, units), epsilon_per_unit(run / 4, units)
    value = epsilon_per_unit(epsilon_per_run((1 - share) * 2.0, delta / 2, 2), units)
    assert noise.epsilons == [threshold, answer, threshold, value, answer, answer, value]


def comparison_epsilon(epsilon, delta, cutoff, units):
    """Of each comparison of `NumericSparse`, for one of so many units that a user may change."""
    share = 8 / 9 if delta == 0 else math.sqrt(512) / (math.sqrt(512) + 1)
    return epsilon_per_unit(epsilon_per_run(share * epsilon, delta / 2, cutoff) / 4, units)


def test_how_far_a_comparison_may_be_off_by_hand():
    for grid, threshold, changed in ((1, 10, 1), (4, 10.1, 5)):
        stream = Sparse(DATA, epsilon=1.0, threshold=threshold, cutoff=3, grid=grid)
        units = math.ceil(
            (math.log(50) + math.log(6 / 0.05)) / epsilon_per_unit(epsilon_per_run(1.0, 0.0, 3) / 4, changed)
        )
        shift = math.ceil(threshold * grid) / grid - threshold
        assert stream.accuracy(50, 0.05) == pytest.approx(2 * units / grid + shift, rel=1e-12)
        assert stream.accuracy(1, 0.05) < stream.accuracy(2, 0.05)
        numeric = NumericSparse(DATA, epsilon=1.0, threshold=threshold, cutoff=3, grid=grid)
        units = math.ceil((math.log(50) + math.log(6 / 0.05)) / comparison_epsilon(1.0, 0.0, 3, changed))
        assert numeric.comparison_accuracy(50, 0.05) == pytest.approx(2 * units / grid + shift, rel=1e-12)
        parts = numeric.comparison_accuracy(50, 0.025), numeric.value_accuracy(0.025)
        assert numeric.accuracy(50, 0.05) == max(parts)


def test_an_answer_that_a_user_may_change_by_more_than_was_declared_is_refused():
    stream = Sparse(DATA, epsilon=1.0, threshold=10, cutoff=3, grid=4, sensitivity_units=4)
    stream.ask(LinearQuery([4, 0], grid=4))
    with pytest.raises(ValueError, match="at most 4 units, got 5"):
        stream.ask(RealQuery(lambda data: data[0], grid=4))
    with pytest.raises(ValueError, match="must have grid 4"):
        stream.ask(LinearQuery([1, 0], grid=1))
    assert epsilon_per_run(1.0, 0.0, 2**31) > 0


class Limit:
    """Notes what it is asked."""

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
    limit, noise = Limit(), Given(5, 0)
    charging = TargetCharging(DATA, limit, delta_limit=1e-6, noise=noise)
    answer = NoisyAnswer(ANSWER, epsilon=0.3)
    assert [charging.ask(answer, NotPrior(100)) for _ in range(2)] == [105, 100]
    q = not_prior_probability(0.3)
    assert limit.calls == [("admits", 0.3, q, 1), ("charge", 0.3, q, 1), ("admits", 0.3, q, 1), ("charge", 0.3, q, 0)]
    assert charging.delta_spent == 0.0
    assert charging.perform(Price(0.2, 0.4, 1e-7, 3), lambda data, source: (data, source), lambda found: 2) == (
        DATA,
        noise,
    )
    assert limit.calls[4:] == [("admits", 0.2, 0.4, 3), ("charge", 0.2, 0.4, 2)]
    assert charging.delta_spent == 1e-7
    for hits in (-1, 4):
        with pytest.raises(ValueError, match=r"must lie in 0 \.\. 3"):
            charging.perform(Price(0.2, 0.4, 0.0, 3), lambda data, source: 7, lambda found, hits=hits: hits)
        assert limit.calls[-1] == ("charge", 0.2, 0.4, 3), "all that it could have been"
    with pytest.raises(Halted, match="the deltas of all calls"):
        charging.perform(Price(0.2, 0.4, 9.1e-7), lambda data, source: 7, lambda found: 0)
    charging.perform(Price(0.2, 0.4, 8.9e-7), lambda data, source: 7, lambda found: 0)


def test_each_limit_of_several_is_charged_at_the_price_of_its_target():
    limits, noise = [Limit(), Limit(1), Limit()], Given(5, 3)
    charging = TargetCharging(DATA, *limits, noise=noise)
    answer = NoisyAnswer(ANSWER, epsilon=0.3)
    targets = [NotPrior(100), NotPrior(100), NotPrior(105)]
    assert [charging.ask(answer, *targets) for _ in range(2)] == [105, 103]
    q = not_prior_probability(0.3)
    asked, paid, free = ("admits", 0.3, q, 1), ("charge", 0.3, q, 1), ("charge", 0.3, q, 0)
    assert [limit.calls for limit in limits] == [[asked, paid] * 2, [asked, paid, asked], [asked, free, asked, paid]]
    with pytest.raises(ValueError, match="there must be 3 targets, one for each limit, got 2"):
        charging.ask(answer, *targets[:2])
    for refused in ([], [limits[0], limits[0]]):
        with pytest.raises(ValueError, match="limits must be one or more objects"):
            TargetCharging(DATA, *refused)


def test_a_limit_of_hits_to_its_edges():
    limit = HitLimit(3, epsilon=0.5)
    assert limit.target_probability == not_prior_probability(0.5)
    q = limit.target_probability
    assert limit.admits(0.5, q, 3)
    assert not limit.admits(0.5, q, 4)
    limit.charge(0.5, q)
    limit.charge(0.5, q, 0)
    assert (limit.used, limit.admits(0.5, q, 2), limit.admits(0.5, q, 3)) == (1, True, False)
    with pytest.raises(ValueError, match=r"must be at most 0\.5, that of the limit"):
        limit.admits(math.nextafter(0.5, 1), q)
    with pytest.raises(ValueError, match="the q of a target must be at least"):
        limit.admits(0.5, math.nextafter(q, 0))
    assert HitLimit(1, epsilon=0.5, target_probability=1.0).target_probability == 1.0


def test_a_release_that_waits_draws_once_and_pays_for_its_delta_once():
    limit, noise = Limit(), Given(5, 99)
    charging = TargetCharging(DATA, limit, delta_limit=1e-6, noise=noise)
    computation = NoisyAnswer(ANSWER, epsilon=0.3)
    object.__setattr__(computation, "delta", 1e-7)
    held = ConditionalRelease(charging, computation)
    assert held.ask(lambda result: result > 105) is None
    assert held.ask(lambda result: result > 104) == 105
    assert noise.epsilons == [epsilon_per_unit(0.3, 1)], "one draw, from the source of the charging"
    assert charging.delta_spent == 1e-7
    q = not_prior_probability(0.3)
    assert limit.calls == [("admits", 0.3, q, 1), ("charge", 0.3, q, 0), ("admits", 0.3, q, 1), ("charge", 0.3, q, 1)]
    with pytest.raises(Halted):
        held.ask(lambda result: True)


def test_an_online_learner_hands_its_budget_on():
    """Its noise is that of `NumericSparse` with the same numbers."""
    budget = {"epsilon": 1.5, "delta": 1e-6, "grid": 4}
    for updates, cutoff in ((None, update_limit(4, 0.4)), (3, 3)):
        noise, wanted = Given(), Given()
        learner = OnlineMultiplicativeWeights(
            [900, 0, 0, 100], records=1000, accuracy=0.4, updates=updates, noise=noise, **budget
        )
        sparse = NumericSparse(
            [1], threshold=0.4 * 3 / 4 * 1000, cutoff=cutoff, sensitivity_units=4, noise=wanted, **budget
        )
        assert noise.epsilons == wanted.epsilons
        ours, theirs = learner._sparse, sparse
        for name in ("_threshold", "_cutoff", "_query_epsilon", "_value_epsilon", "_threshold_epsilon", "_sensitivity"):
            assert getattr(ours, name) == getattr(theirs, name), name


def test_an_online_answer_is_the_estimate_and_its_noisy_error():
    """Draws: of the threshold, then of a comparison and, where it is above, of the next threshold and its value."""
    noise = Given(0, 0, 0, 20, 0, 0)
    learner = OnlineMultiplicativeWeights([900, 0, 0, 100], records=1000, epsilon=5.0, accuracy=0.4, noise=noise)
    first = learner.ask(LinearQuery([1, 0, 0, 0]))
    assert (first.share, first.updated) == (pytest.approx(0.92), True)
    assert learner.synthetic.shares[0] == pytest.approx(0.25 + 0.67 - 0.3), "by what the error was at the least"
    second = learner.ask(LinearQuery([1, 0, 0, 0]))
    assert (second.share, second.updated) == (pytest.approx(0.62), False)
    assert learner.updates == 1


def test_an_offline_learner_measures_the_worst_query_and_moves_by_what_is_left():
    queries = [LinearQuery([1, 0, 0, 0]), LinearQuery([1, 1, 0, 0])]
    noise = Given(0, 20, 1, 0)
    learner = OfflineMultiplicativeWeights(
        [900, 0, 0, 100], queries, records=1000, epsilon_per_call=0.5, accuracy=0.4, updates=2, noise=noise
    )
    synthetic = learner.release()
    assert learner.measured[0] == (0, pytest.approx(0.92))
    assert noise.epsilons == [epsilon_per_unit(0.5, 1)] * len(learner.measured)
    moved = MultiplicativeWeights(4)
    moved.move(queries[0], 0.92 - 0.05)
    if len(learner.measured) == 1 or abs(learner.measured[1][1] - moved.synthetic.answer(queries[1])) < 0.25:
        assert synthetic.shares == pytest.approx(moved.synthetic.shares)
    assert len(noise.weights[0]) == 2
    with pytest.raises(Halted):
        learner.release()


def test_how_many_records_a_learner_needs_by_hand():
    tail = math.log(2 * update_limit(8, 0.2) / 0.1)
    wanted = math.ceil(8 * ((math.log(50) + tail) / 0.3 + 2) / 0.2)
    assert offline_records_needed(accuracy=0.2, beta=0.1, epsilon_per_call=0.3, universe=8, queries=50) == wanted
    for delta, grid in ((0.0, 1), (1e-6, 1), (0.0, 16)):
        limit = update_limit(8, 0.2)
        units = math.ceil((math.log(100) + math.log(2 * limit / 0.05)) / comparison_epsilon(0.7, delta, limit, grid))
        wanted = math.ceil(4 * (2 * units / grid + 1 / grid) / 0.2)
        asked = {"accuracy": 0.2, "beta": 0.1, "epsilon": 0.7, "universe": 8, "queries": 50, "delta": delta}
        assert online_records_needed(**asked, grid=grid) == wanted


def test_a_small_database_is_chosen_among_all_by_its_worst_error():
    noise = Given(1)
    small = SmallDatabase(
        [3, 1], [LinearQuery([1, 0]), LinearQuery([0, 1])], records=4, size=2, epsilon=1.0, noise=noise
    )
    assert small._scores() == [-6, -2, -2], "of 0, 1 and 2 of two records with the first value"
    assert small.release().shares.tolist() == [0.5, 0.5]
    assert len(noise.weights[0]) == 3
    with pytest.raises(Halted):
        small.release()


def test_the_smallest_and_largest_universe():
    for universe in (1, LARGEST_UNIVERSE):
        assert len(MultiplicativeWeights(universe).synthetic.shares) == universe
    for universe in (0, LARGEST_UNIVERSE + 1):
        with pytest.raises(ValueError, match=r"the universe must have 1 \.\. 1048576 values"):
            MultiplicativeWeights(universe)
    assert _check_size(2**16, 2) == 2**16
    for size, universe in ((2**18, 2), (1, 2**16), (2, 2**10)):
        with pytest.raises(ValueError, match="there may be at most"):
            _check_size(size, universe)
