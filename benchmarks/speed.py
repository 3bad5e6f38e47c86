"""Speed of whole replays, each in a process of its own, beside Beam's own count of elements.

Rates are events per second of wall clock from the start of the process to its end, imports included. What is compared
runs in turn, several times; figures are medians.

``python -m benchmarks.speed count LOG`` is the peer: Beam counts the elements of each window of a Parquet log, without
distinct users, bounds or noise, so it does less than a replay. ``python -m benchmarks.speed write SOURCE TARGET ROWS``
writes the first rows of a Parquet log anew, in the format of the target's ending. Both are processes of their own, so
that this one stays small.
"""

from __future__ import annotations

import dataclasses
import datetime
import json
import logging
import os
import sys
from pathlib import Path
from typing import Any

from benchmarks.processes import COMMAND, OUTPUT, Measurement, data_folder, medians, run_measured
from benchmarks.report import Figure, show_figures, write_results

_EVENTS = 10_000_000
_START = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
_DAYS = 16
_WINDOW_SECONDS = 3600
_FEW, _MANY = 100, 10_000  # windows
_RANGE_SECONDS = 1_380_000  # both are whole windows of it; the last 40 minutes of the log are left out


def run(*, runs: int, beam_events: int) -> list[Figure]:
    """beam_events: how many of the log Beam's element path counts; all of them take minutes."""
    print(f"Simulating logs of {_EVENTS:,} events in {data_folder()}, once ...", file=sys.stderr)
    parquet, csv = _simulated_log("parquet"), _simulated_log("csv")
    avro, json_lines = (_first_rows(parquet, _EVENTS, ending) for ending in ("avro", "jsonl"))
    counted = _first_rows(parquet, beam_events, "parquet") if beam_events < _EVENTS else parquet
    commands = {
        "Parquet": _replay(parquet),
        "Beam's element path": ("benchmarks.speed", "count", str(counted)),
        "Avro (deflate)": _replay(avro),
        "CSV": _replay(csv),
        "JSON lines": _replay(json_lines),
        **{f"{n:,} windows": _replay(parquet, _RANGE_SECONDS // n, _RANGE_SECONDS) for n in (_FEW, _MANY)},
    }
    measured: dict[str, list[Measurement]] = {name: [] for name in commands}
    for _ in range(runs):
        for name, command in commands.items():
            print(f"  {name} ...", file=sys.stderr)
            measured[name].append(run_measured(*command))
    figures = _figures({name: medians(each) for name, each in measured.items()}, beam_events)
    show_figures(f"Speed, {_EVENTS:,} events, medians of {runs}", figures)
    write_results("speed", figures, runs={name: [*map(dataclasses.asdict, each)] for name, each in measured.items()})
    return figures


def _figures(results: dict[str, Measurement], beam_events: int) -> list[Figure]:
    counts = {"Parquet": _EVENTS, "Beam's element path": beam_events}
    counts |= dict.fromkeys(("Avro (deflate)", "CSV", "JSON lines"), _EVENTS)
    rates = {name: count / results[name].wall_seconds for name, count in counts.items()}
    least = {"Parquet": 25, "Avro (deflate)": 10, "CSV": 10, "JSON lines": 10}  # times the peer, on any machine
    figures = []
    for name, rate in rates.items():
        result = results[name]
        note = f"{result.wall_seconds:.1f} s, {result.cpu_seconds:.1f} s of CPU, peak {result.peak_bytes / 1e9:.2f} GB"
        figures.append(Figure(name, rate, "events/s", None, note))
    for name, times in least.items():
        ratio = rates[name] / rates["Beam's element path"]
        figures.append(Figure(f"{name} / Beam's element path on {beam_events:,}", ratio, "", (">=", times)))
    many, few = (results[f"{n:,} windows"].wall_seconds for n in (_MANY, _FEW))
    note = f"{many:.1f} s / {few:.1f} s"
    return [*figures, Figure(f"{_MANY:,} windows / {_FEW:,} windows", many / few, "", ("<=", 3.0), note)]


def _simulated_log(ending: str) -> Path:
    path = data_folder() / f"events_{_EVENTS}.{ending}"
    if not path.exists():
        size = ("--users", str(_EVENTS // 10), "--items", "50000", "--days", str(_DAYS), "--seed", "7")
        run_measured(COMMAND, "simulate", *size, "--output", str(path))
    return path


def _replay(log: Path, window_seconds: int = _WINDOW_SECONDS, seconds: int = _DAYS * 86_400) -> tuple[str, ...]:
    end = (_START + datetime.timedelta(seconds=seconds)).isoformat()
    return (
        *(COMMAND, "replay", str(log), "--start", _START.isoformat(), "--end", end, "--window", f"{window_seconds}s"),
        *("--epsilon", "2", "--delta", "1e-9", "--charge", "hits", "--processes", "1", "--output", f"{OUTPUT}.jsonl"),
    )


def _first_rows(log: Path, rows: int, ending: str) -> Path:
    path = data_folder() / f"first_{rows}_events.{ending}"
    if not path.exists():
        run_measured("benchmarks.speed", "write", str(log), str(path), str(rows))
    return path


def _write(source: str, target: str, rows: int) -> None:
    import fastavro
    import pyarrow.parquet as pq

    table = pq.read_table(source).slice(0, rows)
    partial = f"{target}.partial"
    if target.endswith(".parquet"):
        pq.write_table(table, partial, compression="zstd", row_group_size=250_000)
    else:
        records = (record for batch in table.to_batches(max_chunksize=50_000) for record in batch.to_pylist())
        with open(partial, "wb") as file:
            if target.endswith(".avro"):
                time = {"type": "long", "logicalType": "timestamp-micros"}
                types = {"user": "string", "item": "string", "timestamp": time}
                fields = [{"name": name, "type": kind} for name, kind in types.items()]
                schema = fastavro.parse_schema({"type": "record", "name": "Event", "fields": fields})
                fastavro.writer(file, schema, records, codec="deflate", sync_interval=64_000)
            else:
                for record in records:
                    line = {**record, "timestamp": f"{record['timestamp']:%Y-%m-%dT%H:%M:%SZ}"}
                    file.write(json.dumps(line, separators=(",", ":")).encode() + b"\n")
    os.replace(partial, target)


def _count(log: str) -> None:
    """Rows are read and windowed as Beam's users do it."""
    import apache_beam as beam
    from apache_beam.options.pipeline_options import PipelineOptions
    from apache_beam.transforms.window import FixedWindows, TimestampedValue

    def item_at_its_time(row: dict[str, Any]) -> TimestampedValue:
        return TimestampedValue(row["item"], row["timestamp"].timestamp())

    logging.disable(logging.CRITICAL)
    with beam.Pipeline(options=PipelineOptions(["--runner=FnApiRunner"])) as pipeline:
        rows = pipeline | beam.io.ReadFromParquet(log, columns=["item", "timestamp"])
        elements = rows | beam.Map(item_at_its_time) | beam.WindowInto(FixedWindows(_WINDOW_SECONDS))
        _ = elements | beam.combiners.Count.PerElement()


if __name__ == "__main__":
    if sys.argv[1] == "count":
        _count(sys.argv[2])
    else:
        _write(sys.argv[2], sys.argv[3], int(sys.argv[4]))
