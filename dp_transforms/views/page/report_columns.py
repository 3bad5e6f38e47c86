"""A report as compact columns: each item once, windows as numbers, what was said of an item as one of few states.

A function of the report, of its header and of the declared titles alone (``--titles FILE.csv``: what people call the
items of a report, a public list, declared like a domain).
"""

from __future__ import annotations

import bisect
import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from dp_transforms.core.window_report import ABOVE, HeavyHitter, WindowReport
from dp_transforms.errors import UserError
from dp_transforms.plan.plan import Plan
from dp_transforms.reports.trends import TrendRule, size_of
from dp_transforms.views.report_words import shown_text

_MOST_CLASSES = 5  # with a size; one more for items without
# One sign for each state in the JSON of a page: ASCII that neither JSON nor HTML escapes, then ideographs.
_SIGNS = "".join(chr(code) for code in (*range(0x23, 0x7F), *range(0x4E00, 0xA000)) if chr(code) not in "\\<>&'")
MOST_STATES = len(_SIGNS)


@dataclasses.dataclass(frozen=True)
class Windows:
    """The windows from the first to the last of a report, those without heavy items between them included.

    starts, ends: int64[n] in microseconds since 1970 UTC; of windows on the grid of the plan alone the first and the
        last, as long as `step` is not 0. So a year of windows of a second takes no memory.
    step: distance of the starts, 0 if they are listed.
    count: how many.
    """

    starts: npt.NDArray[np.int64]
    ends: npt.NDArray[np.int64]
    step: int
    count: int

    def start(self, window: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        return self.starts[0] + window * self.step if self.step else self.starts[window]

    def end(self, window: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        return self.ends[0] + window * self.step if self.step else self.ends[window]


class State(NamedTuple):
    """What a report says of an item in a window.

    text: in words. strength: its size (`reports.trends`). size_class: a row of the legend, from 0.
    """

    text: str
    strength: int
    size_class: int


class Legend(NamedTuple):
    """The size classes of a report, from weak to strong. bounds: the least strength of each but the first."""

    classes: list[str]
    bounds: list[int]

    def size_class(self, strength: int) -> int:
        return bisect.bisect_right(self.bounds, strength)


@dataclasses.dataclass(frozen=True)
class ReportColumns:
    """All that a page shows of the windows of a report.

    labels, titles, names: by item, the longest-lived first. names are what is shown: titles where there are any,
        no two alike. titles: "" for none.
    item, window, state: int64[n] each, sorted by item and window, each pair (item, window) once.
    states: by state. classes: the rows of the legend, from weak to strong.
    rule: what is called a change.
    """

    windows: Windows
    labels: list[str]
    titles: list[str]
    names: list[str]
    item: npt.NDArray[np.int64]
    window: npt.NDArray[np.int64]
    state: npt.NDArray[np.int64]
    states: list[State]
    classes: list[str]
    rule: TrendRule

    def as_json(self) -> dict[str, Any]:
        """For the page: JSON values alone. Times in milliseconds since 1970 UTC."""
        windows = self.windows
        return {
            "windows": {
                "starts": [_millis(micros) for micros in windows.starts.tolist()],
                "ends": [_millis(micros) for micros in windows.ends.tolist()],
                "step": _millis(windows.step),
                "count": windows.count,
            },
            "labels": self.labels,
            "titles": self.titles if any(self.titles) else [],
            "names": [] if self.names == self.labels else self.names,
            "signs": _SIGNS[: len(self.states)],
            "texts": [state.text for state in self.states],
            "strengths": [state.strength for state in self.states],
            "sizes": [state.size_class for state in self.states],
            "classes": self.classes,
            "least_change": self.rule.least_change,
            "presence": self._presence(),
        }

    def _presence(self) -> list[list[int | str]]:
        """By item: how many windows it is away, one sign for each window that it is there, again and again."""
        if not len(self.item):
            return []
        codes = np.frombuffer(_SIGNS.encode("utf-32-le"), dtype="<u4")
        whole = codes[self.state].astype("<u4").tobytes().decode("utf-32-le")
        new_item = np.diff(self.item, prepend=-1) != 0
        is_first = new_item | (np.diff(self.window, prepend=-2) != 1)
        firsts = np.flatnonzero(is_first)
        ends = np.append(firsts[1:], len(self.item))
        last = np.append(-1, self.window[ends[:-1] - 1])
        gaps = np.where(new_item[firsts], self.window[firsts], self.window[firsts] - last - 1)
        found: list[list[int | str]] = [[] for _ in self.labels]
        for item, gap, first, end in zip(
            self.item[firsts].tolist(), gaps.tolist(), firsts.tolist(), ends.tolist(), strict=True
        ):
            found[item] += [gap, whole[first:end]]
        return found


def report_columns(
    reports: Iterable[WindowReport], plan: Plan | None, titles: Mapping[str, str] | None = None
) -> ReportColumns:
    """The columns of these windows, which may come in any order. Raises UserError if they hold too many sizes.

    plan: None if it cannot be read; then only windows with heavy items are known.
    titles: label -> what a person calls it.
    """
    rows = sorted(reports, key=lambda report: (report.window_start, report.window_end, report.stream))
    windows, numbers = _windows(rows, plan)
    several = len({report.stream for report in rows}) > 1
    pairs: dict[tuple[str, str], dict[int, tuple[Any, ...]]] = {}
    for report, number in zip(rows, numbers, strict=True):
        for heavy_hitter in report.heavy_hitters:
            key = (report.stream if several else "", heavy_hitter.item)
            pairs.setdefault(key, {})[number] = heavy_hitter[1:]
    keys = sorted(pairs, key=lambda key: (-len(pairs[key]), min(pairs[key]), key))
    kinds: dict[tuple[Any, ...], int] = {}  # what is said of an item, without its label
    item: list[int] = []
    window: list[int] = []
    state: list[int] = []
    for number, key in enumerate(keys):
        held = pairs[key]
        item += [number] * len(held)
        window += held
        state += [kinds.setdefault(kind, len(kinds)) for kind in held.values()]
    if len(kinds) > MOST_STATES:
        raise UserError(f"the report has more than {MOST_STATES:,} different sizes. Use --last to show fewer windows.")
    states, classes = _states([HeavyHitter("", *kind) for kind in kinds])
    labels = [f"{shown_text(stream)}: {shown_text(label)}" if several else shown_text(label) for stream, label in keys]
    given = titles or {}
    shown = [shown_text(given[label]) if given.get(label) else "" for _, label in keys]
    return ReportColumns(
        windows,
        labels,
        shown,
        _names(labels, shown),
        np.array(item, dtype=np.int64),
        np.array(window, dtype=np.int64),
        np.array(state, dtype=np.int64),
        states,
        classes,
        TrendRule.of(plan),
    )


def _millis(micros: int) -> float:
    return micros / 1000 if micros % 1000 else micros // 1000


def _windows(rows: Sequence[WindowReport], plan: Plan | None) -> tuple[Windows, list[int]]:
    """The windows, and the number of that of each report."""
    spans = [(report.window_start, report.window_end) for report in rows]
    if not spans:
        return Windows(np.zeros(0, np.int64), np.zeros(0, np.int64), 0, 0), []
    if plan is not None:
        schedule = plan.schedule
        first, length = schedule.window_start_micros(0), schedule.window_seconds * 1_000_000
        step, begin = schedule.slide_seconds * 1_000_000, spans[0][0]
        if all(
            (start - first) % step == 0 and end - start == length and start >= first for start, end in spans
        ) and spans[-1][0] <= schedule.window_start_micros(schedule.horizon - 1):
            count = (spans[-1][0] - begin) // step + 1
            edges = np.array([begin], np.int64), np.array([begin + length], np.int64)
            return Windows(*edges, step, count), [(start - begin) // step for start, _ in spans]
    distinct = {span: number for number, span in enumerate(sorted(set(spans)))}
    table = np.array(list(distinct), dtype=np.int64)
    return Windows(table[:, 0], table[:, 1], 0, len(table)), [distinct[span] for span in spans]


def _states(kinds: Sequence[HeavyHitter]) -> tuple[list[State], list[str]]:
    legend = _legend_of(kinds)
    strengths = [size_of(kind) for kind in kinds]
    states = [
        State(_in_words(kind), strength, legend.size_class(strength))
        for kind, strength in zip(kinds, strengths, strict=True)
    ]
    return states, legend.classes


def _legend_of(kinds: Sequence[HeavyHitter]) -> Legend:
    """Of all that a report says of items, whatever their labels and however often."""
    if any(kind.zone for kind in kinds):
        return Legend(["near the threshold", "far above the threshold"], [size_of(HeavyHitter("", ABOVE, None))])
    if any(kind.at_least_users or kind.noisy_count is not None for kind in kinds):
        is_count = not any(kind.at_least_users for kind in kinds)
        bounds = _round_bounds([strength for kind in kinds if (strength := size_of(kind)) > 0])
        sign = "about " if is_count else "at least "
        smaller = f"named, below {bounds[0]:,} or not stated" if bounds else "named"
        return Legend([smaller, *(f"{sign}{bound:,} users" for bound in bounds)], bounds)
    if any(kind.level for kind in kinds):
        bounds = _round_bounds([kind.level or 1 for kind in kinds])
        return Legend(["level 1", *(f"level {bound:,} or more" for bound in bounds)], bounds)
    return Legend(["named"], [])


def _in_words(kind: HeavyHitter) -> str:
    parts = []
    if kind.at_least_users:
        parts.append(f"at least {kind.at_least_users:,} users")
    if kind.noisy_count is not None:
        parts.append(f"about {kind.noisy_count:,} users, with noise")
    if kind.zone is not None:
        parts.append("far above the threshold" if kind.zone == ABOVE else "near the threshold")
    if kind.level is not None and not parts:
        parts.append("size not stated" if kind.at_least_users == 0 else f"level {kind.level:,}")
    return ", ".join(parts) or "named"


def _round_bounds(strengths: Sequence[int]) -> list[int]:
    """Of 1, 2, 5, 10, 20, 50, ... those from the smallest to the largest, at most five, evenly chosen."""
    if not strengths:
        return []
    low, high = max(min(strengths), 1), max(strengths)
    powers = range(len(str(high)))
    bounds = [digit * 10**power for power in powers for digit in (1, 2, 5) if low <= digit * 10**power <= high]
    if len(bounds) <= _MOST_CLASSES:
        return bounds
    return [bounds[round(place * (len(bounds) - 1) / (_MOST_CLASSES - 1))] for place in range(_MOST_CLASSES)]


def _names(labels: Sequence[str], titles: Sequence[str]) -> list[str]:
    wished = [title or label for label, title in zip(labels, titles, strict=True)]
    often: dict[str, int] = {}
    for name in wished:
        often[name] = often.get(name, 0) + 1
    named = [name if often[name] == 1 else f"{name} ({label})" for name, label in zip(wished, labels, strict=True)]
    if len(set(named)) == len(named):
        return named
    return [f"{name} ({number + 1})" for number, name in enumerate(named)]  # long labels that were cut
