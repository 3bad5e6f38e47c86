"""Where a page has its ticks: the rule of columns.js, said once more."""

from __future__ import annotations

import datetime

from dp_transforms.views.report_words import local

_EPOCH = datetime.datetime(1970, 1, 1)
_MOST_TICKS = 9
_MINUTE, _HOUR, _DAY = 60, 3600, 86_400
_STEPS = (
    *(1, 5, 15, 30),
    *(each * _MINUTE for each in (1, 5, 15, 30)),
    *(each * _HOUR for each in (1, 3, 6, 12)),
    *(each * _DAY for each in (1, 2, 7, 14, 28, 91, 364, 1820, 18_200)),
)


def ticks(start: int, end: int, zone: datetime.tzinfo) -> list[tuple[int, str]]:
    """At most ten round local times in ``[start, end]``: microseconds since 1970 UTC, and as text; rising."""
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
