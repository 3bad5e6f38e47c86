"""What the documents say is run: the README's example, the demo, and every option in docs/commands.md."""

from __future__ import annotations

import json
import pathlib
import re
from typing import Any

import click

import dp_transforms
from dp_transforms import Plan, WindowSchedule
from dp_transforms.plan.charges import plan_for
from tests.canaries.places import MEASURED_BY, documented
from tests.helpers import option_tables
from tests.helpers.option_tables import commands, with_options
from tests.helpers.shh_process import run_python
from tests.helpers.small_runs import key_file

ROOT = pathlib.Path(__file__).resolve().parents[1]


README = (ROOT / "README.md").read_text()
NO_NETWORK = {"https_proxy": "http://127.0.0.1:9", "http_proxy": "http://127.0.0.1:9"}  # where `DirectRunner` looks


def test_the_example_of_the_readme_finds_the_heavy_item(tmp_path):
    """As it is printed, users pay for hits; by `for_contributions`, for contributions."""
    (example,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert example.count("\n") <= 10
    for_contributions = example.replace("for_hits(", "for_contributions(").replace(", hits_per_user=10", "")
    assert for_contributions != example
    assert 'runner="DirectRunner"' in example
    found = []
    for text in (example, for_contributions):
        (tmp_path / "example.py").write_text(text)
        result = run_python("example.py", cwd=tmp_path, environment={"COLUMNS": "120", **NO_NETWORK})
        assert result.returncode == 0, result.stderr
        (report,) = re.findall(r"WindowReport\(.*\)", result.stdout)
        found += re.findall(r"HeavyHitter\(item='front page', (.*?)\)", report)
    hits, looks = found
    assert hits == "zone='above', noisy_count=None, level=None, at_least_users=None"
    (size,) = re.findall(r"zone=None, noisy_count=None, level=\d+, at_least_users=(\d+)", looks)
    assert 900 < int(size) <= 1000


def test_the_words_of_the_mission_are_in_the_readme_and_the_classes_in_their_files():
    section = README.split("## ThresholdMonitorEvolving as a stateful DoFn\n")[1].split("\n## ")[0]
    named = re.findall(r"\[`(\w+)`\]\(([^)\s]+)\)", section)
    assert len(named) == 7
    for name, path in named:
        assert re.search(rf"^class {name}\b", (ROOT / path).read_text(), re.MULTILINE), name
    words = " ".join(README.split())
    for word in (
        *("ThresholdMonitorEvolving", "a stateful DoFn per key", "per-user contribution counters", "Target-Charging"),
        *("windowed event streams", "on any engine of Beam", 'runner="DirectRunner"'),
    ):
        assert word in words


def test_the_readme_says_from_how_many_users_looks_and_hits_find_an_item():
    """The figures are those of plans of a year of hourly windows."""
    said = " ".join(README.split())
    (sentence,) = re.findall(r"who have ([^:]+) looks each: (.*?) if they pay for looks, and (\d+) each time", said)
    year = WindowSchedule.fixed("2026-01-01", "2027-01-01", 3600)

    def plan(**choices: Any) -> Any:
        return plan_for(epsilon=2, delta=1e-9, schedule=year, **choices)

    looks = plan()
    each = numbers(sentence[0])
    assert each == [10, 100, 1000, 10_000]
    assert numbers(sentence[1]) == [looks.found_from(number) for number in each]
    assert int(sentence[2]) == plan(charge="hits").smallest_detectable()


def numbers(text: str) -> list[int]:
    return [int(number.replace(",", "")) for number in re.findall(r"\d[\d,]*\d|\d", text)]


def test_the_readme_says_no_more_than_the_proof_has():
    for path in ("README.md", "pyproject.toml", "dp_transforms/cli/subcommands.py"):
        text = (ROOT / path).read_text()
        assert "life of the stream" not in text
        assert "declared range" in text
    assert README.count("all cores") == 1
    assert "no cap" not in README
    assert "--most-contributions" in README


def test_the_pipeline_in_deploy_reports_what_the_log_holds(tmp_path):
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
        "import pathlib\nimport uuid\nimport apache_beam as beam\nfrom dp_transforms import *\n"
        'options = beam.options.pipeline_options.PipelineOptions(["--runner=FnApiRunner"])\n'
    )
    (tmp_path / "example.py").write_text(f"{head}{pipeline}print(ReportFolder('reports').read(header.run_id))\n")
    (tmp_path / "logs").mkdir()
    lines = (json.dumps({"user": f"u{user}", "item": "news", "timestamp": 1_577_836_800}) for user in range(300))
    (tmp_path / "logs" / "0.jsonl").write_text("\n".join(lines) + "\n")
    schedule = WindowSchedule.fixed(1_577_836_800, 1_577_840_400, 3600)
    plan = Plan.for_contributions(epsilon=8, delta=1e-6, schedule=schedule)
    (tmp_path / "plan.json").write_text(plan.to_json())
    key_file(tmp_path)
    result = run_python("example.py", cwd=tmp_path, environment={"COLUMNS": "120"})
    assert result.returncode == 0, result.stderr
    (size,) = re.findall(
        r"HeavyHitter\(item='news', zone=None, noisy_count=None, level=\d+, at_least_users=(\d+)", result.stdout
    )
    assert 250 < int(size) <= 300
    assert "RunEnded(stream='events', windows=1, reports=1)" in result.stdout


