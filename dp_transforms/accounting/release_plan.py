"""The release plan: a privacy budget turned into the plain numbers that the mechanisms run on.

Guarantee: a run that follows a plan is (epsilon, delta)-DP for adding or removing one user with all of its events, over
the whole declared schedule; with a known domain, provided the list of items is public and was not made from the log. A
plan that breaks the first part cannot be built: construction checks the split of delta, the threshold and, by running
the accountant again, the noise. Every rounding goes toward more noise.

``delta = delta_accounting + delta_open + delta_sampling + delta_hash`` (docs/guarantee.md section 3):
delta_accounting pays for the charged interaction, delta_open for items with one holder alone (0 in a known domain),
delta_sampling for the distance of the sampled noise from the exact distribution, delta_hash for collisions of keyed
hashes.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any, NamedTuple, Protocol, runtime_checkable

from dp_transforms.accounting.calibration import calibrate, threshold_error
from dp_transforms.accounting.noise_parameters import NoiseParameters, smallest_safe_threshold
from dp_transforms.accounting.plan_checks import (
    DELTA_SHARES,
    FLOATS,
    as_float,
    check_budget,
    check_choices,
    check_delta_split,
    check_domain,
    check_false_reports,
    check_small_shares,
)
from dp_transforms.accounting.plan_json import fingerprint_of, read_fields, write_fields
from dp_transforms.accounting.release_modes import RELEASE_MODES, ReleaseMode, mode_of
from dp_transforms.checks import check_whole
from dp_transforms.window_schedule import WindowSchedule

DEFAULT_MAX_ITEMS_PER_USER = 3
DEFAULT_MAX_USERS = 10**8
DEFAULT_MAX_ITEMS = 10**9


@runtime_checkable
class KnownDomain(Protocol):
    """What a plan needs of an `ItemDomain`: the number of its items, and the hash of the list."""

    @property
    def size(self) -> int: ...

    @property
    def fingerprint(self) -> str: ...


class _DeclaredDomain(NamedTuple):
    size: int
    fingerprint: str


@dataclasses.dataclass(frozen=True)
class ReleasePlan:
    """One calibrated run: what is promised, and the numbers that keep the promise. Build it with `calibrate`.

    epsilon, delta: the guarantee for one user over the whole schedule.
    hits_per_user: charged results after which a user is excluded.
    max_items_per_user: distinct items of a user that count in one window (L).
    schedule: the declared windows; its horizon is the number of windows that may be published.
    release: ``labels``, ``counts`` or ``kms21``.
    threshold: noisy counts of at least this are reported; in labels the lower edge of the charged zone.
    zone_width: integers in the charged zone ``threshold .. threshold + zone_width - 1``; 0 except in labels.
    epsilon_per_query: the discrete Laplace noise of one count has scale 1 / epsilon_per_query.
    wide_epsilon_per_query, noise_cap: the second noise of kms21: ``W + min(V, noise_cap)`` is added to a count, V of
        the scale above and W of scale 1 / wide_epsilon_per_query. 0 in the other modes.
    domain_size, domain_fingerprint: of a known domain, the public list of all items; 0 and "" in an open domain.
    max_users, max_items: declared bounds on distinct ids, for hash collisions; never measured.
    accountant: the proof that the noise comes from: ``game``, ``exact_tail`` or ``closed_form``; in kms21
        ``threshold_monitor``.
    delta_accounting, delta_open, delta_sampling, delta_hash: how delta was split.
    """

    epsilon: float
    delta: float
    hits_per_user: int
    max_items_per_user: int
    schedule: WindowSchedule
    release: str
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

    def __post_init__(self) -> None:
        for name in FLOATS:
            object.__setattr__(self, name, as_float(name, getattr(self, name)))
        check_budget(self.epsilon, self.delta, self.hits_per_user, self.max_items_per_user, self.schedule)
        check_choices(self.release, self.accountant, self.max_users, self.max_items)
        check_whole("threshold", self.threshold, 1)
        check_whole("zone_width", self.zone_width, 0)
        check_whole("noise_cap", self.noise_cap, 0)
        self._mode.check(self.noise)
        check_domain(self.domain_size, self.domain_fingerprint, self.max_items)
        check_false_reports(self.domain_size, self.noise, self.threshold, self.schedule.horizon)
        if self.zone_width != self._mode.zone_width(self.noise):
            raise ValueError(
                f"zone_width must be {self._mode.zone_width(self.noise)} for release {self.release!r} at this "
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
        check_small_shares(
            shares,
            epsilon=self.epsilon,
            queries_per_user=self.queries_per_user,
            total_variation=self.noise.total_variation,
            horizon=self.schedule.horizon,
            domain_size=self.domain_size,
            max_users=self.max_users,
            max_items=self.max_items,
        )

    @classmethod
    def calibrate(
        cls,
        *,
        epsilon: float,
        delta: float,
        schedule: WindowSchedule,
        hits_per_user: int | None = None,
        max_items_per_user: int = DEFAULT_MAX_ITEMS_PER_USER,
        release: str = "labels",
        threshold: int | None = None,
        domain: KnownDomain | None = None,
        max_users: int = DEFAULT_MAX_USERS,
        max_items: int = DEFAULT_MAX_ITEMS,
        accountant: str | None = None,
    ) -> ReleasePlan:
        """The plan with the least noise for this budget.

        hits_per_user defaults to 3 in labels, 10 in counts, 20 in kms21. domain: the public list of all items, an
        `ItemDomain`; None for an open one. threshold defaults to the smallest safe one. A smaller one raises a
        ValueError that names the smallest; a larger one leaves more of delta to the noise. In a known domain every
        threshold is safe, and the default is the smallest at which the whole run is expected to publish at most 0.05
        items that nobody holds. accountant defaults to the tightest one. Raises ValueError if the budget is too small
        for any noise that can be sampled.
        """
        epsilon, delta = as_float("epsilon", epsilon), as_float("delta", delta)
        mode = mode_of(release)
        accountant = mode.accountants[0] if accountant is None else accountant
        check_choices(release, accountant, max_users, max_items)
        hits = mode.default_hits if hits_per_user is None else hits_per_user
        check_budget(epsilon, delta, hits, max_items_per_user, schedule)
        if threshold is not None:
            check_whole("threshold", threshold, 1)
        if domain is not None and not isinstance(domain, KnownDomain):
            raise ValueError(f"domain must be an ItemDomain, got a {type(domain).__name__}. Use ItemDomain.read(path).")
        domain_size = 0 if domain is None else domain.size
        found = calibrate(
            mode,
            accountant,
            epsilon=epsilon,
            delta=delta,
            hits=hits,
            queries_per_user=max_items_per_user * schedule.horizon,
            horizon=schedule.horizon,
            domain_size=domain_size,
            threshold=threshold,
            max_users=max_users,
            max_items=max_items,
        )
        return cls(
            epsilon=epsilon,
            delta=delta,
            hits_per_user=hits,
            max_items_per_user=max_items_per_user,
            schedule=schedule,
            release=release,
            threshold=found.threshold,
            zone_width=mode.zone_width(found.noise),
            **dataclasses.asdict(found.noise),
            domain_size=domain_size,
            domain_fingerprint="" if domain is None else domain.fingerprint,
            max_users=max_users,
            max_items=max_items,
            accountant=accountant,
            delta_accounting=found.delta_accounting,
            delta_open=found.delta_open,
            delta_sampling=found.delta_sampling,
            delta_hash=found.delta_hash,
        )

    @property
    def noise(self) -> NoiseParameters:
        """The noise of one count."""
        return NoiseParameters(
            self.epsilon_per_query, wide_epsilon_per_query=self.wide_epsilon_per_query, noise_cap=self.noise_cap
        )

    @property
    def domain(self) -> KnownDomain | None:
        """The domain as far as the plan knows it; None for an open one."""
        return _DeclaredDomain(self.domain_size, self.domain_fingerprint) if self.domain_size else None

    @property
    def _mode(self) -> ReleaseMode:
        return RELEASE_MODES[self.release]

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

        float[hits_per_user], not decreasing, at most epsilon. In labels and counts it comes from the game accountant,
        whichever accountant the plan used: that one is never larger. For the running figure, docs/guarantee.md section
        7.
        """
        return self._mode.epsilon_after_hits(self.noise, self.hits_per_user, self.epsilon, self.delta_accounting)

    @property
    def guarantee(self) -> str:
        """One sentence: what the plan promises, and for a known domain on which condition."""
        condition = ", provided the list of items is public and was not made from the log" if self.domain_size else ""
        return (
            f"Everything published is ({self.epsilon:g}, {self.delta:g})-differentially private for adding or removing "
            f"one user with all of its events, over the whole run of {self.schedule.horizon:,} windows{condition}."
        )

    @functools.cached_property
    def fingerprint(self) -> str:
        """Hex SHA-256 of the canonical JSON: equal for equal plans only."""
        return fingerprint_of(self._fields())

    def to_json(self) -> str:
        """The plan as JSON text, with a format version and its fingerprint; `from_json` reads it back."""
        return write_fields(self._fields())

    def _fields(self) -> dict[str, Any]:
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return {**fields, "schedule": self.schedule.to_dict()}

    @classmethod
    def from_json(cls, text: str | bytes) -> ReleasePlan:
        """Reads `to_json` text and checks all of it again, the accountant included. Raises ValueError.

        The fingerprint finds accidental changes. It is not a signature: anybody can compute it again, and so change
        anything that the other checks let pass.
        """
        fields = read_fields(text, (field.name for field in dataclasses.fields(cls)))
        try:
            schedule = WindowSchedule.from_dict(fields.pop("schedule"))
        except TypeError:
            raise ValueError("the schedule of the plan has missing or unknown fields.") from None
        return cls(schedule=schedule, **fields)
