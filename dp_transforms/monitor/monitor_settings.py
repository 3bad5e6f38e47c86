"""The plain numbers of the monitor of hits; a plan is turned into them when the pipeline is built."""

from __future__ import annotations

import dataclasses

from dp_transforms.mechanisms.randomness import StreamKeys
from dp_transforms.mechanisms.release_rule import (
    BetweenThresholds,
    CountsAboveThreshold,
    NamesAboveThreshold,
    ReleaseRule,
)
from dp_transforms.monitor.query_noise import CappedSumNoise, QueryNoise, SingleNoise
from dp_transforms.monitor.stream_settings import StreamSettings


@dataclasses.dataclass(frozen=True, kw_only=True)
class MonitorSettings(StreamSettings):
    """All numbers with which one stream of one run is monitored for hits. Names as in `ReleasePlan`.

    epsilon_after_hits: entry j - 1 is the epsilon of the same mechanism cut at j hits.
    """

    mode: str
    zone_width: int
    epsilon_per_query: float
    hits_per_user: int
    max_items_per_user: int
    epsilon_after_hits: tuple[float, ...]
    wide_epsilon_per_query: float = 0.0
    noise_cap: int = 0

    @property
    def known_threshold(self) -> int:
        return self.threshold

    @property
    def forget_after(self) -> int:
        """No item becomes known by being published."""
        return 0

    def most_hits(self, charged: int) -> int:
        """So many of a window's charged results can be of one user."""
        return min(self.max_items_per_user, charged)

    def epsilon_spent(self, hit_bound: int) -> float:
        """Results without a hit leak a little too and belong to the next hit: the estimate is that of hit_bound + 1
        hits, entry hit_bound of the table (docs/guarantee.md, "Claim (running figure)")."""
        return self.epsilon_after_hits[min(hit_bound, self.hits_per_user - 1)]

    def release_rule(self, *, is_known: bool = False) -> ReleaseRule:
        if self.mode == "hits":
            return BetweenThresholds(self.threshold, self.zone_width)
        return (
            CountsAboveThreshold(self.threshold)
            if self.mode == "hits-with-counts"
            else NamesAboveThreshold(self.threshold)
        )

    def query_noise(self, keys: StreamKeys) -> QueryNoise:
        if self.mode == "kms21":
            return CappedSumNoise(
                self.threshold,
                keys,
                wide_epsilon=self.wide_epsilon_per_query,
                narrow_epsilon=self.epsilon_per_query,
                cap=self.noise_cap,
            )
        return SingleNoise(self.epsilon_per_query, self.threshold, keys)
