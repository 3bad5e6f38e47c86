"""The plan of mode ``looks``: users pay for looks out of a purse, and names with levels are published.

Guarantee: that of `ReleasePlan`. Construction checks the budget of the order, every price, the threshold of open items,
and the split of delta again.

``delta = delta_looks + delta_open + delta_sampling + delta_hash`` (docs/guarantee.md, "How delta is split for looks"):
delta_looks pays for the looks, delta_open for items with one holder alone (0 in a known domain), delta_sampling for
the distance of the sampled noise from its law, delta_hash for collisions of keyed hashes.

A *look* is one pair (window, item) in which a user counts. The noise, the thresholds and the weights of users are in
integers of one grid; they mean something only relative to each other.
"""

from __future__ import annotations

import dataclasses
import functools

from dp_transforms.accounting.activity import activity_delta, guarantee_with_activity
from dp_transforms.accounting.calibration import sampling_delta
from dp_transforms.accounting.purse.open_threshold import found_from, smallest_size_margin
from dp_transforms.accounting.purse.price_list import (
    PURSE_UNITS,
    SHARE_OF_COUNTS,
    PriceList,
    check_price_work,
    count_noise,
    count_units,
    hits_from,
)
from dp_transforms.accounting.purse.purse_choice import (
    SMALLEST_KNOWN_ERROR,
    PurseChoice,
    check_usual_looks,
)
from dp_transforms.accounting.purse.purse_search import LARGEST_SCALE
from dp_transforms.checks import check_range, check_whole, shown
from dp_transforms.mechanisms.exponential_power import ExponentialPower
from dp_transforms.plan.looks_calibration import calibrate_looks, check_most_looks, looks_hash_delta
from dp_transforms.plan.plan_checks import (
    check_budget,
    check_declared_ids,
    check_delta_split,
    check_domain,
    check_false_reports,
    check_share,
)
from dp_transforms.plan.release_plan import ReleasePlan
from dp_transforms.plan.window_schedule import WindowSchedule

DELTA_SHARES = ("delta_looks", "delta_open", "delta_sampling", "delta_hash")
_MOST_WEIGHTS = 1_000
# An item that nobody holds any more may be named again, and is then followed for longer: at most so often on average.
_MOST_NAMED_AGAIN = 0.5


