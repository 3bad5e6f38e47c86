"""All transcripts of a few windows in a known domain, with x' and without: the accountant's claim holds, and nothing is
set aside for items of a single user. Nothing here is random."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import pytest

from dp_transforms.accounting.charging_game import charging_game_delta
from dp_transforms.audit.trial_plan import TrialPlan
from tests.helpers.adversary import Round, deltas_of_pair, fresh_users, transcript_distribution
from tests.helpers.exact_monitor import (
    ONE,
    TARGET_USER,
    TailIntegers,
    hits_of,
    settings_for,
    state_with_hits,
    target_probability,
)
from tests.privacy.exact_domain import DomainProbe, UntestedZeros

THRESHOLD, ZONE = 4, 2
EPSILONS = [0.1 * index for index in range(31)]
SHARED = (100, 101)
ONE_ITEM: dict[str, list[Round]] = {
    "x' holds what nobody else holds": [Round.single(())] * 5,
    "now alone, now with others": [
        Round.single(fresh_users(window, count)) for window, count in enumerate((0, 3, 0, 4))
    ],
    "x' comes and goes": [Round.single((), held=window % 2 == 0) for window in range(5)],
    "the others have paid": [Round.single(SHARED)] * 5,
    "the others pay before x' comes": [Round.single(SHARED, held=False)] * 2 + [Round.single(SHARED)] * 2,
}
THREE_ITEMS: dict[str, list[Round]] = {
    "x' alone with one of three": [Round(((), (), ()), (False, True, False))] * 2,
    "x' alone with two, one shared": [Round(((), fresh_users(0, 3), ()), (True, True, True))],
    "the first item excludes the holders of the second": [Round((SHARED, SHARED, ()), (True, True, False))],
}


def excess_of(
    claimed: TrialPlan, rounds: Sequence[Round], probe_of: type[DomainProbe] = DomainProbe
) -> tuple[float, float]:
    """Largest delta - claim and largest delta / claim over both directions and all epsilons."""
    with_target, without = (
        transcript_distribution(claimed, rounds, present, probe_of=probe_of) for present in (True, False)
    )
    q = target_probability(claimed)
    excess, ratio = -1.0, 0.0
    for epsilon, deltas in zip(EPSILONS, deltas_of_pair(with_target, without, EPSILONS), strict=True):
        claim = charging_game_delta(claimed.hits.epsilon_per_query, q, claimed.hits_per_user, epsilon)
        excess, ratio = max(excess, max(deltas) - claim), max(ratio, max(deltas) / claim)
    return excess, ratio


@pytest.mark.parametrize(("mode", "epsilon", "hits"), [("hits", 0.5, 2), ("hits-with-counts", 0.25, 1)])
def test_every_transcript_of_one_item(mode: str, epsilon: float, hits: int) -> None:
    settings = settings_for(mode, epsilon, hits, THRESHOLD, ZONE, domain_size=1)
    for name, rounds in ONE_ITEM.items():
        assert excess_of(settings, rounds)[0] <= 1e-12, name


@pytest.mark.parametrize("mode", ["hits", "hits-with-counts"])
@pytest.mark.parametrize("name", THREE_ITEMS)
def test_every_transcript_of_three_items(mode: str, name: str) -> None:
    settings = settings_for(mode, 0.75, 1, THRESHOLD, ZONE, max_items=3, domain_size=3)
    assert excess_of(settings, THREE_ITEMS[name])[0] <= 1e-12


@pytest.mark.parametrize("mode", ["hits", "hits-with-counts"])
def test_even_the_lowest_threshold_is_safe(mode: str) -> None:
    """There an item that nobody holds is published in two windows of five, and the claim is nearly attained."""
    settings = settings_for(mode, 0.5, 1, 1, ZONE, domain_size=1)
    excess, ratio = excess_of(settings, ONE_ITEM["x' holds what nobody else holds"])
    assert excess <= 1e-12
    assert ratio > 0.6


@pytest.mark.parametrize("mode", ["hits", "hits-with-counts"])
def test_enumeration_finds_empty_items_that_are_not_tested(mode: str) -> None:
    """Then an item that x' alone holds is published with x' and never without."""
    settings = settings_for(mode, 0.25, 1, THRESHOLD, ZONE, domain_size=1)
    assert excess_of(settings, ONE_ITEM["x' holds what nobody else holds"], UntestedZeros)[0] > 0.1
    settings = settings_for(mode, 0.25, 1, THRESHOLD, ZONE, max_items=3, domain_size=3)
    assert excess_of(settings, THREE_ITEMS["x' alone with one of three"], UntestedZeros)[0] > 0.1


@pytest.mark.parametrize("mode", ["hits", "hits-with-counts"])
def test_an_item_that_nobody_holds_is_published_with_the_probability_of_the_tail(mode: str) -> None:
    """Exactly, charging nobody; and so is, except for one unit in 2^128, one whose holders have all paid."""
    settings = settings_for(mode, 0.5, 1, THRESHOLD, ZONE, domain_size=1)
    expected = Fraction(TailIntegers(0.5)(THRESHOLD), ONE)
    nobody = DomainProbe(settings).outcomes(0, [[]], state_with_hits({}), 9)
    published = {transcript: outcome for transcript, outcome in nobody.items() if transcript}
    assert abs(sum(outcome.weight for outcome in published.values()) - expected) <= Fraction(1, ONE)
    assert all(hits_of(outcome.state, TARGET_USER) == 0 for outcome in published.values())
    assert {outcome.state.hit_bound for outcome in published.values()} == ({0, 1} if mode == "hits" else {1})
    paid = DomainProbe(settings).outcomes(0, [[*SHARED]], state_with_hits(dict.fromkeys(SHARED, 1)), 9)
    for transcript, outcome in paid.items():
        assert abs(outcome.weight / (ONE * ONE) - nobody[transcript].weight) <= Fraction(8, ONE)


@pytest.mark.parametrize("mode", ["hits", "hits-with-counts"])
def test_three_items_are_three_independent_coins(mode: str) -> None:
    settings = settings_for(mode, 0.5, 1, 2, ZONE, max_items=3, domain_size=3)
    share = float(Fraction(TailIntegers(0.5)(2), ONE))
    chances: dict[tuple[str, ...], float] = {}
    for transcript, outcome in DomainProbe(settings).outcomes(0, [[], [], []], state_with_hits({}), 5).items():
        named = tuple(sorted(hitter.item for hitter in transcript[3])) if transcript else ()
        chances[named] = chances.get(named, 0.0) + float(outcome.weight)
    assert len(chances) == 8
    for named, chance in chances.items():
        assert chance == pytest.approx(share ** len(named) * (1 - share) ** (3 - len(named)), rel=1e-12)
