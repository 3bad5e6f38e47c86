"""A job that publishes by itself: once, whole, never over another file, and not if too many rows are bad."""

from __future__ import annotations

import pathlib
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.runners.runner import PipelineResult

from dp_transforms.beam import write_reports
from dp_transforms.beam.jobs import build_replay, run_to_end
from dp_transforms.beam.runner_options import runner_options
from dp_transforms.beam.workers import operator_counts
from dp_transforms.cli.pipeline_errors import errors_in_one_line
from dp_transforms.cli.replay_run import ReplayRequest, run_replay
from dp_transforms.core.operator_counts import REPORTS_WITHHELD
from dp_transforms.errors import UserError
from dp_transforms.reports import read_report_file
from dp_transforms.stores import remote_files
from tests.helpers.crowded_logs import SCHEDULE, replay_request, write_crowded_log
from tests.helpers.looks_plans import looks_plan_of
from tests.helpers.small_runs import key_file


@pytest.fixture
def request_of(tmp_path: pathlib.Path):
    log = write_crowded_log(tmp_path / "log", 3000, 200, files=2)
    (tmp_path / "log" / "bad.jsonl").write_text(
        '{"user": "u1", "item": "i1", "timestamp": "2026-01-01T00:00:01Z"}\n' + "no row\n" * 5
    )
    key = key_file(tmp_path)
    plan = looks_plan_of(SCHEDULE, most_ids=5000)

    def make(name: str, **changes: object) -> ReplayRequest:
        words: dict[str, Any] = {"output": tmp_path / name, "key_path": key, **changes}
        return replay_request(log, plan, **words)

    return make


def _run(request: ReplayRequest, times: int = 1) -> PipelineResult:
    """times: how often Beam runs each bundle, as an engine whose workers die."""
    repeats = f"--direct_runner_bundle_repeat={times - 1}"
    options = runner_options([repeats], job_name="job", streaming=False)
    with errors_in_one_line("nothing was published"):
        pipeline = beam.Pipeline(options=options)
        build_replay(pipeline, request)
        return run_to_end(pipeline)


def test_the_report_is_that_of_a_command_that_waits_however_often_a_step_runs(request_of, tmp_path):
    here, there = request_of("here.jsonl"), request_of("there.jsonl", dead_letter=str(tmp_path / "bad.txt"))
    run_replay(here)
    _run(there, times=3)
    assert pathlib.Path(there.output).read_bytes() == pathlib.Path(here.output).read_bytes()
    assert len(list(read_report_file(there.output)[1])) == SCHEDULE.horizon
    assert len(pathlib.Path(there.dead_letter or "").read_text().splitlines()) == 5


@pytest.mark.xdist_group("s3")
def test_a_report_in_a_store_is_published_once_however_often_a_step_runs(request_of, bucket):
    here, there = request_of("here.jsonl"), request_of("there.jsonl", output=f"{bucket}/there.jsonl")
    run_replay(here)
    _run(there, times=3)
    (header, found), (header_here, found_here) = read_report_file(there.output), read_report_file(here.output)
    assert (header, list(found)) == (header_here, list(found_here))
    names = [file.url for file in remote_files.list_beginning(bucket + "/")]
    assert names == [there.output], "a draft is left"
    with pytest.raises(UserError, match=r"there\.jsonl"):
        _run(request_of("there.jsonl", output=there.output, run_id="run-2"))


def test_where_too_many_rows_are_bad_nothing_is_published(request_of, monkeypatch):
    monkeypatch.setattr(write_reports, "MOST_REJECTED", 0.001)
    request = request_of("report.jsonl")
    assert operator_counts(_run(request))[REPORTS_WITHHELD] == 1
    folder = pathlib.Path(request.output).parent
    assert not any(path.suffix == ".jsonl" and path.is_file() for path in folder.rglob("*") if "log" not in path.parts)
    _run(request_of("report.jsonl", allow_empty=True))
    assert pathlib.Path(request.output).exists()


def test_a_file_of_another_run_is_not_written_over(request_of):
    first = request_of("report.jsonl")
    _run(first)
    before = pathlib.Path(first.output).read_bytes()
    with pytest.raises(UserError, match=r"report\.jsonl"):
        _run(request_of("report.jsonl", run_id="run-2"))
    assert pathlib.Path(first.output).read_bytes() == before
