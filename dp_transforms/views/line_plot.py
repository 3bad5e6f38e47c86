"""Line plots as plain SVG text: no library, readable in black and white, with a title for screen readers."""

from __future__ import annotations

import datetime
import math
from collections.abc import Callable, Sequence
from xml.sax.saxutils import escape

# Times of a picture in a time zone: its ticks at round local times, and how each is written.

_EPOCH = datetime.datetime(1970, 1, 1)
_MOST_TICKS = 9
_MINUTE, _HOUR, _DAY = 60, 3600, 86_400
_STEPS = (
    *(1, 5, 15, 30),
    *(each * _MINUTE for each in (1, 5, 15, 30)),
    *(each * _HOUR for each in (1, 3, 6, 12)),
    *(each * _DAY for each in (1, 2, 7, 14, 28, 91, 364, 1820, 18_200)),
)


def local(micros: int, zone: datetime.tzinfo) -> datetime.datetime:
    """The local time without its zone. At the ends of the calendar, where a zone may leave it, UTC."""
    moment = _EPOCH + datetime.timedelta(microseconds=micros)
    try:
        return moment.replace(tzinfo=datetime.UTC).astimezone(zone).replace(tzinfo=None)
    except OverflowError:
        return moment


def local_text(micros: int, zone: datetime.tzinfo) -> str:
    """``2017-10-01 03:00``, with seconds only if there are any."""
    text = local(micros, zone).isoformat(sep=" ")
    return text.removesuffix(":00") if text.count(":") == 2 else text


