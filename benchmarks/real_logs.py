"""Real logs, who really held what in them, and how a report compares. Shares no code with the product."""

from __future__ import annotations

import dataclasses
import datetime
import json
import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

_ROOT = Path(__file__).resolve().parents[1]


@dataclasses.dataclass(frozen=True)
class RealLog:
    """A log with columns user, item, timestamp in milliseconds. start_seconds, window_seconds: since 1970 UTC."""

    name: str
    start_seconds: int
    windows: int
    window_seconds: int

    @property
    def end_seconds(self) -> int:
        return self.start_seconds + self.windows * self.window_seconds

    @property
    def path(self) -> Path:
        """``SHH_TEST_DATA``, or ``../shared/data`` beside the repository; it may not exist."""
        folder = Path(os.environ.get("SHH_TEST_DATA") or "../shared/data")
        return _ROOT / folder / self.name / "events.parquet"

    def replay_arguments(self, output: Path, *more: str) -> list[str]:
        start, end = (
            datetime.datetime.fromtimestamp(seconds, datetime.UTC).isoformat()
            for seconds in (self.start_seconds, self.end_seconds)
        )
        return [
            *("replay", str(self.path), "--time-format", "ms", "--start", start, "--end", end),
            *("--window", f"{self.window_seconds}s", "--epsilon", "2", "--delta", "1e-9", "--output", str(output)),
            *more,
        ]


GLOBO_HOURLY = RealLog("globo_news", 1_506_826_800, 384, 3_600)  # 2017-10-01T03:00:00Z, 16 days
MOVIES_WEEKLY = RealLog("movietweetings_2013", 1_362_009_600, 36, 604_800)  # 2013-02-28T00:00:00Z


def holders_of(log: RealLog) -> dict[tuple[int, int], int]:
    """Distinct users of each (window, item); items are the log's own numbers."""
    table = pq.read_table(log.path)
    time = table.column("timestamp").to_numpy()
    inside = (time >= log.start_seconds * 1000) & (time < log.end_seconds * 1000)
    windows = (time[inside] - log.start_seconds * 1000) // (log.window_seconds * 1000)
    columns = {"window": windows, **{name: table.column(name).to_numpy()[inside] for name in ("item", "user")}}
    counted = pa.table(columns).group_by(["window", "item"]).aggregate([("user", "count_distinct")])
    cells = zip(counted["window"].to_pylist(), counted["item"].to_pylist(), strict=True)
    return dict(zip(cells, counted["user_count_distinct"].to_pylist(), strict=True))


@dataclasses.dataclass(frozen=True)
class Found:
    """What a report found. reported: its (window, item). threshold: T of its plan."""

    reported: frozenset[tuple[int, int]]
    threshold: int


def read_found(log: RealLog, report: Path) -> Found:
    """From a report in JSON lines."""
    lines = [json.loads(line) for line in report.read_text(encoding="utf-8").splitlines()]
    reported = set()
    for record in lines[1:]:
        start = datetime.datetime.fromisoformat(record["window_start"].replace("Z", "+00:00"))
        window = (int(start.timestamp()) - log.start_seconds) // log.window_seconds
        reported |= {(window, int(heavy["item"])) for heavy in record["heavy_hitters"]}
    return Found(frozenset(reported), lines[0]["header"]["plan"]["threshold"])


def recall(found: Found, holders: dict[tuple[int, int], int], at_least: int) -> float:
    """Share found of the (window, item) held by so many distinct users."""
    heavy = {cell for cell, count in holders.items() if count >= at_least}
    return len(heavy & found.reported) / len(heavy) if heavy else float("nan")


def share_held(found: Found, holders: dict[tuple[int, int], int], at_least: float) -> float:
    """Share of the reported (window, item) that so many distinct users hold: the precision."""
    held = sum(holders.get(cell, 0) >= at_least for cell in found.reported)
    return held / len(found.reported) if found.reported else float("nan")
