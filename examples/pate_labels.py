"""Thousands of labels from private teachers, paid for only where the teachers are torn ([PSM+18] as in [CL23] 2.7).

A thousand teachers, each trained on the records of its own users, vote on the labels of public pictures. A user is
behind one teacher, so it may change that teacher's vote on every picture. Each label is drawn by the exponential
mechanism from the votes; the boundary wrapper adds the answer "boundary" where no label is clearly ahead, and only
these answers are charged. For the same budget, composition allows a fixed number of labels, however clear they are.

Run it: ``python examples/pate_labels.py``. The votes are made up by arithmetic; the noise is real.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from dp_transforms.accounting.charging_game import GameAccountant
from dp_transforms.papers.noise_source import Halted, NoiseSource
from dp_transforms.papers.pate import TeacherVotes
from dp_transforms.papers.private_computation import BOUNDARY
from dp_transforms.papers.target_charging import HitLimit, TargetCharging

EPSILON, DELTA = 2.0, 1e-6  # for all labels together
EPSILON_PER_LABEL = 0.03
PICTURES, TEACHERS, LABELS = 3000, 1000, 10
ONE_HARD_PICTURE_IN = 80


class Summary(NamedTuple):
    """labels: the answers; correct: the right ones; boundaries: the charged ones; halted: before the end."""

    labels: int
    correct: int
    boundaries: int
    boundaries_allowed: int
    labels_by_composition: int
    halted: bool


def made_up_votes() -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """The true label of each picture, int64[pictures], and the teachers' votes, counted: int64[pictures, labels]."""
    picture, teacher = np.arange(PICTURES)[:, None], np.arange(TEACHERS)
    truth = picture * 7 % LABELS
    spread = (picture * 131 + teacher * 37) % 100  # each teacher is wrong about other pictures
    share_wrong = np.where(picture % ONE_HARD_PICTURE_IN == 0, 50, 8 + picture % 15)
    other = np.where(picture % ONE_HARD_PICTURE_IN == 0, truth + 1, truth + 1 + (picture + teacher) % (LABELS - 1))
    votes = np.where(spread < share_wrong, other % LABELS, truth)
    return truth[:, 0], (votes[:, :, None] == np.arange(LABELS)).sum(axis=1)


def teachers(picture: int) -> TeacherVotes:
    """On one picture: a user changes every count by at most 1."""

    def counts(votes: npt.NDArray[np.int64]) -> list[int]:
        return [int(count) for count in votes[picture]]

    return TeacherVotes(tuple(range(LABELS)), counts, EPSILON_PER_LABEL)


def affordable(delta_of: Callable[[int], float]) -> int:
    """The largest number, of hits or of calls, whose delta at EPSILON is at most DELTA."""
    number = 0
    while delta_of(number + 1) <= DELTA:
        number += 1
    return number


def optimal_composition(calls: int) -> float:
    """delta of so many labels, each charged: one is worth one randomised response ([KOV15])."""
    log_up = -math.log1p(math.exp(-EPSILON_PER_LABEL))
    delta = 0.0
    for ups in range(calls + 1):
        loss = EPSILON_PER_LABEL * (2 * ups - calls)
        log_mass = math.log(math.comb(calls, ups)) + calls * log_up - (calls - ups) * EPSILON_PER_LABEL
        delta += math.exp(log_mass) * max(0.0, -math.expm1(EPSILON - loss))
    return delta


def main(noise: NoiseSource | None = None) -> Summary:
    truth, votes = made_up_votes()
    wrapped, boundary = teachers(0).agreed()
    hits = affordable(lambda hits: GameAccountant(wrapped.epsilon, boundary.q, hits).delta(EPSILON))
    limit = HitLimit(hits, epsilon=wrapped.epsilon, target_probability=boundary.q)
    charging = TargetCharging(votes, limit, noise=noise)
    labels = correct = 0
    halted = False
    for picture in range(PICTURES):
        try:
            answer = charging.ask(*teachers(picture).agreed())
        except Halted:
            halted = True
            break
        labels += answer != BOUNDARY
        correct += answer == truth[picture]
    by_composition = affordable(optimal_composition)
    print(f"({EPSILON:g}, {DELTA:g})-differentially private for every user, {TEACHERS} teachers:")
    print(f"  {labels} labels for {labels + limit.used} pictures, {correct / labels:.1%} of them right;")
    print(f"  {limit.used} answers were 'boundary', and paid for, of {limit.hits} that the budget allows;")
    print(f"  for the same budget, composition allows {by_composition} labels.")
    return Summary(labels, correct, limit.used, limit.hits, by_composition, halted)


if __name__ == "__main__":
    main()
