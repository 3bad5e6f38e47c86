"""``shh simulate``: writes a realistic event log of any size as Parquet or CSV.

From a seed: stories that rise and fade, pages that stay, days and nights, busy and rare users. Uses a seedable
generator. Nothing here is private, and nothing private may use it.
"""

from __future__ import annotations

import pathlib
import shlex
from collections.abc import Iterator
from typing import BinaryIO, NamedTuple

import click
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from dp_transforms.cli.operator_log import shown_progress
from dp_transforms.cli.options import Command, Options, option
from dp_transforms.errors import UserError
from dp_transforms.plan.window_schedule import MICROS_PER_SECOND, format_utc
from dp_transforms.stores.files import check_output, free_report_name, write_output

_HOUR, _DAY = 3600.0, 86_400.0
_BLOCK_ROWS = 500_000  # of a row group of a Parquet log
_SLICES_PER_DAY = 96
_RISE_SECONDS = 0.75 * _HOUR
_LIFE_IN_DECAYS = 8.0  # a story is forgotten after this many times its decay
_LONGEST_DECAY = 18 * _HOUR
# Weight of all persistent items together, and of the back catalogue of every story, in parts of all events.
_PERSISTENT_SHARE, _CATALOGUE_SHARE = 0.12, 0.18
_START_SECONDS = 1_767_225_600  # 2026-01-01
_SCHEMA = pa.schema([("user", pa.string()), ("item", pa.string()), ("timestamp", pa.timestamp("us", "UTC"))])

_Int64s = npt.NDArray[np.int64]
_Floats = npt.NDArray[np.float64]


class LogPlan(NamedTuple):
    """What is simulated. items: stories and persistent pages together. events: 0 for ten of each user."""

    users: int
    items: int
    days: int
    seed: int
    events: int = 0

    @property
    def total(self) -> int:
        return self.events or 10 * self.users

    @property
    def end_seconds(self) -> int:
        return _START_SECONDS + self.days * int(_DAY)


