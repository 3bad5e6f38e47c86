"""What is released: the only types whose contents may leave the pipeline as results.

Every field is a released value, a declared parameter, or a number computed from these (docs/guarantee.md, "What may be
published"). No field can carry a raw count.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from dp_transforms.plan.plan import Plan

ABOVE = "above"
BETWEEN = "between"


class HeavyHitter(NamedTuple):
    """One item that many users hold in one window.

    item: its label, as the log spells it.
    zone: of hits ``above`` (far above the threshold, free of charge) or ``between`` (near it, charged); None with
        counts, and with noise as printed.
    noisy_count: users that hold it, with noise; None for ``above``, with noise as printed, where publishing it would
        break the theorem, and where users pay for contributions.
    level: of contributions the boundaries that the noisy sum of its holders' weights reaches, from 1. Else None.
    at_least_users: of contributions at least so many users hold it; 0 says nothing. That any of these numbers of a run
        is wrong has a probability, over the noise, of at most `size_error` of the plan. Else None.
    """

    item: str
    zone: str | None
    noisy_count: int | None
    level: int | None = None
    at_least_users: int | None = None

    @property
    def size_in_words(self) -> str:
        """As far as it is published."""
        if self.noisy_count is not None:
            return f"about {self.noisy_count:,}"
        return f"at least {self.at_least_users:,}" if self.at_least_users else self.zone or ""


class WindowReport(NamedTuple):
    """The heavy hitters of one window of one stream. Windows without any are not reported.

    stream: name of the stream.
    window_start, window_end: microseconds since 1970 UTC; the end is exclusive.
    heavy_hitters: sorted by released values only (`release_order`).
    epsilon_total, delta: the guarantee of the whole run, for each user, over all its windows.
    epsilon_spent: running estimate of the part used up to and including this window (docs/guarantee.md, "The running
    figure epsilon_spent").
        Of contributions epsilon_total: a user may have spent all of it, and what is published does not tell.
    """

    stream: str
    window_start: int
    window_end: int
    heavy_hitters: Sequence[HeavyHitter]
    epsilon_total: float
    delta: float
    epsilon_spent: float


def release_order(heavy_hitter: HeavyHitter) -> tuple[bool, int, int, int, str]:
    """Sort key of the heavy hitters of a report: above first, then by falling level, falling at_least_users and falling
    noisy count, then by label. A function of released values only."""
    return (
        heavy_hitter.zone != ABOVE,
        -(heavy_hitter.level or 0),
        -(heavy_hitter.at_least_users or 0),
        -(heavy_hitter.noisy_count or 0),
        heavy_hitter.item,
    )


def report_of_window(
    plan: Plan, stream: str, window: int, found: Sequence[HeavyHitter], epsilon_spent: float
) -> WindowReport:
    return WindowReport(
        stream=stream,
        window_start=plan.schedule.window_start_micros(window),
        window_end=plan.schedule.window_end_micros(window),
        heavy_hitters=sorted(found, key=release_order),
        epsilon_total=plan.epsilon,
        delta=plan.delta,
        epsilon_spent=epsilon_spent,
    )
