"""The sparse vector technique: the three mechanisms on adversarial streams, also with too little noise.

A stream gives, for what was published so far, the next query's exact answers without and with the one user.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import numpy as np

from dp_transforms.papers.noise_source import NoiseSource
from dp_transforms.papers.query import LinearQuery, RealQuery
from dp_transforms.papers.sparse_vector import AboveThreshold, NumericSparse, Sparse
from tests.privacy.scenarios import Run, Scenario, broken, each

Answers = tuple[float, float]
Stream = Callable[[Sequence[Any]], Answers | None]


def fixed(*answers: Answers) -> Stream:
    """The same queries whatever is published."""
    return lambda published: answers[len(published)] if len(published) < len(answers) else None


def low_then_high(length: int) -> Stream:
    """Answers that the user lowers, and a last one that it raises: the worst case of the proof of Algorithm 1."""
    return fixed(*[(0, -1)] * (length - 1), (0, 1))


def low_then_high_again(published: Sequence[Any]) -> Answers | None:
    """After every top again: two answers that the user lowers, and one that it raises."""
    if len(published) == 6:
        return None
    since_top = next((back for back, answer in enumerate(reversed(published)) if answer), len(published))
    return (0, -1) if since_top < 2 else (-1, 0)


def adaptive(length: int) -> Stream:
    """Turns after every answer: follows a top by a query that the user lowers, a bottom by one that it raises, ever
    nearer to the threshold; and starts from the last published value, if there is one."""

    def next_answers(published: Sequence[Any]) -> Answers | None:
        if len(published) == length:
            return None
        if not published or published[-1] is None or published[-1] is False:
            bottoms = sum(answer is None or answer is False for answer in published)
            return (-3 + bottoms, -2 + bottoms)
        near = max(-2, min(2, -int(published[-1])))
        return (near, near - 1)

    return next_answers


def asked(kind: Any, stream: Stream, epsilon: float, grid: int = 1, **settings: Any) -> Run:
    """A mechanism of the papers: asked until the stream ends or it halts."""
    make = functools.partial(kind, epsilon=epsilon, threshold=0, grid=grid, **settings)

    def run(noise: NoiseSource, with_user: bool) -> Hashable:
        mechanism, published = make(with_user, noise=noise), []
        while not mechanism.halted and (answers := stream(published)) is not None:
            query = RealQuery(lambda with_user, answers=answers: answers[with_user], grid)
            published.append(mechanism.ask(query))
        return tuple(published), mechanism.halted

    return run


def linear_queries(noise: NoiseSource, with_user: bool) -> Hashable:
    """With real weights: three records, and the one user's."""
    mechanism = Sparse([1, 1, 1, int(with_user)], epsilon=8.0, threshold=1.5, cutoff=1, grid=2, noise=noise)
    published = []
    for values in ([0.5, 0, 0.5, 1], [0, 0.5, 0, 0.5], [0.5, 0.5, 0.5, 1], [1, 0.5, 0, 0]):
        if mechanism.halted:
            break
        published.append(mechanism.ask(LinearQuery.of(np.array(values), grid=2)))
    return tuple(published)


REAL_ANSWERS = fixed(*[(0.3, -0.7)] * 5, (-0.5, 0.5))
# Name, epsilon, delta, run. [DR14] Algorithms 1, 2 and 3; for delta > 0 beyond epsilon = 8 ln(1/delta).
MECHANISMS = [
    Scenario("AboveThreshold, low then high", 2, 0, asked(AboveThreshold, low_then_high(5), 2.0)),
    Scenario("AboveThreshold, adaptive", 1, 0, asked(AboveThreshold, adaptive(10), 1.0)),
    Scenario("AboveThreshold, real answers", 4, 0, asked(AboveThreshold, REAL_ANSWERS, 4.0, grid=4)),
    Scenario("Sparse, cutoff 2", 8, 0, asked(Sparse, adaptive(5), 8.0, cutoff=2), cut=1e-7),
    Scenario("Sparse, linear queries", 8, 0, linear_queries),
    Scenario("Sparse, delta", 18, 0.5, asked(Sparse, low_then_high(3), 18.0, cutoff=2, delta=0.5), cut=1e-7),
    Scenario("NumericSparse", 4, 0, asked(NumericSparse, low_then_high(3), 4.0, cutoff=1), cut=1e-7),
    Scenario(
        "NumericSparse, delta", 20, 0.5, asked(NumericSparse, low_then_high(3), 20.0, cutoff=1, delta=0.5), cut=1e-7
    ),
    broken("cutoff 2, noise of cutoff 1", 4, 0, asked(Sparse, low_then_high_again, 8.0, cutoff=2), cut=1e-7),
    broken("noise of twice the epsilon", 2, 0, asked(AboveThreshold, low_then_high(5), 4.0)),
    broken(
        "values, twice the epsilon",
        4,
        0,
        asked(NumericSparse, low_then_high(3), 8.0, cutoff=1),
        cut=1e-7,
    ),
]


@each(MECHANISMS)
def test_a_claim_is_kept_or_seen_to_be_broken(scenario: Scenario) -> None:
    scenario.check()
