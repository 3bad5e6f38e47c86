"""The plan of a run: a privacy budget turned into the plain numbers that the mechanisms run on.

Guarantee: a run that follows a plan is (epsilon, delta)-DP for adding or removing one user with all of its events, over
the whole declared schedule; with a known domain, provided the list of items is public and was not made from the log. A
plan that breaks the first part cannot be built: construction checks it again. Every rounding goes toward more noise.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from fractions import Fraction
from typing import Any, Unpack, cast

import numpy as np

from dp_transforms.accounting.purse.open_threshold import found_from, smallest_size_margin
from dp_transforms.accounting.release_modes import RELEASE_MODES
from dp_transforms.checks import exact, html_table, nearest, shown
from dp_transforms.mechanisms.priced_weights import PURSE_UNITS
from dp_transforms.plan.calibration import HitsChoices, LooksChoices, calibrate_hits, calibrate_looks
from dp_transforms.plan.plan_checks import check_budget, check_declared_ids, check_plan
from dp_transforms.plan.records import (
    Budget,
    Domain,
    Hits,
    Known,
    KnownDomain,
    Looks,
    Rounds,
    Shares,
)
from dp_transforms.plan.rounds import RoundTerms, found_in_rounds, second_terms, terms_of_round
from dp_transforms.plan.stored import (
    Record,
    as_fields,
    as_float,
    fingerprint_of,
    flat,
    read_record,
    sealed,
    sealed_schema,
    unsealed,
)
from dp_transforms.plan.window_schedule import MICROS_PER_SECOND, WindowSchedule, format_utc

FORMAT_VERSION = 4
DEFAULT_MODE = "looks"
MODES = (*RELEASE_MODES, "looks")
DEFAULT_MAX_USERS = 10**8
DEFAULT_MAX_ITEMS = 10**9


class Choices(HitsChoices, LooksChoices, total=False):
    """What `Plan.calibrate` takes beside the budget; each mode has its own."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan(Record):
    """One calibrated run: what is promised, and the numbers that keep the promise. Build it with `calibrate`.

    epsilon, delta: the guarantee for one user over the whole schedule.
    schedule: the declared windows; its horizon is the number of windows that may be published.
    domain: of a plan with a known domain.
    max_users, max_items: declared bounds on distinct ids under one key, for hash collisions; never measured. Stated
        sizes are wrong more often than they say if there are more users.
    threshold: noisy sums or counts of at least this are reported; in mode `hits` the lower edge of the charged zone.
    looks: where users pay for looks. hits: where users pay for hits.
    known: where named items are followed; in a known domain all items are known, and have the threshold.
    rounds: where the looks of a replay come in rounds; `threshold` is then that of the first one.
    shares: how delta was split.
    """

    epsilon: float
    delta: float
    schedule: WindowSchedule
    domain: Domain | None = None
    max_users: int
    max_items: int
    threshold: int
    looks: Looks | None = None
    hits: Hits | None = None
    known: Known | None = None
    rounds: Rounds | None = None
    shares: Shares

    def __post_init__(self) -> None:
        super().__post_init__()
        check_plan(self)

    @classmethod
    def calibrate(
        cls,
        *,
        epsilon: float,
        delta: float,
        schedule: WindowSchedule,
        mode: str | None = None,
        public_items: KnownDomain | None = None,
        max_users: int = DEFAULT_MAX_USERS,
        max_items: int = DEFAULT_MAX_ITEMS,
        **choices: Unpack[Choices],
    ) -> Plan:
        """The plan that finds most for this budget.

        mode: one of `MODES`, by default looks. public_items: a list of all items, `PublicItems`; None where any may
        come. choices: in looks those of `LooksChoices`, in the other modes those of `HitsChoices`; None stands for the
        default of the mode.

        Raises ValueError for an argument of another mode, and if the budget is too small for any noise that can
        be sampled.
        """
        mode = DEFAULT_MODE if mode is None else mode
        given = {name: value for name, value in choices.items() if value is not None}
        for name in given.keys() - choices_of(mode):
            others = ", ".join(other for other in MODES if name in choices_of(other))
            if not others:
                known = {"epsilon", "delta", "schedule", *(cls.calibrate.__kwdefaults__ or ()), *choices_of(mode)}
                raise TypeError(f"Plan.calibrate() has no argument {name!r}{nearest(name, known)}")
            raise ValueError(f"{name} cannot be used with mode {mode!r}: it belongs to {others}. Leave it out.")
        epsilon, delta = as_float("epsilon", epsilon), as_float("delta", delta)
        check_budget(epsilon, delta, schedule)
        check_declared_ids(max_users, max_items)
        if public_items is not None and not isinstance(public_items, KnownDomain):
            raise ValueError(
                f"public_items must be PublicItems, got a {type(public_items).__name__}. Use PublicItems.read(path)."
            )
        known_domain = None if public_items is None else Domain(public_items.size, public_items.fingerprint)
        budget = Budget(epsilon, delta, schedule, known_domain, max_users, max_items)
        known = cast(Any, given)  # each is one of the mode
        found = calibrate_looks(budget, **known) if mode == "looks" else calibrate_hits(mode, budget, **known)
        return cls(**budget._asdict(), **found)

    def again(self, mode: str | None = None, **choices: Unpack[Choices]) -> Plan | None:
        """A plan of the same budget, schedule, domain, keys and bounds on ids: in another mode, or with other choices,
        named as in `calibrate`. None if the budget is too small for it, or the mode has no keys."""
        if self.most_keys > 1:
            choices.setdefault("most_keys", self.most_keys)
        try:
            return Plan.calibrate(
                epsilon=self.epsilon,
                delta=self.delta,
                schedule=self.schedule,
                mode=mode or self.mode,
                public_items=self.domain,
                max_users=self.max_users,
                max_items=self.max_items,
                **choices,
            )
        except ValueError:
            return None

    @property
    def mode(self) -> str:
        """One of `MODES`."""
        return "looks" if self.looks is not None else self.charged_hits.mode

    @property
    def paid_looks(self) -> Looks:
        """`looks`. Raises ValueError for a plan without them."""
        if self.looks is None:
            raise ValueError(f"a plan of mode {self.mode} has no looks. Make one of mode looks.")
        return self.looks

    @property
    def charged_hits(self) -> Hits:
        """`hits`. Raises ValueError for a plan without them."""
        if self.hits is None:
            raise ValueError("a plan of mode looks charges no hits. Make one of another mode.")
        return self.hits

    @property
    def paid_rounds(self) -> Rounds:
        """`rounds`. Raises ValueError for a plan without them."""
        if self.rounds is None:
            raise ValueError("the plan has no rounds. Make one with rounds.")
        return self.rounds

    @property
    def units_of_rounds(self) -> tuple[int, ...]:
        """What the looks of a user may cost in each round; without rounds, a purse."""
        return (PURSE_UNITS,) if self.rounds is None else self.rounds.units

    @property
    def hits_per_user(self) -> int:
        """After so many hits a user who pays for them no longer counts; 0 where nobody does."""
        return 0 if self.hits is None else self.hits.per_user

    @property
    def most_keys(self) -> int:
        """The promise is for users with events under at most so many keys (docs/guarantee.md, "Keys")."""
        return 1 if self.hits is None else self.hits.keys

    @property
    def domain_size(self) -> int:
        """How many items a known domain has; 0 in an open domain."""
        return 0 if self.domain is None else self.domain.size

    @property
    def known_threshold(self) -> int:
        """Noisy sums of at least this name a known item."""
        return self.threshold if self.known is None else self.known.threshold

    @property
    def delta_open(self) -> float:
        """The share of delta for items with one holder alone; 0 in a known domain."""
        return self.shares.open or 0.0

    @property
    def known_for(self) -> int:
        """For so many windows an item is known after it was named, in a known domain for all; 0: no item ever is."""
        if self.known is not None:
            return self.known.forget_after
        return self.schedule.horizon if self.looks is not None and self.domain is not None else 0

    @property
    def guarantee(self) -> str:
        """What the plan promises, in one sentence, and for a known domain on which condition."""
        condition = f", if they are under at most {self.most_keys} keys" if self.most_keys > 1 else ""
        condition += ", provided the list of items is public and was not made from the log" if self.domain else ""
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
    def known_error(self) -> float:
        """The probability with which noise alone names a known item in a window, rounded up."""
        noise = self.charged_hits.noise if self.looks is None else self.looks.noise
        return noise.upper_tail(self.known_threshold)

    @property
    def expected_false_reports(self) -> float:
        """How many items of a known domain that nobody holds the run publishes on average under a key; rounded up.

        0 in an open domain, where noise names a known item that nobody holds with `known_error` in each window.
        """
        return self.domain_size * self.schedule.horizon * self.known_error if self.domain else 0.0

    @functools.cached_property
    def likely_noise(self) -> int:
        """What a stated size allows the noise of one sum to be, with at most `max_users` users in the run.

        So an item whose noisy sum reaches a boundary has at least ``ceil((boundary - likely_noise) / weights[-1])``
        users, and of all such sizes of a run at most `size_error` are wrong, on average (docs/guarantee.md, "Sizes").
        """
        looks = self.paid_looks
        return smallest_size_margin(looks.prices, looks.size_error, self.max_users, self._most_unheld)

    @property
    def _most_unheld(self) -> int:
        """Sums of 0 that the run draws for, on average."""
        followed = 2 * self.known_for * self.max_users * self.paid_looks.most_looks
        return self.domain_size * self.schedule.horizon or followed

    @property
    def terms_of_looks(self) -> RoundTerms:
        """Of looks in one round, at items that are not known."""
        return RoundTerms(self.threshold, self.likely_noise, self.paid_looks.weights[-1])

    def terms_of_round(self, number: int, drawn: int, windows: int) -> RoundTerms:
        """Of a round over blocks in so many windows; a later one draws for so many pairs."""
        looks, rounds, parts = self.paid_looks, self.paid_rounds, Fraction(self.schedule.horizon, windows)
        return terms_of_round(looks, rounds, number, drawn, self.max_users, threshold=self.threshold, parts=parts)

    def terms_of_second_looks(self, drawn: int, windows: int) -> RoundTerms:
        """Of the looks of the last round at so many pairs that are named already, in so many windows."""
        return second_terms(self.paid_looks, self.paid_rounds, drawn, Fraction(self.schedule.horizon, windows))

    @functools.cached_property
    def largest_in_rounds(self) -> tuple[int, ...]:
        """The largest weight that a user can have in each round of looks."""
        return tuple(self.paid_looks.listed.largest(np.array(self.units_of_rounds))[0].tolist())

    @functools.cached_property
    def epsilon_after_hits(self) -> tuple[float, ...]:
        """Entry j - 1: an epsilon for which the mechanism cut at j hits is (that, share paid)-DP, rounded up.

        float[hits of a user in all], not decreasing, at most epsilon. But for kms21 it comes from the game accountant,
        whichever accountant the plan used: that one is never larger. For the running figure, docs/guarantee.md,
        "Claim (running figure)".
        """
        hits = self.charged_hits
        return hits.rules.epsilon_after_hits(hits.noise, hits.in_all, self.epsilon, self.shares.paid)

    def smallest_detectable(self, probability: float = 0.95) -> int:
        """The smallest number of users from which an item is reported in a window with at least this probability.

        In mode looks of a new item whose holders have the fewest of the usual looks; in others if none is excluded.
        """
        if self.looks is not None:
            return self.found_from(self.looks.usual_looks[0], probability)
        if not 0 < probability < 1:
            raise ValueError(f"probability must lie strictly between 0 and 1, got {probability!r}.")
        # The largest with such a tail.
        margin = self.charged_hits.noise.smallest_margin(math.nextafter(probability, 0)) - 1
        return max(1, self.threshold - margin)

    def found_from(self, looks: int, probability: float = 0.95, *, known: bool = False) -> int:
        """From how many users on an item is named in a window with this probability, if each has so many looks.

        looks: pairs (window, item) of each holder in the whole run, in a replay. In a stream weights follow a user's
        pace and are a little different. known: the item was named lately. probability: at least 1/2. With rounds:
        an item that is held in this window alone; known: one that was named in its block.
        """
        if self.rounds is not None:
            first = None if known else self.threshold
            return found_in_rounds(self.paid_looks, self.rounds, first, looks, probability)
        threshold = self.known_threshold if known else self.threshold
        prices = self.paid_looks.prices
        return max(1, found_from(prices, threshold, looks, probability))

    @functools.cached_property
    def fingerprint(self) -> str:
        """Hex SHA-256 of the canonical JSON: equal for equal plans only."""
        return fingerprint_of(self._fields())

    def to_json(self) -> str:
        """The plan as JSON text, with a format version and its fingerprint; `from_json` reads it back."""
        return sealed(self._fields())

    @classmethod
    def from_json(cls, text: str | bytes) -> Plan:
        """Reads `to_json` text and checks all of it again, the accountant included. Raises ValueError.

        A file is hostile input: an error shows one line and little.
        """
        return read_record(cls, unsealed(text, FORMAT_VERSION), "the plan")

    @classmethod
    def json_schema(cls) -> dict[str, Any]:
        """The JSON schema of `to_json`, made from the records."""
        return sealed_schema(cls, FORMAT_VERSION)

    def _fields(self) -> dict[str, Any]:
        return {"format_version": FORMAT_VERSION, **as_fields(self)}

    def _repr_html_(self) -> str:
        """For notebooks: what the plan promises, and its numbers. Lists have many; the JSON has them all."""
        schedule = self.schedule
        declared = [
            ("mode", self.mode),
            ("start", format_utc(schedule.start_seconds * MICROS_PER_SECOND)),
            ("end", format_utc(schedule.end_seconds * MICROS_PER_SECOND)),
            ("window", f"{schedule.window_seconds:,} s"),
            ("slide", f"{schedule.slide_seconds:,} s"),
        ]
        fields = {name: value for name, value in as_fields(self).items() if name != "schedule"}
        return html_table(self.guarantee, (), [*declared, *flat(fields)])


def choices_of(mode: str) -> frozenset[str]:
    """The arguments of `Plan.calibrate` that a mode takes beside the budget. Raises ValueError for another name."""
    if not isinstance(mode, str) or mode not in MODES:
        raise ValueError(f"mode must be one of {', '.join(MODES)}, got {shown(mode)}.")
    return frozenset((LooksChoices if mode == "looks" else HitsChoices).__annotations__)
