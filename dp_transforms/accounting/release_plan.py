"""The release plan: a privacy budget turned into the plain numbers that the mechanisms run on.

Guarantee: a run that follows a plan is (epsilon, delta)-DP for adding or removing one user with all of its events, over
the whole declared schedule; with a known domain, provided the list of items is public and was not made from the log. A
plan that breaks the first part cannot be built: construction checks the split of delta, the threshold and, by running
the accountant again, the noise. Every rounding goes toward more noise.

``delta = delta_accounting + delta_open + delta_sampling + delta_hash`` (docs/guarantee.md section 3):
delta_accounting pays for the charged interaction, delta_open for items whose only holder is one user (nothing, where
the domain is known), delta_sampling for the distance of the sampled noise from the exact distribution, delta_hash for
collisions of keyed hashes.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import math
import re
from typing import Any, NamedTuple, Protocol, runtime_checkable

from dp_transforms.accounting.calibration import (
    choose_for_known_domain,
    choose_for_open_domain,
    hash_delta,
    sampling_delta,
    threshold_error,
)
from dp_transforms.accounting.composition import check_delta
from dp_transforms.accounting.noise_parameters import NoiseParameters, smallest_safe_threshold
from dp_transforms.accounting.plan_json import WRITE_ONE, parse_plan
from dp_transforms.accounting.release_modes import RELEASE_MODES, ReleaseMode
from dp_transforms.checks import check_whole, shown
from dp_transforms.window_schedule import WindowSchedule

FORMAT_VERSION = 3
RELEASES = tuple(RELEASE_MODES)
ACCOUNTANTS = tuple(dict.fromkeys(name for mode in RELEASE_MODES.values() for name in mode.accountants))
DEFAULT_MAX_ITEMS_PER_USER = 3
DEFAULT_MAX_USERS = 10**8
DEFAULT_MAX_ITEMS = 10**9
MOST_HITS = 10_000  # an accountant pass over more takes minutes
# Of items of a known domain that nobody holds: more than so many would be drawn and sorted one by one.
MOST_FALSE_REPORTS_PER_WINDOW = 1e5
MOST_FALSE_REPORTS = 1e7
_LARGEST_EPSILON = 40.0  # beyond, the share of the sampled noise, which grows with e^epsilon, would show


@runtime_checkable
class KnownDomain(Protocol):
    """What a plan needs of an `ItemDomain`: how many items, and the hash that tells this list from others."""

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
    threshold: noisy counts from here on are reported; in labels the lower edge of the charged zone.
    zone_width: integers in the charged zone ``threshold .. threshold + zone_width - 1``; 0 but in labels.
    epsilon_per_query: the discrete Laplace noise of one count has scale 1 / epsilon_per_query.
    wide_epsilon_per_query, noise_cap: of the second noise of kms21: ``W + min(V, noise_cap)`` is added to a count, V of
        the scale above and W of scale 1 / wide_epsilon_per_query. Else 0.
    domain_size, domain_fingerprint: of a known domain, the public list of all items; 0 and "" where there is none.
    max_users, max_items: declared bounds on distinct ids, for hash collisions; never measured.
    accountant: which proof the noise comes from: ``game``, ``exact_tail`` or ``closed_form``, of kms21
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
        for name in _FLOATS:  # 2 and 2.0 are one plan with one fingerprint
            object.__setattr__(self, name, _as_float(name, getattr(self, name)))
        _check_budget(self.epsilon, self.delta, self.hits_per_user, self.max_items_per_user, self.schedule)
        _check_choices(self.release, self.accountant, self.max_users, self.max_items)
        check_whole("threshold", self.threshold, 1)
        check_whole("zone_width", self.zone_width, 0)
        check_whole("noise_cap", self.noise_cap, 0)
        self._mode.check(self.noise)
        self._check_domain()
        if self.zone_width != self._mode.zone_width(self.noise):
            raise ValueError(
                f"zone_width must be {self._mode.zone_width(self.noise)} for release {self.release!r} at this "
                f"epsilon_per_query, got {self.zone_width}."
            )
        self._check_delta_split()
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
        self._check_small_shares()

    def _check_domain(self) -> None:
        check_whole("domain_size", self.domain_size, 0)
        is_hash = isinstance(self.domain_fingerprint, str) and re.fullmatch("[0-9a-f]{64}", self.domain_fingerprint)
        if not (is_hash if self.domain_size else self.domain_fingerprint == ""):
            raise ValueError("domain_fingerprint must be the hex SHA-256 of a known domain, and empty without one.")
        if self.domain_size > self.max_items:
            raise ValueError(
                f"max_items must be >= {self.domain_size}, the items of the domain, got {self.max_items}. Declare more."
            )
        in_window = self.domain_size * self.noise.upper_tail(self.threshold)
        if in_window > MOST_FALSE_REPORTS_PER_WINDOW or in_window * self.schedule.horizon > MOST_FALSE_REPORTS:
            raise ValueError(
                f"threshold = {self.threshold} would publish about {in_window:.3g} items that nobody holds in each "
                f"window. Raise it, or leave it out."
            )

    def _check_delta_split(self) -> None:
        if self.domain_size and self.delta_open != 0:
            raise ValueError(f"delta_open must be 0 in a known domain, got {self.delta_open!r}.")
        for name in _DELTA_SHARES:
            if name == "delta_open" and self.domain_size:
                continue
            if not 0 < getattr(self, name) < self.delta:
                raise ValueError(f"{name} must lie strictly between 0 and delta, got {getattr(self, name)!r}.")
        total = math.fsum(getattr(self, name) for name in _DELTA_SHARES)
        if not total <= self.delta:
            raise ValueError(f"the shares of delta must add up to at most {self.delta!r}, got {total!r}.")

    def _check_small_shares(self) -> None:
        needed_hash = hash_delta(self.queries_per_user, self.max_users, self.max_items)
        needed_sampling = sampling_delta(
            self.epsilon, self.queries_per_user, self.noise.total_variation, self.schedule.horizon, self.domain_size
        )
        for name, needed in (("delta_hash", needed_hash), ("delta_sampling", needed_sampling)):
            if not getattr(self, name) >= needed:
                raise ValueError(f"{name} must be >= {needed!r} for this plan, got {getattr(self, name)!r}.")

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
        `ItemDomain`; None for an open one. threshold defaults to the smallest safe one; a smaller one is a ValueError
        that states it, and a larger one leaves more of delta to the noise. In a known domain every threshold is safe,
        and the default one is the smallest at which the whole run is expected to publish at most 0.05 items that nobody
        holds. accountant defaults to the tightest one. Raises ValueError where the budget is too small for the noise
        that can be sampled.
        """
        epsilon, delta = _as_float("epsilon", epsilon), _as_float("delta", delta)
        mode = _mode_of(release)
        accountant = mode.accountants[0] if accountant is None else accountant
        _check_choices(release, accountant, max_users, max_items)
        hits = mode.default_hits if hits_per_user is None else hits_per_user
        _check_budget(epsilon, delta, hits, max_items_per_user, schedule)
        if threshold is not None:
            check_whole("threshold", threshold, 1)
        if domain is not None and not isinstance(domain, KnownDomain):
            raise ValueError(f"domain must be an ItemDomain, got a {type(domain).__name__}. Use ItemDomain.read(path).")
        domain_size = 0 if domain is None else domain.size
        queries = max_items_per_user * schedule.horizon
        delta_hash = hash_delta(queries, max_users, max_items)
        # The worst case; still far below 1e-20.
        delta_sampling = sampling_delta(epsilon, queries, mode.widest.total_variation, schedule.horizon, domain_size)
        shared = _delta_left(delta, delta_hash + delta_sampling, max_users)

        def solve(delta_accounting: float) -> NoiseParameters:
            return mode.solve(accountant, hits, epsilon, delta_accounting)

        if domain_size:
            chosen = choose_for_known_domain(solve, shared, domain_size * schedule.horizon, threshold)
        else:
            chosen = choose_for_open_domain(solve, shared, queries, threshold)
        return cls(
            epsilon=epsilon,
            delta=delta,
            hits_per_user=hits,
            max_items_per_user=max_items_per_user,
            schedule=schedule,
            release=release,
            threshold=chosen.threshold,
            zone_width=mode.zone_width(chosen.noise),
            **dataclasses.asdict(chosen.noise),
            domain_size=domain_size,
            domain_fingerprint="" if domain is None else domain.fingerprint,
            max_users=max_users,
            max_items=max_items,
            accountant=accountant,
            delta_accounting=shared - chosen.delta_open,
            delta_open=chosen.delta_open,
            delta_sampling=delta_sampling,
            delta_hash=delta_hash,
        )

    @property
    def noise(self) -> NoiseParameters:
        """The noise of one count."""
        return NoiseParameters(self.epsilon_per_query, self.wide_epsilon_per_query, self.noise_cap)

    @property
    def domain(self) -> KnownDomain | None:
        """What the plan knows of its domain; None for an open one."""
        return _DeclaredDomain(self.domain_size, self.domain_fingerprint) if self.domain_size else None

    @property
    def _mode(self) -> ReleaseMode:
        return RELEASE_MODES[self.release]

    @property
    def queries_per_user(self) -> int:
        """At most so many (window, item) counts hold one user: max_items_per_user times the horizon."""
        return self.max_items_per_user * self.schedule.horizon

    @property
    def noise_scale(self) -> float:
        """Scale of the noise of one count, in users; in kms21 that of the wide part."""
        return self.noise.scale

    @property
    def expected_false_reports(self) -> float:
        """How many items that nobody holds the whole run is expected to publish; 0 in an open domain. Rounded up."""
        return self.domain_size * self.schedule.horizon * self.noise.upper_tail(self.threshold)

    def smallest_detectable(self, probability: float = 0.95) -> int:
        """The smallest count that one test reports with at least this probability, none of its users being excluded."""
        if not 0 < probability < 1:
            raise ValueError(f"probability must lie strictly between 0 and 1, got {probability!r}.")
        margin = self.noise.smallest_margin(math.nextafter(probability, 0)) - 1  # the largest with such a tail
        return max(1, self.threshold - margin)

    @functools.cached_property
    def epsilon_after_hits(self) -> tuple[float, ...]:
        """Entry j - 1: an epsilon for which the mechanism cut at j hits is (that, delta_accounting)-DP, rounded up.

        float[hits_per_user], not decreasing, at most epsilon. In labels and counts by the game accountant whatever
        accountant the plan used: it is never larger. Used for the running figure of docs/guarantee.md section 7.
        """
        return self._mode.epsilon_after_hits(self.noise, self.hits_per_user, self.epsilon, self.delta_accounting)

    @property
    def guarantee(self) -> str:
        """What the plan promises, and for a known domain under which condition, in one sentence."""
        condition = ", provided the list of items is public and was not made from the log" if self.domain_size else ""
        return (
            f"Everything published is ({self.epsilon:g}, {self.delta:g})-differentially private for adding or removing "
            f"one user with all of its events, over the whole run of {self.schedule.horizon:,} windows{condition}."
        )

    @functools.cached_property
    def fingerprint(self) -> str:
        """Hex SHA-256 of the canonical JSON: equal for equal plans only."""
        return _fingerprint(self._to_dict())

    def to_json(self) -> str:
        """The plan as JSON text, with a format version and its fingerprint; `from_json` reads it back."""
        return json.dumps({**self._to_dict(), "fingerprint": self.fingerprint}, indent=2, allow_nan=False)

    def _to_dict(self) -> dict[str, Any]:
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return {"format_version": FORMAT_VERSION, **fields, "schedule": self.schedule.to_dict()}

    @classmethod
    def from_json(cls, text: str | bytes) -> ReleasePlan:
        """Reads `to_json` text and checks all of it again, the accountant included. Raises ValueError.

        The fingerprint finds what was changed without a thought, in an editor or on the way. It is not a signature: who
        computes it anew can change anything that the other checks let pass.
        """
        fields = parse_plan(text)
        if fields.get("format_version") != FORMAT_VERSION:
            raise ValueError(f"the plan must have format_version {FORMAT_VERSION}. {WRITE_ONE}")
        expected = {field.name for field in dataclasses.fields(cls)}
        wrong = set(fields) ^ {"format_version", "fingerprint", *expected}
        if wrong:
            names = shown(", ".join(sorted(wrong)))[1:-1]
            raise ValueError(f"the plan has missing or unknown fields: {names}. {WRITE_ONE}")
        stated = fields.pop("fingerprint")
        if stated != _fingerprint(fields):
            raise ValueError(f"the plan is not as `shh plan` wrote it: its fingerprint does not fit. {WRITE_ONE}")
        del fields["format_version"]
        try:
            schedule = WindowSchedule.from_dict(fields.pop("schedule"))
        except TypeError:
            raise ValueError("the schedule of the plan has missing or unknown fields.") from None
        return cls(schedule=schedule, **fields)


