"""What the documents say is run: the README's example, the demo, and every option in docs/commands.md."""

from __future__ import annotations

import datetime
import json
import pathlib
import re
from collections.abc import Iterator
from typing import Any

import click
import pytest

import dp_transforms
from dp_transforms import Plan, WindowSchedule, read_report
from dp_transforms.plan.plan_comparison import partition_selection_found_from
from tests import conftest
from tests.canaries.places import MEASURED_BY, documented
from tests.helpers import option_tables
from tests.helpers.forked import run_python
from tests.helpers.option_tables import commands, with_tables
from tests.helpers.small_runs import key_file

ROOT = pathlib.Path(__file__).resolve().parents[1]
HOURS_OF_16_DAYS = WindowSchedule.fixed("2017-10-01T00:00:00Z", "2017-10-17T00:00:00Z", 3600)


README = (ROOT / "README.md").read_text()
NO_NETWORK = {"https_proxy": "http://127.0.0.1:9", "http_proxy": "http://127.0.0.1:9"}  # where `DirectRunner` looks


def test_the_example_of_the_readme_finds_the_heavy_item(tmp_path: pathlib.Path) -> None:
    """As it is printed, users pay for hits; without `release=...`, for looks."""
    (example,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert example.count("\n") <= 10
    for_looks = example.replace(', release="labels", hits_per_user=10', "")
    assert for_looks != example
    assert 'runner="DirectRunner"' in example
    found = []
    for text in (example, for_looks):
        (tmp_path / "example.py").write_text(text)
        result = run_python("example.py", cwd=tmp_path, environment={"COLUMNS": "120", **NO_NETWORK})
        assert result.returncode == 0, result.stderr
        (report,) = re.findall(r"WindowReport\(.*\)", result.stdout)
        found += re.findall(r"HeavyHitter\(item='front page', (.*?)\)", report)
    hits, looks = found
    assert hits == "zone='above', noisy_count=None, level=None, at_least_users=None"
    (size,) = re.findall(r"zone=None, noisy_count=None, level=\d+, at_least_users=(\d+)", looks)
    assert 900 < int(size) <= 1000


def test_the_words_of_the_mission_are_where_the_readme_says() -> None:
    """Each row names a class and a file; the class is in that file."""
    section = README.split("## ThresholdMonitorEvolving as a stateful DoFn\n")[1].split("\n## ")[0]
    paths = dict(re.findall(r"^\[(\S+)\]: (\S+)$", section, re.MULTILINE))
    rows = re.findall(r"^\| (.+) \| `(\w+)` \| \[(\S+)\] \|$", section, re.MULTILINE)
    assert sorted(name for _, _, name in rows) == sorted(paths)
    for _, found, name in rows:
        assert re.search(rf"^class {found}\b", (ROOT / paths[name]).read_text(), re.MULTILINE), found
    words = " ".join(row[0] for row in rows)
    for word in (
        *("ThresholdMonitorEvolving", "stateful DoFn per key", "per-user contribution counters", "DirectRunner, Flink"),
        *("windowed event streams", "per-window heavy-hitter reports", "TCT-accounted ε", "replay historical logs"),
    ):
        assert word in words


def test_the_readme_says_from_how_many_users_looks_hits_and_both_find_an_item() -> None:
    """The figures are those of plans of a year of hourly windows."""
    said = " ".join(README.split())
    (sentence,) = re.findall(r"who have ([^:]+) looks each: (.*?) if they pay for looks, (\d+) each time", said)
    (both,) = re.findall(r"and ([\d, or]+) if they pay for both \(`--hits-per-user 3 --most-looks 10000`\)", said)
    (single,) = re.findall(r"PipelineDP is ahead \((\d+) users, and (\d+) with looks\)", said)
    year = WindowSchedule.fixed("2026-01-01", "2027-01-01", 3600)

    def plan(**choices: Any) -> Any:
        return Plan.calibrate(epsilon=2, delta=1e-9, schedule=year, **choices)

    looks, pay_both = plan(), plan(hits_per_user=3, most_looks=10_000)
    each = numbers(sentence[0])
    assert each == [10, 100, 1000, 10_000]
    assert numbers(sentence[1]) == [looks.found_from(number) for number in each]
    assert int(sentence[2]) == plan(mode="hits").smallest_detectable()
    assert numbers(both) == [pay_both.found_from(number) for number in each]
    assert int(single[1]) == looks.found_from(1)
    assert int(single[0]) == partition_selection_found_from(looks.epsilon, looks.delta, 1).users


def numbers(text: str) -> list[int]:
    return [int(number.replace(",", "")) for number in re.findall(r"\d[\d,]*\d|\d", text)]


def test_the_readme_says_no_more_than_the_proof_has() -> None:
    for path in ("README.md", "pyproject.toml", "dp_transforms/cli/subcommands.py"):
        text = (ROOT / path).read_text()
        assert "life of the stream" not in text
        assert "declared range" in text
    assert README.count("all cores") == 1
    assert "no cap" not in README
    assert "--most-looks" in README


def test_the_pipeline_in_deploy_reports_what_the_log_holds(tmp_path: pathlib.Path) -> None:
    """The same lines with a folder as source, on Beam's local runner, over one window of the past."""
    (pipeline,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "deploy.md").read_text(), re.DOTALL)
    assert pipeline.count("\n") <= 10
    for shown, here in (
        ('KafkaTopic("b:9092", "clicks", EventFields(', 'LogFolder("logs", EventFields('),
        ('"timestamp"', '"timestamp", "s"'),
        ("StreamClock(", 'StreamClock("event", idle_timeout_seconds=1, '),
        ("run_id=header.run_id", 'run_id=header.run_id, driver="loop"'),
    ):
        assert pipeline.count(shown) == 1
        pipeline = pipeline.replace(shown, here)
    head = (
        "import pathlib\nimport apache_beam as beam\nfrom dp_transforms import *\n"
        'options = beam.options.pipeline_options.PipelineOptions(["--runner=FnApiRunner"])\n'
    )
    (tmp_path / "example.py").write_text(f"{head}{pipeline}print(ReportFolder('reports').read('run-1'))\n")
    (tmp_path / "logs").mkdir()
    lines = (json.dumps({"user": f"u{user}", "item": "news", "timestamp": 1_577_836_800}) for user in range(300))
    (tmp_path / "logs" / "0.jsonl").write_text("\n".join(lines) + "\n")
    schedule = WindowSchedule.fixed(1_577_836_800, 1_577_840_400, 3600)
    plan = Plan.calibrate(epsilon=8, delta=1e-6, schedule=schedule)
    (tmp_path / "plan.json").write_text(plan.to_json())
    key_file(tmp_path)
    result = run_python("example.py", cwd=tmp_path, environment={"COLUMNS": "120"})
    assert result.returncode == 0, result.stderr
    (size,) = re.findall(
        r"HeavyHitter\(item='news', zone=None, noisy_count=None, level=\d+, at_least_users=(\d+)", result.stdout
    )
    assert 250 < int(size) <= 300
    assert "RunEnded(stream='events', windows=1, reports=1)" in result.stdout


