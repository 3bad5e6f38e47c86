"""The sparse vector technique: the three mechanisms on adversarial streams, the six variants of Lyu, Su and Li (2017,
"Understanding the Sparse Vector Technique", Figure 1), and what goes wrong when one part is left out.

A stream gives, for what was published so far, the next query's exact answers without and with the one user.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import numpy as np

from dp_transforms.papers.noise_source import NoiseSource
from dp_transforms.papers.query import LinearQuery, RealQuery
from dp_transforms.papers.sparse_vector import AboveThreshold, NumericSparse, Sparse
from tests.privacy.scenarios import Scenario

Answers = tuple[float, float]
Stream = Callable[[Sequence[Any]], Answers | None]
Run = Callable[[NoiseSource, bool], Hashable]


def fixed(*answers: Answers) -> Stream:
    """The same queries whatever is published."""
    return lambda published: answers[len(published)] if len(published) < len(answers) else None


def alternating(length: int) -> Stream:
    """The user raises every second answer and lowers the others: what no monotone stream can do."""
    return fixed(*[(-1, 0), (0, -1)] * (length // 2))


def low_then_high(length: int) -> Stream:
    """Answers that the user lowers, and a last one that it raises: the worst case of the proof of Algorithm 1."""
    return fixed(*[(0, -1)] * (length - 1), (0, 1))


def low_then_high_again(lows: int, length: int) -> Stream:
    """After every top again: some answers that the user lowers, and one that it raises."""

    def next_answers(published: Sequence[Any]) -> Answers | None:
        if len(published) == length:
            return None
        since_top = next((back for back, answer in enumerate(reversed(published)) if answer), len(published))
        return (0, -1) if since_top < lows else (-1, 0)

    return next_answers


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


def of_mechanism(make: Callable[[Any, NoiseSource], Any], stream: Stream, grid: int = 1) -> Run:
    """A mechanism of the product: asked until the stream ends or it halts."""

    def run(noise: NoiseSource, with_user: bool) -> Hashable:
        mechanism, published = make(with_user, noise), []
        while not mechanism.halted and (answers := stream(published)) is not None:
            query = RealQuery(lambda with_user, answers=answers: answers[with_user], grid)
            published.append(mechanism.ask(query))
        return tuple(published), mechanism.halted

    return run


@dataclasses.dataclass(frozen=True)
class Variant:
    """The technique with its parts set apart, threshold 0. None: without this noise, or without a cutoff."""

    threshold_epsilon: float | None
    query_epsilon: float | None
    cutoff: int | None
    new_threshold_noise: bool = False
    publishes_compared_value: bool = False

    def on(self, stream: Stream) -> Run:
        return lambda noise, with_user: self._run(noise, with_user, stream)

    def _run(self, noise: NoiseSource, with_user: bool, stream: Stream) -> Hashable:
        published: list[Any] = []
        tops = 0
        threshold = self._draw(noise, self.threshold_epsilon)
        while tops != self.cutoff and (answers := stream(published)) is not None:
            noisy = self._draw(noise, self.query_epsilon) + int(answers[with_user])
            if noisy >= threshold:
                published.append(int(noisy) if self.publishes_compared_value else True)
                tops += 1
                if self.new_threshold_noise:
                    threshold = self._draw(noise, self.threshold_epsilon)
            else:
                published.append(False)
        return tuple(published)

    @staticmethod
    def _draw(noise: NoiseSource, epsilon: float | None) -> int:
        return 0 if epsilon is None else noise.discrete_laplace(epsilon)


def above_threshold(epsilon: float, **settings: Any) -> Callable[[Any, NoiseSource], AboveThreshold]:
    return lambda data, noise: AboveThreshold(data, epsilon=epsilon, threshold=0, noise=noise, **settings)


def sparse(epsilon: float, cutoff: int, **settings: Any) -> Callable[[Any, NoiseSource], Sparse]:
    return lambda data, noise: Sparse(data, epsilon=epsilon, threshold=0, cutoff=cutoff, noise=noise, **settings)


def numeric_sparse(epsilon: float, cutoff: int, **settings: Any) -> Callable[[Any, NoiseSource], NumericSparse]:
    return lambda data, noise: NumericSparse(data, epsilon=epsilon, threshold=0, cutoff=cutoff, noise=noise, **settings)


def _counts(noise: NoiseSource, with_user: bool) -> Hashable:
    """Linear queries with real weights: three records, and the one user's."""
    mechanism = Sparse([1, 1, 1, int(with_user)], epsilon=8.0, threshold=1.5, cutoff=1, grid=2, noise=noise)
    published = []
    for values in ([0.5, 0, 0.5, 1], [0, 0.5, 0, 0.5], [0.5, 0.5, 0.5, 1], [1, 0.5, 0, 0]):
        if mechanism.halted:
            break
        published.append(mechanism.ask(LinearQuery.of(np.array(values), grid=2)))
    return tuple(published)


DR14 = "[DR14] Algorithm"
LSL17 = "Lyu, Su, Li 2017, Figure 1, Algorithm"

