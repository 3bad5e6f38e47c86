"""Replays on Flink: the report, the dead letter and the counts of a replay in process, whatever is cut."""

from __future__ import annotations

import dataclasses
import pathlib

import pytest

from dp_transforms.cli.replay_run import run_on_runner, run_replay
from dp_transforms.logs import EventFields, parquet, spread_chunks, text_files
from dp_transforms.reports import read_report_file
from tests.engines import needs
from tests.helpers.crowded_logs import SCHEDULE, replay_request, write_large_piece
from tests.helpers.modes import plan_of_mode

pytestmark = [pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning"), needs("flink")]


@pytest.mark.parametrize("mode", ["looks", pytest.param("hits", marks=pytest.mark.nightly)])
def test_large_pieces_that_are_cut_change_nothing(key_path, tmp_path, monkeypatch, mode):
    """A file of JSON lines, one of CSV, and a row group: in process each is read as a whole. This process cuts, so its
    limits can be small; they are joined by the workers, with the limits of the product."""
    monkeypatch.setattr(parquet, "_LEAST_ROWS_TO_CUT", 1000)
    monkeypatch.setattr(text_files, "_LEAST_BYTES", 1 << 15)
    log, fields = tmp_path / "log", EventFields(time_unit="s")
    log.mkdir()
    for name, rows in (("a.csv", 60_000), ("b.jsonl", 20_000), ("c.parquet", 20_000)):
        write_large_piece(log / name, rows, padding=60)
    plan = plan_of_mode(mode, epsilon=8, delta=1e-6, schedule=SCHEDULE)

    def request(where):
        bad = str(tmp_path / f"{where}-bad.jsonl")
        return replay_request(log, plan, tmp_path / f"{where}.jsonl", key_path, fields=fields, dead_letter=bad)

    here, there = request("here"), request("there")
    cut = {part.path for joined in spread_chunks(there.chunks, 2) for part in joined.chunks if part.span}
    assert len(cut) == 3
    expected = run_replay(here)
    summary = run_on_runner(there, ["--runner=FlinkRunner", "--parallelism=2"])
    assert dataclasses.replace(summary, seconds=0) == dataclasses.replace(expected, seconds=0)
    assert expected.events + expected.rejected == 100_000
    assert expected.rejected > 900
    assert len(list(read_report_file(there.output)[1])) > 3, "else nothing was compared"
    assert pathlib.Path(there.output).read_bytes() == pathlib.Path(here.output).read_bytes()
    assert (tmp_path / "there-bad.jsonl").read_bytes() == (tmp_path / "here-bad.jsonl").read_bytes()