@dataclasses.dataclass(frozen=True)
class LooksPlan(ReleasePlan):
    """One calibrated run in which users pay for looks. Build it with `ReleasePlan.calibrate`, which names the choices.

    Fields that are not named here: as in `ReleasePlan`. mode: ``looks``.

    usual_looks: the noise was chosen for users with between so many looks in the run; the guarantee is for all.
    most_looks: a purse pays for at most so many looks; a user's further ones do not count.
    shape, scale: the noise of one sum, an `ExponentialPower`.
    order, budget: the Renyi order, and the divergence of this order that a full purse stands for.
    weights, units: what a user may add to an item, rising, and what a look with each costs of a purse of `purse` units.
        The looks list: its users pay nothing for hits.
    hits_per_user: with J > 0, a name at level 1 is a *hit*, a larger sum is level 2, and there is a second list for
        users who pay less for looks, and besides for up to J hits; these are taken out of their purses beforehand, and
        after them they no longer count. 0: looks alone.
    hit_units: what each of these hits costs; 0 without hits, as the next one is.
    hits_from: users with fewer looks are better off on the looks list. In a stream a user joins the other with its
        look of this number.
    hit_weights, hit_look_units: the hits list, as weights and units are the looks list; empty without hits.
    counts_for: so many of the largest named items of a window are published with a count; 0 for none. Replays alone.
    counts_per_user: at most so many counted pairs of a user count; count_units: what each costs of a purse;
        count_scale: the Gaussian noise of a count has a standard deviation of this over sqrt(2). 0 without counts.
    spacing: distance of the boundaries of levels; level k is reached at threshold + (k - 1) spacing. With hits there
        are two levels.
    threshold: noisy sums of at least this name an item that is not known.
    known_threshold: the same for a known item: one that was named in one of the last `forget_after` windows, and in a
        known domain every one. Equal to threshold where items are not followed.
    forget_after: in windows; 0 where known items are not followed, the horizon in a known domain.
    size_error: the probability that any size that the run states is larger than the number of users.
    max_users: also for stated sizes, which are wrong more often than size_error if there are more users.
    activity_epsilon: what a noisy histogram of the same users' activity took beforehand, in addition to epsilon; 0 for
        none. Histogram and run together are (epsilon + activity_epsilon, delta)-DP (`accounting.activity`).
    delta_looks, delta_open, delta_sampling, delta_hash: how delta was split.
    """

    epsilon: float
    delta: float
    schedule: WindowSchedule
    mode: str
    usual_looks: tuple[int, int]
    most_looks: int
    shape: float
    scale: int
    order: float
    budget: float
    weights: tuple[int, ...]
    units: tuple[int, ...]
    hits_per_user: int
    hit_units: int
    hits_from: int
    hit_weights: tuple[int, ...]
    hit_look_units: tuple[int, ...]
    counts_for: int
    counts_per_user: int
    count_units: int
    count_scale: int
    spacing: int
    threshold: int
    known_threshold: int
    forget_after: int
    size_error: float
    domain_size: int
    domain_fingerprint: str
    max_users: int
    max_items: int
    activity_epsilon: float
    delta_looks: float
    delta_open: float
    delta_sampling: float
    delta_hash: float

    find = staticmethod(calibrate_looks)

    def __post_init__(self) -> None:
        self._make_floats()
        for name in ("usual_looks", "weights", "units", "hit_weights", "hit_look_units"):
            object.__setattr__(self, name, _as_tuple(name, getattr(self, name)))
        check_budget(self.epsilon, self.delta, self.schedule)
        if self.mode != "looks":
            raise ValueError(f"mode must be 'looks' in a LooksPlan, got {shown(self.mode)}.")
        check_most_looks(self.most_looks)
        if self.usual_looks != check_usual_looks(self.usual_looks, self.most_looks):
            raise ValueError(f"usual_looks must rise, got {shown(self.usual_looks)}.")
        check_whole("scale", self.scale, 1, LARGEST_SCALE)
        check_whole("spacing", self.spacing, 1)
        check_range("size_error", self.size_error, SMALLEST_KNOWN_ERROR, 0.5)
        check_declared_ids(self.max_users, self.max_items)
        check_domain(self.domain_size, self.domain_fingerprint, self.max_items)
        self._check_hits()
        self._check_thresholds()
        shares = {name: getattr(self, name) for name in DELTA_SHARES}
        check_delta_split(self.delta, shares, is_known_domain=bool(self.domain_size))
        check_share("delta_hash", self.delta_hash, looks_hash_delta(self.max_users, self.max_items))
        self._check_counts()
        variation = self.most_looks * self.noise.sampling_total_variation
        if self.counts_for:
            variation += self.counts_per_user * count_noise(self.count_scale).sampling_total_variation
        needed = sampling_delta(self.epsilon, variation, self.schedule.horizon, self.domain_size)
        needed += activity_delta(self.epsilon, self.activity_epsilon, self.max_users)
        check_share("delta_sampling", self.delta_sampling, needed)
        check_price_work(self.noise, self.order, (*self.weights, *self.hit_weights), self.spacing)
        if self.prices.most_looks != self.most_looks:
            raise ValueError(f"most_looks must be {self.prices.most_looks} at these units, got {self.most_looks}.")
        if self.hit_prices is not None:
            if self.hit_prices.most_looks != self.most_looks:
                raise ValueError(f"most_looks must be {self.hit_prices.most_looks} at these hit_look_units.")
            least = hits_from(self.prices, self.hit_prices)
            if self.hits_from != least:
                raise ValueError(f"hits_from must be {least} for these price lists, got {self.hits_from}.")
        # The price lists were checked when they were built; this checks the rest: budget and threshold.
        PurseChoice(
            self.epsilon, self.delta_looks, self.delta_open, self.prices, self.threshold, hit_prices=self.hit_prices
        )

    def _check_hits(self) -> None:
        check_whole("hits_per_user", self.hits_per_user, 0, self.most_looks)
        if not self.hits_per_user:
            without = {"hit_units": 0, "hits_from": 0, "hit_weights": (), "hit_look_units": ()}
            for name, empty in without.items():
                if not isinstance(empty, tuple):
                    check_whole(name, getattr(self, name), 0)
                if getattr(self, name) != empty:
                    raise ValueError(f"{name} must be {empty} where hits_per_user is 0.")
            return
        check_whole("hit_units", self.hit_units, 1)
        check_whole("hits_from", self.hits_from, 1, self.most_looks)
        if self.weights and self.hit_weights[-1:] > self.weights[-1:]:
            raise ValueError(f"each of hit_weights must be at most {self.weights[-1]}, the largest of weights.")

    def _check_counts(self) -> None:
        check_whole("counts_for", self.counts_for, 0)
        names = ("counts_per_user", "count_units", "count_scale")
        if not self.counts_for:
            for name in names:
                if check_whole(name, getattr(self, name), 0) != 0:
                    raise ValueError(f"{name} must be 0 where counts_for is 0.")
            return
        if self.hits_per_user:
            raise ValueError("counts_for must be 0 where hits_per_user is not. Use one of the two.")
        for name in names:
            check_whole(name, getattr(self, name), 1)
        needed = count_units(self.order, self.budget, self.count_scale)
        if self.count_units < needed:
            raise ValueError(f"count_units must be at least {needed} at this count_scale, got {self.count_units}.")
        if self.counts_per_user * self.count_units > SHARE_OF_COUNTS * PURSE_UNITS:
            raise ValueError(f"counts must cost at most {SHARE_OF_COUNTS:.0%} of a purse. Calibrate the plan again.")
        if self.counts_per_user * self.count_units + self.prices.units[0] > PURSE_UNITS:
            raise ValueError("counts leave less of a purse than a look costs. Use most_looks of 2 or more.")

    def _check_thresholds(self) -> None:
        horizon = self.schedule.horizon
        check_whole("threshold", self.threshold, 1)
        check_whole("known_threshold", self.known_threshold, 1)
        check_whole("forget_after", self.forget_after, 0, horizon)
        if self.known_threshold > self.threshold:
            raise ValueError(f"known_threshold must be at most the threshold {self.threshold}.")
        if self.domain_size and (self.forget_after != horizon or self.known_threshold != self.threshold):
            raise ValueError(
                "in a known domain forget_after must be the horizon and known_threshold the threshold: every item is "
                "known."
            )
        if not self.forget_after and self.known_threshold != self.threshold:
            raise ValueError("known_threshold must be the threshold where forget_after is 0.")
        check_false_reports(self.domain_size * self.known_error, self.known_threshold, horizon)
        if not self.domain_size and self.forget_after * self.known_error > _MOST_NAMED_AGAIN:
            raise ValueError(
                f"known_threshold = {self.known_threshold} is too low for forget_after = {self.forget_after}: noise "
                f"would name an item that nobody holds again and again. Lower known_error or forget_after."
            )

    @property
    def guarantee(self) -> str:
        """As in `ReleasePlan`; and what the plan and the run promise together, if the plan is from the same users."""
        return super().guarantee + guarantee_with_activity(self.epsilon, self.delta, self.activity_epsilon)

    @functools.cached_property
    def noise(self) -> ExponentialPower:
        """The law of the noise of one sum."""
        return ExponentialPower(self.shape, self.scale)

    @functools.cached_property
    def prices(self) -> PriceList:
        """The looks list, with every price computed again when this is first read."""
        return PriceList(self.noise, self.order, self.budget, self.weights, self.units, spacing=self.spacing)

    @functools.cached_property
    def hit_prices(self) -> PriceList | None:
        """The hits list, in the same way; None without hits."""
        if not self.hits_per_user:
            return None
        return PriceList(
            self.noise,
            self.order,
            self.budget,
            self.hit_weights,
            self.hit_look_units,
            hit_units=self.hit_units,
            hits=self.hits_per_user,
            spacing=self.spacing,
        )

    @property
    def purse(self) -> int:
        """Units of a full purse."""
        return PURSE_UNITS

    @property
    def known_error(self) -> float:
        """The probability with which noise alone names a known item in a window, rounded up."""
        return self.noise.upper_tail(self.known_threshold)

    @functools.cached_property
    def likely_noise(self) -> int:
        """What a stated size allows the noise of one sum to be, with at most `max_users` users in the run.

        So an item whose noisy sum reaches a boundary has at least ``ceil((boundary - likely_noise) / weights[-1])``
        users, and of all such sizes of a run at most `size_error` are wrong, on average (docs/guarantee.md, "Sizes").
        """
        most_unheld = (
            self.domain_size * self.schedule.horizon or 2 * self.forget_after * self.max_users * self.most_looks
        )
        return smallest_size_margin(
            self.prices, self.size_error, self.max_users, most_unheld, hit_prices=self.hit_prices
        )

    @property
    def expected_false_reports(self) -> float:
        """How many items of a known domain that nobody holds the run names on average; rounded up.

        0 in an open domain, where noise names a known item that nobody holds with `known_error` in each window.
        """
        return self.domain_size * self.schedule.horizon * self.known_error

    @property
    def known_for(self) -> int:
        """As in `ReleasePlan`."""
        return self.forget_after

    @property
    def pays_at_the_end(self) -> bool:
        """As in `ReleasePlan`: counts are paid for when all names of the run are known."""
        return self.counts_for > 0

    def smallest_detectable(self, probability: float = 0.95) -> int:
        """`found_from` for a new item whose holders have the fewest of the usual looks."""
        return self.found_from(self.usual_looks[0], probability)

    def found_from(
        self, looks: int, probability: float = 0.95, *, known: bool = False, without_counts: bool = False
    ) -> int:
        """From how many users on an item is named in a window with this probability, if each has so many looks.

        looks: pairs (window, item) of each holder in the whole run, in a replay. In a stream weights follow a user's
        pace and are a little different. known: the item was named lately. probability: at least 1/2. without_counts:
        if users did not pay for counts. With hits: while none of the users is excluded.
        """
        threshold = self.known_threshold if known else self.threshold
        reserved = 0 if without_counts else min(looks, self.counts_per_user) * self.count_units
        return max(
            1,
            found_from(self.prices, threshold, looks, probability, hit_prices=self.hit_prices, reserved=reserved),
        )


def _as_tuple(name: str, value: object) -> tuple[int, ...]:
    if not isinstance(value, (list, tuple)) or len(value) > _MOST_WEIGHTS:
        raise ValueError(f"{name} must be at most {_MOST_WEIGHTS:,} whole numbers, got {shown(value)}.")
    return tuple(check_whole(f"each of {name}", each, 1) for each in value)
