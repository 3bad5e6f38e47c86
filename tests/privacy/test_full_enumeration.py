"""All transcripts of up to six windows through the real monitor, with x' and without: exact delta(epsilon) of the pair,
in both directions, is below the claim. Nothing here is random."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.helpers.trial_plan import TrialPlan
from tests.privacy.adversary import Round, excess_of, fresh_users
from tests.privacy.exact_monitor import (
    ONE,
    TARGET_USER,
    TailIntegers,
    WindowProbe,
    settings_for,
    state_with_hits,
)

THRESHOLD, ZONE = 4, 2
EPSILONS = [0.05 * index for index in range(61)]


def fresh(counts: Sequence[int]) -> list[Round]:
    """One item a window, held by x' and by so many users that appear nowhere else."""
    return [Round.single(fresh_users(window, count)) for window, count in enumerate(counts)]


# Which windows x' is in; counts of the others around the threshold 4 and the upper edge 6 of the zone.
SEQUENCES: dict[str, list[Round]] = {
    "one below the threshold": fresh([3] * 5),
    "one below the upper edge": fresh([5] * 5),
    "from far above to far below": fresh([7, 6, 5, 4, 3]),
    "x' leaves and comes back": [
        Round.single(played.others[0], held=window % 3 != 1) for window, played in enumerate(fresh([3, 4, 5, 3, 4, 5]))
    ],
}
# The same others every time: they are charged together with x', so that who is active depends on the transcript.
SHARED = (100, 101, 102)
POOLS: dict[str, list[Round]] = {
    "one pool forever": [Round.single(SHARED)] * 5,
    "the pool pays before x' comes": [Round.single(SHARED, held=False)] * 2 + [Round.single(SHARED)] * 3,
    "two pools overlap": [Round.single(SHARED), Round.single((102, 103, 104, 105)), Round.single((100, 104))] * 2,
}
TWO_ITEMS: dict[str, list[Round]] = {
    "x' holds both": [
        Round((fresh_users(window, 3), fresh_users(window + 10, 3)), (True, True)) for window in range(2)
    ],
    "a user is charged in between": [
        Round(((*fresh_users(window, 2), 100), (*fresh_users(window + 10, 2), 100)), (True, True))
        for window in range(2)
    ],
    "x' holds the second": [
        Round((fresh_users(window, 3), fresh_users(window + 10, 3)), (False, True)) for window in range(2)
    ],
}


@pytest.mark.parametrize(("mode", "epsilon", "hits"), [("hits", 0.5, 2), ("hits-with-counts", 0.25, 1)])
def test_every_transcript_of_fresh_users(mode: str, epsilon: float, hits: int) -> None:
    settings = settings_for(mode, epsilon, hits, THRESHOLD, ZONE)
    ratios = []
    for name, rounds in SEQUENCES.items():
        excess, ratio = excess_of(settings, rounds, EPSILONS)
        assert excess <= 1e-12, name
        ratios.append(ratio)
    assert max(ratios) > 0.7, "six windows attain a good part of the claim somewhere"


def lone_share(settings: TrialPlan, rounds: Sequence[Round]) -> float:
    """What delta_open pays: each item of x' may be its own alone."""
    queries = sum(sum(played.held) for played in rounds)
    return queries * TailIntegers(settings.charged_hits.epsilon_per_query)(settings.threshold - 1) / ONE


@pytest.mark.parametrize(("mode", "hits"), [("hits", 2), ("hits-with-counts", 1)])
@pytest.mark.parametrize("name", POOLS)
def test_every_transcript_of_users_that_pay_together(mode: str, hits: int, name: str) -> None:
    """Where all others are excluded x' may be the only active holder: that is what delta_open pays for."""
    settings = settings_for(mode, 0.75, hits, THRESHOLD, ZONE)
    assert excess_of(settings, POOLS[name], EPSILONS, alone=lone_share(settings, POOLS[name]))[0] <= 1e-12


@pytest.mark.parametrize("mode", ["hits", "hits-with-counts"])
def test_others_that_paid_before_the_first_window(mode: str) -> None:
    """Raw counts well above the active ones: the bit is drawn for the former, the noise tested on the latter."""
    settings = settings_for(mode, 0.75, 1, THRESHOLD, ZONE)
    paid = {user: 1 for window in range(4) for user in fresh_users(window, 2)}
    assert excess_of(settings, fresh([5, 6, 5, 7]), EPSILONS, paid_before=paid)[0] <= 1e-12


@pytest.mark.parametrize(("mode", "hits"), [("hits", 2), ("hits-with-counts", 1)])
@pytest.mark.parametrize("name", TWO_ITEMS)
def test_every_transcript_of_two_items_in_a_window(mode: str, hits: int, name: str) -> None:
    settings = settings_for(mode, 0.75, hits, THRESHOLD, ZONE, max_items=2)
    assert excess_of(settings, TWO_ITEMS[name], EPSILONS)[0] <= 1e-12


def test_enumeration_finds_halved_noise() -> None:
    for mode in ("hits", "hits-with-counts"):
        claimed = settings_for(mode, 0.5, 1, THRESHOLD, ZONE)
        real = settings_for(mode, 1.0, 1, THRESHOLD, ZONE)
        assert excess_of(claimed, SEQUENCES["one below the threshold"], EPSILONS, real=real)[0] > 0.01


# --- Items that one user alone holds


@pytest.mark.parametrize("mode", ["hits", "hits-with-counts"])
@pytest.mark.parametrize(("epsilon", "threshold"), [(0.25, 12), (0.5, 1), (0.5, 2)])
def test_an_item_of_one_user_is_published_with_the_probability_of_the_tail(
    mode: str, epsilon: float, threshold: int
) -> None:
    """Exactly ``Pr[Z >= T - 1]``, and never without the user."""
    settings = settings_for(mode, epsilon, 1, threshold, 3)
    probe = WindowProbe(settings)
    outcomes = probe.outcomes(0, [[TARGET_USER]], state_with_hits({}), threshold + 4)
    silent = outcomes.pop(())
    published = sum(outcome.weight for outcome in outcomes.values())
    assert published == TailIntegers(epsilon)(threshold - 1) * ONE
    assert silent.weight + published == ONE * ONE
    nobody = probe.outcomes(0, [[]], state_with_hits({}), threshold + 4)
    assert {transcript: outcome.weight for transcript, outcome in nobody.items()} == {(): 1}


@pytest.mark.parametrize("mode", ["hits", "hits-with-counts"])
def test_an_item_whose_other_holders_have_paid_is_as_good_as_alone(mode: str) -> None:
    settings = settings_for(mode, 0.5, 1, THRESHOLD, ZONE)
    probe = WindowProbe(settings)
    outcomes = probe.outcomes(0, [[*SHARED, TARGET_USER]], state_with_hits(dict.fromkeys(SHARED, 1)), 9)
    published = sum(outcome.weight for transcript, outcome in outcomes.items() if transcript)
    expected = TailIntegers(0.5)(THRESHOLD - 1) * ONE
    # Two stages: each threshold is off by at most one unit.
    assert abs(published - expected) <= ONE
    alone = probe.outcomes(0, [[*SHARED]], state_with_hits(dict.fromkeys(SHARED, 1)), 9)
    assert [transcript for transcript, outcome in alone.items() if outcome.weight] == [()]
