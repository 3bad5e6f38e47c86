"""All transcripts of tiny streams that test contributions twice, with x' and without, by the code that runs.

The exact delta(epsilon) of the pair, in both directions, is below what one budget and the threshold of one test claim
(docs/proofs.md, "Two tests in a stream"). Nothing here is random.
"""

from __future__ import annotations

import dataclasses
import functools
from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pytest

from dp_transforms.accounting.exponential_power import ExponentialPower
from dp_transforms.accounting.price_list import smallest_open_threshold
from dp_transforms.accounting.priced_weights import BUDGET_UNITS
from dp_transforms.core import two_tests
from dp_transforms.core.contributions import Contributions
from dp_transforms.core.item_namer import ItemNamer
from dp_transforms.core.item_sums import ItemSums, WeighedItems
from dp_transforms.core.named_items import FirstTests, FollowedItems
from dp_transforms.core.stage import Span
from dp_transforms.core.state_chunks import Kind, entries_of_chunk
from dp_transforms.plan.records import Followed, SecondTest
from dp_transforms.plan.window_schedule import WindowSchedule
from tests.helpers.core_runs import units_of
from tests.helpers.trial_plan import TrialPlan
from tests.helpers.trials import contributions_trial
from tests.privacy import exact_game as exact
from tests.privacy.exact_game import DELTA_OPEN, TARGET, Held, Outcome, Piece, ratio_of_logs
from tests.reference.exact_law import Law
from tests.reference.log import ONE, tails_of, words_of

_RARE = ONE >> 40  # further levels that are so rare count as one


