"""``--output`` as a table of a database: streams and copies; what is refused before anything starts."""

import contextlib
import dataclasses
import json
import os
import pathlib
import sqlite3

import pytest

from dp_transforms.monitor.window_report import HeavyHitter, RunEnded
from dp_transforms.reports import read_report_file
from dp_transforms.reports.report_records import hitter_fields
from dp_transforms.reports.report_table import ReportTable
from tests.cli.stream_words import CLUSTER, FOLDER, HISTORY, HOURS, IN_PROCESS, KEY, PLAN, run, write_log_and_key
from tests.helpers.report_samples import COUNTS, HEADER, LABELS, OTHER_STREAM, report, written
from tests.helpers.sinks import write_all


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The current folder, with a log of old events and a noise key."""
    monkeypatch.chdir(tmp_path)
    write_log_and_key(tmp_path)
    return tmp_path


def test_a_stream_writes_to_sqlite_what_it_shows(folder, capsys):
    words = [*FOLDER, *PLAN, *HISTORY, *IN_PROCESS, "--output", "sqlite:///reports.db", "--output-table", "news"]
    code, out, err = run([*words, "--run-id", "run-1"], capsys)
    assert code == 0, err
    table = ReportTable(f"sqlite:///{folder}/reports.db", "news")
    header, reports, ended = table.read("run-1")
    assert header is not None
    assert ended == RunEnded("events", HOURS, 4)
    shown = [json.loads(line)["heavy_hitters"] for line in out.splitlines()]
    assert shown == [list(map(hitter_fields, window.heavy_hitters)) for window in reports]
    assert [each[0]["item"] for each in shown] == [f"heavy-{hour}" for hour in (0, 1, 3, 5)]
    assert f"shh show {table.url} --table news --run-id run-1" in err
    code, _, err = run([*words, "--run-id", "run-1"], capsys)
    assert (code, "holds run 'run-1', which has ended" in err) == (1, True)


def test_what_is_wrong_with_a_database_is_told_before_anything_starts(folder, capsys):
    stream = ["stream", *FOLDER, *PLAN, *KEY]
    replay = ["replay", "logs", "--time-unit", "s", *PLAN]
    secret = "postgresql://shh:top-secret@localhost:1/reports"
    for words, parts in (
        (
            [*stream, "--output", "sqlite:///r.db", "--output-table", "News"],
            ["--output-table must be a name", "'News'"],
        ),
        ([*stream, "--output", "duckdb:///r.db"], ["--output must be postgresql://", "DuckDB reads reports"]),
        ([*stream, "--output", "sqlite://r.db"], ["--output must be postgresql://", "sqlite:///FILE"]),
        ([*stream, "--output", "mysql://h/d"], ["--output must be a path, got a URL"]),
        ([*stream, "--output", "sqlite:///nowhere/r.db"], ["nowhere does not exist"]),
        ([*stream, "--output", secret], ["postgresql://shh:***@localhost:1/reports", "cannot be used"]),
        ([*stream, *CLUSTER, "--output", "sqlite:///r.db"], ["a disk that no other machine has", "postgresql://"]),
        ([*stream, *CLUSTER, "--output", secret], ["must not hold a password", "passfile="]),
        ([*replay, "--output", secret], ["--output must be a file", "shh load REPORT --output URL"]),
        (["load", "logs/0.jsonl", "--output", "sqlite:///r.db"], ["logs/0.jsonl"]),
        (["load", "logs/0.jsonl", "--output", "r.db"], ["--output must be a database"]),
        (["show", "logs/0.jsonl", "--table", "news"], ["--table is for a database"]),
        (["show", "sqlite:///r.db"], ["has no such run"]),
        (["show", "sqlite:///"], ["must name a file"]),
    ):
        code, out, err = run(words[1:], capsys, words[0])
        assert (code, out, err.count("\n")) == (1, "", 1), (words, err)
        for part in parts:
            assert part in err, (part, err)
        assert "top-secret" not in err
        assert sorted(os.listdir(folder)) == ["logs", "noise.key"], words


def test_reports_are_copied_part_by_part_and_again_and_no_answer_is_replaced(folder, capsys):
    first, second = (folder / name for name in ("1", "2"))
    for place, reports in ((first, [LABELS]), (second, [COUNTS])):
        place.mkdir()
        written(place, "avro", reports)
    table = ReportTable("sqlite:///reports.db")
    for place in (first, second, first):
        code, out, err = run([str(place / "report.avro"), "--output", "sqlite:///reports.db"], capsys, "load")
        assert (code, "1 window with heavy items copied" in out) == (0, True), err
    assert table.read() == (HEADER, [LABELS, COUNTS], None)
    code, out, _ = run(["sqlite:///reports.db"], capsys, "show")
    assert (code, "Whether the run has ended cannot be known from this table" in out) == (0, True)
    third = folder / "3"
    third.mkdir()
    other = LABELS._replace(epsilon_spent=0.5)
    code, _, err = run(
        [str(written(third, "jsonl", [report(1, *LABELS.heavy_hitters), other])), "--output", table.url], capsys, "load"
    )
    assert (code, "already has another answer" in err) == (1, True)
    assert table.read() == (HEADER, [LABELS, COUNTS], None)
    mixed = written(folder, "parquet", [OTHER_STREAM, LABELS, COUNTS])
    assert len(list(read_report_file(mixed)[1])) == 3
    code, _, err = run([str(mixed), "--output", table.url], capsys, "load")
    assert (code, "different streams" in err) == (1, True)


def test_the_queries_of_the_page_run_on_what_a_table_holds(folder):
    """Those of docs/stores.md that are not of DuckDB or Grafana alone."""
    page = (pathlib.Path(__file__).parents[2] / "docs" / "stores.md").read_text()
    block = page[page.index("    -- what is on top now") :].partition("\n\n")[0]
    story, other = (HeavyHitter(item, None, None, 2, 30) for item in ("story-02808", "other"))
    news = [report(1, story), report(2, story, other), report(4, story)]
    table = ReportTable("sqlite:///r.db", "news")
    write_all(table, news, RunEnded("news", 9, 3), dataclasses.replace(HEADER, run_id="december"))
    write_all(table, [LABELS, COUNTS], RunEnded("news", 9, 2), HEADER)  # another run, whose items do not count
    with contextlib.closing(sqlite3.connect("r.db")) as connection:
        queries = [query for query in block.split(";") if query.strip()]
        assert len(queries) == 2
        found = [connection.execute(query.replace("'events'", "'news'")).fetchall() for query in queries]
    assert found[0] == [("a", None), ("", None)]
    assert sorted((start[11:16], item) for start, item in found[1]) == [
        ("04:00", "story-02808"),
        ("05:00", "other"),
        ("07:00", "story-02808"),
    ]
