"""All transcripts of up to six windows through the real monitor, with x' and without: exact delta(epsilon) of the pair,
in both directions, is below the claim. Nothing here is random."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import Any

import pytest

from tests.privacy.exact_game import Piece
from tests.privacy.exact_hits import TARGET_USER, HitsGame, Round, Stored, fresh_users, ratio_of, settings_for
from tests.reference.log import ONE, tails_of

THRESHOLD, ZONE = 4, 2
EPSILONS = [0.05 * index for index in range(61)]
MODES = {"hits": 2, "hits-with-counts": 1}  # with hits of a user
each_mode = pytest.mark.parametrize("mode", MODES)


def fresh(counts: Sequence[int]) -> list[Round]:
    """One item a window, held by x' and by so many users that appear nowhere else."""
    return [Round.single(fresh_users(window, count)) for window, count in enumerate(counts)]


# Which windows x' is in; counts of the others around the threshold 4 and the upper edge 6 of the zone.
SEQUENCES: dict[str, list[Round]] = {
    "one below the threshold": fresh([3] * 5),
    "one below the upper edge": fresh([5] * 5),
    "from far above to far below": fresh([7, 5, 4, 3]),
    "x' leaves and comes back": [
        Round.single(played.others[0], held=window % 3 != 1) for window, played in enumerate(fresh([3, 4, 5, 3, 4]))
    ],
}
# The same others every time: they are charged together with x', so that who is active depends on the transcript.
SHARED = (100, 101, 102)
POOLS: dict[str, list[Round]] = {
    "one pool forever": [Round.single(SHARED)] * 4,
    "the pool pays before x' comes": [Round.single(SHARED, held=False)] * 2 + [Round.single(SHARED)] * 2,
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


@pytest.mark.parametrize(("mode", "epsilon"), [("hits", 0.5), ("hits-with-counts", 0.25)])
def test_every_transcript_of_fresh_users(mode: str, epsilon: float) -> None:
    settings = settings_for(mode, epsilon, MODES[mode], THRESHOLD, ZONE)
    ratios = {name: ratio_of(settings, rounds, EPSILONS) for name, rounds in SEQUENCES.items()}
    assert 0.7 < max(ratios.values()) <= 1, "five windows attain a good part of the claim somewhere"


def tail_of(epsilon: float, margin: int) -> Fraction:
    return Fraction(tails_of(epsilon).tail(margin), ONE)


@each_mode
@pytest.mark.parametrize("name", POOLS)
def test_every_transcript_of_users_that_pay_together(mode: str, name: str) -> None:
    """Where all others are excluded x' may be the only active holder: that is what delta_open pays for."""
    queries = sum(sum(played.held) for played in POOLS[name])
    alone = queries * float(tail_of(0.75, THRESHOLD - 1))
    assert ratio_of(settings_for(mode, 0.75, MODES[mode], THRESHOLD, ZONE), POOLS[name], EPSILONS, alone=alone) <= 1


@each_mode
def test_others_that_paid_before_the_first_window(mode: str) -> None:
    """Raw counts well above the active ones: the bit is drawn for the former, the noise tested on the latter."""
    settings = settings_for(mode, 0.75, 1, THRESHOLD, ZONE)
    paid = {user: 1 for window in range(4) for user in fresh_users(window, 2)}
    assert ratio_of(settings, fresh([5, 6, 5, 7]), EPSILONS, paid_before=paid) <= 1


@each_mode
@pytest.mark.parametrize("name", TWO_ITEMS)
def test_every_transcript_of_two_items_in_a_window(mode: str, name: str) -> None:
    settings = settings_for(mode, 0.75, MODES[mode], THRESHOLD, ZONE, max_items=2)
    assert ratio_of(settings, TWO_ITEMS[name], EPSILONS) <= 1


@each_mode
def test_enumeration_finds_halved_noise(mode: str) -> None:
    claimed, real = (settings_for(mode, epsilon, 1, THRESHOLD, ZONE) for epsilon in (0.5, 1.0))
    assert ratio_of(claimed, SEQUENCES["one below the threshold"], EPSILONS, real=HitsGame(real)) > 1.05


# --- Items that one user alone holds


@each_mode
@pytest.mark.parametrize(("epsilon", "threshold"), [(0.25, 12), (0.5, 1), (0.5, 2)])
def test_an_item_of_one_user_is_published_with_the_probability_of_the_tail(
    mode: str, epsilon: float, threshold: int
) -> None:
    """Exactly ``Pr[Z >= T - 1]``, and never without the user."""
    game, nothing = HitsGame(settings_for(mode, epsilon, 1, threshold, 3)), Stored.of_hits({})
    outcomes = game.outcomes(0, [[TARGET_USER]], nothing, threshold + 4)
    assert 1 - outcomes[()].share == tail_of(epsilon, threshold - 1)
    assert [*game.outcomes(0, [[]], nothing, threshold + 4)] == [()]


@each_mode
def test_an_item_whose_other_holders_have_paid_is_as_good_as_alone(mode: str) -> None:
    game = HitsGame(settings_for(mode, 0.5, 1, THRESHOLD, ZONE))
    paid = Stored.of_hits(dict.fromkeys(SHARED, 1))
    outcomes = game.outcomes(0, [[*SHARED, TARGET_USER]], paid, 9)
    # Two stages: each threshold is off by at most one unit.
    assert abs(1 - outcomes[()].share - tail_of(0.5, THRESHOLD - 1)) <= Fraction(1, ONE)
    assert game.outcomes(0, [[*SHARED]], paid, 9)[()].share == 1


# --- Public items: nothing is set aside for items of a single user

OF_TWO = SHARED[:2]
ONE_PUBLIC: dict[str, list[Round]] = {
    "x' holds what nobody else holds": [Round.single(())] * 4,
    "now alone, now with others": [
        Round.single(fresh_users(window, count)) for window, count in enumerate((0, 3, 0, 4))
    ],
    "x' comes and goes": [Round.single((), held=window % 2 == 0) for window in range(4)],
    "the others have paid": [Round.single(OF_TWO)] * 4,
    "the others pay before x' comes": [Round.single(OF_TWO, held=False)] * 2 + [Round.single(OF_TWO)] * 2,
}
SEVERAL_PUBLIC: dict[str, list[Round]] = {
    "x' alone with one of two": [Round(((), ()), (False, True))] * 2,
    "x' alone with one, and with others": [Round(((), fresh_users(0, 3)), (True, True))],
    "the first item excludes the holders of the second": [Round((OF_TWO, OF_TWO, ()), (True, True, False))],
}


class UntestedZeros(HitsGame):
    """A planted fault: items that nobody holds are not tested, as with items that are not public."""

    def _cases(self, *of_window: Any) -> Iterator[dict[Any, list[Piece]]]:
        drawn_none = Piece(Fraction(1), ((0, (0,)), (0, (0,))))
        yield {**next(super()._cases(*of_window)), "empty": [drawn_none]}


@pytest.mark.parametrize(("mode", "epsilon"), [("hits", 0.5), ("hits-with-counts", 0.25)])
def test_every_transcript_of_one_public_item(mode: str, epsilon: float) -> None:
    settings = settings_for(mode, epsilon, MODES[mode], THRESHOLD, ZONE, public_item_count=1)
    for name, rounds in ONE_PUBLIC.items():
        assert ratio_of(settings, rounds, EPSILONS[::2]) <= 1, name


@each_mode
@pytest.mark.parametrize("name", SEVERAL_PUBLIC)
def test_every_transcript_of_several_public_items(mode: str, name: str) -> None:
    rounds = SEVERAL_PUBLIC[name]
    size = len(rounds[0].held)
    settings = settings_for(mode, 0.75, 1, THRESHOLD, ZONE, max_items=size, public_item_count=size)
    assert ratio_of(settings, rounds, EPSILONS[::2]) <= 1


@each_mode
def test_with_public_items_even_the_lowest_threshold_is_safe(mode: str) -> None:
    """There an item that nobody holds is published in two windows of five, and the claim is nearly attained."""
    settings = settings_for(mode, 0.5, 1, 1, ZONE, public_item_count=1)
    assert 0.6 < ratio_of(settings, ONE_PUBLIC["x' holds what nobody else holds"], EPSILONS[::2]) <= 1


@each_mode
def test_enumeration_finds_public_items_that_are_not_tested_while_nobody_holds_them(mode: str) -> None:
    """Then an item that x' alone holds is published with x' and never without."""
    for size, rounds in (
        (1, ONE_PUBLIC["x' holds what nobody else holds"]),
        (2, SEVERAL_PUBLIC["x' alone with one of two"]),
    ):
        settings = settings_for(mode, 0.25, 1, THRESHOLD, ZONE, max_items=size, public_item_count=size)
        assert ratio_of(settings, rounds, EPSILONS[::2], real=UntestedZeros(settings)) > 1.5


@each_mode
def test_a_public_item_that_nobody_holds_is_published_with_the_probability_of_the_tail(mode: str) -> None:
    """Exactly, charging nobody; and so is, but for some units of 2^-128, one whose holders have all paid."""
    game = HitsGame(settings_for(mode, 0.5, 1, THRESHOLD, ZONE, public_item_count=1))
    nobody = game.outcomes(0, [[]], Stored.of_hits({}), 9)
    published = [outcome.state for transcript, outcome in nobody.items() if transcript]
    assert abs(1 - nobody[()].share - tail_of(0.5, THRESHOLD)) <= Fraction(1, ONE)
    assert all(state.hits() == 0 for state in published)
    assert {state.hit_bound for state in published} == ({0, 1} if mode == "hits" else {1})
    paid = game.outcomes(0, [[*OF_TWO]], Stored.of_hits(dict.fromkeys(OF_TWO, 1)), 9)
    assert all(abs(outcome.share - nobody[shown].share) <= Fraction(8, ONE) for shown, outcome in paid.items())
