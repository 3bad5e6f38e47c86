"""The noise of one count, as plain numbers of a plan, and the thresholds that it allows."""

from __future__ import annotations

import dataclasses

from dp_transforms.mechanisms.discrete_laplace_law import capped_sum_upper_tail, sampling_total_variation, upper_tail


@dataclasses.dataclass(frozen=True)
class NoiseParameters:
    """What is added to one count.

    Z, discrete Laplace of scale ``1 / epsilon_per_query``. Where wide_epsilon_per_query is not 0, instead
    ``W + min(V, noise_cap)``, V of scale ``1 / epsilon_per_query`` and W of scale ``1 / wide_epsilon_per_query``.
    """

    epsilon_per_query: float
    wide_epsilon_per_query: float = dataclasses.field(default=0.0, kw_only=True)
    noise_cap: int = dataclasses.field(default=0, kw_only=True)

    @property
    def scale(self) -> float:
        """Of the widest part, in users."""
        return 1 / (self.wide_epsilon_per_query or self.epsilon_per_query)

    @property
    def total_variation(self) -> float:
        """Bound on the distance of each of the two draws of a query from its exact distribution."""
        return sampling_total_variation(self.wide_epsilon_per_query or self.epsilon_per_query)

    def upper_tail(self, margin: int) -> float:
        """``Pr[noise >= margin]``, rounded up."""
        if not self.wide_epsilon_per_query:
            return upper_tail(self.epsilon_per_query, margin)
        return capped_sum_upper_tail(
            margin,
            wide_epsilon=self.wide_epsilon_per_query,
            narrow_epsilon=self.epsilon_per_query,
            cap=self.noise_cap,
        )

    def smallest_margin(self, probability: float) -> int:
        """The smallest m with ``Pr[noise >= m] <= probability``. probability: in (0, 1)."""
        low, high = -1, 1
        while self.upper_tail(high) > probability:
            low, high = high, 2 * high
        while self.upper_tail(low) <= probability:
            low, high = 2 * low, low
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self.upper_tail(middle) > probability else (low, middle)
        return high


def smallest_safe_threshold(noise: NoiseParameters, queries_per_user: int, delta_open: float) -> int:
    """The smallest T >= 1 with ``queries_per_user * Pr[noise >= T - 1] <= delta_open`` (docs/guarantee.md section 8).

    An item is published although one user is its only holder with at most this probability over the whole run.
    """
    if queries_per_user * noise.upper_tail(0) <= delta_open:
        return 1
    margin = noise.smallest_margin(delta_open / queries_per_user)
    while queries_per_user * noise.upper_tail(margin) > delta_open:  # the last digit of the quotient
        margin += 1
    return 1 + margin


def noise_error(epsilon: float, hits: int, largest_scale: float) -> ValueError:
    return ValueError(
        f"epsilon = {epsilon:g} with hits_per_user = {hits} needs noise of scale over {largest_scale:g}. "
        "Raise epsilon or delta, or lower hits_per_user."
    )
