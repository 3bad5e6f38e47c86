"""What the documents say is run: the README's example, the demo, the pipeline of docs/deploy.md."""

from __future__ import annotations

import json
import pathlib
import re

import click

import dp_transforms
from dp_transforms import Plan, WindowSchedule
from tests.canaries.places import MEASURED_BY, documented
from tests.helpers.commands import commands
from tests.helpers.shh_process import run_python
from tests.helpers.small_runs import key_file

ROOT = pathlib.Path(__file__).resolve().parents[1]


README = (ROOT / "README.md").read_text()
NO_NETWORK = {"https_proxy": "http://127.0.0.1:9", "http_proxy": "http://127.0.0.1:9"}  # where `DirectRunner` looks


def test_the_first_example_of_the_readme_prints_what_it_shows(tmp_path):
    """Noise differs: by 450 readers with a probability below 1e-9, at 21 times its scale."""
    (example,), (shown,) = (re.findall(rf"```{kind}\n(.*?)```", README, re.DOTALL) for kind in ("python", "text"))
    assert 'runner="DirectRunner"' in example
    (tmp_path / "example.py").write_text(example)
    result = run_python("example.py", cwd=tmp_path, environment={"COLUMNS": "120", **NO_NETWORK})
    assert result.returncode == 0, result.stderr
    lines = [re.findall(r"^DE ([\d,]+) readers, epsilon ([\d.]+)$", text, re.M) for text in (shown, result.stdout)]
    assert [spent for _, spent in lines[0]] == [spent for _, spent in lines[1]]
    assert lines[0][0][1] < lines[0][1][1] < lines[0][2][1] < lines[0][3][1] == "2.00"
    for counts in ([int(count.replace(",", "")) for count, _ in each] for each in lines):
        off = [count - holders for count, holders in zip(counts, [3000] * 5 + [1000] * 2, strict=True)]
        assert max(map(abs, off)) < 450, "after five hits the regular readers no longer count"


def test_the_words_of_the_mission_are_in_the_readme_and_the_classes_in_their_files():
    assert len(README.split()) <= 750
    named = re.findall(r"\[`([A-Z]\w+)`\]\(([^)\s]+)\)", README)
    assert len(named) == 3
    for name, path in named:
        assert re.search(rf"^class {name}\b", (ROOT / path).read_text(), re.MULTILINE), name
    words = " ".join(README.split())
    for word in (
        *("ThresholdMonitorEvolving", "a stateful DoFn per key", "per-user contribution counters", "Target-Charging"),
        *("windowed event streams", "reviewed by us alone"),
    ):
        assert word in words


def test_the_table_of_the_readme_has_the_figures_of_the_benchmark():
    measured = (ROOT / "docs" / "benchmarks.md").read_text()
    rows = re.findall(r"^\| .* \| \**([\d,]+)\** \| ([\d.]+ %) \|$", README, re.MULTILINE)
    assert len(rows) == 7
    assert all(f"| {found}; {share} |" in measured for found, share in rows)


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


def test_the_demo_runs_the_job_of_the_readme_and_replays_a_log(tmp_path):
    result = run_python("-m", "examples.demos.demo", cwd=tmp_path, environment={"COLUMNS": "120", **NO_NETWORK})
    assert result.returncode == 0, result.stderr
    shown = result.stdout
    commands_shown = re.findall(r"^\$ (\w+ \S+)", shown, re.MULTILINE)
    assert commands_shown == ["python demo/job.py", "shh simulate", "shh replay"]
    hits, _, report = re.split(r"^\$ .*$", shown, flags=re.MULTILINE)[1:]
    assert len(re.findall(r"^DE [\d,]+ readers, epsilon", hits, re.MULTILINE)) == 7
    assert "(2, 1e-09)-differentially private" in report
    assert "story-" in report
    (named,) = re.findall(r"([\d,]+) pairs \(window, item\) were named", report)
    assert int(named.replace(",", "")) > 500
    written = ["clicks.parquet", "job.py", "page.html", "report.avro"]
    assert sorted(path.name for path in (tmp_path / "demo").iterdir()) == written
    assert f"Open {tmp_path / 'demo' / 'page.html'} in a browser" in shown


def test_every_command_is_documented_and_the_site_lists_its_options():
    text = (ROOT / "docs" / "commands.md").read_text()
    assert set(re.findall(r"^## shh (\w+)$", text, re.MULTILINE)) == set(commands())
    assert re.findall(r"^<!-- options of (\w+) -->$", text, re.MULTILINE) == sorted(commands())


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
