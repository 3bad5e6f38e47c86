"""Target charging on neighbouring inputs: adaptive streams, kept results, selection, boundaries; what [CL23] applies it
to (private teachers, streams that seldom change, counts by sketches).

The data are whether the user is there; computations with few outcomes have whole weights, so that laws are exact. Where
the game of [CL23] has few calls, the claim is that of the game with no more of them, which is attained.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Hashable, Sequence
from fractions import Fraction
from typing import Any

from dp_transforms.accounting.charging_game import GameAccountant
from dp_transforms.accounting.discrete_laplace_law import not_prior_probability
from dp_transforms.papers.distinct_count import DistinctCount
from dp_transforms.papers.mixed_charging import MixedChargingAccountant, MixedChargingFilter
from dp_transforms.papers.noise_source import Halted, NoiseSource
from dp_transforms.papers.pate import TeacherVotes
from dp_transforms.papers.pay_for_change import PayForChange
from dp_transforms.papers.private_computation import (
    BoundaryWrapper,
    FiniteMechanism,
    NotPrior,
    PrivateComputation,
    Target,
    TwoRuns,
)
from dp_transforms.papers.target_charging import ConditionalRelease, HitLimit, OneShotTopK, TargetCharging
from tests.privacy.scenarios import Run, Scenario, each
from tests.reference.charging_game import capped_game_delta

Transcript = list[Hashable]
Stream = Callable[[TargetCharging, Transcript], None]


def finite(outcomes: tuple, without: tuple[int, ...], with_user: tuple[int, ...], factor: int) -> FiniteMechanism:
    """An ln(factor)-DP choice, checked exactly."""
    for one, other in zip(without, with_user, strict=True):
        ratio = Fraction(one * sum(with_user), other * sum(without))
        assert Fraction(1, factor) <= ratio <= factor
    return FiniteMechanism(outcomes, lambda user: with_user if user else without, math.log(factor))


LN3, Q3 = math.log(3), not_prior_probability(math.log(3))
RESPONSE = finite(("up", "down"), (1, 3), (3, 1), 3)  # randomised response


def run_of(stream: Stream, *limits: Callable[[], Any], **arguments: Any) -> Run:
    """Publishes what the stream appends, and whether it was halted."""

    def run(noise: NoiseSource, with_user: bool) -> Hashable:
        transcript: Transcript = []
        try:
            stream(TargetCharging(with_user, *(limit() for limit in limits), noise=noise, **arguments), transcript)
        except Halted:
            transcript.append("halted")
        return tuple(transcript)

    return run


def alone(computation: PrivateComputation) -> Run:
    return lambda noise, with_user: computation.run(with_user, noise)


def hits(number: int, epsilon: float = LN3, q: float | None = None) -> Callable[[], HitLimit]:
    return lambda: HitLimit(number, epsilon=epsilon, target_probability=q)


def game(epsilon: float, number: int, *, each_epsilon: float = LN3, q: float = Q3) -> float:
    return GameAccountant(each_epsilon, q, number).delta(epsilon)


# --- Calls chosen one after the other


def responses(charging: TargetCharging, transcript: Transcript) -> None:
    """Pays for "down" while "up" leads, and stops once it leads by far."""
    lead = 0
    for _ in range(10):
        transcript.append(charging.ask(RESPONSE, NotPrior("up" if lead > -2 else "down")))
        lead += 1 if transcript[-1] == "up" else -1
        if lead == 5:
            return


def both_targets(charging: TargetCharging, transcript: Transcript) -> None:
    for _ in range(9):
        transcript.append(charging.ask(RESPONSE, NotPrior("up"), NotPrior("down")))


@dataclasses.dataclass(frozen=True)
class Leaks:
    """With probability delta it tells all, else nothing."""

    delta: float
    epsilon: float = 0.1

    def run(self, data: bool, noise: NoiseSource) -> Hashable:
        return f"user: {data}" if noise.bernoulli(self.delta) else "nothing"


def leaks(charging: TargetCharging, transcript: Transcript) -> None:
    for _ in range(5):
        transcript.append(charging.ask(Leaks(0.05), NotPrior("nothing")))


STEP = math.log(11 / 9)
SMALL = FiniteMechanism(("up", "down"), lambda user: (11, 9) if user else (9, 11), STEP)
LARGE = FiniteMechanism(("up", "down"), lambda user: (121, 81) if user else (81, 121), 2 * STEP)
UNIT = MixedChargingAccountant(2.2, 1.0)
MIXED = MixedChargingAccountant(
    2.2,
    3.01 * UNIT.charge(STEP, not_prior_probability(STEP)) + UNIT.charge(2 * STEP, not_prior_probability(2 * STEP)),
)


def two_kinds(charging: TargetCharging, transcript: Transcript) -> None:
    lead = 0
    for _ in range(9):
        call = LARGE if lead < 2 else SMALL
        transcript.append(charging.ask(call, NotPrior("up")))
        lead += (1 if transcript[-1] == "up" else -1) * (2 if call is LARGE else 1)


# --- Results that are kept, and selection

HALVES = finite(("a", "b", "c", "d"), (3, 3, 1, 1), (1, 1, 3, 3), 3)  # RESPONSE; each answer in two halves
SCORES = finite((0, 1, 2), (1, 2, 3), (3, 2, 1), 3)  # with the user, low scores


def revisions(draws: list[FiniteMechanism], targets: Sequence[str]) -> Stream:
    """Widens the targets of all draws bit by bit, in turns: first all for the first outcome, and so on."""

    def stream(charging: TargetCharging, transcript: Transcript) -> None:
        held = [ConditionalRelease(charging, draw) for draw in draws]
        published: set[int] = set()
        for outcome in targets:
            for number, one in enumerate(held):
                if number not in published:
                    result = one.ask(lambda value, outcome=outcome: value == outcome)
                    transcript.append(result)
                    published |= {number} if result is not None else set()

    return stream


def selection(k: int, gap: int | None = None) -> Stream:
    return lambda charging, transcript: transcript.append(tuple(OneShotTopK(charging, k, gap).ask([SCORES] * 4)))


# --- Boundaries

CLASSES = ("cat", "dog", "owl")
SURE = BoundaryWrapper(finite(CLASSES, (80, 10, 10), (40, 30, 30), 3))
UNSURE = BoundaryWrapper(finite(CLASSES, (70, 20, 10), (30, 60, 10), 3))
# One rare outcome falls while the boundary takes more: what the cap at 1/3 is for.
MANY = finite(tuple("abcdefghij"), (10_000, 240, *[220] * 8), (3152, 48, *[1100] * 8), 5)


def classes(charging: TargetCharging, transcript: Transcript) -> None:
    """Asks about what was unsure again, and else about the other one."""
    wrapped = SURE
    for _ in range(5):
        transcript.append(charging.ask(wrapped, wrapped.target))
        wrapped = UNSURE if transcript[-1] == "cat" else SURE


def two_runs(charging: TargetCharging, transcript: Transcript) -> None:
    twice = TwoRuns(RESPONSE)
    for _ in range(4):
        transcript.append(charging.ask(twice, twice.target))


# --- Private teachers: the user's teacher moves its vote from the first label to the second

Call = tuple[PrivateComputation, Target]


def example(*without: int) -> TeacherVotes:
    cat, dog, owl = without
    return TeacherVotes(CLASSES, lambda user: (cat - 1, dog + 1, owl) if user else without, 1.0)


AGREED, TORN = example(5, 0, 0), example(3, 2, 0)


def teachers(call: Callable[[TeacherVotes, Hashable], Call], number: int) -> tuple[float, Run]:
    """delta and run of a stream that asks about a hard example again and again, and about a simple one while labels are
    found. call: from an example, and the label that the teachers gave last."""
    computation, target = call(TORN, "cat")
    epsilon, q = computation.epsilon, target.probability(computation)

    def stream(charging: TargetCharging, transcript: Transcript) -> None:
        last: Hashable = "cat"
        for _ in range(4):
            last = charging.ask(*call(AGREED if last == "dog" else TORN, last))
            transcript.append(last)

    return capped_game_delta(epsilon, q, number, 4, 0.3), run_of(stream, hits(number, epsilon, q))


# --- A stream whose answer seldom changes, and counts by sketches


def steps(charging: TargetCharging, transcript: Transcript) -> None:
    """A user that is there all the time, and answers that are as far apart with it and without it as may be."""
    answers = PayForChange(charging, prior="up")
    for _ in range(8):
        transcript.append(answers.ask(RESPONSE))


def counts(charging: TargetCharging, transcript: Transcript) -> None:
    """Two counts, published where they are large; the second one is looked at again."""
    for others in (0, 1):

        def users(with_user: bool, others: int = others) -> list[int]:
            return [*range(1, others + 1), *([0] if with_user else [])]

        held = ConditionalRelease(charging, DistinctCount(users, LN3, buckets=1, levels=3))
        for least in (2, 1)[: others + 1]:
            transcript.append(held.ask(lambda count, least=least: count >= least))
            if transcript[-1] is not None:
                break


LEAKED = game(2.0, 1, each_epsilon=0.1, q=not_prior_probability(0.1)) + 0.1
TWICE_Q = not_prior_probability(2 * LN3)

# Name, epsilon, delta, run.
SCENARIOS = [
    Scenario("not prior, Algorithm 1", 3 * LN3, game(3 * LN3, 2), run_of(responses, hits(2))),
    Scenario("several targets, Lemma 2.7", 2 * LN3, 2 * game(2 * LN3, 1), run_of(both_targets, hits(1), hits(1))),
    Scenario("deltas, Algorithm 6", 2.0, LEAKED, run_of(leaks, hits(1, 0.1), delta_limit=0.1)),
    Scenario("calls of two kinds", 1.0, MIXED.delta(1.0), run_of(two_kinds, lambda: MixedChargingFilter(MIXED))),
    Scenario(  # in [CL23] Lemma 2.5 a revision costs 2 epsilon
        "revise, charged at epsilon",
        2.5 * LN3,
        capped_game_delta(LN3, Q3, 2, 5, 2.5 * LN3),
        run_of(revisions([HALVES] * 5, "ab"), hits(2)),
    ),
    Scenario(  # in [CL23] Lemma 2.6 hits are at 2 epsilon
        "one-shot top-k", 2.5 * LN3, capped_game_delta(LN3, Q3, 2, 4, 2.5 * LN3), run_of(selection(2), hits(2))
    ),
    Scenario("top-k, a gap", LN3, capped_game_delta(LN3, Q3, 3, 4, LN3), run_of(selection(3, gap=0), hits(3))),
    Scenario(
        "wrapper, one call",
        BoundaryWrapper(MANY).epsilon,
        0.0,
        alone(BoundaryWrapper(MANY)),
    ),
    Scenario(
        "wrapper, a stream",
        SURE.epsilon,
        game(SURE.epsilon, 2, each_epsilon=SURE.epsilon, q=SURE.target.q),
        run_of(classes, hits(2, SURE.epsilon, SURE.target.q)),
    ),
    Scenario(
        "two runs, a stream",
        LN3,
        game(LN3, 1, each_epsilon=2 * LN3, q=TWICE_Q),
        run_of(two_runs, hits(1, 2 * LN3, TWICE_Q)),
    ),
    Scenario("teachers, a boundary", 0.3, *teachers(lambda votes, last: votes.agreed(), 1)),
    Scenario("teachers, low", 0.3, *teachers(lambda votes, last: votes.agreed_or_low(4, test_epsilon=1.0), 1)),
    Scenario("teachers, a student's prior", 0.3, *teachers(lambda votes, last: votes.as_predicted(last), 2)),
    Scenario("pay for change", 1.5 * LN3, game(1.5 * LN3, 2), run_of(steps, hits(2))),
    Scenario("distinct counts", 0.3, capped_game_delta(LN3, Q3, 1, 2, 0.3), run_of(counts, hits(1))),
]


@each(SCENARIOS)
def test_a_claim_is_kept_or_seen_to_be_broken(scenario: Scenario) -> None:
    scenario.check()
