"""Labels of private teachers: the exact law of each call for all votes of a small world, and for all moved votes."""

import itertools
import math

import numpy as np
import pytest

from dp_transforms.papers.pate import LOW, TeacherVotes
from tests.helpers.sampling_checks import laplace_probability
from tests.papers.largest_target import largest_q
from tests.reference.exact_law import attained_epsilon, exact_law, hockey_stick

LABELS = ("cat", "dog", "owl")
TEACHERS = 5
WORLDS = [votes for votes in itertools.product(range(TEACHERS + 1), repeat=3) if sum(votes) == TEACHERS]
MOVES = [
    (votes, moved)
    for votes, moved in itertools.permutations(WORLDS, 2)
    if sum(abs(one - other) for one, other in zip(votes, moved, strict=True)) == 2
]
ASKED = TeacherVotes(LABELS, lambda votes: votes, epsilon=0.8)
CALLS = {
    "agreed": ASKED.agreed(),
    **{
        f"low below {threshold}, {test_epsilon}": ASKED.agreed_or_low(threshold, test_epsilon)
        for threshold, test_epsilon in ((1, 0.3), (4, 2.0), (6, 0.3))
    },
    "predicted": ASKED.as_predicted("dog"),
}


def _laws(computation):
    return {votes: exact_law(lambda noise, votes=votes: computation.run(votes, noise)) for votes in WORLDS}


def _drawn(votes):
    weights = [math.exp(0.8 * count / 2) for count in votes]
    return [weight / sum(weights) for weight in weights]


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_a_moved_vote_costs_what_is_declared(call):
    """epsilon as in [CL23] Lemma 2.8, made exact, and q as in Lemmas 2.3 and 2.9: for every pair of worlds."""
    computation, target = call
    laws = _laws(computation)
    claimed = target.probability(computation)
    for votes, moved in MOVES:
        outcomes = sorted({**laws[votes], **laws[moved]}, key=str)
        z0, z1 = (np.array([laws[world].get(outcome, 0.0) for outcome in outcomes]) for world in (votes, moved))
        assert hockey_stick(laws[votes], laws[moved], computation.epsilon) < 1e-12
        hits = np.array([target.hit(outcome) for outcome in outcomes])
        assert largest_q(z0, z1, hits, computation.epsilon) >= claimed * (1 - 1e-9)


def test_both_steps_of_low_are_paid():
    """The label that leads, of many, by one vote: it rises by half of its epsilon, and with it the test."""
    teachers = TeacherVotes(tuple(range(40)), lambda votes: votes, epsilon=0.8)
    combined = teachers.agreed_or_low(30, test_epsilon=0.5)[0].mechanism
    assert combined.epsilon == 1.3
    worlds = ([3, 2, *[2] * 38], [4, 1, *[2] * 38])
    laws = [exact_law(lambda noise, votes=votes: combined.run(votes, noise)) for votes in worlds]
    assert 0.88 < attained_epsilon(*laws) < 0.9, "neither 0.8 nor 0.5 alone"


@pytest.mark.parametrize(("threshold", "test_epsilon"), [(1, 0.3), (3, 0.3), (4, 2.0), (9, 0.7), (400, 2.0)])
def test_a_label_is_drawn_where_the_noisy_count_reaches_the_threshold(threshold, test_epsilon):
    combined = ASKED.agreed_or_low(threshold, test_epsilon)[0].mechanism
    for votes, law in _laws(combined).items():
        missing = threshold - max(votes)
        below = math.fsum(laplace_probability(test_epsilon, value) for value in range(-200, missing))
        assert law[LOW] == pytest.approx(below, abs=1e-12)
        for label, share in zip(LABELS, _drawn(votes), strict=True):
            assert law.get(label, 0.0) == pytest.approx(share * (1 - below), abs=1e-12)
