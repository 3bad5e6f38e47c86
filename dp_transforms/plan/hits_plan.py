"""The plan of modes ``hits``, ``hits-with-counts`` and ``kms21``: users are charged for hits.

Guarantee: that of `ReleasePlan`. Construction checks the split of delta, the threshold and, by running the accountant
again, the noise.

``delta = delta_accounting + delta_open + delta_sampling + delta_hash`` (docs/guarantee.md, "How delta is split for
hits"): delta_accounting pays for the charged interaction, delta_open for items with one holder alone (0 in a known
domain), delta_sampling for the distance of the sampled noise from the exact distribution, delta_hash for collisions of
keyed hashes.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any, ClassVar

from dp_transforms.accounting.calibration import (
    charged_sampling_delta,
    choose_for_known_domain,
    choose_for_open_domain,
    delta_left,
    hash_delta,
    threshold_error,
)
from dp_transforms.accounting.release_modes import (
    RELEASE_MODES,
    NoiseParameters,
    ReleaseMode,
    mode_of,
    smallest_safe_threshold,
)
from dp_transforms.checks import check_whole
from dp_transforms.plan.plan_checks import (
    check_accountant,
    check_budget,
    check_declared_ids,
    check_delta_split,
    check_domain,
    check_false_reports,
    check_hits,
    check_share,
)
from dp_transforms.plan.release_plan import Budget, ReleasePlan
from dp_transforms.plan.window_schedule import WindowSchedule

DEFAULT_MAX_ITEMS_PER_USER = 3
DELTA_SHARES = ("delta_accounting", "delta_open", "delta_sampling", "delta_hash")


def calibrate_hits(
    mode: str,
    budget: Budget,
    *,
    hits_per_user: int | None = None,
    max_items_per_user: int = DEFAULT_MAX_ITEMS_PER_USER,
    threshold: int | None = None,
    accountant: str | None = None,
) -> dict[str, Any]:
    """The fields of the plan with the least noise. Names as in `ReleasePlan.calibrate`.

    threshold: None for the smallest safe one. Raises ValueError if the budget is too small for any noise that can be
    sampled, or if the threshold is below the smallest safe one.
    """
    charging, domain_size, horizon = mode_of(mode), budget.domain_size, budget.schedule.horizon
    accountant = charging.accountants[0] if accountant is None else accountant
    check_accountant(mode, accountant)
    hits = charging.default_hits if hits_per_user is None else hits_per_user
    check_hits(hits)
    check_whole("max_items_per_user", max_items_per_user, 1)
    if threshold is not None:
        check_whole("threshold", threshold, 1)
    queries = max_items_per_user * horizon
    delta_hash = hash_delta(queries, budget.max_users, budget.max_items)
    # The worst case; still far below 1e-20.
    delta_sampling = charged_sampling_delta(
        budget.epsilon, queries, charging.widest.total_variation, horizon, domain_size
    )
    shared = delta_left(budget.delta, delta_hash + delta_sampling, budget.max_users)
    solve = functools.partial(charging.solve, accountant, hits, budget.epsilon)
    if domain_size:
        noise, threshold, delta_open = choose_for_known_domain(solve, shared, domain_size * horizon, threshold)
    else:
        noise, threshold, delta_open = choose_for_open_domain(solve, shared, queries, threshold)
    return {
        **budget.fields(),
        "mode": mode,
        "hits_per_user": hits,
        "max_items_per_user": max_items_per_user,
        "threshold": threshold,
        "zone_width": charging.zone_width(noise),
        **dataclasses.asdict(noise),
        "accountant": accountant,
        "delta_accounting": shared - delta_open,
        "delta_open": delta_open,
        "delta_sampling": delta_sampling,
        "delta_hash": delta_hash,
    }


@dataclasses.dataclass(frozen=True)
class HitsPlan(ReleasePlan):
    """One calibrated run that charges hits. Build it with `ReleasePlan.calibrate`, which names the choices.

    Fields that are not named here: as in `ReleasePlan`.

    hits_per_user: charged results after which a user is excluded.
    max_items_per_user: distinct items of a user that count in one window (L).
    mode: ``hits``, ``hits-with-counts`` or ``kms21``.
    threshold: noisy counts of at least this are reported; in mode ``hits`` the lower edge of the charged zone.
    zone_width: integers in the charged zone ``threshold .. threshold + zone_width - 1``; 0 except in mode ``hits``.
    epsilon_per_query: the discrete Laplace noise of one count has scale 1 / epsilon_per_query.
    wide_epsilon_per_query, noise_cap: the second noise of kms21: ``W + min(V, noise_cap)`` is added to a count, V of
        the scale above and W of scale 1 / wide_epsilon_per_query. 0 in the other modes.
    accountant: the proof that the noise comes from: ``game``, ``exact_tail`` or ``closed_form``; in kms21
        ``threshold_monitor``.
    delta_accounting, delta_open, delta_sampling, delta_hash: how delta was split.
    """

    epsilon: float
    delta: float
    hits_per_user: int
    max_items_per_user: int
    schedule: WindowSchedule
    mode: str
    threshold: int
    zone_width: int
    epsilon_per_query: float
    wide_epsilon_per_query: float
    noise_cap: int
    domain_size: int
    domain_fingerprint: str
    max_users: int
    max_items: int
    accountant: str
    delta_accounting: float
    delta_open: float
    delta_sampling: float
    delta_hash: float

    DEFAULT_MODE: ClassVar[str] = "hits"
    find = staticmethod(calibrate_hits)

    def __post_init__(self) -> None:
        self._make_floats()
        check_budget(self.epsilon, self.delta, self.schedule)
        check_hits(self.hits_per_user)
        check_whole("max_items_per_user", self.max_items_per_user, 1)
        check_accountant(self.mode, self.accountant)
        check_declared_ids(self.max_users, self.max_items)
        check_whole("threshold", self.threshold, 1)
        check_whole("zone_width", self.zone_width, 0)
        check_whole("noise_cap", self.noise_cap, 0)
        self._mode.check(self.noise)
        check_domain(self.domain_size, self.domain_fingerprint, self.max_items)
        check_false_reports(
            self.domain_size * self.noise.upper_tail(self.threshold), self.threshold, self.schedule.horizon
        )
        if self.zone_width != self._mode.zone_width(self.noise):
            raise ValueError(
                f"zone_width must be {self._mode.zone_width(self.noise)} for mode {self.mode!r} at this "
                f"epsilon_per_query, got {self.zone_width}."
            )
        shares = {name: getattr(self, name) for name in DELTA_SHARES}
        check_delta_split(self.delta, shares, is_known_domain=bool(self.domain_size))
        if not self.domain_size:
            safe = smallest_safe_threshold(self.noise, self.queries_per_user, self.delta_open)
            if not self.threshold >= safe:
                raise threshold_error(self.threshold, safe)
        proved = self._mode.accountant(self.accountant, self.noise, self.hits_per_user).delta(self.epsilon)
        if not proved <= self.delta_accounting:
            raise ValueError(
                f"epsilon_per_query = {self.epsilon_per_query!r} is too little noise: at epsilon = {self.epsilon:g} it "
                f"needs delta_accounting >= {proved:.6g}, got {self.delta_accounting:.6g}. Calibrate the plan again."
            )
        queries, variation = self.queries_per_user, self.noise.total_variation
        needed = charged_sampling_delta(self.epsilon, queries, variation, self.schedule.horizon, self.domain_size)
        check_share("delta_hash", self.delta_hash, hash_delta(queries, self.max_users, self.max_items))
        check_share("delta_sampling", self.delta_sampling, needed)

    @property
    def noise(self) -> NoiseParameters:
        """The noise of one count."""
        return NoiseParameters(
            self.epsilon_per_query, wide_epsilon_per_query=self.wide_epsilon_per_query, noise_cap=self.noise_cap
        )

    @property
    def _mode(self) -> ReleaseMode:
        return RELEASE_MODES[self.mode]

    @property
    def queries_per_user(self) -> int:
        """The most (window, item) counts that one user is part of: max_items_per_user times the horizon."""
        return self.max_items_per_user * self.schedule.horizon

    @property
    def noise_scale(self) -> float:
        """Scale of the noise of one count, in users; in kms21 that of the wide part."""
        return self.noise.scale

    @property
    def expected_false_reports(self) -> float:
        """How many items that nobody holds the run publishes on average; rounded up. 0 in an open domain."""
        return self.domain_size * self.schedule.horizon * self.noise.upper_tail(self.threshold)

    def smallest_detectable(self, probability: float = 0.95) -> int:
        """The smallest count that one test reports with at least this probability if none of its users is excluded."""
        if not 0 < probability < 1:
            raise ValueError(f"probability must lie strictly between 0 and 1, got {probability!r}.")
        margin = self.noise.smallest_margin(math.nextafter(probability, 0)) - 1  # the largest with such a tail
        return max(1, self.threshold - margin)

    @functools.cached_property
    def epsilon_after_hits(self) -> tuple[float, ...]:
        """Entry j - 1: an epsilon for which the mechanism cut at j hits is (that, delta_accounting)-DP, rounded up.

        float[hits_per_user], not decreasing, at most epsilon. But for kms21 it comes from the game accountant,
        whichever accountant the plan used: that one is never larger. For the running figure, docs/guarantee.md,
        "Claim (running figure)".
        """
        return self._mode.epsilon_after_hits(self.noise, self.hits_per_user, self.epsilon, self.delta_accounting)
