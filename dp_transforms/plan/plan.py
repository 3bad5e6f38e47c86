"""The plan of a run: a privacy budget turned into the plain numbers that the mechanisms run on.

Guarantee: a run that follows a plan is (epsilon, delta)-DP for adding or removing one user with all of its events,
under at most `most_keys` keys, over the whole declared schedule; with public items, provided their list is public and
was not made from the log. A plan whose numbers break this promise cannot be built: construction checks them. Every
rounding goes toward more noise.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import math
from collections.abc import Callable
from typing import Any

from dp_transforms.accounting.charged_hits import COUNTS
from dp_transforms.accounting.price_list import PriceList, found_from
from dp_transforms.accounting.priced_weights import BUDGET_UNITS
from dp_transforms.checks import exact, nearest, shown
from dp_transforms.errors import InputError
from dp_transforms.plan.calibration import (
    EXACT,
    calibrate_contributions,
    calibrate_hits,
    checked_contributions,
    mode_of,
)
from dp_transforms.plan.check import check_plan
from dp_transforms.plan.records import (
    Budget,
    ChargedHits,
    DeclaredItems,
    Followed,
    PaidContributions,
    PublicList,
    Rounds,
    SecondTest,
    Shares,
)
from dp_transforms.plan.rounds import (
    REPLAY,
    SECOND_TEST,
    RoundTerms,
    found_in_rounds,
    found_in_two_tests,
    largest_weight,
    likely_noise_of_run,
    rounds_of,
    terms_of_test,
    tests_twice,
    why_one_round,
)
from dp_transforms.plan.stored import FORMAT_VERSION, as_fields, fingerprint_of, record_of, sealed, unsealed
from dp_transforms.plan.window_schedule import WindowSchedule

CHARGES = CONTRIBUTIONS, HITS = "contributions", "hits"  # the first one by default
DEFAULT_MAX_USERS = 10**8
DEFAULT_MAX_ITEMS = 10**9


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan(Budget):
    """One calibrated run: what is promised, and the numbers that keep the promise. Build it with `for_contributions` or
    `for_hits`.

    epsilon, delta: the guarantee for one user over the whole schedule.
    schedule: the declared windows; its horizon is the number of windows that may be published.
    public_items: how many there are, and the hash of their list; None where any item may come.
    max_users, max_items: declared bounds on distinct ids under one key, for hash collisions; never measured. Stated
        sizes are wrong more often than they say if there are more users.
    threshold: noisy sums or counts of at least this are reported; of hits without counts the lower edge of the
        charged zone.
    contributions, hits: what users pay for; a plan has one of the two.
    followed: where named items are followed: for how long, and their threshold, which is also that of public items
        beside open ones. (Where all items are public theirs is `threshold`.)
    rounds: where the tests of a replay come in rounds; `threshold` is then that of the first one.
    second_test: where a stream tests contributions twice; the thresholds are then those of each test.
    shares: how delta was split.
    """

    threshold: int
    contributions: PaidContributions | None = None
    hits: ChargedHits | None = None
    followed: Followed | None = None
    rounds: Rounds | None = None
    second_test: SecondTest | None = None
    shares: Shares

    def __post_init__(self) -> None:
        super().__post_init__()
        check_plan(self)

    @classmethod
    def for_contributions(
        cls,
        *,
        epsilon: float,
        delta: float,
        schedule: WindowSchedule,
        public_items: PublicList | None = None,
        also_open: bool = False,
        max_users: int = DEFAULT_MAX_USERS,
        max_items: int = DEFAULT_MAX_ITEMS,
        usual_contributions: tuple[int, int] | None = None,
        most_contributions: int | None = None,
        forget_after: int | None = None,
        false_name_error: float | None = None,
        size_error: float | None = None,
        least_users: int | None = None,
        use: str = REPLAY,
    ) -> Plan:
        """Users pay for each contribution, an item that one has in a window. The plan that finds most for this budget.

        Tests come in rounds, of blocks of windows and then of the windows of what was named, if a block (a day, or the
        run where windows are a day or longer) has at least six windows, and the upper number of usual_contributions is
        at least three. Never for streams, public items alone, declared followed items, and parts of a run whose windows
        are a day or longer. A stream tests each contribution twice in its window, but for public items or least_users.

        public_items: all items, `PublicItems`; None where any may come.
        also_open: other items than the public ones may come, too. Public ones are tested in every window, down to the
            threshold of followed items.
        usual_contributions: most users have between so many in the whole run, by default (1, 1000), or up to
            most_contributions if that is less. The noise is chosen for them; other users are served too.
        most_contributions: further ones do not count, 3,000 by default; half or 70 % in round 0 of a replay in rounds.
        forget_after: without rounds items that were named are followed down to a lower threshold, until they were not
            named for so many windows, 168 by default; 0: no item is followed.
        false_name_error: the probability with which noise alone names a followed item in a window, 1e-5 by default; a
            public item with one as small as 0.05 false names in the whole run need, 0.75 with also_open.
        size_error: the probability that any size that the run states is too large, 0.01 by default.
        least_users: each name states at least so many users, 5 or more; by default a name may state no number.
        use: ``replay`` of the whole run at once, ``parts`` of it, one after the other, or ``stream``.

        Raises ValueError also if the budget is too small for any noise that can be sampled.
        """
        public, bounds = DeclaredItems.of(public_items), {"max_users": max_users, "max_items": max_items}
        budget = Budget(epsilon=epsilon, delta=delta, schedule=schedule, public_items=public, **bounds)
        usual = checked_contributions(usual_contributions, most_contributions)
        follows = forget_after is not None or false_name_error is not None
        number = budget.public_item_count
        one = why_one_round(schedule, *usual, use, public_items=number, also_open=also_open, declares_followed=follows)
        twice = tests_twice(usual[1], use, has_public_items=public is not None, least_users=least_users)
        in_rounds = None if one else rounds_of(schedule), SECOND_TEST if twice else None
        choices = *usual, forget_after, false_name_error, size_error, least_users, *in_rounds
        found = calibrate_contributions(budget, *choices, also_open=also_open, by_activity=use == REPLAY)
        return cls(**vars(budget), **found)

    @classmethod
    def for_hits(
        cls,
        *,
        epsilon: float,
        delta: float,
        schedule: WindowSchedule,
        counts: bool = False,
        noise: str = EXACT,
        public_items: PublicList | None = None,
        max_users: int = DEFAULT_MAX_USERS,
        max_items: int = DEFAULT_MAX_ITEMS,
        most_keys: int = 1,
        hits_per_user: int | None = None,
        max_items_per_user: int | None = None,
        threshold: int | None = None,
    ) -> Plan:
        """Users pay for hits, charged results about an item that they have. The plan with the least noise.

        counts: publish noisy counts, each of them charged. By default names, which are free far above the threshold.
        noise: ``exact``, or ``printed``: with the noise and the proof of [KMS21] as printed, for names alone.
        public_items: a list of all items, `PublicItems`; None where any may come.
        most_keys: the promise is for users with events under at most so many keys. Counters, items of a window and
            false reports are those of one key.
        hits_per_user: after so many a user no longer counts. By default 3, 10 with counts, 20 with printed noise.
        max_items_per_user: distinct items of a user that count in one window, 3 by default.
        threshold: by default the smallest safe one. A smaller one raises a ValueError that names the smallest; a larger
            one leaves more of delta to the noise. With public items every threshold is safe, and the default is the
            smallest at which the whole run is expected to publish at most 0.05 items that nobody holds.

        Raises ValueError also if the budget is too small for any noise that can be sampled.
        """
        mode = mode_of(noise, counts=counts)
        public, bounds = DeclaredItems.of(public_items), {"max_users": max_users, "max_items": max_items}
        budget = Budget(epsilon=epsilon, delta=delta, schedule=schedule, public_items=public, **bounds)
        found = calibrate_hits(mode, budget, most_keys, hits_per_user, max_items_per_user, threshold)
        return cls(**vars(budget), **found)

    @property
    def charge(self) -> str:
        """What users pay for: ``contributions`` or ``hits``."""
        return CONTRIBUTIONS if self.hits is None else HITS

    @property
    def counts(self) -> bool:
        """Whether noisy counts are published, each a hit."""
        return self.hits is not None and self.hits.publishes == COUNTS

    @property
    def charge_in_words(self) -> str:
        """The charge, and which results there are for hits."""
        printed = ", noise as printed" if self.hits is not None and self.hits.wide is not None else ""
        return f"{self.charge}{' with counts' if self.counts else printed}"

    @property
    def paid_contributions(self) -> PaidContributions:
        """`contributions`. Raises ValueError for a plan without them."""
        if self.contributions is None:
            raise ValueError("in a plan of hits no contribution is paid. Make one with Plan.for_contributions.")
        return self.contributions

    @property
    def charged_hits(self) -> ChargedHits:
        """`hits`. Raises ValueError for a plan without them."""
        if self.hits is None:
            raise ValueError("a plan of contributions charges no hits. Make one with Plan.for_hits.")
        return self.hits

    @property
    def paid_rounds(self) -> Rounds:
        """`rounds`. Raises ValueError for a plan without them."""
        if self.rounds is None:
            raise ValueError("the plan has no rounds: docs/choose_a_budget.md says which plans have them.")
        return self.rounds

    @property
    def units_of_rounds(self) -> tuple[int, ...]:
        """What the tests of a user may cost in each round; the second test of a stream is one. Else, a user budget."""
        in_rounds = self.rounds or self.second_test
        return (BUDGET_UNITS,) if in_rounds is None else in_rounds.units

    @functools.cached_property
    def prices_of_rounds(self) -> tuple[PriceList, ...]:
        """What tests cost in each round, alike."""
        paid, later = self.paid_contributions, self.rounds and self.rounds.later
        others = later or [paid] * (len(self.units_of_rounds) - 1)
        return (paid.prices, *map(paid.prices_of, others))

    @property
    def hits_per_user(self) -> int:
        """After so many hits a user who pays for them no longer counts; 0 where nobody does."""
        return 0 if self.hits is None else self.hits.per_user

    @property
    def most_keys(self) -> int:
        """The promise is for users with events under at most so many keys (docs/guarantee.md, "Keys")."""
        return 1 if self.hits is None else self.hits.keys

    @property
    def takes_open_items(self) -> bool:
        """Whether other items than public ones count."""
        return self.shares.open is not None

    @property
    def followed_threshold(self) -> int:
        """Noisy sums of at least this name a followed item, and in one round a public one."""
        return self.threshold if self.followed is None else self.followed.threshold

    @property
    def delta_open(self) -> float:
        """The share of delta for items with one holder alone; 0 with public items alone."""
        return self.shares.open or 0.0

    @property
    def followed_for(self) -> int:
        """For so many windows an open item is followed after it was named; 0: none ever is."""
        return 0 if self.followed is None else self.followed.forget_after

    @property
    def guarantee(self) -> str:
        """What the plan promises, in one sentence, and with public items on which condition."""
        condition = f", if they are under at most {self.most_keys} keys" if self.most_keys > 1 else ""
        condition += ", provided the list of items is public and was not made from the log" if self.public_items else ""
        return (
            f"Everything published is ({exact(self.epsilon)}, {exact(self.delta)})-differentially private for adding or"
            f" removing one user with all of its events, over the whole run of {self.schedule.horizon:,} windows"
            f"{condition}."
        )

    @property
    def queries_per_user(self) -> int:
        """The most counts that one user is part of: max_items_per_user in each window, under each of its keys."""
        return self.most_keys * self.charged_hits.max_items_per_user * self.schedule.horizon

    @property
    def false_name_error(self) -> float:
        """The probability with which noise alone names a followed item in a window, rounded up."""
        noise = self.charged_hits.noise if self.contributions is None else self.contributions.noise
        return noise.upper_tail(self.followed_threshold) * (1 if self.second_test is None else 2)

    @property
    def expected_false_reports(self) -> float:
        """How many public items that nobody holds the run publishes on average under a key; rounded up.

        0 without public items: then noise names a followed item that nobody holds with `false_name_error` in a window.
        In rounds at most, of all that is drawn for.
        """
        if self.public_items is not None and self.rounds is not None:
            return (len(self.rounds.units) - 1) * self.rounds.false_names
        return self.public_item_count * self.schedule.horizon * self.false_name_error if self.public_items else 0.0

    @functools.cached_property
    def likely_noise(self) -> int:
        """What a stated size allows the noise of one sum to be, with at most `max_users` users in the run.

        So an item whose noisy sum reaches a boundary has at least ``ceil((boundary - likely_noise) / weights[-1])``
        users, and of all such sizes of a run at most `size_error` are wrong, on average (docs/guarantee.md, "Sizes").
        """
        return likely_noise_of_run(self, self.paid_contributions, self.followed_for)

    @functools.cached_property
    def terms_of_tests(self) -> tuple[RoundTerms, ...]:
        """Without rounds, of the one test of a contribution, or of both; of items that are not followed."""
        if self.second_test is not None:
            return terms_of_test(self, 0), terms_of_test(self, 1)
        paid = self.paid_contributions
        return (RoundTerms(self.threshold, self.likely_noise, paid.weights[-1], paid.spacing),)

    @functools.cached_property
    def largest_in_rounds(self) -> tuple[int, ...]:
        """The largest weight that a user can have in each round."""
        return tuple(map(largest_weight, self.prices_of_rounds, self.units_of_rounds))

    @functools.cached_property
    def epsilon_after_hits(self) -> tuple[float, ...]:
        """Entry j - 1: an epsilon for which the mechanism cut at j hits is (that, share paid)-DP, rounded up.

        float[hits of a user in all], not decreasing, at most epsilon. For the running figure, docs/guarantee.md,
        "Claim (running figure)".
        """
        hits = self.charged_hits
        return hits.proof.epsilon_after_hits(self.epsilon, self.shares.paid)

    def smallest_detectable(self, probability: float = 0.95) -> int:
        """The smallest number of users from which an item is reported in a window with at least this probability.

        Of contributions: of a new item whose holders have the fewest usual ones. Of hits: if no holder is excluded.
        """
        if self.contributions is not None:
            return self.found_from(self.contributions.usual_tests[0], probability)
        if not 0 < probability < 1:
            raise ValueError(f"probability must lie strictly between 0 and 1, got {probability!r}.")
        margin = self.charged_hits.noise.smallest_margin(math.nextafter(probability, 0)) - 1
        return max(1, self.threshold - margin)

    def found_from(self, contributions: int, probability: float = 0.95, *, followed: bool = False) -> int:
        """From how many users on an item is named in a window with this probability, if each has so many contributions.

        contributions: of each holder in a whole replay; in a stream weights follow a user's pace. followed: the item
        was named lately; with rounds in its block, else held in this window alone. probability: at least 1/2.
        """
        if self.rounds is not None:
            return found_in_rounds(self, contributions, probability, followed=followed)
        if self.second_test is not None:
            return found_in_two_tests(self, contributions, probability, followed=followed)
        threshold = self.followed_threshold if followed else self.threshold
        prices = self.paid_contributions.prices
        return max(1, found_from(prices, threshold, contributions, probability))

    @functools.cached_property
    def fingerprint(self) -> str:
        """Hex SHA-256 of the canonical JSON: equal for equal plans only."""
        return fingerprint_of({"format_version": FORMAT_VERSION, **as_fields(self)})

    def to_json(self) -> str:
        """The plan as JSON text, with a format version and its fingerprint; `from_json` reads it back."""
        return sealed({"format_version": FORMAT_VERSION, **as_fields(self)})

    @classmethod
    def from_json(cls, text: str | bytes) -> Plan:
        """Reads `to_json` text and checks all of it again, the accountant included. Raises ValueError.

        A file is hostile input: an error shows one line and little.
        """
        return record_of(cls, unsealed(text), "the plan")


def plan_for(charge: str | None = None, **choices: Any) -> Plan:
    """`Plan.for_contributions` or `Plan.for_hits`, by the name of what users pay for. None stands for a default.

    Raises ValueError also for a choice that belongs to the other charge, and TypeError for one of none.
    """
    charge = CONTRIBUTIONS if charge is None else charge
    makers: dict[str, Callable[..., Plan]] = {CONTRIBUTIONS: Plan.for_contributions, HITS: Plan.for_hits}
    if not isinstance(charge, str) or charge not in makers:
        raise InputError("charge", f"must be one of {', '.join(CHARGES)}, got {shown(charge)}.")
    taken = {name: frozenset(inspect.signature(make).parameters) for name, make in makers.items()}
    given = {name: value for name, value in choices.items() if value is not None}
    for name in given.keys() - taken[charge]:
        other = next((other for other in CHARGES if name in taken[other]), None)
        if other is None:
            raise TypeError(f"a plan of {charge} has no argument {name!r}{nearest(name, taken[charge])}")
        raise InputError(name, f"cannot be used with charge {charge!r}: it belongs to {other}.", "Leave it out.")
    return makers[charge](**given)
