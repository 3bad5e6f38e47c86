"""All transcripts of tiny replays by contributions, with x' and without: the exact delta(epsilon) of the pair, in both
directions, is below what the price list and the threshold claim. Nothing here is random."""

from __future__ import annotations

import collections
import functools
import math
from fractions import Fraction
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from dp_transforms.accounting.exponential_power import ExponentialPower
from dp_transforms.accounting.price_list import smallest_open_threshold
from dp_transforms.accounting.priced_weights import BUDGET_UNITS
from dp_transforms.core.item_sums import ItemSums
from dp_transforms.core.item_table import ItemTable
from dp_transforms.core.named_items import FollowedItems
from dp_transforms.core.public_items import EmptyItems, binomial_integers
from dp_transforms.core.stage import Span
from dp_transforms.core.steps import NameItems, replay_weights
from dp_transforms.plan.window_schedule import WindowSchedule
from tests.helpers.core_runs import units_of
from tests.helpers.small_runs import SECRET
from tests.helpers.trial_plan import TrialPlan
from tests.helpers.trials import changed, contributions_trial
from tests.privacy import exact_game as exact
from tests.privacy.exact_game import DELTA_OPEN, TARGET, Held, Outcome, Piece, claim, ratio_of_logs
from tests.reference.exact_law import Law
from tests.reference.log import ONE, tails_of

MOST_TESTS_OF_USER = 3
PRICES = exact.prices_of(ExponentialPower(2.5, 20), 5, MOST_TESTS_OF_USER)


def settings_of(
    windows: int, *, followed_threshold: int | None = None, public_item_count: int = 0, also_open: bool = False
) -> TrialPlan:
    """The smallest thresholds that the claim allows. Followed items may have any, and here have a low one."""
    threshold = smallest_open_threshold(PRICES, DELTA_OPEN)
    return contributions_trial(
        schedule=WindowSchedule.fixed(0, windows, 1),
        threshold=threshold,
        public_item_count=public_item_count,
        also_open=also_open,
        weights=PRICES.weights,
        units=PRICES.units,
        noise=PRICES.noise,
        followed_threshold=followed_threshold or threshold // 3,
        forget_after=2,
        spacing=PRICES.spacing,
        likely_noise=30,
    )


def sums_of(held: Held, settings: TrialPlan) -> ItemSums:
    """Of a replay: each user spends its budget on all that it holds."""
    keys, contributions = settings.stream_keys(SECRET), exact.held_by(held, settings)
    return ItemSums.of_weights(contributions, replay_weights(contributions, settings, keys), keys)


