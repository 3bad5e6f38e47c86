"""Times of a picture in a time zone: its ticks at round local times, and how each is written."""

from __future__ import annotations

import datetime

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
