"""The plain numbers of mode `looks`; a plan is turned into them when the pipeline is built."""

from __future__ import annotations

import dataclasses
import functools
import itertools

import numpy as np
import numpy.typing as npt

from dp_transforms.checks import check_whole
from dp_transforms.mechanisms.exponential_power import ExponentialPower
from dp_transforms.mechanisms.priced_weights import PricedWeights
from dp_transforms.mechanisms.randomness import StreamKeys
from dp_transforms.mechanisms.release_rule import HitOrAbove
from dp_transforms.monitor.query_noise import LookNoise
from dp_transforms.monitor.stream_settings import StreamSettings

Whole = npt.NDArray[np.int64]


@dataclasses.dataclass(frozen=True, kw_only=True)
class NamingSettings(StreamSettings):
    """All numbers with which one stream of one run is named. Names as in `LooksPlan`.

    weights, units: what a user may add to an item, rising, and what a look with each costs of a purse.
    purse: units of a full purse.
    noise: the law of the noise of one sum of weights. threshold: noisy sums of at least this name an item that is not
        known.
    known_threshold: the same for a known item, at most `threshold`; equal to it where known items are not followed.
    forget_after: an item is known for so many windows after it was last named; 0 where known items are not followed.
        In a known domain all items are known for ever.
    spacing: distance of the boundaries of levels.
    counts_for: so many of the largest named items of a window are counted; 0 for none. counts_per_user, count_units,
        count_scale: at most so many counted pairs of a user count, what each costs of the purse, and the scale of the
        Gaussian noise of a count; 0 without counts.
    likely_noise: what a stated size allows the noise of one sum to be, as in `LooksPlan`.
    hits_per_user: above 0, a name at level 1 is a hit, there is no level above 2, and a user may be on the hits list:
        it pays `hit_units` for each of so many hits beforehand, and less for looks. 0: users pay for looks alone.
    hit_weights, hit_look_units: the hits list, as weights and units are the looks list; empty where nobody pays for
        hits.
    hits_from: a user of a stream joins the hits list with its look of this number; 0 where nobody pays for hits.

    Raises ValueError for numbers that do not fit together. Whether they are private, `LooksPlan` checks.
    """

    weights: tuple[int, ...]
    units: tuple[int, ...]
    purse: int
    noise: ExponentialPower
    known_threshold: int
    forget_after: int
    spacing: int
    likely_noise: int
    hits_per_user: int = 0
    hit_units: int = 0
    hit_weights: tuple[int, ...] = ()
    hit_look_units: tuple[int, ...] = ()
    hits_from: int = 0
    counts_for: int = 0
    counts_per_user: int = 0
    count_units: int = 0
    count_scale: int = 0

    def __post_init__(self) -> None:
        _check_price_list("weights", self.weights, "units", self.units)
        check_whole("purse", self.purse, self.units[-1])
        check_whole("known_threshold", self.known_threshold, 1, self.threshold)
        check_whole("forget_after", self.forget_after, 0)
        check_whole("spacing", self.spacing, 1)
        self._check_hits()
        self._check_counts()

    def _check_hits(self) -> None:
        check_whole("hits_per_user", self.hits_per_user, 0)
        if not self.hits_per_user:
            if self.hit_units or self.hits_from or self.hit_weights or self.hit_look_units:
                raise ValueError("prices of hits cannot be given where hits_per_user is 0.")
            return
        _check_price_list("hit_weights", self.hit_weights, "hit_look_units", self.hit_look_units)
        check_whole("the last of hit_weights", self.hit_weights[-1], 1, self.weights[-1])
        check_whole("hit_units", self.hit_units, 1)
        check_whole("hits_from", self.hits_from, 1)
        check_whole("hits_per_user", self.hits_per_user, 1, (self.purse - self.hit_look_units[0]) // self.hit_units)
        if (self.purse - self.units_of_all_hits) // self.hit_look_units[0] > self.most_looks:
            raise ValueError(f"a purse must pay for at most {self.most_looks} looks on each list.")

    def _check_counts(self) -> None:
        check_whole("counts_for", self.counts_for, 0)
        if self.counts_for and self.hits_per_user:
            raise ValueError("counts_for must be 0 where hits_per_user is not.")
        for name in ("counts_per_user", "count_units", "count_scale"):
            check_whole(name, getattr(self, name), 1 if self.counts_for else 0)
        if self.counts_per_user * self.count_units + self.units[0] > self.purse:
            raise ValueError("counts_per_user * count_units must leave enough of the purse for a look.")

    def paid_for_counts(self, looks: Whole) -> Whole:
        """What users with so many pairs in the run pay for counts, whatever is named. looks, result: int64[n]."""
        return np.minimum(looks, self.counts_per_user) * self.count_units

    @property
    def most_looks(self) -> int:
        """A purse pays for no more looks than this."""
        return self.purse // self.units[0]

    @property
    def units_of_all_hits(self) -> int:
        """What a user pays to be on the hits list."""
        return self.hits_per_user * self.hit_units

    def empty_item_tail(self) -> int:
        """The probability that a known item is named although nobody adds to it, in units of 2^-128."""
        tails = self.noise.upper_tail_integers()
        return tails[self.known_threshold - 1] if self.known_threshold <= len(tails) else 0

    def query_noise(self, keys: StreamKeys) -> LookNoise:
        """What is added to the sum of weights of an item in a window, where users pay for hits."""
        return LookNoise(self.noise, self.known_threshold, keys)

    def release_rule(self, *, is_known: bool) -> HitOrAbove:
        """What is published of a noisy sum, where users pay for hits."""
        threshold = self.known_threshold if is_known else self.threshold
        return HitOrAbove(threshold, self.spacing, self.likely_noise, self.weights[-1])

    def most_hits(self, charged: int) -> int:
        """So many of a window's hits can be of one user."""
        return charged

    def epsilon_spent(self, hit_bound: int) -> float:
        """All of it: public output does not say how much of a purse is left."""
        return self.epsilon_total

    @functools.cached_property
    def looks_list(self) -> PricedWeights:
        """`weights` and `units`."""
        return PricedWeights.of(self.weights, self.units)

    @functools.cached_property
    def hits_list(self) -> PricedWeights:
        """`hit_weights` and `hit_look_units`, for what is left when the hits are paid."""
        return PricedWeights.of(self.hit_weights, self.hit_look_units)


def _check_price_list(weights_name: str, weights: tuple[int, ...], units_name: str, units: tuple[int, ...]) -> None:
    if not weights or len(weights) != len(units):
        raise ValueError(f"{weights_name} and {units_name} must have one length, got {len(weights)} and {len(units)}.")
    for name, values in ((weights_name, weights), (units_name, units)):
        check_whole(f"the first of {name}", values[0], 1)
        if any(low >= high for low, high in itertools.pairwise(values)):
            raise ValueError(f"{name} must rise.")
