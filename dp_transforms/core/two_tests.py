"""The steps of a stream that tests each contribution twice: all of them in a first, small test, and those that it
leaves undecided in a second one (docs/proofs.md, "Two tests in a stream").

Guarantee: that of `core.item_namer`. Conditions: a contribution without a weight in the first test has no second one;
a followed item is drawn for in the second test even if the first has left it out.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from dp_transforms.core.contributions import Contributions
from dp_transforms.core.item_sums import ItemSums, WeighedItems
from dp_transforms.core.named_items import FirstTests, FollowedItems, NamedItems
from dp_transforms.core.operator_counts import BUDGET_STATE_BYTES, CONTRIBUTIONS_UNPAID, FOLLOWED_ITEMS
from dp_transforms.core.stage import Counts, Messages, Sent, Span
from dp_transforms.core.state_chunks import Kind
from dp_transforms.core.steps import Followed, FollowingStep, SpendBudgets
from dp_transforms.core.user_budgets import ENTRY_BYTES, BudgetEntries, UserBudgets

Whole = npt.NDArray[np.int64]


class WeighFirst(SpendBudgets):
    """`Contributions` -> `WeighedItems`: what each user adds in the first test. What it cannot pay for has no second
    test either: else another user's lone item could make it pay there (docs/proofs.md, "Two tests in a stream")."""

    def added(self, contributions: Contributions, weights: Whole) -> Sent:
        paid = np.flatnonzero(weights)
        return WeighedItems.of_contributions(contributions.select(paid), weights=weights[paid])


class NameFirst(FollowingStep):
    """`WeighedItems` -> `FirstTests`. The state is the items that first tests have named lately."""

    TAKES = WeighedItems

    def process(
        self, state: Followed, columns: WeighedItems, span: Span, counts: Counts, *named: Messages
    ) -> FirstTests:
        sums = columns.sums(self.keys)
        found, undecided = self._namer.test_windows(sums, state.items, span.first, span.end)
        state.items = state.items.after(found, span.end, self.plan.followed_for)
        return FirstTests.of(found, columns.select(undecided))


@dataclasses.dataclass
class _SecondTests:
    """What users have left for second tests, and what was named lately by either test."""

    budgets: UserBudgets
    followed: Followed


class NameAgain(FollowingStep):
    """`FirstTests` -> `NamedItems`: window after window each user spends its budget of second tests on what the first
    test has left undecided. An item that either test has named lately is drawn for in every window in which the first
    test has not named it: also if that has left it out, and if nobody holds it."""

    TAKES = FirstTests
    KIND = Kind.budgets_of_round(1)

    def restore(self, entries: Sequence[Any], first: int) -> _SecondTests:
        budgets = [each for each in entries if isinstance(each, BudgetEntries)]
        followed = [each for each in entries if isinstance(each, FollowedItems)]
        paid = UserBudgets(self.plan, self.keys, budgets, first, self.round)
        return _SecondTests(paid, Followed.before(self.plan, followed, first))

    def process(self, state: _SecondTests, columns: FirstTests, span: Span, counts: Counts, *named: Messages) -> Sent:
        found, first_tests = [NamedItems.none()], dict(columns.by_group(columns.windows))
        for window in range(span.first, span.end):
            of_window = first_tests.get(window, FirstTests.none())
            named_first, undecided = of_window.named(), of_window.undecided().contributions()
            weights = state.budgets.spend(undecided, window)
            counts[CONTRIBUTIONS_UNPAID] += int((weights == 0).sum())
            sums = ItemSums.of_weights(undecided, weights, self.keys)
            followed = state.followed.items
            drawn = followed.without(named_first)
            again = self._namer.name_windows(sums, drawn, window, window + 1)
            both = NamedItems.merge([named_first, again])
            state.followed.items = followed.after(both, window + 1, self.plan.followed_for)
            found.append(both)
        return NamedItems.merge(found)

    def delta(self, state: _SecondTests) -> list[tuple[Kind, bytes]]:
        return self._chunks(state.budgets.delta(), state.followed.delta())

    def chunks(self, state: _SecondTests) -> list[tuple[Kind, bytes]]:
        return self._chunks(state.budgets.chunks(), state.followed.chunks())

    def _chunks(self, budgets: Iterable[bytes], followed: Iterable[bytes]) -> list[tuple[Kind, bytes]]:
        return [*((self.KIND, chunk) for chunk in budgets), *((Kind.FOLLOWED, chunk) for chunk in followed)]

    def measures(self, state: _SecondTests) -> dict[str, int]:
        return {BUDGET_STATE_BYTES: ENTRY_BYTES * len(state.budgets), FOLLOWED_ITEMS: len(state.followed.items)}