@functools.cache
def trial_of(
    windows: int, most_tests: int = 4, deviations: float = 3.0, percents: tuple[int, int] = (30, 70)
) -> TrialPlan:
    """The smallest threshold that the claim allows; followed items may have any, and here have a low one. deviations:
    between levels. Of four tests the first budget pays for one, and the second one for two."""
    listed = exact.prices_of(ExponentialPower(2.5, 40), deviations, most_tests)
    threshold = smallest_open_threshold(listed, DELTA_OPEN)
    trial = contributions_trial(
        schedule=WindowSchedule.fixed(0, windows, 1),
        threshold=threshold,
        weights=listed.weights,
        units=listed.units,
        noise=listed.noise,
        followed_threshold=threshold // 3,
        forget_after=2,
        spacing=listed.spacing,
    )
    first, second = (BUDGET_UNITS * percent // 100 for percent in percents)
    return dataclasses.replace(trial, second_test=SecondTest(units=(first, second)))


class KeysOfTests(exact.ChosenKeys):
    """`chosen`: of the first test under 0, of the second one under 1."""

    def window_uniforms(self) -> Any:
        return self.round_uniforms(0)

    def round_uniforms(self, number: int) -> Any:
        return lambda windows, hashes, digests: words_of(
            *(self.chosen[number][place] for place in zip(windows.tolist(), map(bytes, hashes), strict=True))
        )


class Between(NamedTuple):
    """What one test leaves to the next one: the states of both steps, in chunks, and what x' has spent; before a second
    test also what the first one found, and which items it left out."""

    first: tuple[tuple[Kind, bytes], ...] = ()
    second: tuple[tuple[Kind, bytes], ...] = ()
    spent: int = 0
    found: bytes = b""
    left_out: frozenset[bytes] = frozenset()


class RecordingNamer(ItemNamer):
    """Tells for which sums it draws, so that a game knows where results can change."""

    asked: tuple[ItemSums, FollowedItems] | None = None

    def _test_windows(self, sums: ItemSums, followed: FollowedItems, first: int, end: int, spacing: int = 0) -> Any:
        self.asked = sums, followed
        return super()._test_windows(sums, followed, first, end, spacing)


class Game:
    """One log, and all that each test of each window of a stream of it can find."""

    users: type[two_tests.WeighFirst] = two_tests.WeighFirst
    first: type[two_tests.NameFirst] = two_tests.NameFirst
    second: type[two_tests.NameAgain] = two_tests.NameAgain

    def __init__(self, held: Held, trial: TrialPlan) -> None:
        keys: Any = KeysOfTests(trial)
        self._trial, self._keys, self.most_spent = trial, keys, 0
        self._tails, self._target = tails_of(trial.contributions.noise), user_hash(self._keys)
        contributions, users = exact.held_by(held, trial), self.users(trial, self._keys)
        budgets, self._weighed = users.restore([], 0), list[WeighedItems]()
        for window in range(trial.schedule.horizon):
            of_window = contributions.select(contributions.windows == window)
            self._weighed.append(users.process(budgets, of_window, Span(window, window + 1), Counter()))

    def law(self) -> Law:
        """Of what is published. That is not all that tests find: an item may be left out, or undecided."""
        law = Counter[Any]()
        for found, share in exact.law_of(2 * self._trial.schedule.horizon, Between(), self._outcomes).items():
            law[tuple(published for published, _ in found)] += share
        return dict(law)

    def _outcomes(self, stage: int, before: Between) -> dict[Any, Outcome]:
        window, number = divmod(stage, 2)
        step = (self.second if number else self.first)(self._trial, self._keys, None, number)
        namer = vars(step)["_namer"] = RecordingNamer(self._trial, self._keys, number)
        test = functools.partial(self._test_again if number else self._test_first, step, window, before)
        self._keys.chosen = {number: defaultdict(int)}
        test()
        draws = self._draws(number, window, *namer.asked)

        def run(chosen: dict[Any, Any]) -> Any:
            self._keys.chosen = {number: chosen}
            return test()

        return exact.outcomes_of(run, draws)

    def _test_first(self, step: two_tests.NameFirst, window: int, before: Between) -> tuple[Any, Between]:
        weighed = self._weighed[window]
        state = step.restore([entries_of_chunk(*chunk) for chunk in before.first], window)
        found = step.process(state, weighed, Span(window, window + 1), Counter())
        items, undecided = (set(map(bytes, each.hashes)) for each in (weighed, found))
        spent = self._spend(before, weighed.weights[weighed.holders == self._target])
        shown = exact.shown_of(found.named()), tuple(sorted(undecided))
        after = before._replace(first=tuple(step.chunks(state)), spent=spent, found=bytes(found.to_bytes()))
        return shown, after._replace(left_out=frozenset(items - undecided))

    def _test_again(self, step: two_tests.NameAgain, window: int, before: Between) -> tuple[Any, Between]:
        state, paid = step.restore([entries_of_chunk(*chunk) for chunk in before.second], window), list[Any]()
        spend = state.budgets.spend

        def recorded(contributions: Contributions, *of_window: int) -> Any:
            weights = spend(contributions, *of_window)
            paid.extend(weights[contributions.users[contributions.codes] == self._target])
            return weights

        state.budgets.spend = recorded  # type: ignore[method-assign, assignment]
        self.before_second_test(state, before)
        named = step.process(state, FirstTests.from_bytes(before.found), Span(window, window + 1), Counter())
        spent = self._spend(before, paid)
        return (exact.shown_of(named), ()), Between(before.first, tuple(step.chunks(state)), spent)

    def before_second_test(self, state: Any, before: Between) -> None:
        """For a planted fault."""

    def _spend(self, before: Between, weights: Iterable[int]) -> int:
        spent = before.spent + sum(units_of(self._trial, weights))
        self.most_spent = max(self.most_spent, spent)
        return spent

    def _draws(self, number: int, window: int, sums: ItemSums, followed: FollowedItems) -> dict[Any, list[Piece]]:
        trial, known = self._trial, set(map(bytes, followed.table.hashes))
        values = dict.fromkeys(known, 0) | dict(zip(map(bytes, sums.hashes), sums.sums.tolist(), strict=True))
        pieces = {}
        for item, value in values.items():
            threshold = trial.followed_threshold if item in known else trial.threshold
            cuts = exact.cuts_of_levels(self._tails, value, [threshold], trial.contributions.spacing)
            pieces[window, item] = exact.pieces_between(cuts, _RARE)
        return pieces


def user_hash(keys: exact.ChosenKeys) -> Any:
    return keys.hash_users(pa.array([TARGET], pa.string()))[0, 0]


def others(number: int, *places: tuple[int, str]) -> Held:
    """So many users who hold the same."""
    return {f"user {each}": places for each in range(number)}


def near(trial: TrialPlan) -> int:
    """So many users with the smallest weight nearly reach the threshold."""
    return trial.threshold // trial.contributions.weights[0]


def ratio_of(held: Held, trial: TrialPlan, game: type[Game] = Game) -> float:
    """The claim is that of one budget of one test."""
    return ratio_of_logs(lambda part: game(part, trial).law(), held)


def scenarios() -> dict[str, tuple[TrialPlan, Held]]:
    """x' is one of the users. Where others have spent what first or second tests may cost, x' has a lone test of an
    item that they hold, too."""
    one, two, three = (trial_of(windows) for windows in (1, 2, 3))
    many = trial_of(2, most_tests=10)  # of which the first budget pays for three
    little_is_left = trial_of(2, percents=(70, 30))  # for second tests
    first, second, third = (0, "a"), (1, "a"), (2, "a")
    return {
        "alone": (one, {TARGET: [first]}),
        "alone in two windows": (many, {TARGET: [first, second]}),
        "others near the threshold": (one, {TARGET: [first], **others(near(one), first)}),
        "others whose item is hardly kept": (one, {TARGET: [first], **others(3, first)}),
        "others near the threshold twice": (many, {TARGET: [first, second], **others(near(many), first, second)}),
        "two items": (trial_of(1, 10), {TARGET: [first, (0, "b")], **others(near(many), (0, "b"))}),
        "followed, and then x' alone": (two, {TARGET: [second], **others(near(two), first)}),
        "followed, and alone after a window": (three, {TARGET: [third], **others(near(three), first)}),
        "others have no first test": (two, {TARGET: [second], **others(2 * near(two), (0, "b"), second)}),
        "others have no second test": (little_is_left, {TARGET: [second], **others(4, first, second)}),
    }


@functools.cache
def ratio(name: str) -> float:
    trial, held = scenarios()[name]
    return ratio_of(held, trial)


SLOW = ("others near the threshold twice", "two items", "followed, and alone after a window")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.nightly] if name in SLOW else []) for name in scenarios()]
)
def test_every_transcript_of_two_tests_is_within_the_claim(name: str) -> None:
    assert 0 < ratio(name) <= 1


