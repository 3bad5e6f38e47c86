"""The commands that the documents show are run as they stand, and what they print is compared with what is shown.

A block ``console`` holds lines ``$ command`` and what each prints; ``...`` is for lines that are not shown. Noise is
fresh: rows of a report's table are compared by shape, all other lines letter by letter. Commands in other blocks need
what is not here (Kafka, a cluster, a cloud): they are read by the parsers of the commands.
"""

from __future__ import annotations

import importlib.util
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys
import textwrap

import click
import duckdb
import pytest

from dp_transforms import Plan, WindowReport, WindowSchedule
from dp_transforms.beam.runner_options import split_words
from dp_transforms.cli.subcommands import shh as group
from dp_transforms.core.window_report import HeavyHitter
from dp_transforms.reports import ReportHeader
from dp_transforms.reports.files import write_report_file
from tests.helpers.shh_here import shh

ROOT = pathlib.Path(__file__).resolve().parents[1]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *(ROOT / "runners").glob("*/*.md")])
NAMED = r"([★▲▼]?(story-\d{5}|page-\d{3})(≥\d+)? *)"
REST = r"(and|more|gone|\d+| )*"
ROW = re.compile(rf" 2026-01-0[12] \d\d:00   1h       {NAMED}+{REST}")
MORE = re.compile(rf" {{29}}{NAMED}*{REST}")
HEAD = re.compile(r" start \(UTC\)        length   heavy items *")
RULE = re.compile(r" ─+")
TUTORIAL, _, OF_AN_OWN_FILE = (ROOT / "docs" / "tutorial.md").read_text().partition("\n## A file of your own\n")
WIDTH = 118  # lines that are longer are shown as a terminal wraps them
NOISY = (ROW, MORE, HEAD, RULE)


