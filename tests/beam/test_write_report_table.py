"""A stream of reports into a table: bundles that run twice, and workers in other processes, write each window once."""

from __future__ import annotations

import pathlib

import apache_beam as beam
import pytest

from dp_transforms import ReportTable, WriteReportStream
from dp_transforms.monitor.window_report import RunEnded, WindowReport
from tests.helpers.beam_pipelines import local_pipeline
from tests.helpers.report_table_contract import ENDED, HEADER, OTHER, REPORTS, rows_of

REPEATED = ["--direct_runner_bundle_repeat=1"]


def write(table: ReportTable, reports: list[WindowReport], ended: list[RunEnded], flags: list[str]) -> None:
    with local_pipeline(flags) as pipeline:
        inputs = (
            pipeline | "Reports" >> beam.Create(reports).with_output_types(WindowReport),
            pipeline | "Ended" >> beam.Create(ended).with_output_types(RunEnded),
        )
        _ = inputs | WriteReportStream(table, HEADER)


def test_a_stream_of_reports_is_in_the_table_once_and_no_second_answer(tmp_path: pathlib.Path) -> None:
    table = ReportTable(f"sqlite:///{tmp_path}/reports.db", "news")
    write(table, REPORTS, [ENDED], REPEATED)
    assert table.read("run-1") == (HEADER, REPORTS, ENDED)
    before = rows_of(table)
    write(table, REPORTS[::-1], [ENDED], [])
    with pytest.raises(Exception, match="already has another answer"):
        write(table, [OTHER], [], [])
    assert rows_of(table) == before