class Game:
    """One log, and all that each window of it can publish."""

    def __init__(self, held: Held, settings: TrialPlan, public: tuple[str, ...] = ()) -> None:
        assert len(public) == settings.public_item_count <= 1
        keys: Any = exact.ChosenKeys(settings)
        self._settings, self._keys, self._sums = settings, keys, sums_of(held, settings)
        self._public = ItemTable.of_labels(pa.array(public, pa.string()), keys.hash_items)[0] if public else None
        self._tails = tails_of(PRICES.noise)

    def law(self) -> Law:
        """What is named in each window, with levels and sizes. Between windows it is followed items that are stored."""
        return exact.law_of(self._settings.schedule.horizon, (), self._outcomes)

    def _outcomes(self, window: int, stored: tuple[bytes, ...]) -> dict[Any, Outcome]:
        sums = self._sums.select(np.flatnonzero(self._sums.windows == window))

        def run(chosen: dict[Any, Any]) -> tuple[Any, tuple[bytes, ...]]:
            self._keys.chosen = chosen
            step = NameItems(self._settings, self._keys, self._public, 0)  # it would keep the empty items of a draw
            state = step.restore(list(map(FollowedItems.from_bytes, stored)), window)
            named = step.process(state, sums, Span(window, window + 1, 0, 1), collections.Counter())
            return exact.shown_of(named), tuple(state.chunks())

        return exact.outcomes_of(run, self._draws(window, sums, stored))

    def _draws(self, window: int, sums: ItemSums, stored: tuple[bytes, ...]) -> dict[Any, list[Piece]]:
        """Of all that is held, is followed or is public."""
        known = [FollowedItems.from_bytes(chunk).table for chunk in stored]
        items = ItemTable.merge([sums.table, *known, *([self._public] if self._public is not None else [])])[0]
        totals = dict(zip(map(bytes, sums.hashes), sums.sums.tolist(), strict=True))
        public = set(map(bytes, self._public.hashes)) if self._public is not None else set()
        thresholds, tail = (self._settings.threshold, self._settings.followed_threshold), self._tails.tail
        passing, draws = tail(self._settings.followed_threshold), dict[Any, list[Piece]]()
        for item in map(bytes, items.hashes):
            total = totals.get(item, 0)
            cuts = exact.cuts_of_levels(self._tails, total, thresholds, PRICES.spacing)
            if not total and item in public:
                cuts = {-(-cut * ONE // passing) for cut in cuts}  # drawn given that it passes
            draws[window, item] = exact.pieces_between(cuts)
        if self._public is not None:
            numbers = exact.pieces_between(binomial_integers(1, passing))
            draws["empty"] = [Piece(share, tuple((end, (0,)) for end in ends)) for share, ends in numbers]
        return draws


def every_window(windows: int, item: str = "a", first: int = 0) -> list[tuple[int, str]]:
    return [(window, item) for window in range(first, windows)]


def others(counts: dict[tuple[int, str], int]) -> Held:
    """So many users with one contribution each, the largest weight, in each cell."""
    return {
        f"{window} {item} {number}": [(window, item)]
        for (window, item), count in counts.items()
        for number in range(count)
    }


def scenarios() -> dict[str, tuple[int, Held]]:
    """How many windows, and what is held; x' is one of the users."""
    near = smallest_open_threshold(PRICES, DELTA_OPEN) // PRICES.weights[-1]
    first, second, third = (0, "a"), (1, "a"), (2, "a")
    return {
        "alone in each window": (3, {TARGET: every_window(3)}),
        "others near the threshold": (3, {TARGET: every_window(3), **others(dict.fromkeys(every_window(3), near))}),
        "the item is followed, and then x' is alone": (
            4,
            {TARGET: every_window(4, first=1), **others({first: 2 * near})},
        ),
        "followed, forgotten, and x' alone": (4, {TARGET: [(3, "a")], **others({first: 2 * near})}),
        "x' once, with all of its budget": (2, {TARGET: [second], **others({first: near, second: near})}),
        "followed, and x' comes and goes": (4, {TARGET: [second, (3, "a")], **others({first: near + 3})}),
        "two items in a window": (2, {TARGET: [first, (0, "b"), second], **others({(0, "b"): near, second: near})}),
        "more than the budget pays": (4, {TARGET: every_window(4), **others({second: near, third: near})}),
        "others who have several weights": (
            3,
            {
                TARGET: every_window(3),
                "u": every_window(3),
                "v": every_window(2),
                **others({first: near - 1, second: near}),
            },
        ),
    }


def ratio_of(held: Held, settings: TrialPlan, public: tuple[str, ...] = ()) -> float:
    def claimed(epsilon: float) -> float:
        sampling = (1 + math.exp(epsilon)) * PRICES.most_tests * PRICES.noise.sampling_total_variation
        return claim(epsilon, DELTA_OPEN if settings.takes_open_items else 0.0) + sampling

    return ratio_of_logs(lambda part: Game(part, settings, public).law(), held, claimed)


@functools.cache
def ratio_of_scenario(name: str, share: int) -> float:
    """share: the threshold of followed items is the other one divided by it."""
    windows, held = scenarios()[name]
    settings = settings_of(windows)
    return ratio_of(held, changed(settings, followed_threshold=settings.threshold // share))


@pytest.mark.parametrize(
    ("name", "share"),
    [*((name, 3) for name in scenarios()), *((name, 1) for name in scenarios() if name.startswith("followed"))],
)
def test_every_transcript_is_within_the_claim(name: str, share: int) -> None:
    assert 0 < ratio_of_scenario(name, share) <= 1


def test_the_claim_is_nearly_attained() -> None:
    """Else the inequality above would say little."""
    assert max(ratio_of_scenario(name, 3) for name in scenarios()) > 0.3


@pytest.mark.parametrize("name", scenarios())
def test_x_changes_no_sum_by_more_than_it_pays_for(name: str) -> None:
    """So weights of the others are the same with x' and without."""
    windows, held = scenarios()[name]
    settings = settings_of(windows)
    with_target, without = (
        dict(zip(zip(sums.windows.tolist(), map(bytes, sums.hashes), strict=True), sums.sums.tolist(), strict=True))
        for sums in (sums_of(part, settings) for part in (held, exact.without_target(held)))
    )
    added = np.array([total - without.get(cell, 0) for cell, total in with_target.items()])
    assert set(without) <= set(with_target)
    assert sum(units_of(settings, added)) <= BUDGET_UNITS
    assert 0 < np.count_nonzero(added) == min(len(held[TARGET]), MOST_TESTS_OF_USER)


def test_an_item_of_one_user_is_named_with_the_probability_of_the_tail() -> None:
    """And never without the user."""
    settings = settings_of(1)
    law = Game({TARGET: [(0, "a")]}, settings).law()
    tail = tails_of(PRICES.noise).tail(settings.threshold - PRICES.weights[-1])
    assert 1 - law[((),)] == pytest.approx(float(Fraction(tail, ONE)), rel=1e-12)
    assert 0 < 1 - law[((),)] <= DELTA_OPEN
    assert Game({}, settings).law() == {((),): 1.0}


@pytest.mark.parametrize("followed_threshold", [1, 12])
@pytest.mark.parametrize("places", [[(0, "a"), (1, "a")], [(1, "a")]])
def test_every_transcript_of_a_public_item(followed_threshold: int, places: list[tuple[int, str]]) -> None:
    """Nothing is set aside there for items of one user, and no threshold is too low."""
    settings = settings_of(2, followed_threshold=followed_threshold, public_item_count=1)
    for held in ({TARGET: places}, {TARGET: places, **others({(0, "a"): 2, (1, "a"): 1})}):
        assert 0 < ratio_of(held, settings, ("a",)) <= 1


@pytest.mark.parametrize(
    ("target", "of_others"),
    [
        ([(0, "a"), (0, "b"), (1, "a")], {}),
        pytest.param([(0, "b"), (1, "a")], {(0, "b"): 2, (1, "a"): 1}, marks=pytest.mark.nightly),
    ],
)
def test_every_transcript_of_a_public_item_beside_an_open_one(
    target: list[tuple[int, str]], of_others: dict[tuple[int, str], int]
) -> None:
    """For the public a the lowest threshold is safe, and delta_open is for b alone."""
    held = {TARGET: target, **others(of_others)}
    settings = settings_of(2, followed_threshold=1, public_item_count=1, also_open=True)
    assert 0.03 < ratio_of(held, settings, ("a",)) <= 1


def test_enumeration_finds_a_public_item_that_is_tested_only_while_held(monkeypatch: pytest.MonkeyPatch) -> None:
    """As open items are. The lower threshold then betrays a lone holder."""
    settings = settings_of(2, followed_threshold=12, public_item_count=1, also_open=True)
    assert ratio_of({TARGET: every_window(2)}, settings, ("a",)) <= 1
    monkeypatch.setattr(EmptyItems, "without_sums", lambda *span: ItemSums.none())
    assert ratio_of({TARGET: every_window(2)}, settings, ("a",)) > 1.5


def test_a_public_item_that_nobody_holds_has_the_law_of_the_noise() -> None:
    """In one window: not named, or named with a level that is drawn given that it is named."""
    law = Game({}, settings_of(1, followed_threshold=5, public_item_count=1), ("a",)).law()
    tail = tails_of(PRICES.noise).tail
    named = {shown[0][2]: share for (shown,), share in law.items() if shown}
    for level, share in named.items():
        low, high = (tail(5 + step * PRICES.spacing) for step in (level - 1, level))
        assert share == pytest.approx((low - high) / 2**128, rel=1e-9)
    assert {1, 2} <= set(named)


def test_enumeration_finds_the_threshold_of_followed_items_for_others() -> None:
    settings = settings_of(3)
    low = changed(settings, threshold=settings.followed_threshold)
    assert ratio_of({TARGET: every_window(3)}, low) > 1.5