def test_the_demo_replays_one_log_for_hits_and_for_looks(tmp_path: pathlib.Path) -> None:
    result = run_python("-m", "dp_transforms.cli.demo", cwd=tmp_path, environment={"COLUMNS": "120"})
    assert result.returncode == 0, result.stderr
    shown = result.stdout
    assert re.findall(r"^\$ shh (\w+)", shown, re.MULTILINE) == ["simulate", "replay", "replay", "show"]
    _, hits, looks, _ = re.split(r"^\$ shh .*$", shown, flags=re.MULTILINE)[1:]
    for report in (hits, looks):
        assert "(2, 1e-09)-differentially private" in report
        assert "story-" in report
    # What was charged goes up from window to window, and says of how much it is.
    paid = [(int(number), float(spent)) for number, spent in re.findall(r"≤(\d+) of 10 +([\d.]+)", hits)]
    assert len(paid) == 12
    assert paid == sorted(paid)
    assert paid[-1][0] > 0
    named = re.findall(r"([\d,]+) (?:pairs \(window, item\) )?were named", shown)
    fewer, more = (int(number.replace(",", "")) for number in named)
    assert 50 < fewer < more
    written = ["clicks.parquet", "hits.avro", "looks.avro", "looks.html"]
    assert sorted(path.name for path in (tmp_path / "demo").iterdir()) == written
    assert f"Open {tmp_path / 'demo' / 'looks.html'} in a browser" in shown
    the_readme_shows(tmp_path / "demo" / "looks.avro")


