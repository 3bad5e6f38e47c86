"""What a plain install must do: ``python local_run.py``, in an empty folder, with nothing but the package."""

from __future__ import annotations

import apache_beam as beam

from dp_transforms import Plan, ShiftingHeavyHitters, WindowSchedule
from dp_transforms.cli.main import main

_RANGE = "--window 1h --epsilon 2 --delta 1e-9 --start 2026-01-01 --end 2026-01-03"
_COMMANDS = (
    "simulate --output clicks.csv --users 2000 --days 2",
    "doctor clicks.csv",
    f"plan {_RANGE} --output plan.json",
    "replay clicks.csv --plan plan.json --output report.avro --processes 2",
    f"plan {_RANGE} --charge hits --output hits.json",
    "replay clicks.csv --plan hits.json --output hits.jsonl",
    "show report.avro --html page.html",
    "explain report.avro",
    "audit --plan hits.json",
)


def run() -> None:
    for words in _COMMANDS:
        main(words.split())  # raises SystemExit for what fails
    start = 1_767_225_600
    schedule = WindowSchedule.fixed(start, start + 7200, 3600)
    plan = Plan.for_hits(epsilon=8, delta=1e-6, schedule=schedule)
    with beam.Pipeline("DirectRunner") as pipeline:
        clicks = pipeline | beam.Create([(f"user {number}", "a story") for number in range(400)])
        timed = clicks | beam.Map(lambda click: beam.window.TimestampedValue(click, start + 60))
        heavy = timed | ShiftingHeavyHitters(plan)
        _ = heavy.reports | beam.Map(lambda report: print("heavy:", *(found.item for found in report.heavy_hitters)))


if __name__ == "__main__":
    run()
