"""What the fields of a plan must satisfy: one function for each group of them, each raises ValueError.

The classes of plans call them, when a plan is calibrated and when it is built or read.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

from dp_transforms.accounting.composition import check_delta
from dp_transforms.accounting.release_modes import mode_of
from dp_transforms.checks import check_whole, shown
from dp_transforms.plan.window_schedule import WindowSchedule

MOST_HITS = 10_000  # an accountant pass over more takes minutes
# Items of a known domain that are published although nobody holds them are drawn and sorted one by one: not more.
MOST_FALSE_REPORTS_PER_WINDOW = 1e5
MOST_FALSE_REPORTS = 1e7
_LARGEST_EPSILON = 40.0  # beyond, the share of the sampled noise, which grows with e^epsilon, would show


def as_float(name: str, value: object) -> float:
    """A field of a plan as a float: 2 and 2.0 make one plan with one fingerprint."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError(f"{name} must be a number, got {shown(value)}.")
    try:
        return float(value)
    except OverflowError:
        raise ValueError(f"{name} must be a finite number, got a larger one.") from None


def check_accountant(mode: str, accountant: str) -> None:
    accountants = mode_of(mode).accountants
    if not isinstance(accountant, str) or accountant not in accountants:
        raise ValueError(
            f"accountant must be one of {', '.join(accountants)} for mode {mode!r}, got {shown(accountant)}."
        )


def check_declared_ids(max_users: int, max_items: int) -> None:
    check_whole("max_users", max_users, 1)
    check_whole("max_items", max_items, 1)


def check_hits(hits: int) -> None:
    """Raises ValueError unless the accountants can follow this many hits per user."""
    check_whole("hits_per_user", hits, 1)
    if hits > MOST_HITS:
        raise ValueError(f"hits_per_user must be at most {MOST_HITS}, got {hits}.")


def check_budget(epsilon: float, delta: float, schedule: WindowSchedule) -> None:
    if not 0 < epsilon <= _LARGEST_EPSILON:
        raise ValueError(
            f"epsilon must be > 0 and at most {_LARGEST_EPSILON:g}, got {epsilon!r}. Usual values are 0.1 to 10."
        )
    check_delta(delta)
    if not isinstance(schedule, WindowSchedule):
        raise ValueError(f"schedule must be a WindowSchedule, got {shown(schedule)}.")
    check_whole("the horizon, the number of windows,", schedule.horizon, 1)


def check_domain(size: int, fingerprint: str, max_items: int) -> None:
    check_whole("domain_size", size, 0)
    is_hash = isinstance(fingerprint, str) and re.fullmatch("[0-9a-f]{64}", fingerprint)
    if not (is_hash if size else fingerprint == ""):
        raise ValueError("domain_fingerprint must be the hex SHA-256 of a known domain, and empty without one.")
    if size > max_items:
        raise ValueError(f"max_items must be >= {size}, the items of the domain, got {max_items}. Declare more.")


def check_false_reports(in_window: float, threshold: int, horizon: int) -> None:
    """A run must not publish more items that nobody holds than can be drawn.

    in_window: how many of a known domain noise alone publishes in a window, on average.
    """
    if in_window > MOST_FALSE_REPORTS_PER_WINDOW or in_window * horizon > MOST_FALSE_REPORTS:
        raise ValueError(
            f"threshold = {threshold} would publish about {in_window:.3g} items that nobody holds in each "
            f"window. Raise it, or leave it out."
        )


def check_delta_split(delta: float, shares: Mapping[str, float], *, is_known_domain: bool) -> None:
    """shares: of delta, by the names of the fields; one of them is ``delta_open``."""
    if is_known_domain and shares["delta_open"] != 0:
        raise ValueError(f"delta_open must be 0 in a known domain, got {shares['delta_open']!r}.")
    for name, share in shares.items():
        if name == "delta_open" and is_known_domain:
            continue
        if not 0 < share < delta:
            raise ValueError(f"{name} must lie strictly between 0 and delta, got {share!r}.")
    total = math.fsum(shares.values())
    if not total <= delta:
        raise ValueError(f"the shares of delta must add up to at most {delta!r}, got {total!r}.")


def check_share(name: str, share: float, needed: float) -> None:
    """One share of delta covers what the run needs."""
    if not share >= needed:
        raise ValueError(f"{name} must be >= {needed!r} for this plan, got {share!r}.")