PRIVATE = [
    Scenario(
        "AboveThreshold, low then high", f"{DR14} 1", 2.0, 0.0, of_mechanism(above_threshold(2.0), low_then_high(5))
    ),
    Scenario("AboveThreshold, adaptive", f"{DR14} 1", 1.0, 0.0, of_mechanism(above_threshold(1.0), adaptive(10))),
    Scenario(
        "AboveThreshold, real answers",
        f"{DR14} 1, grid 4",
        4.0,
        0.0,
        of_mechanism(above_threshold(4.0, grid=4), fixed(*[(0.3, -0.7)] * 5, (-0.5, 0.5)), grid=4),
    ),
    Scenario("Sparse, cutoff 2, adaptive", f"{DR14} 2", 8.0, 0.0, of_mechanism(sparse(8.0, 2), adaptive(6)), cut=1e-11),
    Scenario("Sparse, linear queries", f"{DR14} 2, grid 2", 8.0, 0.0, _counts),
    Scenario(
        "Sparse, cutoff 3, delta > 0",
        f"{DR14} 2, beyond epsilon = 8 ln(1/delta)",
        18.0,
        0.5,
        of_mechanism(sparse(18.0, 3, delta=0.5), low_then_high(3)),
        cut=1e-9,
    ),
    Scenario(
        "NumericSparse, cutoff 1",
        f"{DR14} 3",
        4.0,
        0.0,
        of_mechanism(numeric_sparse(4.0, 1), low_then_high(3)),
        cut=1e-11,
    ),
    Scenario(
        "NumericSparse, delta > 0",
        f"{DR14} 3",
        20.0,
        0.5,
        of_mechanism(numeric_sparse(20.0, 1, delta=0.5), low_then_high(3)),
        cut=1e-9,
    ),
    Scenario(
        "lyu-su-li 1: two kinds of noise, one threshold",
        f"{LSL17} 1",
        4.0,
        0.0,
        Variant(4.0 / 2, 4.0 / (4 * 2), cutoff=2).on(alternating(6)),
    ),
    Scenario(
        "lyu-su-li 2: Dwork and Roth's",
        f"{LSL17} 2",
        8.0,
        0.0,
        Variant(8.0 / (2 * 2), 8.0 / (4 * 2), cutoff=2, new_threshold_noise=True).on(alternating(4)),
        cut=1e-11,
    ),
]

BROKEN = [
    Scenario(
        "lyu-su-li 3: publishes the compared value",
        f"{LSL17} 3 (Roth 2011)",
        2.0,
        0.0,
        Variant(2.0 / 2, 2.0 / 2, cutoff=1, publishes_compared_value=True).on(low_then_high(5)),
        private=False,
    ),
    Scenario(
        "lyu-su-li 4: noise without the cutoff",
        f"{LSL17} 4 (Lee and Clifton 2014): threshold epsilon/4, answers 3 epsilon/4",
        2.0,
        0.0,
        Variant(2.0 / 4, 3 * 2.0 / 4, cutoff=2).on(alternating(8)),
        private=False,
    ),
    Scenario(
        "lyu-su-li 5: no noise on the answers",
        f"{LSL17} 5 (Stoddard et al. 2014)",
        2.0,
        0.0,
        Variant(2.0 / 2, None, cutoff=None).on(alternating(2)),
        private=False,
    ),
    Scenario(
        "lyu-su-li 6: no cutoff, less noise",
        f"{LSL17} 6 (Chen et al. 2015)",
        2.0,
        0.0,
        Variant(2.0 / 2, 2.0 / 2, cutoff=None).on(alternating(6)),
        private=False,
    ),
    Scenario(
        "no threshold noise",
        f"{DR14} 1 without noise on the threshold",
        4.0,
        0.0,
        Variant(None, 4.0 / 4, cutoff=1).on(low_then_high(10)),
        private=False,
    ),
    Scenario(
        "no cutoff",
        f"{DR14} 1 that does not halt",
        4.0,
        0.0,
        Variant(4.0 / 2, 4.0 / 4, cutoff=None).on(alternating(8)),
        private=False,
    ),
    Scenario(
        "cutoff c+1",
        f"{DR14} 2 with cutoff 2 and the noise of cutoff 1",
        4.0,
        0.0,
        of_mechanism(sparse(2 * 4.0, 2), low_then_high_again(2, 6)),
        private=False,
        cut=1e-9,
    ),
    Scenario(
        "noise halved",
        f"{DR14} 1 with the noise of twice the epsilon",
        2.0,
        0.0,
        of_mechanism(above_threshold(2 * 2.0), low_then_high(5)),
        private=False,
    ),
    Scenario(
        "noise halved, NumericSparse",
        f"{DR14} 3 with the noise of twice the epsilon",
        4.0,
        0.0,
        of_mechanism(numeric_sparse(2 * 4.0, 1), low_then_high(3)),
        private=False,
        cut=1e-9,
    ),
]

SCENARIOS = [*PRIVATE, *BROKEN]
