"""The plain numbers of release mode `names`; a plan is turned into them when the pipeline is built."""

from __future__ import annotations

import dataclasses

from dp_transforms.exponential_power import ExponentialPower
from dp_transforms.monitoring.stream_settings import StreamSettings


@dataclasses.dataclass(frozen=True, kw_only=True)
class NamingSettings(StreamSettings):
    """All numbers with which one stream of one run is named. Names as in `NamesPlan`.

    weights, units: what a user may add to an item, rising, and what a look with each costs of a purse.
    purse: units of a full purse.
    noise: the law of the noise of one sum of weights. threshold: noisy sums of at least this name an item that is not
        known.
    known_threshold: the same for a known item; equal to `threshold` where known items are not followed.
    forget_after: an item is known for so many windows after it was last named; 0 where known items are not followed.
        In a known domain all items are known for ever.
    spacing: distance of the boundaries of levels.
    likely_noise: the noise of one sum reaches more than this with a probability of at most `NamesPlan.size_error`.
    """

    weights: tuple[int, ...]
    units: tuple[int, ...]
    purse: int
    noise: ExponentialPower
    known_threshold: int
    forget_after: int
    spacing: int
    likely_noise: int
