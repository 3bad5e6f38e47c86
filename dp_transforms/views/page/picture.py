"""``shh show --chart``: the chart of the page as a file, made without a browser. Needs vl-convert-python.

The page and the picture have one specification, charts/items_over_time.json, and one version of Vega and Vega-Lite.
"""

from __future__ import annotations

import datetime
import importlib.util
import json
import pathlib
import textwrap
from collections.abc import Sequence
from typing import Any

import numpy as np

from dp_transforms.checks import how_to_install
from dp_transforms.errors import UserError
from dp_transforms.views.page.report_columns import ReportColumns
from dp_transforms.views.time_axis import local_text, ticks

FORMATS = (".svg", ".png", ".pdf")
VEGA_LITE = "6.4"  # of the two that vl-convert-python 1.9 has, that of library/package.json
FEW_ITEMS, MOST_ITEMS = 40, 2_000
_MOST_COLUMNS = 900  # one for each pixel: windows of a longer run are joined, and the strongest of them is shown
_COLORS = ("#9cc3e8", "#6ba5dc", "#3f83c4", "#1f62a6", "#0f4380", "#03244f")
_SPECIFICATION = pathlib.Path(__file__).parent / "charts" / "items_over_time.json"


def check_picture_library() -> None:
    """Raises UserError where pictures cannot be drawn. Call it before the work."""
    if importlib.util.find_spec("vl_convert") is None:
        raise UserError(
            f"--chart needs the package vl-convert-python. {how_to_install('charts')} Or use --html, which needs none."
        )


def picture(
    columns: ReportColumns, title: str, guarantee: str, zone: datetime.tzinfo, *, kind: str, most_items: int
) -> bytes:
    """The picture of the items that were heavy in most windows, as the bytes of an SVG, PNG or PDF file.

    kind: one of `FORMATS`. most_items: further items are left out, and the picture says so.
    """
    import vl_convert

    specification = chart_specification(columns, title, guarantee, zone, most_items)
    if kind == ".svg":
        svg: str = vl_convert.vegalite_to_svg(specification, VEGA_LITE)
        return svg.encode()
    if kind == ".pdf":
        pdf: bytes = vl_convert.vegalite_to_pdf(specification, VEGA_LITE)
        return pdf
    png: bytes = vl_convert.vegalite_to_png(specification, VEGA_LITE, scale=2)
    return png


def chart_specification(
    columns: ReportColumns, title: str, guarantee: str, zone: datetime.tzinfo, most_items: int
) -> dict[str, Any]:
    """The specification with its data, for Vega-Lite."""
    count = min(len(columns.labels), most_items)
    # The longest-lived items, from top to bottom in the order in which they appeared: what moves on runs downwards.
    held = columns.item < count
    first = np.full(count, columns.windows.count, dtype=np.int64)
    np.minimum.at(first, columns.item[held], columns.window[held])
    order = [columns.names[item] for item in np.argsort(first, kind="stable").tolist()]
    left_out = len(columns.labels) - count
    specification: dict[str, Any] = json.loads(_SPECIFICATION.read_text(encoding="utf-8"))
    specification["title"] = {
        "text": title,
        "subtitle": [
            *textwrap.wrap(guarantee, 150),
            f"The {count} items that were heavy in most windows; {left_out} more are not drawn."
            if left_out
            else f"All {count} items.",
        ],
        "anchor": "start",
        "offset": 12,
        "subtitlePadding": 6,
    }
    specification["data"]["values"] = cells(columns, count)
    marks = specification["layer"][0]["encoding"]
    start, end = _range(columns)
    marks["x"]["scale"]["domain"] = [start / 1000, end / 1000]
    at = ticks(start, end, zone)
    marks["x"]["axis"] |= {
        "title": f"start of the window ({zone})",
        "values": [micros / 1000 for micros, _ in at],
        "labelExpr": tick_labels([(micros / 1000, text) for micros, text in at]),
    }
    marks["y"]["scale"]["domain"] = order
    marks["color"]["scale"] = {"domain": columns.classes, "range": colors(_COLORS, len(columns.classes))}
    specification["config"] = {
        "axis": {"titleFontWeight": 400, "titleFontSize": 12},
        "background": "#ffffff",
        "view": {"stroke": "#cccccc"},
    }
    specification["description"] = f"{title}, {_span_text(start, end, zone)}. {guarantee}"
    return specification


def cells(columns: ReportColumns, count: int) -> list[dict[str, Any]]:
    """The rectangles of the first items: each from a start to an end in which its size class is the same.

    Of windows that share a column of the picture the strongest is taken. page.js has the same rule.
    """
    if not count:
        return []
    per_column = -(-columns.windows.count // _MOST_COLUMNS)
    held = columns.item < count
    sizes = np.array([state.size_class for state in columns.states], dtype=np.int64)
    grid = np.full((count, -(-columns.windows.count // per_column)), -1, dtype=np.int64)
    np.maximum.at(grid, (columns.item[held], columns.window[held] // per_column), sizes[columns.state[held]])
    changes = np.diff(grid, axis=1, prepend=-2) != 0
    if not columns.windows.step:  # listed windows need not touch
        changes[:] = True
    item, first = np.nonzero(changes)
    last = np.where(np.append(item[1:], -1) == item, np.append(first[1:], 0), grid.shape[1]) - 1
    shown = grid[item, first] >= 0
    item, first, last = item[shown], first[shown], last[shown]
    last_window = np.minimum((last + 1) * per_column, columns.windows.count) - 1
    # The next window of a sliding schedule begins before this one ends: a rectangle ends where the next one begins.
    ends = columns.windows.start(last_window) + columns.windows.step if columns.windows.step else None
    starts = columns.windows.start(first * per_column)
    ends = columns.windows.end(last_window) if ends is None else ends
    return [
        {"name": columns.names[row], "start": start / 1000, "end": end / 1000, "size": columns.classes[size]}
        for row, start, end, size in zip(
            item.tolist(), starts.tolist(), ends.tolist(), grid[item, first].tolist(), strict=True
        )
    ]


def colors(whole: Sequence[str], count: int) -> list[str]:
    """So many of a scale from weak to strong, the strongest among them."""
    if count == 1:
        return [whole[len(whole) // 2]]
    return [whole[round(number * (len(whole) - 1) / (count - 1))] for number in range(count)]


def tick_labels(at: Sequence[tuple[float, str]]) -> str:
    """An expression of Vega that gives the label of each tick."""
    return f"({json.dumps({f'{place:g}' if place % 1 else str(int(place)): text for place, text in at})})[datum.value]"


def _range(columns: ReportColumns) -> tuple[int, int]:
    windows = columns.windows
    if not windows.count:
        return 0, 1_000_000
    last = np.array([windows.count - 1])
    end = int(windows.start(last)[0] + windows.step if windows.step else windows.ends.max())
    return int(windows.starts[0]), end


def _span_text(start: int, end: int, zone: datetime.tzinfo) -> str:
    return f"{local_text(start, zone)} to {local_text(end, zone)} ({zone})"
