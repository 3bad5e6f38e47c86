"""The declared windows of a run: a range, a size and a slide. Nothing is taken from the data.

The guarantee holds for a declared number of windows (the horizon, docs/guarantee.md, "How delta is split for hits"),
so which windows there are must be a function of parameters alone. Windows are aligned to the declared start.
"""

from __future__ import annotations

import dataclasses
import datetime
import re
from typing import TYPE_CHECKING, Any

from dp_transforms.checks import shown
from dp_transforms.errors import InputError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

Moment = int | str | datetime.date
Length = int | str

MICROS_PER_SECOND = 1_000_000
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_FIRST_SECOND, _LAST_SECOND = -62_135_596_800, 253_402_300_799  # years 1 to 9999, the range of datetime
MOST_WINDOWS = 2**31  # packed pairs hold window numbers in 32 bits


def format_utc(micros: int) -> str:
    """ISO 8601 in UTC of microseconds since 1970, e.g. ``2017-10-01T03:00:00Z``."""
    moment = datetime.datetime.fromtimestamp(0, datetime.UTC) + datetime.timedelta(microseconds=micros)
    return moment.isoformat().replace("+00:00", "Z")


def parse_utc(text: str) -> int:
    """Seconds since 1970 UTC of an ISO 8601 date or time, UTC unless it says otherwise. Raises ValueError."""
    try:
        moment = datetime.datetime.fromisoformat(re.sub(r"[zZ]$", "+00:00", text.strip()))
    except ValueError:
        raise ValueError(f"{text!r} is not an ISO 8601 time. Use one such as 2017-10-01T03:00:00Z.") from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=datetime.UTC)
    seconds = (moment - datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)) / datetime.timedelta(seconds=1)
    if seconds != int(seconds):
        raise ValueError(f"{text!r} must be a whole second.")
    return int(seconds)


def parse_duration(text: str) -> int:
    """Seconds of ``90s``, ``15m``, ``1h``, ``1d`` or ``1w``. Raises ValueError."""
    match = re.fullmatch(r"\s*(\d{1,9})\s*([smhdw])\s*", text)
    if match is None:
        raise ValueError(f"{text!r} is not a duration. Use a number and s, m, h, d or w, such as 1h.")
    return int(match[1]) * _SECONDS[match[2]]


def _second_of(moment: Any) -> Any:
    """In seconds since 1970 UTC; what is no time stays as it is."""
    if isinstance(moment, datetime.date):  # a datetime, and a timestamp of pandas, is one
        return parse_utc(moment.isoformat())
    return parse_utc(moment) if isinstance(moment, str) else moment