def test_the_claim_is_attained_in_part() -> None:
    """Else the inequality above would say little."""
    assert ratio("alone") > 0.3


def test_an_item_of_one_user_is_named_by_one_test_or_the_other() -> None:
    """With the probability of both tails, and never without the user."""
    trial, held = scenarios()["alone"]
    tails, listed = tails_of(trial.contributions.noise), trial.contributions
    first, second = (trial.threshold - weight for weight in trial.largest_in_rounds)
    in_first, not_left_out, in_second = (tails.tail(each) / ONE for each in (first, first - listed.spacing, second))
    law = Game(held, trial).law()
    assert 1 - law[(), ()] == pytest.approx(in_first + (not_left_out - in_first) * in_second, rel=1e-9)
    assert Game({}, trial).law() == {((), ()): 1.0}


# --- Planted faults


class AllHolders(two_tests.WeighFirst):
    """Who has weight 0 in the first test has a second one."""

    def process(self, state: Any, columns: Contributions, span: Span, *rest: Any) -> WeighedItems:
        columns, weights = self.weigh(state, columns, span)
        held = WeighedItems.of_contributions(columns, weights=weights)
        return held.select(np.add.reduceat(weights, held.splits[:-1]) > 0) if len(held) else held


class WithAllHolders(Game):
    users = AllHolders


def test_enumeration_finds_second_tests_of_those_without_a_first_one() -> None:
    trial, held = scenarios()["others have no first test"]
    assert ratio_of(held, trial, WithAllHolders) > 5


class WithoutLeftOut(Game):
    """What the first test leaves out is not drawn for again, be it followed."""

    def before_second_test(self, state: Any, before: Between) -> None:
        followed = state.followed.items
        is_left_out = [item in before.left_out for item in map(bytes, followed.table.hashes)]
        state.followed.items = followed.select(~np.array(is_left_out, dtype=np.bool_))


def test_enumeration_finds_followed_items_that_are_left_out() -> None:
    """The second test has named what the first one, with half the weights, has not. Then x' holds it alone."""
    trial = trial_of(2, most_tests=8, deviations=2.0, percents=(13, 87))
    high = 8 * trial.threshold // 5  # safe, too; so the first test leaves out nearly all that x' holds alone
    trial = dataclasses.replace(trial, threshold=high, followed=Followed(threshold=1, forget_after=2))
    held = {TARGET: [(1, "a")], **others(1 + high // trial.contributions.weights[-2], (0, "a"))}
    assert ratio_of(held, trial) <= 1 < 5 < ratio_of(held, trial, WithoutLeftOut)


class WithAFullBudget(Game):
    def before_second_test(self, state: Any, before: Between) -> None:
        state.budgets._full = BUDGET_UNITS


@pytest.mark.parametrize(("game", "is_kept"), [(Game, True), (WithAFullBudget, False)])
def test_both_tests_together_cost_at_most_one_budget(game: type[Game], is_kept: bool) -> None:
    trial, held = scenarios()["others near the threshold"]
    played = game(held, trial)
    played.law()
    assert played.most_spent > 0
    assert (played.most_spent <= BUDGET_UNITS) == is_kept
