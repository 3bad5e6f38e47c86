"""What a Flink with little memory must bear: large records, slow workers, and workers that go."""

from __future__ import annotations

import pathlib
import re
import subprocess

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions

from dp_transforms.beam.write_reports import WriteReports
from dp_transforms.core.window_report import HeavyHitter, WindowReport
from dp_transforms.reports import ReportHeader, read_report_file
from examples.engines.engine_process import engine_file, java
from examples.engines.flink import JOB_SERVER_JAR
from tests.engines import needs

pytestmark = needs("flink")
_WINDOWS, _HOUR = 120, 3_600_000_000


def _java_case(name: str, *words: object) -> list[str]:
    """What it prints, with the classes of our job server and little memory."""
    case = pathlib.Path(__file__).parent / "java" / f"{name}.java"
    command = [java(), "-Xmx200m", "-XX:MaxDirectMemorySize=96m", "-cp", str(engine_file(JOB_SERVER_JAR))]
    command += [str(case), *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    return done.stdout.splitlines()


def test_what_waits_for_a_slow_worker_fits_into_little_memory() -> None:
    """240 MB on one connection, with 96 MB for both of its ends. Beam's own class sends a hundred messages before it
    looks."""
    assert _java_case("SenderCase", 4_000_000, 60, "slow") == ["sent: 60, taken: 60, ended"]


def test_small_messages_do_not_wait_for_each_other() -> None:
    """Ten of these fill what the connection takes on; as with Beam's own class a hundred are sent."""
    assert _java_case("SenderCase", 10_000, 300, "idle") == ["sent: 100, taken: 0, waits"]


def test_nobody_waits_for_a_worker_that_has_gone() -> None:
    """Beam's own class does, for ever, once it waits; and the task with it."""
    before, *told, after = _java_case("SenderCase", 4_000_000, 3, "leaving")
    assert before == "before it left: 1, waits"
    sent = re.fullmatch("sent: ([123]), taken: 0, ended", after)[1]
    assert told == ["to the sender: CANCELLED"] * (sent != "3")


def _report(window: int) -> WindowReport:
    """Of some 200 KB."""
    items = [HeavyHitter(f"{window}-{number}-{'x' * 10_000}", None, None, 1, 1) for number in range(20)]
    return WindowReport("events", window * _HOUR, (window + 1) * _HOUR, items, 2.0, 1e-9, 2.0)


def test_reports_larger_than_the_memory_of_a_sort_are_written(cluster, tmp_path) -> None:
    """24 MB of reports under one key; this Flink has 16 MB for all sorts of a task."""
    output = tmp_path / "report.jsonl"
    header = ReportHeader("run-1", "events", "a guarantee", {})
    with beam.Pipeline(options=PipelineOptions(cluster.options(streaming=False, parallelism=1))) as pipeline:
        reports = pipeline | beam.Create(range(_WINDOWS)) | beam.Map(_report).with_output_types(WindowReport)
        _ = reports | WriteReports(output, header)
    assert output.stat().st_size > 20_000_000
    assert [report.window_start for report in read_report_file(output)[1]] == [n * _HOUR for n in range(_WINDOWS)]
