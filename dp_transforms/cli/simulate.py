"""``shh simulate``: writes a realistic event log of any size as Parquet or CSV.

From a seed: stories that rise and fade, pages that stay, days and nights, busy and rare users. Uses a seedable
generator. Nothing here is private, and nothing private may use it.
"""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Callable, Iterator
from typing import BinaryIO

import click
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dp_transforms.cli.operator_log import operator_progress
from dp_transforms.cli.options import Command, Options, option
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
_START_SECONDS = 1_767_225_600  # 2026-01-01
_EVENTS_PER_USER = 10


@dataclasses.dataclass(frozen=True)
class LogPlan:
    """What is simulated. items: stories and persistent pages together. events: 0 for ten of each user."""

    users: int = 25_000
    items: int = 3_000
    days: int = 4
    seed: int = 1
    events: int = 0

    @property
    def total(self) -> int:
        return self.events or _EVENTS_PER_USER * self.users

    @property
    def end_seconds(self) -> int:
        return _START_SECONDS + self.days * int(_DAY)


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
    slices = max(plan.days * _SLICES_PER_DAY, 4 * plan.total // _BLOCK_ROWS)
    edges = np.linspace(_START_SECONDS * _MILLIS, plan.end_seconds * _MILLIS, slices + 1).astype(np.int64)
    counts = random.multinomial(plan.total, _daily_rhythm(plan, slices))
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
        oldest = _START_SECONDS - _DAY
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
    middle = _START_SECONDS + (np.arange(slices) + 0.5) * (plan.days * _DAY / slices)
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


_RANGES = {"users": (1, 10**8), "items": (1, 10**7), "days": (1, 36_600), "seed": (0, 2**63 - 1)}
_TEXTS = {
    "users": "Number of users. Ten times as many events are written.",
    "items": "Number of items.",
    "days": "Length of the log, in days.",
    "seed": "Seed of all random numbers: the same options give the same log.",
}


@click.command(
    "simulate",
    cls=Command,
    params=[
        *(
            option([f"--{name}"], type=click.IntRange(*_RANGES[name]), default=getattr(LogPlan, name), help=text)
            for name, text in _TEXTS.items()
        ),
        option(["--output"], required=True, metavar="FILE", help="The log: .parquet or .csv; it must not exist."),
    ],
)
def command(options: Options) -> None:
    """Write a simulated event log: who (user) looked at what (item) when (timestamp).

    Items are stories that rise within an hour and fade within a day, and a few pages that stay. There are more events
    by day than by night; few users come often, and many rarely. The same options give the same events.
    """
    plan, output = LogPlan(options.users, options.items, options.days, options.seed), options.output
    write = _writer(output)
    check_output(output)
    write_output(output, lambda file: write(file, plan))
    start, end = (format_utc(seconds * MICROS_PER_SECOND) for seconds in (_START_SECONDS, plan.end_seconds))
    click.echo(f"Wrote {plan.total:,} events of up to {plan.users:,} users to {output}. Replay it with:")
    log = shlex.quote(f"./{output}" if output.startswith("-") else output)
    click.echo(f"  shh replay {log} --start {start} --end {end} {_EXAMPLE_OPTIONS} --output {free_report_name()}")


def _writer(output: str) -> Callable[[BinaryIO, LogPlan], None]:
    for ending, write in _WRITERS.items():
        if output.lower().endswith(ending):
            return write
    raise UserError(f"the ending of {output!r} is not a known format. Use {' or '.join(_WRITERS)}.")


def _blocks(plan: LogPlan) -> Iterator[SimulatedBlock]:
    """The log, with progress on the terminal."""
    with operator_progress() as bars:
        task = bars.add_task("simulating", total=plan.total)
        for block in simulate_log(plan):
            yield block
            bars.advance(task, len(block.time_millis))


def write_parquet(file: BinaryIO, plan: LogPlan) -> None:
    import pyarrow.parquet as pq

    schema = pa.schema([("user", pa.string()), ("item", pa.string()), ("timestamp", pa.timestamp("us", "UTC"))])
    with pq.ParquetWriter(file, schema, compression="zstd", coerce_timestamps="us") as writer:
        for block in _blocks(plan):
            times = pa.array(block.time_millis * 1_000, pa.timestamp("us", "UTC"))
            writer.write_batch(pa.record_batch([block.users, block.items, times], schema=schema))


def _write_csv(file: BinaryIO, plan: LogPlan) -> None:
    """No cell of a simulated log needs quoting."""
    file.write(b"user,item,timestamp\n")
    for block in _blocks(plan):
        for begin in range(0, len(block.time_millis), 1 << 16):
            rows = slice(begin, begin + (1 << 16))
            moments = pa.array(block.time_millis[rows], pa.timestamp("ms", "UTC"))
            times = pc.strftime(moments, format="%Y-%m-%dT%H:%M:%SZ")
            lines = pc.binary_join_element_wise(block.users[rows], block.items[rows], times, ",")
            file.write("".join(f"{line}\n" for line in lines.to_pylist()).encode())


_WRITERS: dict[str, Callable[[BinaryIO, LogPlan], None]] = {".parquet": write_parquet, ".csv": _write_csv}
