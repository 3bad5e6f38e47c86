"""A stream whose reports go to a real PostgreSQL server: where this machine has one."""

from __future__ import annotations

import json
import os
import pathlib

import pytest

from dp_transforms.monitor.window_report import RunEnded
from dp_transforms.reports.report_table import ReportTable
from tests.cli.stream_words import HOURS, PLAN, START, run
from tests.helpers import postgres_server

pytestmark = [
    pytest.mark.skipif(bool(postgres_server.skip_reason()), reason=postgres_server.skip_reason() or "it is there"),
]


def test_a_stream_and_a_replay_write_to_one_table_and_both_are_shown(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "logs").mkdir()
    rows = [{"user": f"u{n}", "item": "heavy", "timestamp": START + n} for n in range(300)]
    (tmp_path / "logs" / "0.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    os.utime(tmp_path / "logs" / "0.jsonl", (START + 86_400, START + 86_400))
    history = ["--clock", "event", "--idle-timeout", "1s", "--engine", "in-process"]
    with postgres_server.server() as url:
        output = ["--time-unit", "s", *PLAN, "--output", url, "--output-table", "news", "--run-id"]
        code, out, err = run(["--folder", "logs", *output, "live", *history], capsys)
        assert code == 0, err
        assert json.loads(out)["heavy_hitters"][0]["item"] == "heavy"
        code, _, err = run(["logs", *output, "past"], capsys, "replay")
        assert code == 0, err
        table = ReportTable(url, "news")
        assert table.run_ids() == ["live", "past"]
        for run_id in table.run_ids():
            assert table.read(run_id)[2] == RunEnded("events", HOURS, 1)
            code, out, err = run([url, "--table", "news", "--run-id", run_id], capsys, "show")
            assert (code, "heavy~" in out, "all of its 6 windows" in out) == (0, True, True), err