def simulate_log(plan: LogPlan) -> Iterator[pa.RecordBatch]:
    """The events in order of time, in batches of about half a million with the columns user, item and timestamp. Memory
    grows with users and items, never with events."""
    random = np.random.default_rng(np.random.SeedSequence([plan.seed, 0x5348]))
    items = _Items(plan, random)
    activity = _cumulative(random.lognormal(0.0, 1.25, plan.users))
    user_ids = _user_ids(plan.users, random)
    # Enough slices that a block is never much too long, and short enough that a story rises smoothly.
    slices = max(plan.days * _SLICES_PER_DAY, 4 * plan.total // _BLOCK_ROWS)
    edges = np.linspace(_START_SECONDS * 1000, plan.end_seconds * 1000, slices + 1).astype(np.int64)
    counts = random.multinomial(plan.total, _daily_rhythm(plan, slices)).tolist()
    ends = np.cumsum([0, *counts])
    first = 0
    while first < slices:
        last = max(first + 1, int(np.searchsorted(ends, ends[first] + _BLOCK_ROWS, side="right")) - 1)
        times, rows = [], []
        for begin, end, count in zip(edges[first:last], edges[first + 1 :], counts[first:last], strict=False):
            times.append(np.sort(random.integers(begin, end, count)))
            rows.append(items.choose((begin + end) / 2 / 1000, count, random))
        users = user_ids.take(pa.array(_choose(activity, int(ends[last] - ends[first]), random)))
        moments = pa.array(np.concatenate(times) * 1000, _SCHEMA.field("timestamp").type)
        yield pa.record_batch([users, items.ids.take(pa.array(np.concatenate(rows))), moments], schema=_SCHEMA)
        first = last


class _Items:
    """Stories, which are born, rise within the hour and fade within the day, and pages that stay."""

    def __init__(self, plan: LogPlan, random: np.random.Generator) -> None:
        self._persistent = min(plan.items, max(1, plan.items // 200))
        stories = plan.items - self._persistent
        pages = [f"page-{number:03d}" for number in range(self._persistent)]
        self.ids = pa.array(pages + [f"story-{number:05d}" for number in range(stories)], pa.string())
        # Some stories are older than the log.
        self._birth = np.sort(random.uniform(_START_SECONDS - _DAY, plan.end_seconds, stories))
        # Zipf-like: the r-th of the stories of a day is about 1/r as strong as the first.
        self._weight = np.minimum(random.pareto(1.05, stories) + 0.05, 400.0)
        self._decay = np.minimum(random.lognormal(np.log(4 * _HOUR), 0.5, stories), _LONGEST_DECAY)
        self._page_weight = 1.0 / np.arange(1, self._persistent + 1)
        self._catalogue = _cumulative(random.pareto(1.0, plan.items) + 0.1)

    def choose(self, seconds: float, count: int, random: np.random.Generator) -> _Int64s:
        """Items of ``count`` events around this time: rows of `ids`."""
        oldest = int(np.searchsorted(self._birth, seconds - _LIFE_IN_DECAYS * _LONGEST_DECAY))
        born = int(np.searchsorted(self._birth, seconds))
        age, decay = seconds - self._birth[oldest:born], self._decay[oldest:born]
        strength = self._weight[oldest:born] * (1 - np.exp(-age / _RISE_SECONDS)) * np.exp(-age / decay)
        total = strength.sum()
        pages = self._page_weight * (_PERSISTENT_SHARE / self._page_weight.sum())
        if total > 0:
            strength *= (1 - _PERSISTENT_SHARE) / total
        chosen = _choose(_cumulative(np.concatenate([pages, strength])), count, random)
        chosen[chosen >= self._persistent] += oldest
        from_catalogue = random.random(count) < _CATALOGUE_SHARE
        chosen[from_catalogue] = _choose(self._catalogue, int(from_catalogue.sum()), random)
        return chosen


def _daily_rhythm(plan: LogPlan, slices: int) -> _Floats:
    """Share of the events per slice: quiet at 4 in the morning, a plateau by day, a peak at 20 h, UTC."""
    middle = _START_SECONDS + (np.arange(slices) + 0.5) * (plan.days * _DAY / slices)
    hour = (middle % _DAY) / _HOUR
    rate = 1.0 - 0.75 * np.cos((hour - 4) * (2 * np.pi / 24)) + 0.35 * np.cos((hour - 20) * (4 * np.pi / 24))
    rate = np.maximum(rate, 0.08)
    shares: _Floats = rate / rate.sum()
    return shares


def _cumulative(weights: _Floats) -> _Floats:
    sums = np.cumsum(weights)
    shares: _Floats = sums / sums[-1]
    return shares


def _choose(cumulative: _Floats, count: int, random: np.random.Generator) -> _Int64s:
    """Rows by weight. No draw is 1, which the last sum is."""
    return np.searchsorted(cumulative, random.random(count), side="right").astype(np.int64)


def _user_ids(users: int, random: np.random.Generator) -> pa.StringArray:
    """Distinct ids such as ``u3f9a2c``: the numbers from 0, scrambled by an odd factor, in hexadecimal."""
    digits = max(6, -(-int(users - 1).bit_length() // 4))
    factor, shift = int(random.integers(1 << 20, 1 << 23)) * 2 + 1, int(random.integers(0, 1 << 23))
    numbers = (np.arange(users, dtype=np.int64) * factor + shift) & ((1 << (4 * digits)) - 1)
    return pa.array((f"u{number:0{digits}x}" for number in numbers), pa.string(), size=users)


@click.command(
    "simulate",
    cls=Command,
    params=[
        option(["--users"], type=click.IntRange(1, 10**8), default=25_000, help="Users, with ten events each."),
        option(["--items"], type=click.IntRange(1, 10**7), default=3_000, help="Number of items."),
        option(["--days"], type=click.IntRange(1, 36_600), default=4, help="Length of the log, in days."),
        option(["--seed"], type=click.IntRange(0, 2**63 - 1), default=1, help="Of all random numbers."),
        option(["--output"], required=True, metavar="FILE", help="The log: .parquet or .csv; it must not exist."),
    ],
)
def command(options: Options) -> None:
    """Write a simulated event log: who (user) looked at what (item) when (timestamp).

    Items are stories that rise within an hour and fade within a day, and a few pages that stay. There are more events
    by day than by night; few users come often, and many rarely. The same options give the same events.
    """
    plan, output = LogPlan(options.users, options.items, options.days, options.seed), options.output
    write = {".parquet": write_parquet, ".csv": _write_csv}.get(pathlib.Path(output).suffix.lower())
    if write is None:
        raise UserError(f"the ending of {output!r} is not a known format. Use .parquet or .csv.")
    check_output(output)
    write_output(output, lambda file: write(file, plan))
    start, end = (format_utc(seconds * MICROS_PER_SECOND) for seconds in (_START_SECONDS, plan.end_seconds))
    click.echo(f"Wrote {plan.total:,} events of up to {plan.users:,} users to {output}. Replay it with:")
    log = shlex.quote(f"./{output}" if output.startswith("-") else output)
    budget = f"--window 1h --epsilon 2 --delta 1e-9 --output {free_report_name()}"
    click.echo(f"  shh replay {log} --start {start} --end {end} {budget}")


def _shown_batches(plan: LogPlan) -> Iterator[pa.RecordBatch]:
    """The log, with progress on the terminal."""
    done = 0
    with shown_progress() as show:
        for batch in simulate_log(plan):
            yield batch
            show("simulating", done := done + len(batch), plan.total)


def write_parquet(file: BinaryIO, plan: LogPlan) -> None:
    import pyarrow.parquet as pq

    with pq.ParquetWriter(file, _SCHEMA, compression="zstd", coerce_timestamps="us") as writer:
        for batch in _shown_batches(plan):
            writer.write_batch(batch)


def _write_csv(file: BinaryIO, plan: LogPlan) -> None:
    """No cell of a simulated log needs quoting."""
    file.write(b"user,item,timestamp\n")
    for batch in _shown_batches(plan):
        times = pc.strftime(batch["timestamp"].cast(pa.timestamp("ms", "UTC")), format="%Y-%m-%dT%H:%M:%SZ")
        cells = pa.record_batch([batch["user"], batch["item"], times], names=_SCHEMA.names)
        csv.write_csv(cells, file, csv.WriteOptions(include_header=False, quoting_style="none"))