def the_readme_shows(report: pathlib.Path) -> None:
    """The rows of its first table are of this log, up to two steps of the noise, and so is its picture."""
    windows = read_report(report).windows
    rows = re.findall(r"^ {5}(2026-01-02) (\d\d:00)   1h       (.*)$", README, re.MULTILINE)
    assert len(rows) == 2
    for day, hour, items in rows:
        start = int(datetime.datetime.fromisoformat(f"{day}T{hour}+00:00").timestamp()) * 1_000_000
        (window,) = [each for each in windows if each.window_start == start]
        sizes = {found.item: found.at_least_users or 0 for found in window.heavy_hitters}
        for item, size in re.findall(r"(\S+)≥(\d+)", items):
            assert abs(sizes[item] - int(size)) <= 60
    drawn = set(re.findall(r">((?:story|page)-\d+)</text>", (ROOT / "docs" / "report.svg").read_text()))
    named = {found.item for window in windows for found in window.heavy_hitters}
    assert len(drawn) == 40
    assert len(drawn & named) > 38


@pytest.mark.parametrize(
    "name",
    ["audit", "doctor", "explain", "ledger", "load", "plan", "replay", "serve", "show", "simulate", "stream"],
)
def test_every_option_is_documented(name: str) -> None:
    command = commands()[name]
    text = (ROOT / "docs" / "commands.md").read_text()
    section = re.search(rf"^## shh {name}$(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    assert section is not None
    documented = set(re.findall(r"^\| `(--[a-z-]+)", section[1], re.MULTILINE))
    inner = command.commands.values() if isinstance(command, click.Group) else ()
    options = {
        parameter.opts[0]
        for each in (command, *inner)
        for parameter in each.params
        if isinstance(parameter, click.Option)
    }
    assert documented == options - {"--help-all"}  # what it is, the page says of all commands


def test_every_command_is_documented() -> None:
    text = (ROOT / "docs" / "commands.md").read_text()
    assert set(re.findall(r"^## shh (\w+)$", text, re.MULTILINE)) == set(commands())


def test_the_tables_of_options_say_what_the_help_says() -> None:
    page = (ROOT / "docs" / "commands.md").read_text()
    assert page == with_tables(page, commands()), "python -m tests.helpers.option_tables writes them again"


@pytest.mark.parametrize(("said", "wrong"), [("Size in days.", "Size in hours."), ("| 4 |", "| 5 |")])
def test_another_meaning_or_default_would_be_found(said: str, wrong: str) -> None:
    command = click.Command("c", params=[click.Option(["--days"], default=4, show_default=True, help="Size in days.")])
    page = "## shh c\n\n| option | meaning | default |\n|---|---|---|\n| `--days` N | Size in days. | 4 |\n"
    assert with_tables(page, {"c": command}) == page
    assert with_tables(page.replace(said, wrong), {"c": command}) == page


def test_what_the_documents_on_security_name_exists() -> None:
    """Targets of make, and what `.ci/run` runs; each row of the table of raw data has its test."""
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    texts = {name: (ROOT / name).read_text() for name in ("SECURITY.md", "docs/security.md")}
    for text in texts.values():
        assert set(re.findall(r"(?:`|^    )make ([a-z-]+)", text, re.MULTILINE)) <= targets
    assert set(re.findall(r"^make ([a-z-]+)$", (ROOT / ".ci" / "run").read_text(), re.MULTILINE)) >= {"audit", "sbom"}
    version = re.search(r'^version = "(\d+\.\d+)\.', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert version is not None
    assert f"| the newest release, {version[1]}.x now | yes |" in texts["SECURITY.md"]
    assert documented().keys() == MEASURED_BY.keys()
    for test in MEASURED_BY.values():
        path, _, function = test.partition("::")
        assert f"def {function}(" in (ROOT / path).read_text()


def test_the_python_api_has_every_public_name_once_and_says_what_its_docstring_says() -> None:
    page = (ROOT / "docs" / "python_api.md").read_text()
    assert sorted(option_tables.documented_names(page)) == sorted(dp_transforms.__all__)
    assert page == option_tables.with_names(page), "python -m tests.helpers.option_tables writes them again"
    shown = set(re.findall(r"^\.\. auto\w+:: dp_transforms\.(\w+)$", page, re.MULTILINE))
    assert shown == set(dp_transforms.__all__)


def test_another_meaning_of_a_public_name_would_be_found() -> None:
    row = option_tables.with_names("| `ItemDomain` | A private list. | there |")
    home = "[dp_transforms.monitor.item_domain](../dp_transforms/monitor/item_domain.py)"
    assert row == f"| `ItemDomain` | A public list of items. | {home} |"


def plan_of(mode: str, **changes: Any) -> Plan:
    return Plan.calibrate(epsilon=2, delta=1e-9, schedule=HOURS_OF_16_DAYS, mode=mode, **changes)


def _places(schema: dict[str, Any], before: str = "") -> Iterator[str]:
    for kind in schema.get("anyOf", (schema,)):
        if "properties" not in kind:
            yield before
        for name, inner in kind.get("properties", {}).items():
            yield from _places(inner, f"{before}.{name}" if before else name)


def test_the_formats_name_every_field_of_a_plan_once() -> None:
    text = (ROOT / "docs" / "formats.md").read_text()
    section = text.partition("## Plans")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (`[^|]+) \|", section, re.MULTILINE)
    named = [field for row in rows for field in re.findall(r"`([\w.]+)`", row)]
    assert sorted(named) == sorted(set(_places(Plan.json_schema())))


def test_the_figures_of_the_limitations_are_computed_or_measured() -> None:
    text = (ROOT / "docs" / "known_limitations.md").read_text()
    (users,) = re.findall(r"from ([\d,]+) on at ε = 2, δ = 1e-9, hourly windows of 16\s+days", text)
    assert int(users.replace(",", "")) == plan_of("kms21").smallest_detectable(0.95)
    heap, direct = re.findall(r"heap of (\d+) MB .* and (\d+) MB of direct memory", text)[0]
    scale = (ROOT / "docs" / "scale.md").read_text()
    assert re.search(rf"100 M events: a heap of {heap} MB for two slots .* and {direct} MB of direct memory", scale)


def test_no_document_promises_more_than_the_declared_range() -> None:
    """The proofs are about declared windows: not about a life, nor about a stream for ever."""
    texts = {path.name: path.read_text() for path in [ROOT / "SECURITY.md", *(ROOT / "docs").glob("*.md")]}
    texts["shh --help"] = click.Context(commands()["replay"]).find_root().command.help or ""
    texts |= {name: command.help or "" for name, command in commands().items()}
    for name, text in texts.items():
        assert not re.search(r"(?:whole|entire)\s+life", text), name


def test_what_contributing_says_of_make_and_of_the_chosen_cases_is_so() -> None:
    text, make = (ROOT / "CONTRIBUTING.md").read_text(), (ROOT / "Makefile").read_text()
    assert set(re.findall(r"(?:`|^    )make ([a-z-]+)", text, re.MULTILINE)) <= set(
        re.findall(r"^([a-z-]+):", make, re.MULTILINE)
    )
    run = (ROOT / ".ci" / "run").read_text()
    (listed,) = re.findall(r"`\.ci/run` is what every change must pass, on a clean checkout: (.*?)\.", text, re.DOTALL)
    assert re.findall(r"`make ([a-z-]+)`", listed) == re.findall(r"^make ([a-z-]+)", run, re.MULTILINE)
    (least,) = re.findall(r"It must not take more than (\d+)\.", text)
    assert f": {least} minutes at most" in run
    (quick,) = re.findall(r"all where cases are quick \((.*?)\)", text)
    (own,) = re.findall(r"say themselves which cases are long \((.*?)\)", text)
    for listed, folders in ((quick, conftest.QUICK), (own, conftest.WHOLE)):
        assert {name.rpartition("/")[2] for name in re.findall(r"tests\S*\b", listed)} == set(folders)
