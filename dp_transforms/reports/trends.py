"""Top lists and trends: in each window the rank of an item by its size, and what has changed since the window before.

Computed from what a report publishes, whenever it is read. So they cost no privacy, and no file holds them.

- **size**: of contributions "at least so many users", of hits with counts the noisy count; of hits without 2 far above
  the threshold and 1 near it, and with noise as printed 0.
- **rank**: 1 + the number of items of the window with a larger size. Equal sizes have equal ranks, and stand by noisy
  count and name.
- **new**: not named in the window before. **gone**: named there, and not in this window.
- **rising**, **falling**: the size is at least 1.5 times that in the window before, or at most two thirds of it, and
  differs by at least `TrendRule.least_change` users. Noise alone seldom changes a size so much.

The first window that is read has nothing before it, and so no change.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from dp_transforms.core.window_report import ABOVE, HeavyHitter, WindowReport
from dp_transforms.plan.plan import Plan
from dp_transforms.plan.rounds import largest_weight, most_of_sizing_test
from dp_transforms.reports.report_records import checked_report, json_line, plain_fields

NEW, RISING, FALLING, SAME = "new", "rising", "falling", "same"
_MORE = 1.5  # times the smaller size is the least larger one that is called a trend
_STEPS = 1.5  # of levels: noise can add one, and a followed item is not half a step further on than a new one
_NOISES = 3  # standard deviations of the difference of two noisy counts


class Entry(NamedTuple):
    """An item in a window. change: NEW, RISING, FALLING, or SAME; None if there is no window before."""

    hitter: HeavyHitter
    rank: int
    change: str | None


class Trend(NamedTuple):
    """A window. entries: the largest first. gone: items of the window before."""

    report: WindowReport
    entries: list[Entry]
    gone: list[HeavyHitter]


class TrendRule(NamedTuple):
    """What a plan says of trends.

    overlap: of a window with the next one, in microseconds; None: unknown, and the window before is the one that was
        reported before. least_change: users; None: no sizes that can be compared.
    """

    overlap: int | None = None
    least_change: int | None = None

    @classmethod
    def of(cls, plan: Plan | None) -> TrendRule:
        """None: of a plan that cannot be read."""
        if plan is None:
            return cls()
        return cls((plan.schedule.window_seconds - plan.schedule.slide_seconds) * 1_000_000, _least_change(plan))

    @property
    def in_words(self) -> str:
        """What the words mean, as the rest of a sentence."""
        if self.least_change is None:
            return "against the window before."
        return (
            "against the window before. Rising: at least 1.5 times the size; falling: at most two thirds of it; each by"
            f" at least {self.least_change:,} users, since less may be noise."
        )

    def change(self, size: int, before: int | None) -> str:
        """before: the size in the window before; None: not named there."""
        if before is None:
            return NEW
        low, high = sorted((size, before))
        if self.least_change is None or high - low < self.least_change or high < _MORE * low:
            return SAME
        return RISING if size > before else FALLING


def trends(plan: Plan | None, reports: Iterable[WindowReport]) -> Iterator[Trend]:
    """The windows in the order of time. plan: that of their header, None if it cannot be read."""
    rule, latest = TrendRule.of(plan), dict[str, WindowReport]()
    for report in sorted(reports, key=lambda each: (each.window_start, each.window_end, each.stream)):
        before = latest.get(report.stream)
        latest[report.stream] = report
        yield _trend(rule, report, before)


def encode_trend(trend: Trend) -> str:
    """A window as one line of JSON, in ASCII, for programs: with the rank and the change of each item, and the items
    that are gone. Raises ReportFileError if it must not be published."""
    fields = plain_fields(checked_report(trend.report))
    entries = [{**hitter._asdict(), "rank": rank, "change": change} for hitter, rank, change in trend.entries]
    fields |= {"heavy_hitters": entries, "gone": [hitter.item for hitter in trend.gone]}
    return json_line(fields, ascii_only=True)


def size_of(hitter: HeavyHitter) -> int:
    """Sizes where there are any: levels do not compare between an item that was followed and one that was not.

    Nor do the counts of hits in zones, since items far above the threshold have none.
    """
    if hitter.zone is not None:
        return 2 if hitter.zone == ABOVE else 1
    if hitter.at_least_users is not None:
        return hitter.at_least_users
    if hitter.noisy_count is not None:
        return hitter.noisy_count
    return hitter.level or 0


def _order(hitter: HeavyHitter) -> tuple[int, int, str]:
    """The largest first. page.js has the same rule: of released values that a reader sees, so without the level."""
    return -size_of(hitter), -(hitter.noisy_count or 0), hitter.item


def _trend(rule: TrendRule, report: WindowReport, before: WindowReport | None) -> Trend:
    held: dict[str, HeavyHitter] = {}
    if before is not None and (rule.overlap is None or before.window_end - rule.overlap == report.window_start):
        held = {hitter.item: hitter for hitter in before.heavy_hitters}
    sizes = {item: size_of(hitter) for item, hitter in held.items()}
    entries: list[Entry] = []
    for place, hitter in enumerate(sorted(report.heavy_hitters, key=_order)):
        size = size_of(hitter)
        is_tied = bool(entries) and size_of(entries[-1].hitter) == size
        change = None if before is None else rule.change(size, sizes.get(hitter.item))
        entries.append(Entry(hitter, entries[-1].rank if is_tied else place + 1, change))
    named = {hitter.item for hitter in report.heavy_hitters}
    return Trend(report, entries, [hitter for item, hitter in held.items() if item not in named])


def _least_change(plan: Plan) -> int | None:
    """What noise alone seldom adds: three deviations of a difference of counts, or one and a half levels."""
    if plan.hits is not None:
        is_counted = plan.hits.publishes == "counts"
        # Of Laplace noise two scales are the deviation of a difference.
        return math.ceil(_NOISES * 2 / plan.hits.epsilon_per_query) if is_counted else None
    # No user adds more than the largest weight that the budget of a round pays for, or that of a test for a size.
    paid = [*zip(plan.prices_of_rounds, plan.units_of_rounds, strict=True)]
    if plan.rounds is not None:
        last = plan.prices_of_rounds[-1]
        paid.append((last, max(last.units[0], most_of_sizing_test(plan.rounds))))
    return math.ceil(_STEPS * max(prices.spacing / largest_weight(prices, units) for prices, units in paid))