def test_the_demo_replays_one_log_for_hits_and_for_contributions(tmp_path):
    result = run_python("-m", "examples.demos.demo", cwd=tmp_path, environment={"COLUMNS": "120"})
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


def test_every_option_is_documented_once_in_its_section_or_with_those_of_several_commands():
    page = (ROOT / "docs" / "commands.md").read_text()
    marks = re.findall(r"^<!-- options of (.*) -->$", page, re.MULTILINE)
    having = [name for name, command in commands().items() if option_tables.options_of(command)]
    assert sorted(marks) == sorted([*having, option_tables.SHARED])
    sections = dict(re.findall(r"^## (.*)$((?:(?!^## ).*\n)*)", page, re.MULTILINE))
    sections = {
        name: re.sub(r"^What goes together.*:\n\n(?:[- ] .*\n)*", "", text, flags=re.M)
        for name, text in sections.items()
    }
    several = re.findall(r"^Of (.*):\n((?:(?!Of |<!--).*\n)*)", sections["Options of several commands"], re.MULTILINE)
    for name in having:
        assert f"<!-- options of {name} -->" in sections[f"shh {name}"]
        named = named_options(sections[f"shh {name}"])
        named += [option for whose, options in several if f"`{name}`" in whose for option in named_options(options)]
        assert sorted(named) == sorted(option_tables.options_of(commands()[name]))


def named_options(text: str) -> list[str]:
    return re.findall(r"^- `(--[a-z-]+)", text, re.MULTILINE)


def test_every_command_is_documented():
    text = (ROOT / "docs" / "commands.md").read_text()
    assert set(re.findall(r"^## shh (\w+)$", text, re.MULTILINE)) == set(commands())


def test_the_lists_of_options_say_what_the_help_says():
    page = (ROOT / "docs" / "commands.md").read_text()
    assert page == with_options(page, commands()), "python -m tests.helpers.option_tables writes them again"


def test_what_the_documents_on_security_name_exists():
    """The version, and for each row of the table of raw data its test."""
    version = re.search(r'^version = "(\d+\.\d+)\.', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert version is not None
    assert f"| the newest release, {version[1]}.x now | yes |" in (ROOT / "SECURITY.md").read_text()
    assert documented().keys() == MEASURED_BY.keys()
    for test in MEASURED_BY.values():
        path, _, function = test.partition("::")
        assert f"def {function}(" in (ROOT / path).read_text()


def test_the_package_says_what_every_public_name_is_for():
    names, _, _ = str(dp_transforms.__doc__).partition("Map of the package")
    assert set(dp_transforms.__all__) <= set(re.findall(r"`(\w+)`", names))


def test_no_document_promises_more_than_the_declared_range():
    """The proofs are about declared windows: not about a life, nor about a stream for ever."""
    texts = {path.name: path.read_text() for path in [ROOT / "SECURITY.md", *(ROOT / "docs").glob("*.md")]}
    texts["shh --help"] = click.Context(commands()["replay"]).find_root().command.help or ""
    texts |= {name: command.help or "" for name, command in commands().items()}
    for name, text in texts.items():
        assert not re.search(r"(?:whole|entire)\s+life", text), name
