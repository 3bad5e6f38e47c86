"""Jobs of pipelines/*.py: the commands on the pages of `runners`, a folder for them, and what must come out."""

from __future__ import annotations

import importlib.util
import pathlib
import re
import shlex
from types import ModuleType

import apache_beam as beam
import pytest
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.portability.api import beam_runner_api_pb2

from dp_transforms import EventFields, Plan, WindowReport, WindowSchedule
from dp_transforms.cli.replay_run import run_replay
from dp_transforms.reports import read_report
from dp_transforms.reports.report_records import RunEnded
from tests.helpers.crowded_logs import replay_request
from tests.helpers.replay_logs import HOURS, START, log_rows, write_parquet
from tests.helpers.shh_process import ROOT
from tests.helpers.small_runs import key_file

REPLAY, STREAM = "replay_log", "live_stream"
HEAVY = [f"heavy-{hour}" for hour in (0, 1, 3, 5)]
MOST_JOB_BYTES = 20_000_000  # Dataflow refuses larger jobs


def script(name: str) -> ModuleType:
    """As a module, for tests in this process."""
    specification = importlib.util.spec_from_file_location(f"pipelines_{name}", ROOT / "pipelines" / f"{name}.py")
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def words_on_page(engine: str, name: str) -> list[str]:
    """What follows the program in the one command of the page that runs it."""
    page = (ROOT / "runners" / engine / "README.md").read_text().replace("\\\n", " ")
    (line,) = re.findall(rf"^    python pipelines/{name}\.py (.*)$", page, re.MULTILINE)
    return shlex.split(line)


def make_folder(folder: pathlib.Path) -> None:
    """With the names that the commands have: clicks in the order of their times, a plan, a key, a stop file."""
    (folder / "clicks").mkdir()
    write_parquet(folder / "clicks" / "a.parquet", sorted(log_rows(), key=lambda row: row[2]), row_group_size=400)
    schedule = WindowSchedule(START, START + 3600 * HOURS, 3600, 3600)
    plan = Plan.for_hits(epsilon=8, delta=1e-6, schedule=schedule)
    (folder / "plan.json").write_text(plan.to_json())
    key_file(folder)
    (folder / "stop").touch()  # last: what has come by then counts


def assert_answers(name: str, folder: pathlib.Path) -> None:
    """With the run id and the key of the job a replay by the library gives the same, of a file each byte."""
    report = read_report(folder / ("report.avro" if name == REPLAY else "reports"))
    here = folder / f"here-{report.header.run_id}.avro"
    plan, key = Plan.from_json((folder / "plan.json").read_text()), str(folder / "noise.key")
    run_replay(replay_request(folder / "clicks", plan, here, key, report.header.run_id, EventFields()))
    assert list(report) == list(read_report(here))
    assert items(list(report)) == HEAVY
    if name == REPLAY:
        assert (folder / "report.avro").read_bytes() == here.read_bytes()
    else:
        assert report.ended == RunEnded(report.header.stream, HOURS, len(HEAVY))


def items(reports: list[WindowReport]) -> list[str]:
    return [hitter.item for report in reports for hitter in report.heavy_hitters]


def made_job(
    name: str, places: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> tuple[beam_runner_api_pb2.Pipeline, PipelineOptions]:
    """The job of the command of the page, as Beam would send it, and its options."""
    words = words_on_page("dataflow", name)
    for written, place in places.items():
        words = [word.replace(written, place) for word in words]
    module, pipelines = script(name), []
    build_name = "build_stream" if name == STREAM else "build_replay"
    build = getattr(module, build_name)

    def seen(pipeline: beam.Pipeline, *arguments: object) -> None:
        pipelines.append(pipeline)
        build(pipeline, *arguments)

    monkeypatch.setattr(module, build_name, seen)
    module.command.run([*words, "--dry_run=true"])
    (pipeline,) = pipelines
    job = pipeline.runner.proto_pipeline
    assert 10_000 < job.ByteSize() < MOST_JOB_BYTES
    return job, pipeline.options