@dataclasses.dataclass(frozen=True)
class WindowSchedule:
    """Fixed or sliding windows over the declared range ``[start, end)``.

    start_seconds, end_seconds: the range, in seconds since 1970 UTC; events outside are not part of the run.
    window_seconds: size of a window.
    slide_seconds: distance of consecutive window starts; divides the size. Equal to it for fixed windows.

    Windows are numbered ``0 .. horizon - 1``. An event counts in every window that contains it. So with sliding windows
    the first ones begin before the declared start, and contain only events from the start on.
    """

    start_seconds: int
    end_seconds: int
    window_seconds: int
    slide_seconds: int

    def __post_init__(self) -> None:
        for name in ("start_seconds", "end_seconds", "window_seconds", "slide_seconds"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool):
                raise InputError(name, f"must be a whole number of seconds, got {shown(value)}.")
        for name in ("window_seconds", "slide_seconds"):
            if getattr(self, name) < 1:
                raise InputError(name, f"must be >= 1, got {getattr(self, name)}.", "Use 3600 for hours.")
        if self.window_seconds % self.slide_seconds:
            raise InputError(
                "slide_seconds", f"must divide the length of a window, {self.window_seconds}, got {self.slide_seconds}."
            )
        first, last = self.start_seconds - self.window_seconds, self.end_seconds + self.window_seconds
        if not _FIRST_SECOND <= first <= _LAST_SECOND or not _FIRST_SECOND <= last <= _LAST_SECOND:
            raise InputError("all windows", "must lie in the years 1 to 9999.", "Use other times, or shorter windows.")
        if not self.start_seconds < self.end_seconds:
            raise InputError(
                "the end of the range",
                "must lie after its start, got"
                f" {format_utc(self.start_seconds * MICROS_PER_SECOND)} .."
                f" {format_utc(self.end_seconds * MICROS_PER_SECOND)}.",
            )

        if self.horizon > MOST_WINDOWS:
            raise InputError(
                "a run", f"has at most {MOST_WINDOWS:,} windows, got {self.horizon:,}.", "Use longer ones."
            )

    @classmethod
    def fixed(cls, start: Moment, end: Moment, window_seconds: Length) -> WindowSchedule:
        """Fixed windows: each event lies in exactly one. start, end: ISO 8601 text, dates and times of Python, UTC
        unless they have a zone, or seconds since 1970 UTC. window_seconds: also as text, such as ``1h``."""
        return cls.sliding(start, end, window_seconds, window_seconds)

    @classmethod
    def sliding(cls, start: Moment, end: Moment, window_seconds: Length, slide_seconds: Length) -> WindowSchedule:
        """Sliding windows: each event lies in ``window_seconds / slide_seconds`` of them, and counts in each."""
        lengths = (parse_duration(each) if isinstance(each, str) else each for each in (window_seconds, slide_seconds))
        return cls(*map(_second_of, (start, end)), *lengths)

    @property
    def windows_per_event(self) -> int:
        """In how many windows each event counts: 1 for fixed windows."""
        return self.window_seconds // self.slide_seconds

    @property
    def horizon(self) -> int:
        """Number of windows that may be published, including every sliding one."""
        return -(-(self.end_seconds - self.start_seconds) // self.slide_seconds) + self.windows_per_event - 1

    def window_start_micros(self, index: int) -> int:
        """Start of window ``index``, microseconds since 1970 UTC."""
        start = self.start_seconds - self.window_seconds + self.slide_seconds + index * self.slide_seconds
        return start * MICROS_PER_SECOND

    def window_end_micros(self, index: int) -> int:
        """End (exclusive) of window ``index``, microseconds since 1970 UTC."""
        return self.window_start_micros(index) + self.window_seconds * MICROS_PER_SECOND

    def first_window(self, time_micros: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Index of the first window that holds each event; it also lies in the ``windows_per_event - 1`` that follow.

        time_micros: int64[n], microseconds since 1970 UTC. Events outside the range get -1.
        """
        import numpy as np  # `shh --help` reads this module

        start, end = self.start_seconds * MICROS_PER_SECOND, self.end_seconds * MICROS_PER_SECOND
        inside = (time_micros >= start) & (time_micros < end)
        # Clip first: a hostile time near the int64 limits must not wrap around into the range.
        offset = np.clip(time_micros, start, end) - start
        return np.where(inside, offset // (self.slide_seconds * MICROS_PER_SECOND), -1)

    def blocks_of(self, windows: npt.NDArray[np.int64], block_seconds: int) -> npt.NDArray[np.int64]:
        """The number of the block in which each window ends: window t does so (t + 1) slides after the declared start,
        and an end belongs to the block before it."""
        return ((windows + 1) * self.slide_seconds - 1) // block_seconds

    def windows_ended_before(self, moment_micros: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """How many windows end before each moment. A window that ends exactly then does not count.

        moment_micros: int64[n], microseconds since 1970 UTC. These are the windows ``0 .. result - 1``.
        """
        import numpy as np

        start, slide = self.start_seconds * MICROS_PER_SECOND, self.slide_seconds * MICROS_PER_SECOND
        # Clip first: a moment near the int64 limits must not wrap around.
        since_start = np.clip(moment_micros, start, start + (self.horizon + 1) * slide) - start
        return np.clip((since_start - 1) // slide, 0, self.horizon)
