"""Every path that a command reads or writes. A new option that names one belongs here (`test_command_paths`)."""

import json

import click

from dp_transforms import Plan, WindowSchedule
from dp_transforms.cli.subcommands import shh
from dp_transforms.core.window_report import ABOVE, HeavyHitter, WindowReport
from dp_transforms.reports import ReportHeader
from dp_transforms.reports.files import write_report_file
from dp_transforms.runs.ledger import Ledger
from tests.helpers.ledger_runs import CAPS, part

BUDGET = (
    "--start 2026-01-01 --end 2026-01-01T02:00:00Z --window 1h --epsilon 8 --delta 1e-6 --charge hits"  # of all below
)
REPLAY = f"log.jsonl {BUDGET} --output out.avro"
FOLDER = f"--input logs --clock event --idle-timeout 1s {BUDGET}"
STREAM = f"{FOLDER} --dead-letter bad --output out"
PLANNED = WindowSchedule.fixed("2026-01-01", "2026-01-02", 3600)
HEADER = ReportHeader("run-1", "events", "a guarantee", {})
REPORT = WindowReport("events", 0, 3_600_000_000, [HeavyHitter("a", ABOVE, None)], 2.0, 1e-9, 0.5)


def table(text):
    """(command, option or argument) -> words of a command line, of lines of both."""
    lines = (line.split(": ", 1) for line in text.strip().splitlines())
    return {tuple(place.split()): [place.split()[0], *words.split()] for place, words in lines}


READ = table(f"""
audit plan_file: --plan PATH
doctor logs: PATH.jsonl
explain plan_file: --plan PATH
explain reports: PATH.avro
ledger files: --ledger made.db PATH
ledger place: --ledger PATH
plan public_items: {BUDGET} --public-items PATH
replay ledger: {REPLAY} --ledger PATH --population news
replay logs: PATH.jsonl {BUDGET} --output out.avro
replay noise_key_file: {REPLAY} --noise-key-file PATH
replay plan_file: log.jsonl --plan PATH --output out.avro
replay public_items: {REPLAY} --public-items PATH
replay state: {REPLAY} --noise-key-file noise.key --state PATH
show reports: PATH.avro
show titles: report.avro --html out.html --titles PATH.csv
stream kafka_config: --input kafka://localhost:9/t {BUDGET} --kafka-config PATH --output out
stream ledger: {STREAM} --ledger PATH --population news
stream noise_key_file: {STREAM} --noise-key-file PATH
stream plan_file: --input logs --clock event --plan PATH --output out
stream public_items: {STREAM} --public-items PATH
stream titles: {STREAM} --html out.html --titles PATH.csv
""")
"""Each reads PATH."""
READ_FOLDERS = {("stream", "input")}  # what is in them is read file by file, by the rules of logs
WRITTEN = table(f"""
audit output: --plan plan.json --output out.json
plan output: {BUDGET} --output out.json
replay dead_letter: log.jsonl {BUDGET} --output report.avro --dead-letter out.jsonl
replay output: {REPLAY}
show html: report.avro --html out.html
show output: report.avro --output out.csv
simulate output: --users 100 --days 1 --output out.parquet
stream dead_letter: {FOLDER} --output reports --dead-letter out
stream html: {FOLDER} --output reports --html out.html
stream output: {FOLDER} --dead-letter bad --output out
""")
"""Each ends with what it writes."""


def parameters():
    """(command, parameter) of all options and arguments of all commands."""
    context = click.Context(shh)
    for name in shh.list_commands(context):
        command = shh.get_command(context, name)
        assert command is not None
        yield from ((name, parameter) for parameter in command.params)


def path_parameters():
    """(command, name) of all that may name a path: those whose value is FILE, FOLDER, PATH and the like."""
    found = set()
    for command, parameter in parameters():
        words = str(parameter.metavar or parameter.type.name).upper()
        if any(word in words for word in ("FILE", "FOLDER", "PATH", "LOG", "REPORT")):
            found.add((command, str(parameter.name)))
    return found


def make_inputs(folder):
    """All that the command lines above read, and that should be good."""
    rows = "".join(
        json.dumps({"user": f"u{n}", "item": "news", "timestamp": "2026-01-01T00:30:00Z"}) + "\n" for n in range(300)
    )
    (folder / "log.jsonl").write_text(rows)
    (folder / "logs").mkdir()
    (folder / "logs" / "a.jsonl").write_text(rows + '{"user": "u0", "item": 7.5, "timestamp": 0}\n')
    write_report_file(folder / "report.avro", HEADER, [REPORT])
    Ledger(folder / "made.db").reserve(part(run_id="run"), CAPS)
    plan = Plan.for_hits(epsilon=0.5, delta=1e-9, schedule=PLANNED)
    (folder / "made.json").write_text(plan.to_json())