def examples(text):
    """Commands with the lines that they are said to print."""
    found: list[tuple[str, list[str]]] = []
    for block in re.findall(r"^```console\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        for line in block.splitlines():
            if line.startswith("$ "):
                found.append((line[2:], []))
            elif found[-1][0].endswith(" \\"):
                found[-1] = (found[-1][0].removesuffix("\\") + line.strip(), [])
            else:
                found[-1][1].append(line.rstrip())
    return found


def alike(shown, printed):
    return shown == printed or any(shape.fullmatch(shown) and shape.fullmatch(printed) for shape in NOISY)


def first_difference(shown, printed):
    """None if the shown lines are in the printed ones in this order, with gaps only where ``...`` says so."""
    at, gap = 0, False
    for line in shown:
        if line == "...":
            gap = True
            continue
        while gap and at < len(printed) and not alike(line, printed[at]):
            at += 1
        if at == len(printed) or not alike(line, printed[at]):
            return f"{line!r} is shown, {printed[at] if at < len(printed) else 'the end'!r} was printed"
        at, gap = at + 1, False
    return None if gap or at == len(printed) else f"{printed[at]!r} is not shown"


def run(command, folder):
    """By a shell, where the command needs one."""
    if re.fullmatch(r"shh [^$*(|&;<>]*", command):
        result = shh(*shlex.split(command)[1:], cwd=folder, COLUMNS="80")
    else:
        path = os.pathsep.join((str(pathlib.Path(sys.executable).parent), os.environ["PATH"]))
        environment = {**os.environ, "PATH": path, "COLUMNS": "80", "PYTHONPATH": ""}
        result = subprocess.run(["sh", "-c", command], cwd=folder, env=environment, capture_output=True, text=True)
    assert result.returncode == 0, f"{command}: {result.stderr}"
    lines = [line.rstrip() for line in result.stdout.splitlines()]
    while lines and not lines[-1]:
        lines.pop()
    return lines


def assert_prints(command, shown, folder):
    printed = run(command, folder)
    wrapped = [part for line in printed for part in (textwrap.wrap(line, WIDTH) if len(line) > WIDTH else [line])]
    assert (difference := first_difference(shown, wrapped)) is None, f"{command}: {difference}"


@pytest.mark.waits
def test_the_tutorial_prints_what_it_shows(tmp_path):
    """False alarms: an item with 1,313 users is missed, has no size or a larger one, or a report is empty, with a
    probability below 1e-9."""
    for command, lines in examples(TUTORIAL):
        assert_prints(command, lines, tmp_path)
    lines = run("shh show report.avro --json", tmp_path)
    (above,) = [line for line in lines if '"window_start":"2026-01-01T15:00:00Z"' in line.replace(" ", "")]
    (found,) = [each for each in json.loads(above)["heavy_hitters"] if each["item"] == "story-01573"]
    assert 100 <= found["at_least_users"] <= 1313
    plan = Plan.from_json((tmp_path / "plan.json").read_text())
    of_one = plan.largest_in_rounds[0]
    assert f"threshold, {plan.threshold / of_one:.1f} users with one contribution" in " ".join(TUTORIAL.split())


def test_a_csv_of_an_own_becomes_a_page_as_the_tutorial_says(tmp_path):
    """Each command as it stands, on a file with the fields that the page shows."""
    (head,) = re.findall(r"```text\n(.*?)```", OF_AN_OWN_FILE, re.DOTALL)
    rows = [head.splitlines()[0]]
    for number in range(6000):
        minute = 2 * 1440 * number // 6000 if number else 0
        at = f"2026-03-{2 + minute // 1440:02}T{minute // 60 % 24:02}:{minute % 60:02}:03+00:00"
        rows.append(f"{number},L-{number % 2000:04},/sport/{number % 40 if number % 3 else 42},{at}")
    (tmp_path / "visits.csv").write_text("\n".join(rows) + "\n")
    for command, lines in examples(OF_AN_OWN_FILE):
        assert_prints(command, lines, tmp_path)
    assert "/sport/42" in (tmp_path / "report.html").read_text()


@pytest.mark.waits
@pytest.mark.parametrize("page", ["choose_a_budget", "read_a_report"])
def test_the_guides_print_what_they_show(page, tmp_path):
    shown = examples((ROOT / "docs" / f"{page}.md").read_text())
    assert len(shown) >= 3
    for command, lines in shown:
        assert_prints(command, lines, tmp_path)


def commands():
    """By name."""
    context = click.Context(group)
    return {name: group.get_command(context, name) for name in group.list_commands(context)}


def test_every_command_is_documented_and_the_site_lists_its_options():
    text = (ROOT / "docs" / "commands.md").read_text()
    assert set(re.findall(r"^## shh (\w+)$", text, re.MULTILINE)) == set(commands())
    assert re.findall(r"^<!-- options of (\w+) -->$", text, re.MULTILINE) == sorted(commands())


def command_lines(text):
    """The lines of shh, make and Python in indented blocks, each on one line, without comments."""
    text = re.sub(r"^```\w*\n.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    blocks = (block for block in text.split("\n\n") if re.fullmatch(r"( {4}.*\n?)+", block))
    lines = re.sub(r" \\\n +", " ", "\n".join(blocks)).splitlines()
    return [re.sub(r" +# .*", "", line).strip() for line in lines if re.match(r" +(shh|make|\S*python) ", line)]


def fault(line):
    """What would keep this line from being a command, as far as that shows without running it."""
    program, *words = shlex.split(line.replace("...", ""))
    if program == "shh":
        return fault_of_options(words)
    if program == "make":
        targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
        return None if {word for word in words if "=" not in word} <= set(targets) else "no target of make"
    if words[0] == "-m":
        return None if importlib.util.find_spec(words[1]) else f"no module {words[1]}"
    return None if (ROOT / words[0]).is_file() else f"no file {words[0]}"


def fault_of_options(words):
    command = commands().get(words[0])
    if command is None:
        return f"no command {words[0]}"
    if isinstance(command, click.Group) and words[1] in command.commands:
        command, words = command.commands[words[1]], words[1:]
    options = [each for each in command.params if isinstance(each, click.Option)]
    ours = {name: 0 if each.is_flag else each.nargs for each in options for name in each.opts}
    rest = split_words(words[1:], ours)[0] if getattr(command, "takes_runner", False) else words[1:]
    try:
        command.make_parser(click.Context(command)).parse_args(rest)
    except click.UsageError as error:
        return error.format_message()
    return None


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_what_looks_like_a_command_is_one(path):
    faults = {line: fault(line) for line in command_lines(path.read_text())}
    assert not {line: said for line, said in faults.items() if said}


def test_the_tables_of_budgets_are_what_plans_say():
    text = (ROOT / "docs" / "choose_a_budget.md").read_text()
    of_names = re.findall(r"^\| ([0-9.]+) \| (\d+) \| (\d+) \| (\d+) \| (\d+) \|$", text, re.MULTILINE)
    assert len(of_names) == 3
    month = WindowSchedule.fixed("2026-01-01", "2026-02-01", 3600)
    epsilon, *found = of_names[1]
    plan = Plan.for_contributions(epsilon=float(epsilon), delta=1e-9, schedule=month, forget_after=168)
    assert [plan.found_from(pairs) for pairs in (1, 10, 100, 1000)] == [int(users) for users in found]
    ((day, of_month),) = re.findall(
        r"from (\d+) users on in a day of hours, ([\d,]+) in a month", " ".join(text.split())
    )
    for end, users in (("2026-01-02", day), ("2026-02-01", of_month)):
        schedule = WindowSchedule.fixed("2026-01-01", end, 3600)
        assert f"{Plan.for_hits(epsilon=1, delta=1e-9, schedule=schedule).smallest_detectable():,}" == users


def test_the_fields_of_the_formats_are_all_there():
    """A plan, a header and a record have the fields that docs/formats.md lists, and no others."""
    text = (ROOT / "docs" / "formats.md").read_text()

    def listed(first: str) -> set[str]:
        (fields,) = re.findall(rf"^{first}:\n\n((?:- .*\n)+)", text, re.MULTILINE)
        return {name for row in fields.splitlines() for name in re.findall(r"`([a-z_.]+)`", row.partition(": ")[0])}

    plan = {"epsilon": 1.0}
    (header,) = re.findall(r"^The header has (.*)$", text, re.MULTILINE)
    fields = json.loads(ReportHeader("run", "events", "", plan).to_json())
    assert set(re.findall(r"`([a-z_]+)`", header)) == fields.keys()
    assert listed("Fields of a record") == {
        *WindowReport._fields,
        *(f"heavy_hitters.{name}" for name in HeavyHitter._fields),
    }


def test_the_sql_says_what_the_report_says(tmp_path):
    """Of items that were heavy in windows 0, 1, 3 and 4: those with most windows."""
    items = {0: ["a", "b"], 1: ["a", "c"], 3: ["a", "c", "d'; --"], 4: ["c"]}
    schedule = WindowSchedule.fixed("2026-01-01", "2026-01-02", 3600)
    reports = [
        WindowReport(
            *("events", schedule.window_start_micros(window), schedule.window_end_micros(window)),
            [HeavyHitter(item, None, None, 1, 10 * window + 5) for item in found],
            *(2.0, 1e-9, 2.0),
        )
        for window, found in items.items()
    ]
    plan = Plan.for_hits(epsilon=2, delta=1e-9, schedule=schedule)
    write_report_file(tmp_path / "report.avro", ReportHeader.of_plan(plan, "run", "events"), reports)
    assert shh("show", "report.avro", "--output", "items.parquet", cwd=tmp_path).returncode == 0
    text = (ROOT / "docs" / "read_a_report.md").read_text().replace("'items.parquet'", f"'{tmp_path}/items.parquet'")
    (query,) = re.findall(r"```sql\n(.*?)```", text, re.DOTALL)
    assert duckdb.sql(query).fetchall() == [("a", 3, 35), ("c", 3, 45), ("b", 1, 5), ("d'; --", 1, 35)]
