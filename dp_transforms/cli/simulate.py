"""``shh simulate``: writes a realistic event log of any size in any of the formats that ``shh replay`` reads.

From a seed: stories that rise and fade, pages that stay, days and nights, busy and rare users. Uses a seedable
generator. Nothing here is private, and nothing private may use it.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import shlex
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO

import click
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dp_transforms.cli.operator_log import operator_progress
from dp_transforms.cli.options import UTC_TIME, filled_by, nested, opt
from dp_transforms.cli.output_file import check_output, free_report_name, write_output
from dp_transforms.errors import UserError
from dp_transforms.plan.window_schedule import MICROS_PER_SECOND, format_utc

_HOUR = 3600.0
_DAY = 86_400.0
_MILLIS = 1_000

# Rows per block of events, and so per row group of a Parquet log.
_BLOCK_ROWS = 500_000
_SLICES_PER_DAY = 96

_RISE_SECONDS = 0.75 * _HOUR
# A story is forgotten after this many times its decay.
_LIFE_IN_DECAYS = 8.0
_LONGEST_DECAY = 18 * _HOUR
# Weight of all persistent items together, and of the back catalogue of every story, in parts of all events.
_PERSISTENT_SHARE = 0.12
_CATALOGUE_SHARE = 0.18
_EXAMPLE_OPTIONS = "--window 1h --epsilon 2 --delta 1e-9"
_LATEST_SECONDS = 253_402_300_800  # the year 10000
_AVRO_SCHEMA = {
    "type": "record",
    "name": "Event",
    "namespace": "shifting_heavy_hitters",
    "fields": [
        {"name": "user", "type": "string"},
        {"name": "item", "type": "string"},
        {"name": "timestamp", "type": {"type": "long", "logicalType": "timestamp-micros"}},
    ],
}


@dataclasses.dataclass(frozen=True)
class LogPlan:
    """What is simulated. start_seconds: since 1970 UTC. items: stories and persistent pages together."""

    events: int = opt("", "Number of events.", type=click.IntRange(1, 10**12), default=250_000)
    users: int = opt("", "Number of users.", type=click.IntRange(1, 10**8), default=20_000)
    items: int = opt("", "Number of items.", type=click.IntRange(1, 10**7), default=3_000)
    start_seconds: int = opt("", "Start of the log.", "--start", type=UTC_TIME, default="2026-01-01T00:00:00Z")
    days: int = opt("", "Length of the log, in days.", type=click.IntRange(1, 36_600), default=4)
    seed: int = opt(
        "",
        "Seed of all random numbers: the same options give the same log.",
        type=click.IntRange(0, 2**63 - 1),
        default=1,
    )

    @property
    def end_seconds(self) -> int:
        return self.start_seconds + self.days * int(_DAY)


@dataclasses.dataclass(frozen=True, eq=False)
class SimulatedBlock:
    """Up to about half a million events in order of time. users, items: pa.StringArray; time_millis: since 1970 UTC."""

    users: pa.StringArray
    items: pa.StringArray
    time_millis: npt.NDArray[np.int64]


def simulate_log(plan: LogPlan) -> Iterator[SimulatedBlock]:
    """The events in order of time; memory grows with users and items, never with events."""
    random = np.random.default_rng(np.random.SeedSequence([plan.seed, 0x5348]))
    items = _Items(plan, random)
    activity = _cumulative(random.lognormal(0.0, 1.25, plan.users))
    user_ids = _user_ids(plan.users, random)
    # Enough slices that a block is never much too long, and short enough that a story rises smoothly.
    slices = max(plan.days * _SLICES_PER_DAY, 4 * plan.events // _BLOCK_ROWS)
    edges = np.linspace(plan.start_seconds * _MILLIS, plan.end_seconds * _MILLIS, slices + 1).astype(np.int64)
    counts = random.multinomial(plan.events, _daily_rhythm(plan, slices))
    first = 0
    while first < slices:
        last, rows = first, 0
        while last < slices and (rows == 0 or rows + int(counts[last]) <= _BLOCK_ROWS):
            rows += int(counts[last])
            last += 1
        times, item_rows = np.empty(rows, np.int64), np.empty(rows, np.int64)
        filled = 0
        for index in range(first, last):
            part = slice(filled, filled + int(counts[index]))
            begin, end = edges[index], edges[index + 1]
            times[part] = np.sort(random.integers(begin, end, part.stop - part.start))
            item_rows[part] = items.choose((begin + end) / 2 / _MILLIS, part.stop - part.start, random)
            filled = part.stop
        user_rows = _choose(activity, rows, random)
        if rows:
            yield SimulatedBlock(user_ids.take(pa.array(user_rows)), items.ids.take(pa.array(item_rows)), times)
        first = last


class _Items:
    """Stories, which are born, rise within the hour and fade within the day, and pages that stay."""

    def __init__(self, plan: LogPlan, random: np.random.Generator) -> None:
        self._persistent = min(plan.items, max(1, plan.items // 200))
        stories = plan.items - self._persistent
        pages = [f"page-{number:03d}" for number in range(self._persistent)]
        self.ids = pa.array(pages + [f"story-{number:05d}" for number in range(stories)], pa.string())
        # Some stories are older than the log.
        oldest = plan.start_seconds - _DAY
        self._birth = np.sort(random.uniform(oldest, plan.end_seconds, stories))
        # Zipf-like: the r-th of the stories of a day is about 1/r as strong as the first.
        self._weight = np.minimum(random.pareto(1.05, stories) + 0.05, 400.0)
        self._decay = np.minimum(random.lognormal(np.log(4 * _HOUR), 0.5, stories), _LONGEST_DECAY)
        self._page_weight = 1.0 / np.arange(1, self._persistent + 1)
        self._catalogue = _cumulative(random.pareto(1.0, plan.items) + 0.1)

    def choose(self, seconds: float, count: int, random: np.random.Generator) -> npt.NDArray[np.int64]:
        """Items of ``count`` events around this time: rows of `ids`."""
        oldest = int(np.searchsorted(self._birth, seconds - _LIFE_IN_DECAYS * _LONGEST_DECAY))
        born = int(np.searchsorted(self._birth, seconds))
        age = seconds - self._birth[oldest:born]
        strength = (
            self._weight[oldest:born] * (1 - np.exp(-age / _RISE_SECONDS)) * np.exp(-age / self._decay[oldest:born])
        )
        total = strength.sum()
        pages = self._page_weight * (_PERSISTENT_SHARE / self._page_weight.sum())
        if total > 0:
            strength *= (1 - _PERSISTENT_SHARE) / total
        chosen = _choose(_cumulative(np.concatenate([pages, strength])), count, random)
        chosen[chosen >= self._persistent] += oldest
        from_catalogue = random.random(count) < _CATALOGUE_SHARE
        chosen[from_catalogue] = _choose(self._catalogue, int(from_catalogue.sum()), random)
        return chosen


def _daily_rhythm(plan: LogPlan, slices: int) -> npt.NDArray[np.float64]:
    """Share of the events per slice: quiet at 4 in the morning, a plateau by day, a peak at 20 h, UTC."""
    middle = plan.start_seconds + (np.arange(slices) + 0.5) * (plan.days * _DAY / slices)
    hour = (middle % _DAY) / _HOUR
    rate = 1.0 - 0.75 * np.cos((hour - 4) * (2 * np.pi / 24)) + 0.35 * np.cos((hour - 20) * (4 * np.pi / 24))
    rate = np.maximum(rate, 0.08)
    shares: npt.NDArray[np.float64] = rate / rate.sum()
    return shares


def _cumulative(weights: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    sums = np.cumsum(weights)
    shares: npt.NDArray[np.float64] = sums / sums[-1]
    return shares


def _choose(cumulative: npt.NDArray[np.float64], count: int, random: np.random.Generator) -> npt.NDArray[np.int64]:
    """Rows by weight. The minimum is for a draw that rounds up to 1."""
    drawn = np.searchsorted(cumulative, random.random(count), side="right")
    return np.minimum(drawn, len(cumulative) - 1).astype(np.int64)


def _user_ids(users: int, random: np.random.Generator) -> pa.StringArray:
    """Distinct ids such as ``u3f9a2c``: the numbers from 0, scrambled by an odd factor, in hexadecimal."""
    digits = max(6, -(-int(users - 1).bit_length() // 4))
    mask = (1 << (4 * digits)) - 1
    factor, shift = int(random.integers(1 << 20, 1 << 23)) * 2 + 1, int(random.integers(0, 1 << 23))
    numbers = (np.arange(users, dtype=np.int64) * factor + shift) & mask
    text = np.empty((users, digits + 1), np.uint8)
    text[:, 0] = ord("u")
    alphabet = np.frombuffer(b"0123456789abcdef", np.uint8)
    for digit in range(digits):
        text[:, digits - digit] = alphabet[(numbers >> (4 * digit)) & 15]
    offsets = pa.py_buffer(np.arange(users + 1, dtype=np.int64) * (digits + 1))
    return pa.LargeStringArray.from_buffers(users, offsets, pa.py_buffer(text)).cast(pa.string())


@dataclasses.dataclass(frozen=True, kw_only=True)
class SimulateOptions:
    """The command line of ``shh simulate``."""

    plan: LogPlan = nested(LogPlan)
    output: str = opt(
        "",
        "Where the log goes: a name that ends in .parquet, .avro, .csv or .jsonl; must not exist.",
        required=True,
        metavar="FILE",
    )


@filled_by(SimulateOptions, "simulate")
def command(options: SimulateOptions) -> None:
    """Write a simulated event log: who (user) looked at what (item) when (timestamp).

    Items are stories that rise within an hour and fade within a day, and a few pages that stay. There are more events
    by day than by night; few users come often, and many rarely. The same options give the same events.
    """
    plan, output = options.plan, options.output
    if plan.end_seconds > _LATEST_SECONDS or plan.start_seconds < 0:
        raise UserError("the log must lie in the years 1970 to 9999. Use another --start or fewer --days.")
    write = _writer(output)
    check_output(output)
    write_output(output, lambda file: write(file, plan))
    start, end = (format_utc(seconds * MICROS_PER_SECOND) for seconds in (plan.start_seconds, plan.end_seconds))
    click.echo(f"Wrote {plan.events:,} events of up to {plan.users:,} users to {output}. Replay it with:")
    log = shlex.quote(f"./{output}" if output.startswith("-") else output)
    click.echo(f"  shh replay {log} --start {start} --end {end} {_EXAMPLE_OPTIONS} --output {free_report_name()}")


def _writer(output: str) -> Callable[[BinaryIO, LogPlan], None]:
    for ending, write in _WRITERS.items():
        if output.lower().endswith(ending):
            return write
    raise UserError(f"the ending of {output!r} is not a known format. Use one of {', '.join(_WRITERS)}.")


def _blocks(plan: LogPlan) -> Iterator[SimulatedBlock]:
    """The log, with progress on the terminal."""
    with operator_progress() as bars:
        task = bars.add_task("simulating", total=plan.events)
        for block in simulate_log(plan):
            yield block
            bars.advance(task, len(block.time_millis))


def _write_parquet(file: BinaryIO, plan: LogPlan) -> None:
    import pyarrow.parquet as pq

    schema = pa.schema([("user", pa.string()), ("item", pa.string()), ("timestamp", pa.timestamp("us", "UTC"))])
    with pq.ParquetWriter(file, schema, compression="zstd", coerce_timestamps="us") as writer:
        for block in _blocks(plan):
            times = pa.array(block.time_millis * 1_000, pa.timestamp("us", "UTC"))
            writer.write_batch(pa.record_batch([block.users, block.items, times], schema=schema))


def _write_avro(file: BinaryIO, plan: LogPlan) -> None:
    import fastavro

    def records() -> Iterator[dict[str, Any]]:
        for block in _blocks(plan):
            rows = zip(
                block.users.to_pylist(), block.items.to_pylist(), (block.time_millis * 1_000).tolist(), strict=True
            )
            for user, item, time in rows:
                yield {"user": user, "item": item, "timestamp": time}

    # The format needs a marker that is unlikely in the data; with a random one, equal logs would be different files.
    marker = hashlib.sha256(repr(plan).encode()).digest()[:16]
    schema = fastavro.parse_schema(_AVRO_SCHEMA)
    fastavro.writer(file, schema, records(), codec="deflate", sync_interval=64_000, sync_marker=marker)


def _write_text(file: BinaryIO, plan: LogPlan, *, header: str, around: tuple[str, str, str, str]) -> None:
    """Each line is four fixed texts around three cells; no cell of a simulated log needs quoting."""
    file.write(header.encode())
    for block in _blocks(plan):
        for begin in range(0, len(block.time_millis), 1 << 16):
            rows = slice(begin, begin + (1 << 16))
            moments = pa.array(block.time_millis[rows], pa.timestamp("ms", "UTC"))
            times = pc.strftime(moments, format="%Y-%m-%dT%H:%M:%SZ")
            before, between, then, after = around
            lines = pc.binary_join_element_wise(
                before, block.users[rows], between, block.items[rows], then, times, after, ""
            )
            file.write("".join(lines.to_pylist()).encode())


_write_csv = functools.partial(_write_text, header="user,item,timestamp\n", around=("", ",", ",", "\n"))
_write_json_lines = functools.partial(
    _write_text, header="", around=('{"user":"', '","item":"', '","timestamp":"', '"}\n')
)
_WRITERS: dict[str, Callable[[BinaryIO, LogPlan], None]] = {
    ".parquet": _write_parquet,
    ".pq": _write_parquet,
    ".avro": _write_avro,
    ".csv": _write_csv,
    ".jsonl": _write_json_lines,
    ".ndjson": _write_json_lines,
    ".json": _write_json_lines,
}
