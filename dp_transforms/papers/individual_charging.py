"""The sparse vector technique with individual charging: a stream of linear queries that never halts ([CL23] 2.8)."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from dp_transforms.accounting.discrete_laplace_law import ROUNDING, not_prior_probability, smallest_whole, upper_tail
from dp_transforms.checks import check_fraction, check_whole
from dp_transforms.core.hit_noise import Release, ReleaseRule
from dp_transforms.papers.noise_source import NoiseSource, SecretNoise
from dp_transforms.papers.query import LinearQuery, check_grid, epsilon_per_unit, units_up
from dp_transforms.papers.threshold_monitor import UserCounters


class IndividualCharging:
    """Publishes the noisy sums that reach a threshold; a user pays one hit for each to which it contributed.

    Guarantee: target charging, (epsilon, delta)-DP for one user with all it ever contributes (neighbours: with and
    without the user), for any number of queries, each chosen after the answers before it: (epsilon, delta) is that of
    `dp_transforms.accounting.charging_game` at `epsilon_per_query`, `target_probability` and `hits`. Conditions: a
    weight is at most 1, and depends on nothing but its user's own data and published answers; whether making a query
    raises does not depend on the data; one thread at a time asks. This object removes a user that has paid `hits`.

    users: how many; they are positions 0 .. users - 1 of every query's weights, 0 for a user that is absent.
    epsilon_per_query: the noise of a sum is discrete Laplace with ``epsilon_per_query / grid`` for each unit of
    ``1 / grid``. zone_width: None, or a number of units W. None: every sum at the threshold or above is published with
    its noisy value, and charged. W: only those less than W units above the threshold; the others are reported as
    ``above``, without a value, at no charge (`between_thresholds`).

    q, the probability of the target, is ``1 / (e^epsilon_per_query + 1)`` without a zone and, with one,
    ``(1 - e^(-W epsilon_per_query / grid)) / (e^epsilon_per_query + 1)``. This q holds for every weight in (0, 1]; no
    larger q does. Proof: docs/guarantee.md, "Lemma (the zone)". Source: [CL23] Algorithm 5, Theorem 2.10.

    >>> stream = IndividualCharging(2000, hits=1, epsilon_per_query=0.5)
    >>> reports = [stream.ask(LinearQuery(np.arange(2000) % 2 == step % 2), threshold=500) for step in range(3)]
    >>> [report is not None for report in reports], abs(reports[0].noisy_count - 1000) < 100  # each user pays once
    ([True, True, False], True)
    """

    def __init__(
        self,
        users: int,
        *,
        hits: int,
        epsilon_per_query: float,
        zone_width: int | None = None,
        grid: int = 1,
        noise: NoiseSource | None = None,
    ) -> None:
        check_grid(grid)
        check_whole("hits", hits, 1, 2**32)
        if zone_width is not None:
            check_whole("zone_width", zone_width, 1, 2**40)
        self._counters = UserCounters(users, hits)
        self._epsilon_per_query = epsilon_per_query
        self._epsilon_per_unit = epsilon_per_unit(epsilon_per_query, grid, name="epsilon_per_query")
        self._zone_width = zone_width
        self._grid = grid
        self._noise = SecretNoise() if noise is None else noise

    @property
    def target_probability(self) -> float:
        """q, for the accountant; rounded down."""
        q = not_prior_probability(self._epsilon_per_query) * (1 - ROUNDING)
        if self._zone_width is not None:
            q *= -math.expm1(-self._zone_width * self._epsilon_per_unit)
        return q

    def ask(self, query: LinearQuery, threshold: float) -> Release | None:
        """What is published, or None ("bot"). threshold: rounded up to the grid; `noisy_count` is in units."""
        self._counters.check_query(query, self._grid)
        rule = ReleaseRule(units_up(threshold, self._grid), self._zone_width)
        total = query.answer_to_counts(self._counters.active().astype(np.int64))
        release = rule(total + self._noise.discrete_laplace(self._epsilon_per_unit))
        if release is None:
            return None
        if release.charged:
            self._counters.charge(query.weights > 0)
        if release.noisy_count is None:
            return release
        return release._replace(noisy_count=int(release.noisy_count))

    def accuracy(self, queries: int, beta: float) -> float:
        """An alpha up to which, with probability at least 1 - beta, the first `queries` answers are all right.

        All that are published have ``f >= threshold - alpha``, all others ``f <= threshold + alpha``, and noisy values
        lie within alpha of f: the sum over those not removed, on the grid. The threshold is the one rounded up.
        """
        check_whole("queries", queries, 1, 2**60)
        check_fraction("beta", beta)

        def errs_seldom(units: int) -> bool:
            return 2 * queries * upper_tail(self._epsilon_per_unit, units + 1) <= beta

        return smallest_whole(errs_seldom, -1, 1) / self._grid

    def active(self) -> npt.NDArray[np.bool_]:
        """bool[n]: who has paid less than `hits`. For tests and operators: do not publish it."""
        return self._counters.active()
