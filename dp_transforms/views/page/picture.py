"""``shh show --chart``: the picture of the whole run that a page has, as a file of its own: SVG as plain text."""

from __future__ import annotations

import datetime
import textwrap
from collections.abc import Sequence
from typing import NamedTuple
from xml.sax.saxutils import escape

import numpy as np
import numpy.typing as npt

from dp_transforms.views.line_plot import local_text, ticks
from dp_transforms.views.page.report_columns import ReportColumns

FEW_ITEMS, MOST_ITEMS = 40, 2_000
COLORS = ("#d3e3f3", "#9cc3e8", "#5f9bd6", "#2f72b4", "#124b8c", "#03244f")
_DAY = 86_400_000_000
_JOINED = (1, 2, 3, 4, 6, 8, 12, 24, 48, 96, 168, 336, 672, 1344, 2688, 5376, 10_752)
_LEAST_PIXELS, _LEAST_PIXELS_OF_DAYS = 6, 2
_NAMES, _WIDTH, _ROW, _MARGIN = 250, 900, 20, 16
_LONGEST_NAME = 38


def picture_svg(columns: ReportColumns, title: str, guarantee: str, zone: datetime.tzinfo, most_items: int) -> str:
    """The picture of the largest items, as a whole document. most_items: further ones are left out, and it says so."""
    items = largest_items(columns, most_items)
    joined = joined_windows(columns.windows.count, columns.windows.step)
    start, end = _range(columns)
    said = [*textwrap.wrap(guarantee, 150), _which(len(items), len(columns.labels)), *_what_a_column_is(joined)]
    legend_top = _MARGIN + 26 + 18 * len(said)
    top = legend_top + 20 * -(-len(columns.classes) // 3) + 34
    height = top + _ROW * len(items) + _MARGIN
    width = _NAMES + _WIDTH + 2 * _MARGIN
    spoken = f"{title}, {local_text(start, zone)} to {local_text(end, zone)} ({zone})"
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
        ' font-family="sans-serif" font-size="12" fill="#1a2230" role="img" aria-labelledby="title">',
        f'<title id="title">{escape(spoken)}</title>',
        f'<rect width="{width}" height="{height}" fill="white"/>',
        _text(_MARGIN, _MARGIN + 12, title, 'font-size="16" font-weight="bold"'),
        *(_text(_MARGIN, _MARGIN + 34 + 18 * line, words, 'fill="#546073"') for line, words in enumerate(said)),
    ]
    shades = colors(COLORS, len(columns.classes))
    for place, (words, shade) in enumerate(zip(columns.classes, shades, strict=True)):
        x, y = _NAMES + _MARGIN + 260 * (place % 3), legend_top + 20 * (place // 3)
        out += [f'<rect x="{x}" y="{y}" width="12" height="12" fill="{shade}"/>', _text(x + 18, y + 10, words)]
    left = _NAMES + _MARGIN
    pixels = _WIDTH / max(end - start, 1)
    for micros, words in ticks(start, end, zone) if items else ():
        at = left + (micros - start) * pixels
        out += [
            f'<line x1="{at:.1f}" y1="{top - 6}" x2="{at:.1f}" y2="{height - _MARGIN}" stroke="#d5dbe4"/>',
            _text(at, top - 10, words, 'text-anchor="middle"'),
        ]
    if items:
        out.append(_text(left - 8, top - 10, f"start of the window ({zone})", 'text-anchor="end" fill="#546073"'))
    for row, item in enumerate(items):
        name = columns.names[item]
        cut = name if len(name) <= _LONGEST_NAME else f"{name[: _LONGEST_NAME - 1]}…"
        out.append(_text(left - 8, top + _ROW * row + 14, cut, 'text-anchor="end"'))
    for row, begin, until, share, size in cells(columns, items, joined):
        tall = share * (_ROW - 5)
        out.append(
            f'<rect x="{left + (begin - start) * pixels:.2f}" y="{top + _ROW * (row + 1) - 2.5 - tall:.2f}"'
            f' width="{(until - begin) * pixels:.2f}" height="{tall:.2f}" fill="{shades[size]}"/>'
        )
    return "\n".join([*out, "</svg>", ""])


def largest_items(columns: ReportColumns, most: int) -> list[int]:
    """The items whose largest size is largest, in the order in which they appeared: what moves on runs downwards."""
    count = len(columns.labels)
    strengths = np.array([state.strength for state in columns.states], dtype=np.int64)
    largest = np.full(count, np.iinfo(np.int64).min)
    np.maximum.at(largest, columns.item, strengths[columns.state])
    chosen = np.argsort(-largest, kind="stable")[:most]
    first = np.full(count, columns.windows.count, dtype=np.int64)
    np.minimum.at(first, columns.item, columns.window)
    found: list[int] = chosen[np.lexsort((chosen, first[chosen]))].tolist()
    return found


def joined_windows(count: int, step: int) -> int:
    """How many windows share a column of so many pixels that it can be seen, or those of a day. page.js has the same
    rule. step: from window to window; 0: they are listed, and each has a column."""
    if not step or not count:
        return 1
    of_day = {_DAY // step} if _DAY % step == 0 else set()
    for joined in sorted({*_JOINED, *of_day}):
        if joined * _WIDTH / count >= (_LEAST_PIXELS_OF_DAYS if joined * step >= _DAY else _LEAST_PIXELS):
            return joined
    return _JOINED[-1]


class Cell(NamedTuple):
    """A rectangle. start, end: microseconds since 1970 UTC. share: of its windows in which the item of the row was
    named. size: the largest size class in them."""

    row: int
    start: int
    end: int
    share: float
    size: int


def cells(columns: ReportColumns, items: Sequence[int], joined: int) -> list[Cell]:
    """The rectangles of these items. Columns that touch and say the same are one."""
    windows = columns.windows
    if not items:
        return []
    rows = np.full(len(columns.labels), -1, dtype=np.int64)
    rows[np.array(items)] = np.arange(len(items))
    held = rows[columns.item] >= 0
    sizes = np.array([state.size_class for state in columns.states], dtype=np.int64)
    shape = (len(items), -(-windows.count // joined))
    size, named = np.full(shape, -1, dtype=np.int64), np.zeros(shape, dtype=np.int64)
    place = rows[columns.item[held]], columns.window[held] // joined
    np.maximum.at(size, place, sizes[columns.state[held]])
    np.add.at(named, place, 1)
    firsts = np.arange(shape[1]) * joined
    number = np.minimum(joined, windows.count - firsts)
    changes = (np.diff(size, axis=1, prepend=-2) != 0) | (np.diff(named, axis=1, prepend=-1) != 0)
    changes |= np.diff(number, prepend=number[0]) != 0
    if not windows.step:  # listed windows need not touch
        changes[:] = True
    row, first = np.nonzero(changes)
    last = np.where(np.append(row[1:], -1) == row, np.append(first[1:], 0), shape[1]) - 1
    shown = named[row, first] > 0
    row, first, last = row[shown], first[shown], last[shown]
    starts, ends = windows.start(first * joined), _ends(columns, last * joined + number[last] - 1)
    found = (row, starts, ends, named[row, first] / number[first], size[row, first])
    return [Cell(*each) for each in zip(*(column.tolist() for column in found), strict=True)]


def colors(whole: Sequence[str], count: int) -> list[str]:
    """So many of a scale from weak to strong, the strongest among them."""
    if count == 1:
        return [whole[len(whole) // 2]]
    return [whole[round(number * (len(whole) - 1) / (count - 1))] for number in range(count)]


def _ends(columns: ReportColumns, windows: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """The next window of a sliding schedule begins before this one ends: a rectangle ends where the next one begins."""
    step = columns.windows.step
    return columns.windows.start(windows) + step if step else columns.windows.end(windows)


def _range(columns: ReportColumns) -> tuple[int, int]:
    windows = columns.windows
    if not windows.count:
        return 0, 1_000_000
    return int(windows.starts[0]), int(
        _ends(columns, np.arange(windows.count)[-1:] if windows.step else np.arange(windows.count)).max()
    )


def _which(shown: int, count: int) -> str:
    return (
        f"All {count} items." if shown == count else f"The {shown} largest items; {count - shown} more are not drawn."
    )


def _what_a_column_is(joined: int) -> list[str]:
    if joined == 1:
        return []
    share = "its height is the share of them in which the item was named, its colour the largest size"
    return [f"A column is {joined} windows: {share}."]


def _text(x: float, y: float, words: str, more: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}"{" " if more else ""}{more}>{escape(words)}</text>'
