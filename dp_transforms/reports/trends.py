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

import bisect
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from dp_transforms.core.window_report import ABOVE, HeavyHitter, WindowReport
from dp_transforms.plan.rounds import FEWEST_SIZED
from dp_transforms.reports.report_records import checked_report, json_line, plain_fields

NEW, RISING, FALLING, SAME = "new", "rising", "falling", "same"
_MORE = 1.5  # times the smaller size is the least larger one that is called a trend
_STEPS = 1.5  # of levels: noise can add one, and a followed item is not half a step further on than a new one
_NOISES = 3  # standard deviations of the difference of two noisy counts
_MOST = 1 << 53


class Entry(NamedTuple):
    """An item in a window. change: NEW, RISING, FALLING, or SAME; None if there is no window before."""

    hitter: HeavyHitter
    rank: int
    change: str | None


class HitsSoFar(NamedTuple):
    """What any one user can have paid, as far as windows were read; where users pay for hits alone.

    read: hits in all of them up to this one. first: the running estimate of the first one that was read, and the hits
        in it; None where nothing was before it.
    """

    read: int
    first: tuple[float, int] | None


class Trend(NamedTuple):
    """A window. entries: the largest first. gone: items of the window before. hits: up to this window."""

    report: WindowReport
    entries: list[Entry]
    gone: list[HeavyHitter]
    hits: HitsSoFar = HitsSoFar(0, None)


class TrendRule(NamedTuple):
    """What a plan says of trends.

    overlap: of a window, or a block of windows, with the next one, in microseconds; None: unknown, and the window
        before is the one that was reported before. least_change: users; None: no sizes that can be compared.
    """

    overlap: int | None = None
    least_change: int | None = None

    @classmethod
    def of(cls, plan: Mapping[str, Any]) -> TrendRule:
        """Of the plan in the header of a report, which may be hostile."""
        schedule = plan.get("schedule")
        given: Any = schedule if isinstance(schedule, dict) else {}
        window, slide = given.get("window_seconds"), given.get("slide_seconds")
        is_known = all(isinstance(seconds, int) and 0 < seconds < _MOST for seconds in (window, slide))
        return cls((window - slide) * 1_000_000 if is_known else None, _least_change(plan))

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


def trends(plan: Mapping[str, Any], reports: Iterable[WindowReport], *, are_all: bool = False) -> Iterator[Trend]:
    """The windows in the order of time. plan: that of their header. are_all: these are all reports of a run, which are
    not those of a later part."""
    rule, schedule = TrendRule.of(plan), plan.get("schedule")
    start = schedule.get("start_seconds") if isinstance(schedule, dict) else None
    latest: dict[str, WindowReport] = {}
    hits: dict[str, HitsSoFar] = {}
    for report in sorted(reports, key=lambda each: (each.window_start, each.window_end, each.stream)):
        before = latest.get(report.stream)
        latest[report.stream] = report
        charged = _most_charged(plan, report)
        is_first = are_all or (isinstance(start, int) and report.window_start == start * 1_000_000)
        so_far = hits.get(report.stream, HitsSoFar(0, None if is_first else (report.epsilon_spent, charged)))
        hits[report.stream] = so_far._replace(read=so_far.read + charged)
        yield _trend(rule, report, before)._replace(hits=hits[report.stream])


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


def latest_busy(windows: Sequence[WindowReport]) -> int:
    """Which to show first: the latest whose sizes add up to the median or more. windows: some, in the order of time,
    each with heavy items. page.js has the same rule."""
    sums = [sum(map(size_of, each.heavy_hitters)) for each in windows]
    middle = sorted(sums)[len(sums) // 2]
    return max(place for place, each in enumerate(sums) if each >= middle)


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


def _most_charged(plan: Mapping[str, Any], report: WindowReport) -> int:
    """So many of the charged results of a window can be of one user (docs/guarantee.md, "The running figure
    epsilon_spent")."""
    paid = plan.get("hits")
    most = paid.get("max_items_per_user") if isinstance(paid, dict) else None
    charged = sum(hitter.zone != ABOVE for hitter in report.heavy_hitters)
    return min(most, charged) if isinstance(most, int) and most > 0 else charged


def _largest_weight(paid_for: Mapping[str, Any], amount: int) -> int:
    place = bisect.bisect_right(paid_for["units"], amount)
    return int(paid_for["weights"][:place][-1])


def _least_change(plan: Mapping[str, Any]) -> int | None:
    """None also for a plan that is not one."""
    try:
        if "contributions" in plan:
            first = plan["contributions"]
            cut = plan.get("rounds") or {"units": first["units"][-1:]}
            later = cut.get("later") or [first] * (len(cut["units"]) - 1)
            # No user adds more than the largest weight that the budget of a round pays for, of blocks too, or what a
            # test of the sizing round costs at most.
            second = cut["units"][-1] // (FEWEST_SIZED if later else 1)
            asked = [*zip([first, *later], cut["units"], strict=True)]
            asked.append((asked[-1][0], max(asked[-1][0]["units"][0], second)))
            least = _STEPS * max(paid["spacing"] / _largest_weight(paid, amount) for paid, amount in asked)
        elif plan["hits"]["publishes"] == "counts":
            least = _NOISES * 2 / plan["hits"]["epsilon_per_query"]  # Laplace: 2 scales are that deviation
        else:
            return None
        return math.ceil(least) if 0 < least < _MOST else None
    except (LookupError, TypeError, ValueError, ArithmeticError):
        return None