def ticks(start: int, end: int, zone: datetime.tzinfo) -> list[tuple[int, str]]:
    """At most ten round local times in ``[start, end]``: microseconds since 1970 UTC, and as text; rising.

    The same rule is in columns.js, for the parts of a report that its reader chooses.
    """
    first, last = _seconds(local(start, zone)), _seconds(local(end, zone))
    step = next((step for step in _STEPS if (last - first) / step <= _MOST_TICKS), _STEPS[-1])
    found = []
    for wall in range(-(-first // step) * step, last + 1, step):
        moment = _EPOCH + datetime.timedelta(seconds=wall)
        try:
            there = moment.replace(tzinfo=zone).astimezone(datetime.UTC).replace(tzinfo=None)
        except OverflowError:
            continue
        micros = (there - _EPOCH) // datetime.timedelta(microseconds=1)
        if start <= micros <= end:
            found.append((micros, _tick_text(moment, step)))
    return found[: _MOST_TICKS + 1]


def _seconds(moment: datetime.datetime) -> int:
    return (moment - _EPOCH) // datetime.timedelta(seconds=1)


def _tick_text(moment: datetime.datetime, step: int) -> str:
    if step >= 28 * _DAY:
        return f"{moment.day} {moment:%b} {moment.year}"
    if step >= _DAY or not (moment.hour or moment.minute or moment.second):
        return f"{moment.day} {moment:%b}"
    return f"{moment:%H:%M}" if step >= _MINUTE else f"{moment:%H:%M:%S}"


Series = dict[str, list[tuple[float, float]]]

_WIDTH, _HEIGHT = 760, 440
_LEFT, _RIGHT, _TOP, _BOTTOM = 84, 210, 44, 56  # margins; the legend stands in the right one
# Colour (Okabe and Ito, safe for colour-blind readers), dashes and marker differ together.
_STYLES = (
    ("#0072b2", "", "circle"),
    ("#d55e00", "7 3", "square"),
    ("#009e73", "2 3", "triangle"),
    ("#cc79a7", "9 3 2 3", "diamond"),
    ("#000000", "4 4", "cross"),
    ("#56b4e9", "12 4", "square"),
    ("#e69f00", "1 2", "circle"),
    ("#666666", "6 2 1 2 1 2", "triangle"),
)


def line_plot_svg(
    title: str, x_label: str, y_label: str, series: Series, *, log_x: bool = False, log_y: bool = False
) -> str:
    """The plot as a whole SVG document. series: name to points (x, y), finite, at most 8 lines; > 0 on a log axis."""
    points = [point for line in series.values() for point in line]
    if not points or len(series) > len(_STYLES):
        raise ValueError(f"series must hold 1 .. {len(_STYLES)} lines and a point, got {len(series)} lines.")
    if not all(math.isfinite(value) for point in points for value in point):
        raise ValueError("all points must be finite. Leave the others out.")
    place_x, ticks_x = _axis([x for x, _ in points], log_x, _LEFT, _WIDTH - _RIGHT)
    place_y, ticks_y = _axis([y for _, y in points], log_y, _HEIGHT - _BOTTOM, _TOP)
    bottom, right = _HEIGHT - _BOTTOM, _WIDTH - _RIGHT
    width = max(_WIDTH, right + 66 + math.ceil(6.8 * max(map(len, series))))  # for the longest name in the legend
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {_HEIGHT}" width="{width}" '
        f'height="{_HEIGHT}" font-family="sans-serif" font-size="12" role="img" aria-labelledby="title">',
        f'<title id="title">{escape(title)}</title>',
        f'<rect width="{width}" height="{_HEIGHT}" fill="white"/>',
        f'<text x="{_LEFT}" y="24" font-size="14" font-weight="bold">{escape(title)}</text>',
    ]
    for value in ticks_x:
        x = place_x(value)
        out.append(f'<line x1="{x:.1f}" y1="{_TOP}" x2="{x:.1f}" y2="{bottom + 5}" stroke="#ddd"/>')
        out.append(f'<text x="{x:.1f}" y="{bottom + 18}" text-anchor="middle">{_number(value)}</text>')
    for value in ticks_y:
        y = place_y(value)
        out.append(f'<line x1="{_LEFT - 5}" y1="{y:.1f}" x2="{right}" y2="{y:.1f}" stroke="#ddd"/>')
        out.append(f'<text x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{_number(value)}</text>')
    middle_x, middle_y = (_LEFT + right) / 2, (_TOP + bottom) / 2
    out += [
        f'<path d="M{_LEFT} {_TOP}V{bottom}H{right}" fill="none" stroke="black"/>',
        f'<text x="{middle_x}" y="{_HEIGHT - 14}" text-anchor="middle">{escape(x_label)}</text>',
        f'<text transform="translate(16 {middle_y}) rotate(-90)" text-anchor="middle">{escape(y_label)}</text>',
    ]
    for row, ((name, line), (colour, dashes, marker)) in enumerate(zip(series.items(), _STYLES, strict=False)):
        placed = [(place_x(x), place_y(y)) for x, y in line]
        out += _line(placed, colour, dashes, marker)
        legend_y = _TOP + 12 + 22 * row
        out += _line([(right + 14, legend_y), (right + 46, legend_y)], colour, dashes, marker)
        out.append(f'<text x="{right + 54}" y="{legend_y + 4}">{escape(name)}</text>')
    return "\n".join([*out, "</svg>", ""])


def _axis(
    values: Sequence[float], is_log: bool, start: float, end: float
) -> tuple[Callable[[float], float], list[float]]:
    """Where a value stands between the pixels start and end, and the ticks; the axis begins and ends at a tick."""
    low, high = min(values), max(values)
    if is_log:
        if low <= 0:
            raise ValueError(f"values on a logarithmic axis must be > 0, got {low!r}.")
        ticks = _log_ticks(low, high)
    else:
        step = _nice_step((high - min(low, 0.0)) / 5 or 1.0)  # 0 is always on a linear axis
        first, last = math.floor(min(low, 0.0) / step), math.ceil(max(high, 0.0) / step)
        ticks = [step * k for k in range(first, max(last, first + 1) + 1)]
    scale = math.log10 if is_log else float
    first_value, last_value = scale(ticks[0]), scale(ticks[-1])
    return lambda value: start + (scale(value) - first_value) / (last_value - first_value) * (end - start), ticks


def _log_ticks(low: float, high: float) -> list[float]:
    """Powers of ten; with 2 and 5 of each, where that leaves room."""
    digits = (1, 2, 5) if high / low < 500 else (1,)
    first, last = math.floor(math.log10(low)) - 1, math.ceil(math.log10(high)) + 1
    candidates = [digit * 10.0**power for power in range(first, last + 1) for digit in digits]
    start = max(k for k, tick in enumerate(candidates) if tick <= low * (1 + 1e-12))
    end = min(k for k, tick in enumerate(candidates) if tick >= high * (1 - 1e-12))
    return candidates[start : max(end, start + 1) + 1]


def _nice_step(raw: float) -> float:
    power = 10.0 ** math.floor(math.log10(raw))
    return next(digit * power for digit in (1, 2, 5, 10) if digit * power >= raw * (1 - 1e-12))


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.6g}"


def _line(points: Sequence[tuple[float, float]], colour: str, dashes: str, marker: str) -> list[str]:
    path = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
    dash = f' stroke-dasharray="{dashes}"' if dashes else ""
    shape = {
        "circle": "m-4 0a4 4 0 1 0 8 0a4 4 0 1 0-8 0z",
        "square": "m-3.5-3.5h7v7h-7z",
        "triangle": "m0-4.5l4.5 8h-9z",
        "diamond": "m0-5l5 5l-5 5l-5-5z",
        "cross": "m-4-4l8 8m0-8l-8 8",
    }[marker]
    marks = "".join(f"M{x:.1f} {y:.1f}{shape}" for x, y in points)
    return [
        f'<path d="{path}" fill="none" stroke="{colour}" stroke-width="1.8"{dash}/>',
        f'<path d="{marks}" fill="{colour}" stroke="{colour}"/>',
    ]
