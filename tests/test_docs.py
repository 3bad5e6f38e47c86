"""What the documents show is run: the README's example, the demo, the pipeline of docs/deploy.md."""

from __future__ import annotations

import json
import pathlib
import re
import runpy

from dp_transforms import Plan, WindowSchedule
from examples.demos.demo import demo
from tests.helpers.small_runs import key_file

ROOT = pathlib.Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text()
NO_NETWORK = {"https_proxy": "http://127.0.0.1:9", "http_proxy": "http://127.0.0.1:9"}  # where `DirectRunner` looks


def test_the_table_of_the_readme_has_the_figures_of_the_benchmark():
    measured = (ROOT / "docs" / "benchmarks.md").read_text()
    rows = re.findall(r"^\| .* \| \**([\d,]+)\** \| ([\d.]+) % \|$", README, re.MULTILINE)
    assert len(rows) == 7
    assert all(f"| {found}; {share} |" in measured for found, share in rows)


def test_the_pipeline_in_deploy_reports_what_the_log_holds(tmp_path, monkeypatch, capfd):
    """The same lines with a folder as source, on Beam's local runner, over one window of the past."""
    (pipeline,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "deploy.md").read_text(), re.DOTALL)
    for shown, here in (
        ('KafkaTopic("b:9092", "clicks", EventFields(', 'LogFolder("logs", EventFields('),
        ('"timestamp"', '"timestamp", "s"'),
        ("allowed_lateness", 'clock="event", idle_timeout_seconds=1, driver="loop", allowed_lateness'),
    ):
        assert pipeline.count(shown) == 1
        pipeline = pipeline.replace(shown, here)
    head = (
        "import pathlib\nimport uuid\nimport apache_beam as beam\nfrom dp_transforms import *\n"
        'options = beam.options.pipeline_options.PipelineOptions(["--runner=FnApiRunner"])\n'
    )
    tail = "print(read_report('reports').windows, read_report('reports').ended)\n"
    (tmp_path / "example.py").write_text(f"{head}{pipeline}{tail}")
    (tmp_path / "logs").mkdir()
    lines = (json.dumps({"user": f"u{user}", "item": "news", "timestamp": 1_577_836_800}) for user in range(300))
    (tmp_path / "logs" / "0.jsonl").write_text("\n".join(lines) + "\n")
    schedule = WindowSchedule.fixed(1_577_836_800, 1_577_840_400, 3600)
    plan = Plan.for_contributions(epsilon=8, delta=1e-6, schedule=schedule)
    (tmp_path / "plan.json").write_text(plan.to_json())
    key_file(tmp_path)
    monkeypatch.chdir(tmp_path)
    runpy.run_path("example.py")
    said = capfd.readouterr().out
    (size,) = re.findall(r"HeavyHitter\(item='news', .*?at_least_users=(\d+)", said)
    assert 250 < int(size) <= 300
    assert "RunEnded(stream='events', windows=1, reports=1)" in said


def test_the_demo_runs_the_job_of_the_readme_and_replays_a_log(tmp_path, monkeypatch, capfd):
    """The job prints what the README shows. Noise differs: by 450 readers with a probability below 1e-9, at 21 times
    its scale."""
    monkeypatch.chdir(tmp_path)
    for name, value in {"COLUMNS": "120", **NO_NETWORK}.items():
        monkeypatch.setenv(name, value)
    demo()
    said = capfd.readouterr().out
    hits, _, report, page = re.split(r"^\$ .*$", said, flags=re.MULTILINE)[1:]
    (shown,) = re.findall(r"```text\n(.*?)```", README, re.DOTALL)
    lines = [re.findall(r"^DE ([\d,]+) readers, epsilon ([\d.]+)$", text, re.M) for text in (shown, hits)]
    assert [spent for _, spent in lines[0]] == [spent for _, spent in lines[1]]
    for counts in ([int(count.replace(",", "")) for count, _ in each] for each in lines):
        off = [count - holders for count, holders in zip(counts, [3000] * 5 + [1000] * 2, strict=True)]
        assert max(map(abs, off)) < 450, "after five hits the regular readers no longer count"
    assert "(2, 1e-09)-differentially private" in report
    (named,) = re.findall(r"([\d,]+) pairs \(window, item\) were named", page)
    assert int(named.replace(",", "")) > 500
    written = ["clicks.parquet", "job.py", "page.html", "report.avro"]
    assert sorted(path.name for path in (tmp_path / "demo").iterdir()) == written
    assert f"Open {tmp_path / 'demo' / 'page.html'} in a browser" in said
