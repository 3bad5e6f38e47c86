"""All transcripts of tiny replays in rounds, with x' and without, by the code that runs.

Each round has a shape of noise and a price list of its own. The exact divergence and delta(epsilon) of the pair, in
both directions, are below what one budget and the threshold of the first round claim. Nothing here is random.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest

from dp_transforms.accounting.exponential_power import ExponentialPower
from dp_transforms.accounting.price_list import smallest_open_threshold
from dp_transforms.accounting.priced_weights import BUDGET_UNITS
from dp_transforms.core.item_sums import ItemSums
from dp_transforms.core.item_table import ItemTable
from dp_transforms.core.stage import Span
from dp_transforms.core.steps import NameRound, WeighRound
from dp_transforms.plan.calibration import later_tests_of
from dp_transforms.plan.records import DeclaredItems, Rounds
from dp_transforms.plan.rounds import public_threshold, terms_of_round, terms_of_sizing
from dp_transforms.plan.window_schedule import WindowSchedule
from tests.helpers.trial_plan import TrialPlan
from tests.helpers.trials import contributions_trial
from tests.privacy import exact_game as exact
from tests.privacy.exact_game import BUDGET, DELTA_OPEN, ORDER, TARGET, Held, Outcome, Piece, ratio_of_logs
from tests.reference.exact_law import Law
from tests.reference.log import ONE, tails_of

WINDOWS, SCALE, MOST_TESTS = 2, 20, 20
_RARE = ONE >> 120  # further levels that are so rare count as one
SHAPES = (3.5, 1.5, 2.5)
UNITS = tuple(BUDGET_UNITS * percent // 100 for percent in (40, 25, 35))


@functools.cache
def in_rounds(deviations: float = 15.0, windows: int = WINDOWS) -> TrialPlan:
    """One block of all windows, and the smallest threshold of it that the claim allows. deviations: between the levels;
    by default so many that there is one, and all windows can be enumerated together."""
    first, *later = (exact.prices_of(ExponentialPower(shape, SCALE), deviations, MOST_TESTS) for shape in SHAPES)
    trial = contributions_trial(
        schedule=WindowSchedule.fixed(0, windows, 1),
        threshold=smallest_open_threshold(first, DELTA_OPEN, open_units=UNITS[0]),
        followed_threshold=1,
        weights=first.weights,
        units=first.units,
        noise=first.noise,
        spacing=first.spacing,
    )
    rounds = Rounds(block_seconds=WINDOWS, units=UNITS, false_names=0.5, later=tuple(map(later_tests_of, later)))
    return dataclasses.replace(trial, rounds=rounds)


class Game:
    """One log, and all that each round of a replay of it can publish. public: items."""

    def __init__(self, held: Held, trial: TrialPlan, public: Sequence[str] = ()) -> None:
        self._trial, self._keys, self._span = trial, exact.ChosenKeys(trial), Span(0, trial.schedule.horizon)
        self._held = exact.held_by(held, trial)
        self._public = ItemTable.of_labels(pa.array(public, pa.string()), self._keys.hash_items)[0] if public else None

    def law(self) -> Law:
        return exact.law_of(len(self._trial.units_of_rounds), (), self._outcomes)

    def _outcomes(self, number: int, earlier: tuple[bytes, ...]) -> dict[Any, Outcome]:
        """earlier: what was named in blocks, and then in windows up to the round before."""
        weigh, name = (step(self._trial, self._keys, self._public, number) for step in (WeighRound, NameRound))
        told = [[earlier[0]], list(earlier[1:])] if number else []
        state = weigh.restore([], 0)
        sums = weigh.process(state, self._held, self._span, collections.Counter(), *told)

        def run(chosen: dict[Any, Any]) -> tuple[Any, tuple[bytes, ...]]:
            self._keys.chosen = chosen
            named = name.process(None, sums, self._span, collections.Counter(), *told)
            return exact.shown_of(named), (*earlier[:1], bytes(named.to_bytes()))

        return exact.outcomes_of(run, self._draws(number, sums, weigh.earlier(self._span, *told)))

    def _draws(self, number: int, sums: ItemSums, names: Any) -> dict[Any, list[Piece]]:
        """Of all that is drawn for."""
        trial, places = self._trial, zip(sums.windows.tolist(), map(bytes, sums.hashes), strict=True)
        values, horizon = dict(zip(places, sums.sums.tolist(), strict=True)), trial.schedule.horizon
        drawn = dict[Any, int]()  # thresholds
        if names is None:
            public = [] if self._public is None else [(0, bytes(item)) for item in self._public.hashes]
            drawn = dict.fromkeys(values, trial.threshold) | dict.fromkeys(public, public_threshold(trial, 1, horizon))
            return {place: self._pieces(number, values.get(place, 0), least) for place, least in drawn.items()}
        candidates = names.candidates
        threshold = terms_of_round(trial, number, candidates.drawn, horizon).threshold
        for windows, items in map(candidates.cells_of, candidates.open_places(100)):
            hashes = map(bytes, candidates.table.hashes[items])
            drawn |= dict.fromkeys(zip(windows.tolist(), hashes, strict=True), threshold)
        if number == len(trial.units_of_rounds) - 1:
            already = names.in_windows.without_left_out()
            threshold = terms_of_sizing(trial, len(already), horizon).threshold
            hashes = map(bytes, already.hashes)
            drawn |= dict.fromkeys(zip(already.windows.tolist(), hashes, strict=True), threshold)
        return {place: self._pieces(number, values.get(place, 0), least) for place, least in drawn.items()}

    def _pieces(self, number: int, value: int, threshold: int) -> list[Piece]:
        prices = self._trial.prices_of_rounds[number]
        tails = tails_of(prices.noise)
        return exact.pieces_between(exact.cuts_of_levels(tails, value, [threshold], prices.spacing), _RARE)


def others(*counts: int) -> dict[str, list[tuple[int, str]]]:
    """So many users with one contribution each, in each window."""
    return {f"{window} {number}": [(window, "a")] for window, count in enumerate(counts) for number in range(count)}


def near(number: int) -> int:
    """So many users with one contribution nearly reach the threshold of a round."""
    trial = in_rounds()
    threshold = trial.threshold if not number else terms_of_round(trial, number, WINDOWS, WINDOWS).threshold
    return threshold // trial.largest_in_rounds[number]


def scenarios() -> dict[str, Held]:
    both = [(window, "a") for window in range(WINDOWS)]
    return {
        "alone": {TARGET: both},
        "alone in one window": {TARGET: both[:1]},
        "others near the threshold of the block": {TARGET: both, **others(near(0) - 1)},
        "others near the threshold of round 1": {TARGET: both, **others(near(1), near(1) - 1)},
        "others near the threshold of round 2": {TARGET: both, **others(near(2), near(2))},
        "alone in a window of a block of others": {TARGET: both[1:], **others(near(0) + 2)},
        "others with many contributions": {TARGET: both, **{str(number): both for number in range(near(0))}},
    }


def ratio_of(held: Held, trial: TrialPlan, public: Sequence[str] = ()) -> float:
    """The claim is that of one order for all rounds."""
    return ratio_of_logs(lambda part: Game(part, trial, public).law(), held)


@functools.cache
def ratio(name: str) -> float:
    return ratio_of(scenarios()[name], in_rounds())


@pytest.mark.nightly
@pytest.mark.parametrize("name", scenarios())
def test_every_transcript_of_rounds_with_shapes_of_their_own_is_within_the_claim(name: str) -> None:
    assert 0 < ratio(name) <= 1


def test_levels_and_what_is_left_out_are_within_the_claim() -> None:
    """In one window, with boundaries four standard deviations apart."""
    assert 0 < ratio_of({TARGET: [(0, "a")], **others(near(1))}, in_rounds(4.0, windows=1)) <= 1


def divergence_of(number: int, trial: TrialPlan) -> float:
    """The larger Renyi divergence of both directions, where x' and so many others have one item: then x' has no lone
    test."""
    with_target, without = (Game({**others(number), **target}, trial).law() for target in ({TARGET: [(0, "a")]}, {}))
    assert with_target.keys() == without.keys()
    pairs = [(with_target[transcript], without[transcript]) for transcript in without]
    moments = (sum(p**ORDER * q ** (1 - ORDER) for p, q in ways) for ways in (pairs, [pair[::-1] for pair in pairs]))
    return math.log(max(moments)) / (ORDER - 1)


def test_all_rounds_together_have_the_divergence_of_one_budget() -> None:
    """At most: for the number of others at which they tell most."""
    trial = in_rounds(windows=1)
    largest = max(divergence_of(number, trial) for number in (near(1), near(2)))
    assert 0.1 * BUDGET < largest <= BUDGET


@pytest.mark.nightly
def test_the_claim_of_rounds_is_nearly_attained() -> None:
    assert max(map(ratio, scenarios())) > 0.15


@pytest.mark.parametrize("crowd", [0, pytest.param(3, marks=pytest.mark.nightly)])
def test_a_public_item_beside_an_open_one_is_within_the_claim(crowd: int) -> None:
    """In one window. Also one that x' alone holds, though its threshold in blocks is below the safe one of open items:
    if it is tested as those are, it exceeds the claim."""
    trial = dataclasses.replace(in_rounds(windows=1), public_items=DeclaredItems(1, "0" * 64))
    held, lower = {TARGET: [(0, "a"), (0, "b")], **others(crowd)}, public_threshold(trial, 1, 1)
    assert lower < trial.threshold
    assert 0.1 < ratio_of(held, trial, ["a"]) <= 1
    if not crowd:
        assert ratio_of(held, dataclasses.replace(trial, threshold=lower)) > 1


def test_a_lower_threshold_of_blocks_exceeds_the_claim() -> None:
    trial, alone = in_rounds(windows=1), {TARGET: [(0, "a")]}
    lower = dataclasses.replace(trial, threshold=trial.threshold * 3 // 4)
    assert 0.1 < ratio_of(alone, trial) <= 1 < ratio_of(alone, lower)
