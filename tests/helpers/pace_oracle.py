"""An oracle of the weights of a stream: dicts, loops and plain integers, written from the design and not the product.

Design, section 6: a user's weight is the largest whose price is at most what is left in its purse, divided by the looks
of this window and those expected later: the looks so far, times the windows left, by the windows since the user was
first seen, which are at least those of a day (of a sixteenth of the run, if that is shorter), and a sixteenth of the
windows left. All divisions round down. It is at least the smallest
weight; what cannot be paid is dropped by keyed hash.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping
from fractions import Fraction

from dp_transforms.accounting.priced_weights import BUDGET_UNITS
from dp_transforms.core.randomness import StreamKeys
from tests.helpers.naming_oracle import Weights, look_place
from tests.helpers.oracle import Event, items_by_window_and_user
from tests.helpers.trial_plan import TrialPlan

DAY_SECONDS = 24 * 60 * 60


@dataclasses.dataclass
class Wallet:
    """Of one user: what is left, how many looks it has paid, and when it was first seen."""

    left: int
    first_window: int
    paid_looks: int = 0

    def choose(self, looks: int, window: int, settings: TrialPlan) -> tuple[int, int]:
        """The weight in this window, or in all up to it that are paid together, and how many looks are paid."""
        weight, units, payable = self.afford(looks, window, settings)
        self.left -= payable * units
        self.paid_looks += payable
        assert self.left >= 0
        return weight, payable

    def choose_with_second(
        self, looks: int, second: int, window: int, settings: TrialPlan
    ) -> tuple[tuple[int, int], tuple[int, int]]:
        """In the last round looks at what is named already count as a 100th each where the purse is cut. All of them
        cost a tenth of what is spent, and each a 150th, but nearly all if there are no others; each at most a 64th of
        what the round has in a full purse. What is not named comes first. ``paid_looks`` counts 100ths."""
        listed = list(zip(settings.contributions.weights, settings.contributions.units, strict=True))
        most = settings.rounds.units[-1] // 64
        parts = 100 * looks + second
        spent = self.left // self.spread(parts, window, settings) * parts
        if looks:
            again = min(most, spent // 150, spent // (10 * second) if second else spent)
            amounts = (spent - again * second) // looks, again
        else:
            amounts = 0, min(most, spent // second)
        found = []
        for asked, amount, parts in zip((looks, second), amounts, (100, 1), strict=True):
            weight, units = next(((w, u) for w, u in reversed(listed) if u <= amount), listed[0])
            paid = min(asked, self.left // units)
            self.left -= paid * units
            self.paid_looks += parts * paid
            found.append((weight, paid))
        return found[0], found[1]

    def afford(self, looks: int, window: int, settings: TrialPlan) -> tuple[int, int, int]:
        share = self.left // self.spread(looks, window, settings)
        listed = list(zip(settings.contributions.weights, settings.contributions.units, strict=True))
        weight, units = next(((w, u) for w, u in reversed(listed) if u <= share), listed[0])
        return weight, units, min(looks, self.left // units)

    def spread(self, looks: int, window: int, settings: TrialPlan) -> int:
        schedule = settings.schedule
        windows_left = schedule.horizon - 1 - window
        a_day = math.ceil(Fraction(DAY_SECONDS, schedule.slide_seconds))
        part = 16
        seen_for = max(min(a_day, max(1, schedule.horizon // part)), window - self.first_window + 1)
        expected = (self.paid_looks + looks) * windows_left // (seen_for + windows_left // part)
        return expected + looks


def stream_weights(
    log: Iterable[Event],
    settings: TrialPlan,
    keys: StreamKeys,
    wallets: dict[str, Wallet] | None = None,
    paid_times: Mapping[int, int] | None = None,
) -> Weights:
    """Window by window, user by user.

    wallets: to look at what is left afterwards. paid_times: a fault, windows that are not paid (0) or paid twice (2).
    """
    wallets = {} if wallets is None else wallets
    found: Weights = {}
    for window, users in sorted(items_by_window_and_user(log, settings).items()):
        for user, items in users.items():
            wallet = wallets.setdefault(user, Wallet(BUDGET_UNITS, window))
            before = dataclasses.replace(wallet)
            weight, payable = wallet.choose(len(items), window, settings)
            ordered = list(items)
            if payable < len(items):
                ordered.sort(key=lambda item: look_place(user, (window, item), keys))
            for item in ordered[:payable]:
                found.setdefault((window, item), {})[user] = weight
            times = (paid_times or {}).get(window, 1)
            wallet.left = max(0, before.left - times * (before.left - wallet.left))
            wallet.paid_looks = before.paid_looks + times * (wallet.paid_looks - before.paid_looks)
    return found
