"""What the documents say is run: the README's example, the demo, and every option in docs/commands.md."""

from __future__ import annotations

import json
import pathlib
import re
from typing import Any

import click
import pytest

import dp_transforms
from dp_transforms import ReleasePlan, WindowSchedule
from tests import conftest
from tests.canaries.places import MEASURED_BY, documented
from tests.helpers import option_tables
from tests.helpers.forked import run_python
from tests.helpers.option_tables import commands, with_tables
from tests.helpers.small_runs import key_file

ROOT = pathlib.Path(__file__).resolve().parents[1]
HOURS_OF_16_DAYS = WindowSchedule.fixed("2017-10-01T00:00:00Z", "2017-10-17T00:00:00Z", 3600)


def test_the_example_of_the_readme_finds_the_heavy_item(tmp_path: pathlib.Path) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert example.count("\n") <= 10
    (tmp_path / "example.py").write_text(example)
    result = run_python("example.py", cwd=tmp_path, environment={"COLUMNS": "120"})
    assert result.returncode == 0, result.stderr
    (report,) = re.findall(r"WindowReport\(.*\)", result.stdout)
    (size,) = re.findall(
        r"HeavyHitter\(item='front page', zone=None, noisy_count=None, level=\d+, at_least_users=(\d+)\)", report
    )
    assert 900 < int(size) <= 1000


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
    plan = ReleasePlan.calibrate(epsilon=8, delta=1e-6, schedule=schedule)
    (tmp_path / "plan.json").write_text(plan.to_json())
    key_file(tmp_path)
    result = run_python("example.py", cwd=tmp_path, environment={"COLUMNS": "120"})
    assert result.returncode == 0, result.stderr
    (size,) = re.findall(
        r"HeavyHitter\(item='news', zone=None, noisy_count=None, level=\d+, at_least_users=(\d+)", result.stdout
    )
    assert 250 < int(size) <= 300
    assert "RunEnded(stream='events', windows=1, reports=1)" in result.stdout


def test_the_demo_simulates_replays_and_shows(tmp_path: pathlib.Path) -> None:
    result = run_python("-m", "dp_transforms.pipelines.demo", cwd=tmp_path, environment={"COLUMNS": "120"})
    assert result.returncode == 0, result.stderr
    assert re.findall(r"^\$ shh (\w+)", result.stdout, re.MULTILINE) == ["simulate", "replay", "show"]
    assert "(2, 1e-09)-differentially private" in result.stdout
    assert "story-" in result.stdout.split("$ shh show")[1]
    written = ["clicks.parquet", "report.avro", "report.html"]
    assert sorted(path.name for path in (tmp_path / "demo").iterdir()) == written
    assert f"Open {tmp_path / 'demo' / 'report.html'} in a browser" in result.stdout


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
    assert documented == options


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
    home = "[dp_transforms.item_domain](../dp_transforms/item_domain.py)"
    assert row == f"| `ItemDomain` | A public list of items. | {home} |"


def plan_of(release: str, **changes: Any) -> ReleasePlan:
    return ReleasePlan.calibrate(epsilon=2, delta=1e-9, schedule=HOURS_OF_16_DAYS, release=release, **changes)


def test_the_formats_name_every_field_of_a_plan_once() -> None:
    """Of the schedule, a nested object, the fields stand in its row."""
    text = (ROOT / "docs" / "formats.md").read_text()
    section = text.partition("## Plans")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (`[^|]+) \|", section, re.MULTILINE)
    named = [field for row in rows for field in re.findall(r"`(\w+)`", row)]
    fields = [set(json.loads(plan_of(release).to_json())) for release in ("labels", "counts", "kms21", "names")]
    assert set(named) == set().union(*fields)
    twice = {field for field in named if named.count(field) > 1}
    assert twice == {"hits_per_user"}, "which plans of labels and of names have"


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
    assert re.findall(r"`make ([a-z-]+)`", listed) == re.findall(r"^make ([a-z-]+)$", run, re.MULTILINE)
    (least,) = re.findall(r"It must not take more than (\d+)\.", text)
    assert f": {least} minutes at most" in run
    (quick,) = re.findall(r"all where cases are quick \((.*?)\)", text)
    (own,) = re.findall(r"say themselves which cases are long \((.*?)\)", text)
    for listed, folders in ((quick, conftest.QUICK), (own, conftest.WHOLE)):
        assert {name.rpartition("/")[2] for name in re.findall(r"tests\S*\b", listed)} == set(folders)
