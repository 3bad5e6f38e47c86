"""A job that is left on Flink: its id is told when Flink runs it, and never that of an earlier job of its name."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from apache_beam.runners.runner import PipelineResult, PipelineState

from dp_transforms.cli import flink_jobs
from dp_transforms.cli.flink_jobs import FlinkStart
from dp_transforms.engines.flink_rest import FlinkRest
from dp_transforms.errors import UserError
from tests.helpers.flink_answers import FlinkAnswers, overview, serving

Jobs = list[tuple[str, str, str]]
EARLIER = ("old", "mine", "FINISHED")


class _Flink(FlinkAnswers):
    """Each look shows the next of these; the last one stays."""

    looks: list[Jobs]

    def get(self) -> object:
        looks = type(self).looks
        return overview(looks.pop(0) if len(looks) > 1 else looks[0])


@pytest.fixture
def says() -> type[_Flink]:
    return type("Says", (_Flink,), {"looks": [[EARLIER]]})


@pytest.fixture
def flink(says: type[_Flink], monkeypatch: pytest.MonkeyPatch) -> Iterator[FlinkRest]:
    monkeypatch.setattr(flink_jobs, "_SECONDS_BETWEEN_LOOKS", 0)
    with serving(says) as found:
        yield found


@pytest.mark.parametrize("taken", ["RUNNING", "FINISHED"])
def test_the_id_is_told_when_flink_runs_the_job(flink: FlinkRest, says: type[_Flink], taken: str) -> None:
    start = FlinkStart(flink, "mine")
    states = ("INITIALIZING", "CREATED", "RESTARTING", taken)
    says.looks = [[EARLIER], *([EARLIER, ("new", "mine", state), ("x", "mine-too", "RUNNING")] for state in states)]
    assert start.wait_until_running(PipelineResult(PipelineState.RUNNING)) == "new"
    assert len(says.looks) == 1


@pytest.mark.parametrize("jobs", [[EARLIER], [EARLIER, ("new", "mine", "FAILED")], [("x", "mine-too", "RUNNING")]])
def test_a_job_that_ends_before_is_an_error(flink: FlinkRest, says: type[_Flink], jobs: Jobs) -> None:
    start = FlinkStart(flink, "mine")
    says.looks = [jobs]
    with pytest.raises(UserError, match="the job is FAILED, and Flink does not run it"):
        start.wait_until_running(PipelineResult(PipelineState.FAILED))


def test_it_is_not_waited_for_without_end(flink: FlinkRest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flink_jobs, "_SECONDS_TO_START", 0)
    with pytest.raises(UserError, match="the job is RUNNING, and Flink does not run it"):
        FlinkStart(flink, "mine").wait_until_running(PipelineResult(PipelineState.RUNNING))


def test_a_cluster_that_does_not_answer_is_told_before_anything_begins() -> None:
    with pytest.raises(UserError, match=r"does not answer: [^\n]* Is the cluster up\? Nothing was started\."):
        FlinkStart(FlinkRest("localhost:9"), "mine")