_DELTA_SHARES = ("delta_accounting", "delta_open", "delta_sampling", "delta_hash")
_FLOATS = ("epsilon", "delta", "epsilon_per_query", "wide_epsilon_per_query", *_DELTA_SHARES)


def _fingerprint(fields: dict[str, Any]) -> str:
    """Of the fields of a plan and its format version, those of `_FLOATS` as floats: 2 and 2.0 are the same."""
    floats = {name: _as_float(name, fields[name]) for name in _FLOATS}
    text = json.dumps({**fields, **floats}, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _as_float(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError(f"{name} must be a number, got {shown(value)}.")
    try:
        return float(value)
    except OverflowError:
        raise ValueError(f"{name} must be a finite number, got a larger one.") from None


def _mode_of(release: str) -> ReleaseMode:
    if not isinstance(release, str) or release not in RELEASE_MODES:
        raise ValueError(f"release must be one of {', '.join(RELEASES)}, got {shown(release)}.")
    return RELEASE_MODES[release]


def _check_choices(release: str, accountant: str, max_users: int, max_items: int) -> None:
    accountants = _mode_of(release).accountants
    if not isinstance(accountant, str) or accountant not in accountants:
        raise ValueError(
            f"accountant must be one of {', '.join(accountants)} for release {release!r}, got {shown(accountant)}."
        )
    check_whole("max_users", max_users, 1)
    check_whole("max_items", max_items, 1)


def _delta_left(delta: float, taken: float, max_users: int) -> float:
    """For noise and threshold, rounded down. taken: by hash collisions and sampling. Raises ValueError for none."""
    left = (delta - taken) * (1 - 1e-12)
    if not left > 0:
        raise ValueError(
            f"delta must be > {taken:.3g}, the share that hash collisions and sampling take, got {delta:g}. "
            f"Raise delta, or declare fewer users and items (max_users = {max_users})."
        )
    return left


def check_hits(hits: int) -> None:
    """Raises ValueError unless the accountants can follow so many hits per user."""
    check_whole("hits_per_user", hits, 1)
    if hits > MOST_HITS:
        raise ValueError(f"hits_per_user must be at most {MOST_HITS}, got {hits}.")


def _check_budget(epsilon: float, delta: float, hits: int, max_items_per_user: int, schedule: WindowSchedule) -> None:
    if not 0 < epsilon <= _LARGEST_EPSILON:
        raise ValueError(f"epsilon must be > 0 and at most {_LARGEST_EPSILON:g}, got {epsilon!r}. Usual are 0.1 to 10.")
    check_delta(delta)
    check_hits(hits)
    check_whole("max_items_per_user", max_items_per_user, 1)
    if not isinstance(schedule, WindowSchedule):
        raise ValueError(f"schedule must be a WindowSchedule, got {shown(schedule)}.")
    check_whole("the horizon, the number of windows,", schedule.horizon, 1)
