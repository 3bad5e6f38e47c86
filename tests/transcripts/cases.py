"""The log and the plans: plain values, so that nothing but the code under test decides what comes out.

The log has twelve hours, a file for each of three nights. In each hour most users hold one of a few topics, so that
they use up hits and looks; some users hold very many items; some items have new users; a few rows are bad, and a few
lie outside of the declared range.
"""

from __future__ import annotations

import pathlib
import random
from collections.abc import Sequence
from typing import Any, NamedTuple

import pyarrow as pa

from dp_transforms import Plan, PublicItems, WindowSchedule
from tests.helpers import log_files
from tests.helpers.modes import plan_of_mode

START, HOUR, HOURS, NIGHTS = 1_767_225_600, 3600, 12, 3  # 2026-01-01T00:00:00Z
READERS = ("parquet", "avro", "csv", "jsonl")
TOPICS = ("topic-0", "topic-1", "topic-2", "topic-3", 'Zürich, "the 4th"', "topic-5")
PUBLIC = (*TOPICS, *(f"odd-{number}" for number in range(9)), *(f"nobody-{number}" for number in range(20)))
NO_ROW = "no row\n"  # the last line of each text
Row = tuple[str | None, str | None, int | None]  # user, item, seconds; None: a cell without a value


class Mode(NamedTuple):
    """choices: arguments of the plan. public: whether items are public."""

    mode: str
    choices: dict[str, Any]
    window_hours: int = 1
    public: bool = False


_CONTRIBUTIONS = {"usual_contributions": (1, 16), "most_contributions": 40, "forget_after": 3}
_HITS = {"epsilon": 16, "delta": 0.01, "hits_per_user": 3, "max_items_per_user": 2}
MODES = {
    "contributions": Mode("contributions", _CONTRIBUTIONS),
    "contributions-sliding": Mode("contributions", _CONTRIBUTIONS, window_hours=3),
    "contributions-public": Mode(
        "contributions", {"usual_contributions": (1, 16), "most_contributions": 40}, public=True
    ),
    "hits": Mode("hits", _HITS),
    "hits-sliding": Mode("hits", _HITS, window_hours=3),
    "hits-public": Mode("hits", _HITS, public=True),
    "hits-with-counts": Mode("hits-with-counts", _HITS),
}


def public_of(mode: Mode) -> tuple[str, ...]:
    """The public items of a mode: all, or half of them where open ones count, too; and in rounds so many that nobody
    holds that some are named in a block."""
    if not mode.public or "also_open" not in mode.choices:
        return PUBLIC if mode.public else ()
    return (*PUBLIC[::2], *(f"nobody-else-{number}" for number in range(500 if "use" in mode.choices else 0)))


def plan_of(name: str) -> Plan:
    return calibrated(MODES[name])


_calibrated: dict[str, Plan] = {}


def calibrated(mode: Mode) -> Plan:
    """Made once: to calibrate takes longer than to run."""
    if (name := repr(mode)) not in _calibrated:
        _calibrated[name] = _calibrate(mode)
    return _calibrated[name]


def _calibrate(mode: Mode) -> Plan:
    schedule = WindowSchedule(START, START + HOURS * HOUR, mode.window_hours * HOUR, HOUR)
    arguments: dict[str, Any] = {"epsilon": 6, "delta": 1e-3, "max_users": 1000, "max_items": 1000, **mode.choices}
    known = PublicItems.of_ids(public_of(mode)) if mode.public else None
    return plan_of_mode(mode.mode, schedule=schedule, public_items=known, **arguments)


def rows_of(night: int) -> list[Row]:
    """In the order of time, but for half a minute."""
    draws, rows = random.Random(100 + night), []

    def add(user: str, item: str, hour: int) -> None:
        rows.append((user, item, START + HOUR * hour + draws.randrange(HOUR)))

    per_night = HOURS // NIGHTS
    for hour in range(per_night * night, per_night * (night + 1)):
        for number in range(48):
            if draws.random() < 0.8:
                add(f"user-{number}", TOPICS[hour // 4 + (number % 3 == 0)], hour)
            if number % 2 and draws.random() < 0.8:  # a second item of many, so that hits end within a window
                add(f"user-{number}", TOPICS[5], hour)
            if draws.random() < 0.4:
                add(f"user-{number}", f"odd-{draws.randrange(9)}", hour)
        for number in range(3):
            for item in range(12):
                add(f"busy-{number}", f"odd-{item}", hour)
        if hour % 3 == 1:
            for number in range(40):
                add(f"guest-{hour}-{number}", TOPICS[3 + hour % 3], hour)
        for number in range(5):
            add(f"user-{number}", TOPICS[hour // 4], hour)  # again
    first, last = START + HOUR * per_night * night, START + HOUR * per_night * (night + 1) - 1
    rows += [(None, "topic-0", first + 90), ("user-1", "", first + 95), ("user-2", "topic-0", None)]
    rows += [("user-3", "long" * 4097, first + 100)]
    # The last event closes all windows of a stream.
    rows += [("outside", "topic-0", START - 60)] if night == 0 else []
    rows += [("outside", "topic-0", START + HOURS * HOUR + 10 * HOUR)] if night == NIGHTS - 1 else []
    disorder = random.Random(7)
    return sorted(rows, key=lambda row: (last if row[2] is None else row[2]) + disorder.randrange(30))


def write_logs(folder: pathlib.Path, reader: str) -> list[pathlib.Path]:
    """The file of each night."""
    paths = [folder / f"night-{night}.{reader}" for night in range(NIGHTS)]
    for night, path in enumerate(paths):
        write_log(path, rows_of(night))
    return paths


def write_log(path: pathlib.Path, rows: Sequence[Row]) -> None:
    """In the format of its ending; a text ends in a line that is no row."""
    if path.suffix in (".csv", ".jsonl"):
        write = log_files.write_csv if path.suffix == ".csv" else log_files.write_json
        write(path, [(user, item, _iso(time)) for user, item, time in rows])
        with path.open("a") as file:
            file.write(NO_ROW)
        return
    in_micros = [(user, item, None if time is None else time * 1_000_000) for user, item, time in rows]
    if path.suffix == ".parquet":
        log_files.write_parquet(path, in_micros, (pa.string(), pa.string(), pa.timestamp("us", "UTC")), 150)
    else:
        types = [["null", kind] for kind in ("string", "string", log_files.AVRO_MICROS)]
        log_files.write_avro(path, in_micros, types, interval=4000)


def _iso(time: int | None) -> str | None:
    """START is a midnight."""
    if time is None:
        return None
    days, seconds = divmod(time - START, 24 * HOUR)
    day = "2026-01-01" if days == 0 else "2025-12-31"
    return f"{day}T{seconds // HOUR:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}Z"
