"""The plain numbers of release mode `names`; a plan is turned into them when the pipeline is built."""

from __future__ import annotations

import dataclasses
import functools
import itertools

import numpy as np
import numpy.typing as npt

from dp_transforms.checks import check_whole
from dp_transforms.exponential_power import ExponentialPower
from dp_transforms.monitoring.stream_settings import StreamSettings

Whole = npt.NDArray[np.int64]


@dataclasses.dataclass(frozen=True, kw_only=True)
class NamingSettings(StreamSettings):
    """All numbers with which one stream of one run is named. Names as in `NamesPlan`.

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
    likely_noise: the noise of one sum reaches more than this with a probability of at most `NamesPlan.size_error`.

    Raises ValueError for numbers that do not fit together. Whether they are private, `NamesPlan` checks.
    """

    weights: tuple[int, ...]
    units: tuple[int, ...]
    purse: int
    noise: ExponentialPower
    known_threshold: int
    forget_after: int
    spacing: int
    likely_noise: int
    counts_for: int = 0
    counts_per_user: int = 0
    count_units: int = 0
    count_scale: int = 0

    def __post_init__(self) -> None:
        if not self.weights or len(self.weights) != len(self.units):
            raise ValueError(f"weights and units must have one length, got {len(self.weights)} and {len(self.units)}.")
        for name, values in (("weights", self.weights), ("units", self.units)):
            check_whole(f"the first of {name}", values[0], 1)
            if any(low >= high for low, high in itertools.pairwise(values)):
                raise ValueError(f"{name} must rise.")
        check_whole("purse", self.purse, self.units[-1])
        check_whole("known_threshold", self.known_threshold, 1, self.threshold)
        check_whole("forget_after", self.forget_after, 0)
        check_whole("spacing", self.spacing, 1)
        check_whole("counts_for", self.counts_for, 0)
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

    def weights_for(self, amounts: Whole) -> Whole:
        """The largest weights that cost at most these amounts, 0 where none does. amounts, result: int64[n]."""
        weights, units = self._arrays
        return weights[np.searchsorted(units, amounts, side="right")]

    def units_of(self, weights: Whole) -> Whole:
        """What looks with these weights cost: each 0 (nothing) or one of `weights`. weights, result: int64[n]."""
        listed, units = self._arrays
        index = np.searchsorted(listed, weights)
        if np.any(listed[np.minimum(index, len(listed) - 1)] != weights):
            raise ValueError("weights must be 0 or weights of the price list.")
        return np.concatenate([[0], units])[index]

    @functools.cached_property
    def _arrays(self) -> tuple[Whole, Whole]:
        """Weights with a leading 0, for an amount below every price; and units."""
        return np.array([0, *self.weights], dtype=np.int64), np.array(self.units, dtype=np.int64)
