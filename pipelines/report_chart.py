"""Reports as a picture: one row per item, time to the right, filled where the item was heavy. Plain SVG."""

from __future__ import annotations

import collections
import textwrap
from collections.abc import Iterable
from typing import NamedTuple
from xml.sax.saxutils import escape

from dp_transforms.monitoring.window_report import BETWEEN, HeavyHitter, WindowReport
from dp_transforms.pipelines.report_table import label_text
from dp_transforms.window_schedule import format_utc

_ROW, _LABELS, _WIDTH, _LINE = 20, 220, 900, 16
_MAX_LABEL = 30
# Dark and light differ without colour too; the bar of a "between" is also lower.
_DARK, _LIGHT = "#1b6e4f", "#e0a030"
_FULL_HEIGHT, _BETWEEN_HEIGHT = 14, 8
# Of levels 1, 2, 3, and 4 or more.
_LEVEL_HEIGHTS = (5, 8, 11, _FULL_HEIGHT)


class _Bar(NamedTuple):
    height: int
    fill: str


def timeline_svg(reports: Iterable[WindowReport], guarantee: str, *, max_items: int = 40) -> str:
    """The items that were heavy in most windows, the longest-lived first; of two equal ones the earlier first.

    The result is a whole SVG file. Labels are escaped: they may be hostile here, as on a terminal.
    """
    rows = list(reports)
    spans: dict[str, list[tuple[int, int, _Bar]]] = collections.defaultdict(list)
    for report in rows:
        for heavy_hitter in report.heavy_hitters:
            spans[heavy_hitter.item].append((report.window_start, report.window_end, _bar(heavy_hitter)))
    has_levels = any(heavy_hitter.level is not None for report in rows for heavy_hitter in report.heavy_hitters)
    items = sorted(spans, key=lambda item: (-len(spans[item]), spans[item][0][:2], item))[:max_items]
    first = min((report.window_start for report in rows), default=0)
    last = max((report.window_end for report in rows), default=1)

    def x(micros: int) -> float:
        return round(_LABELS + (micros - first) * _WIDTH / (last - first), 2)

    sentence = textwrap.wrap(guarantee, 150) or [""]
    top = 48 + _LINE * len(sentence)
    height = top + _ROW * len(items) + 12
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_LABELS + _WIDTH + 16}" height="{height}"'
        ' font-family="sans-serif" font-size="12">',
        f"<title>{_text(guarantee)}</title>",
        f'<rect width="100%" height="{height}" fill="white"/>',
        *(f'<text x="8" y="{20 + _LINE * i}">{_text(line)}</text>' for i, line in enumerate(sentence)),
        f'<text x="8" y="{top - 16}" fill="#555">{len(items)} of {len(spans)} items</text>',
    ]
    if rows:
        lines.append(f'<text x="{_LABELS}" y="{top - 16}" fill="#555">{format_utc(first)}</text>')
        lines.append(
            f'<text x="{_LABELS + _WIDTH}" y="{top - 16}" fill="#555" text-anchor="end">{format_utc(last)}</text>'
        )
    if has_levels:
        lines.append(
            f'<text x="{_LABELS + _WIDTH // 2}" y="{top - 16}" fill="#555" text-anchor="middle">'
            f"thicker: a higher level (1, 2, 3, {len(_LEVEL_HEIGHTS)} or more)</text>"
        )
    for number, item in enumerate(items):
        y = top + _ROW * number
        shown = item if len(item) <= _MAX_LABEL else item[: _MAX_LABEL - 1] + "…"
        lines.append(f'<text x="8" y="{y + 11}">{_text(label_text(shown))}</text>')
        for start, end, bar in _joined(spans[item]):
            lines.append(
                f'<rect x="{x(start)}" y="{y + (_FULL_HEIGHT - bar.height) / 2}"'
                f' width="{max(round(x(end) - x(start), 2), 1)}" height="{bar.height}" fill="{bar.fill}"/>'
            )
    return "\n".join([*lines, "</svg>", ""])


def _bar(heavy_hitter: HeavyHitter) -> _Bar:
    if heavy_hitter.level is not None:
        return _Bar(_LEVEL_HEIGHTS[min(heavy_hitter.level, len(_LEVEL_HEIGHTS)) - 1], _DARK)
    return _Bar(_BETWEEN_HEIGHT, _LIGHT) if heavy_hitter.zone == BETWEEN else _Bar(_FULL_HEIGHT, _DARK)


def _joined(spans: list[tuple[int, int, _Bar]]) -> list[tuple[int, int, _Bar]]:
    """Windows that touch or overlap, and look the same, as one bar."""
    joined: list[tuple[int, int, _Bar]] = []
    for start, end, bar in sorted(spans, key=lambda span: span[:2]):
        if joined and joined[-1][2] == bar and start <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]), bar)
        else:
            joined.append((start, end, bar))
    return joined


def _text(text: str) -> str:
    """Text of an SVG element. XML cannot hold a control character, so callers escape them."""
    return escape("".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in text))
