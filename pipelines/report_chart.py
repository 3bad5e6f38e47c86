"""Reports as a picture: one row per item, time to the right, filled where the item was heavy. Plain SVG."""

from __future__ import annotations

import collections
import textwrap
from collections.abc import Iterable
from xml.sax.saxutils import escape

from dp_transforms.monitoring.window_report import ABOVE, BETWEEN, WindowReport
from dp_transforms.pipelines.report_table import label_text
from dp_transforms.window_schedule import format_utc

_ROW, _LABELS, _WIDTH, _LINE = 20, 220, 900, 16
_MAX_LABEL = 30
# Dark and light differ without colour too; the bar of a "between" is also lower.
_FILL = {ABOVE: "#1b6e4f", BETWEEN: "#e0a030", None: "#1b6e4f"}
_HEIGHT = {ABOVE: 14, BETWEEN: 8, None: 14}


def timeline_svg(reports: Iterable[WindowReport], guarantee: str, *, max_items: int = 40) -> str:
    """The items that were heavy in most windows, the longest-lived first; of two equal ones the earlier first.

    The result is a whole SVG file. Labels are escaped: they may be hostile here, as on a terminal.
    """
    rows = list(reports)
    spans: dict[str, list[tuple[int, int, str | None]]] = collections.defaultdict(list)
    for report in rows:
        for heavy_hitter in report.heavy_hitters:
            spans[heavy_hitter.item].append((report.window_start, report.window_end, heavy_hitter.zone))
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
    for number, item in enumerate(items):
        y = top + _ROW * number
        shown = item if len(item) <= _MAX_LABEL else item[: _MAX_LABEL - 1] + "…"
        lines.append(f'<text x="8" y="{y + 11}">{_text(label_text(shown))}</text>')
        for start, end, zone in _joined(spans[item]):
            margin = (14 - _HEIGHT[zone]) / 2
            lines.append(
                f'<rect x="{x(start)}" y="{y + margin}" width="{max(round(x(end) - x(start), 2), 1)}"'
                f' height="{_HEIGHT[zone]}" fill="{_FILL[zone]}"/>'
            )
    return "\n".join([*lines, "</svg>", ""])


def _joined(spans: list[tuple[int, int, str | None]]) -> list[tuple[int, int, str | None]]:
    """Windows that touch or overlap, in one zone, as one bar."""
    joined: list[tuple[int, int, str | None]] = []
    for start, end, zone in sorted(spans, key=lambda span: span[:2]):
        if joined and joined[-1][2] == zone and start <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]), zone)
        else:
            joined.append((start, end, zone))
    return joined


def _text(text: str) -> str:
    """Text of an SVG element. XML cannot hold a control character, so callers escape them."""
    return escape("".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in text))
