"""``shh simulate``: writes a realistic event log of any size in any of the formats that ``shh replay`` reads."""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO

import click
import pyarrow as pa
import pyarrow.compute as pc

from dp_transforms.cli.operator_log import operator_console
from dp_transforms.cli.options import UTC_TIME
from dp_transforms.cli.output_file import check_output, free_report_name, write_output
from dp_transforms.cli.simulated_log import LogPlan, SimulatedBlock, simulate_log
from dp_transforms.errors import UserError
from dp_transforms.plan.window_schedule import MICROS_PER_SECOND, format_utc

_PROGRESS_FROM_EVENTS = 1_000_000
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


@click.command(name="simulate")
@click.option("--events", type=click.IntRange(1, 10**12), default=250_000, show_default=True, help="Number of events.")
@click.option("--users", type=click.IntRange(1, 10**8), default=20_000, show_default=True, help="Number of users.")
@click.option("--items", type=click.IntRange(1, 10**7), default=3_000, show_default=True, help="Number of items.")
@click.option(
    "--output",
    required=True,
    metavar="FILE",
    help="Where the log goes: a name that ends in .parquet, .avro, .csv or .jsonl; must not exist.",
)
@click.option(
    "--seed",
    type=click.IntRange(0, 2**63 - 1),
    default=1,
    show_default=True,
    help="Seed of all random numbers: the same options give the same log.",
)
@click.option("--start", type=UTC_TIME, default="2026-01-01T00:00:00Z", show_default=True, help="Start of the log.")
@click.option(
    "--days", type=click.IntRange(1, 36_600), default=4, show_default=True, help="Length of the log, in days."
)
def command(events: int, users: int, items: int, output: str, seed: int, start: int, days: int) -> None:
    """Write a simulated event log: who (user) looked at what (item) when (timestamp).

    Items are stories that rise within an hour and fade within a day, and a few pages that stay. There are more events
    by day than by night; few users come often, and many rarely. The same options give the same events.
    """
    plan = LogPlan(events, users, items, start, days, seed)
    if plan.end_seconds > _LATEST_SECONDS or start < 0:
        raise UserError("the log must lie in the years 1970 to 9999. Use another --start or fewer --days.")
    write = _writer(output)
    check_output(output)
    write_output(output, lambda file: write(file, plan))
    start_text, end_text = (format_utc(seconds * MICROS_PER_SECOND) for seconds in (start, plan.end_seconds))
    click.echo(f"Wrote {events:,} events of up to {users:,} users to {output}. Replay it with:")
    log = shlex.quote(f"./{output}" if output.startswith("-") else output)
    click.echo(
        f"  shh replay {log} --start {start_text} --end {end_text} {_EXAMPLE_OPTIONS} --output {free_report_name()}"
    )


def _writer(output: str) -> Callable[[BinaryIO, LogPlan], None]:
    for ending, write in _WRITERS.items():
        if output.lower().endswith(ending):
            return write
    raise UserError(f"the ending of {output!r} is not a known format. Use one of {', '.join(_WRITERS)}.")


def _blocks(plan: LogPlan) -> Iterator[SimulatedBlock]:
    """The log, with progress on the terminal if it takes a while."""
    if plan.events < _PROGRESS_FROM_EVENTS:
        yield from simulate_log(plan)
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("Simulating"), BarColumn(), MofNCompleteColumn(), TextColumn("events"), TimeRemainingColumn())
    with Progress(*columns, console=operator_console(), transient=True) as progress:
        task = progress.add_task("Simulating", total=plan.events)
        for block in simulate_log(plan):
            yield block
            progress.advance(task, len(block.time_millis))


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


def _write_csv(file: BinaryIO, plan: LogPlan) -> None:
    _write_text(file, plan, "user,item,timestamp\n", ("", ",", ",", "\n"))


def _write_json_lines(file: BinaryIO, plan: LogPlan) -> None:
    _write_text(file, plan, "", ('{"user":"', '","item":"', '","timestamp":"', '"}\n'))


def _write_text(file: BinaryIO, plan: LogPlan, header: str, around: tuple[str, str, str, str]) -> None:
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


_WRITERS: dict[str, Callable[[BinaryIO, LogPlan], None]] = {
    ".parquet": _write_parquet,
    ".pq": _write_parquet,
    ".avro": _write_avro,
    ".csv": _write_csv,
    ".jsonl": _write_json_lines,
    ".ndjson": _write_json_lines,
    ".json": _write_json_lines,
}
