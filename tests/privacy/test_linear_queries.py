"""Mechanisms of linear queries: tiny universes, one record more or another record instead."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from dp_transforms.papers.exponential_mechanism import ExponentialMechanism
from dp_transforms.papers.multiplicative_weights import OfflineMultiplicativeWeights, OnlineMultiplicativeWeights
from dp_transforms.papers.noise_source import NoiseSource
from dp_transforms.papers.query import LinearQuery
from dp_transforms.papers.synthetic_data import SmallDatabase
from tests.privacy.scenarios import Run, Scenario, broken, each

FIRST, FIRST_IN_HALVES = LinearQuery([1, 0]), LinearQuery([2, 0], grid=2)
BOTH_OF_THREE = [LinearQuery([1, 0, 0]), LinearQuery([0, 1, 1])]
FOURTHS = [LinearQuery([4, 0, 1], grid=4), LinearQuery([0, 4, 1], grid=4)]
ADDED = ((3, 1), (4, 1))  # a record more
REPLACED = ((4, 1), (3, 2))  # another record instead
REPLACED_OF_THREE = ((3, 0, 1), (2, 0, 2))


def chosen(scores: Sequence[int], scores_with_user: Sequence[int]) -> Run:
    return lambda noise, with_user: ExponentialMechanism(scores_with_user if with_user else scores, 1.0, 1).choose(
        noise
    )


def online(
    worlds: Sequence[Sequence[int]],
    *queries: LinearQuery,
    epsilon: float = 8.0,
    accuracy: float = 0.4,
    grid: int = 1,
) -> Run:
    """Asks the queries in turn, and the first one once more if it led to an update: a stream that adapts."""

    def run(noise: NoiseSource, with_user: bool) -> Hashable:
        learner = OnlineMultiplicativeWeights(
            worlds[with_user], records=4, noise=noise, epsilon=epsilon, accuracy=accuracy, updates=1, grid=grid
        )
        transcript: list[Hashable] = []
        waiting = list(queries)
        while waiting and not learner.halted:
            query = waiting.pop(0)
            answer = learner.ask(query)
            transcript.append(answer)
            if answer.updated and len(transcript) == 1:
                waiting.append(query)
        return (*transcript, tuple(learner.synthetic.shares.tolist()))

    return run


def offline(
    worlds: Sequence[Sequence[int]],
    queries: Sequence[LinearQuery],
    epsilon_per_call: float = 1.0,
    updates: int = 1,
) -> Run:
    def run(noise: NoiseSource, with_user: bool) -> Hashable:
        learner = OfflineMultiplicativeWeights(
            worlds[with_user],
            queries,
            records=4,
            noise=noise,
            epsilon_per_call=epsilon_per_call,
            accuracy=0.4,
            updates=updates,
        )
        shares = learner.release().shares.tolist()
        return tuple(learner.measured), tuple(shares)

    return run


def small(worlds: Sequence[Sequence[int]], queries: Sequence[LinearQuery], size: int) -> Run:
    def run(noise: NoiseSource, with_user: bool) -> Hashable:
        database = SmallDatabase(worlds[with_user], queries, records=4, size=size, epsilon=1.0, noise=noise)
        return tuple(database.release().shares.tolist())

    return run


UNLIKELY = ((3, 8, 0), (4, 7, 0))  # a choice that attains nearly all of its epsilon
# Name, epsilon, delta, run. With grid 4 or 8 one user moves an answer by all units.
SCENARIOS = [
    Scenario("exponential mechanism", 1, 0, chosen([1, 1, 2], [2, 0, 1])),
    broken("exponential mechanism, half the sensitivity", 1, 0, chosen([2, 2, 4], [4, 0, 2])),
    Scenario("online, a record more", 8, 0, online(ADDED, FIRST, FIRST), cut=1e-10),
    Scenario("online, halves", 12, 0, online(ADDED, FIRST_IN_HALVES, epsilon=12.0, grid=2), cut=1e-10),
    Scenario("online, another record", 8, 0, online(REPLACED, FIRST, accuracy=0.2), cut=1e-8),
    Scenario(
        "offline, another record, two updates",
        12,
        0,
        offline(REPLACED_OF_THREE, BOTH_OF_THREE, epsilon_per_call=3.0, updates=2),
        cut=1e-10,
    ),
    Scenario("offline, fourths", 2, 0, offline(((3, 4, 0), (4, 3, 0)), FOURTHS)),
    Scenario("offline, unlikely choice", 2, 0, offline(UNLIKELY, FOURTHS)),
    broken("offline, half the epsilon claimed", 1, 0, offline(UNLIKELY, FOURTHS)),
    Scenario("small database, another record", 1, 0, small(REPLACED_OF_THREE, BOTH_OF_THREE, 3)),
    Scenario("small database, fourths", 1, 0, small(((4, 0, 0), (3, 1, 0)), FOURTHS, 2)),
]


@each(SCENARIOS)
def test_a_claim_is_kept_or_seen_to_be_broken(scenario: Scenario) -> None:
    scenario.check()
