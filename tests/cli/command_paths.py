"""Every path that a command reads or writes. A new option that names one belongs here (`test_command_paths`)."""

import json
import os
import signal
import sys

import click

from dp_transforms import Plan, WindowSchedule
from dp_transforms.cli.main import main
from dp_transforms.cli.subcommands import shh
from dp_transforms.core.window_report import ABOVE, HeavyHitter, WindowReport
from dp_transforms.reports import ReportHeader
from dp_transforms.reports.files import write_report_file
from dp_transforms.runs.ledger import Ledger
from tests.helpers.ledger_runs import CAPS, part

BUDGET = [
    *("--start", "2026-01-01", "--end", "2026-01-01T02:00:00Z", "--window", "1h"),
    *("--epsilon", "8", "--delta", "1e-6", "--charge", "hits"),
]
IN_PROCESS = ["--clock", "event", "--idle-timeout", "1s"]
STREAM = ["stream", "--input", "logs", "--dead-letter", "bad"]
KAFKA = ["stream", "--input", "kafka://localhost:9/t", *BUDGET]
PLANNED = WindowSchedule.fixed("2026-01-01", "2026-01-02", 3600)
HEADER = ReportHeader("run-1", "events", "a guarantee", {})
REPORT = WindowReport("events", 0, 3_600_000_000, [HeavyHitter("a", ABOVE, None)], 2.0, 1e-9, 0.5)

# (command, option or argument): a command line that reads PATH.
READ = {
    ("audit", "plan_file"): ["audit", "--plan", "PATH"],
    ("ledger", "place"): ["ledger", "--ledger", "PATH"],
    ("ledger", "files"): ["ledger", "--ledger", "made.db", "PATH"],
    ("plan", "public_items"): ["plan", *BUDGET, "--public-items", "PATH"],
    ("replay", "plan_file"): ["replay", "log.jsonl", "--plan", "PATH", "--output", "out.avro"],
    ("replay", "public_items"): ["replay", "log.jsonl", *BUDGET, "--public-items", "PATH", "--output", "out.avro"],
    ("replay", "noise_key_file"): ["replay", "log.jsonl", *BUDGET, "--noise-key-file", "PATH", "--output", "out.avro"],
    ("replay", "state"): [
        *("replay", "log.jsonl", *BUDGET, "--noise-key-file", "noise.key", "--state", "PATH", "--output", "out.avro")
    ],
    ("replay", "ledger"): [
        *("replay", "log.jsonl", *BUDGET, "--ledger", "PATH", "--population", "news", "--output", "out.avro")
    ],
    ("replay", "logs"): ["replay", "PATH.jsonl", *BUDGET, "--output", "out.avro"],
    ("doctor", "logs"): ["doctor", "PATH.jsonl"],
    ("explain", "reports"): ["explain", "PATH.avro"],
    ("explain", "plan_file"): ["explain", "--plan", "PATH"],
    ("show", "reports"): ["show", "PATH.avro"],
    ("show", "titles"): ["show", "report.avro", "--html", "out.html", "--titles", "PATH.csv"],
    ("stream", "titles"): [
        *(*STREAM, *IN_PROCESS, *BUDGET, "--output", "out", "--html", "out.html", "--titles", "PATH.csv")
    ],
    ("stream", "plan_file"): [*STREAM, *IN_PROCESS, "--plan", "PATH", "--output", "out"],
    ("stream", "public_items"): [*STREAM, *IN_PROCESS, *BUDGET, "--public-items", "PATH", "--output", "out"],
    ("stream", "noise_key_file"): [*STREAM, *IN_PROCESS, *BUDGET, "--noise-key-file", "PATH", "--output", "out"],
    ("stream", "ledger"): [
        *(*STREAM, *IN_PROCESS, *BUDGET, "--ledger", "PATH", "--population", "news", "--output", "out")
    ],
    ("stream", "kafka_config"): [*KAFKA, "--kafka-config", "PATH", "--output", "out"],
}
# Folders: what is in them is read file by file, by the rules of logs.
READ_FOLDERS = {("stream", "input")}
# (command, option): command lines that write, by what they write.
WRITTEN = {
    ("audit", "output"): (["audit", "--plan", "plan.json"], ["out.json"]),
    ("plan", "output"): (["plan", *BUDGET], ["out.json"]),
    ("replay", "output"): (["replay", "log.jsonl", *BUDGET], ["out.avro", "out.jsonl"]),
    ("replay", "dead_letter"): (["replay", "log.jsonl", *BUDGET, "--output", "report.avro"], ["out.jsonl"]),
    ("show", "html"): (["show", "report.avro"], ["out.html"]),
    ("show", "output"): (["show", "report.avro"], ["out.csv"]),
    ("simulate", "output"): (
        ["simulate", "--users", "100", "--days", "1"],
        ["out.csv", "out.parquet"],
    ),
    ("stream", "output"): ([*STREAM, *IN_PROCESS, *BUDGET], ["out"]),
    ("stream", "dead_letter"): (["stream", "--input", "logs", *IN_PROCESS, *BUDGET, "--output", "reports"], ["out"]),
    ("stream", "html"): ([*STREAM, *IN_PROCESS, *BUDGET, "--output", "reports"], ["out.html"]),
}


def flag(name):
    return "--" + name.replace("_", "-")


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
        if any(word in words for word in ("FILE", "FOLDER", "PATH", "SAVEPOINT", "LOG")) or parameter.name in (
            *("logs", "report", "reports"),
        ):
            found.add((command, str(parameter.name)))
    return found


def lines_that_write():
    """(name, words, what they write) for all that the tables hold."""
    return [
        (f"{command} {flag(option)} {output}", [*words, flag(option), output], output)
        for (command, option), (words, outputs) in WRITTEN.items()
        for output in outputs
    ]


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


def run(words, capsys):
    """Exit code and stderr of a command in this process."""
    try:
        main(words)
        code = 0
    except SystemExit as stopped:
        code = int(stopped.code or 0)
    return code, capsys.readouterr().err


def no_waiting():
    """For a fixture: ends a test that waits forever, as for the writer of a pipe."""

    def end(number, frame):
        sys.stderr.write("waited too long\n")
        os._exit(99)

    before = signal.signal(signal.SIGALRM, end)
    signal.alarm(120)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)
