"""`replay`: the rows of any table give, byte for byte, what `shh replay` makes of a file with them."""

from __future__ import annotations

import datetime
import io
import json
import pathlib
import warnings
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from dp_transforms import WindowSchedule, read_report, replay
from dp_transforms.local import replay_table
from dp_transforms.logs.rejected_events import RejectedEvents, pack_rejected, write_rejected_lines
from tests.helpers.modes import plan_of_mode
from tests.helpers.shh_here import shh
from tests.helpers.small_runs import key_file

ROOT = pathlib.Path(__file__).resolve().parents[2]
COLUMNS = {"user": "who", "item": "what", "time": "when"}
MODES = {
    "contributions": {"usual_contributions": (1, 10), "most_contributions": 20},
    "hits-with-counts": {"hits_per_user": 5},
}
KINDS = ("pandas", "pandas categories", "polars", "batches", "list of tables", "duckdb")


def log():
    """From items of all users down to those of a few, so that noise decides; some outside, some that cannot be read."""
    users = np.arange(600)
    parts = [(users[:: 1 + 2 * rank], f"=item {rank}", 3600 * hour) for hour in range(4) for rank in range(20)]
    who = np.concatenate([*(part[0] for part in parts), [1, 2, 3]])
    what = np.concatenate([*(np.full(len(part[0]), part[1]) for part in parts), ["", "early", "x"]])
    when = np.concatenate([*(part[2] + part[0] for part in parts), [0, -5, 0]])
    moments = pa.array((1_767_225_600 + when) * 1_000_000, pa.timestamp("us", "UTC"))
    is_timeless = pa.array(np.arange(len(who)) == len(who) - 1)
    moments = pa.compute.if_else(is_timeless, pa.scalar(None, moments.type), moments)
    return pa.table({"who": who, "what": what, "when": moments, "other": [str(row) for row in range(len(who))]})


def as_kind(kind, table):
    if kind == "list of tables":
        return table.slice(0, 1000), table.slice(1000, 500).to_pandas(), *table.slice(1500).to_batches()
    library = pytest.importorskip(kind.split()[0]) if kind != "batches" else None
    if kind == "duckdb":
        return library.connect().from_arrow(table)
    if kind == "polars":
        return library.from_arrow(table).with_columns(library.col("what").cast(library.Categorical))
    if kind == "batches":
        return pa.RecordBatchReader.from_batches(table.schema, table.to_batches(max_chunksize=1000))
    frame = table.to_pandas()
    frame["unlike"] = [{"a": 1} if row % 2 else "text" for row in range(len(frame))]  # no column of Arrow
    return frame.astype({"what": "category", "who": "category"}) if kind == "pandas categories" else frame


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("replayed")
    pq.write_table(log(), made / "log.parquet")
    key_file(made)
    for mode in MODES:
        (made / f"{mode}.json").write_text(plan_of(mode).to_json())
        words = [word for name, column in COLUMNS.items() for word in (f"--{name}-field", column)]
        words += ["--plan", f"{mode}.json", "--output", f"{mode}.avro", "--dead-letter", f"{mode}.jsonl"]
        done = shh("replay", "log.parquet", *words, "--noise-key-file", "noise.key", cwd=made)
        assert done.returncode == 0, done.stderr
    return made


def plan_of(mode):
    schedule = WindowSchedule.fixed("2026-01-01", "2026-01-02", "1h")
    return plan_of_mode(mode, epsilon=4, delta=1e-6, schedule=schedule, **MODES[mode])


@pytest.mark.parametrize(
    ("kind", "mode"), [*((kind, "contributions") for kind in KINDS), ("pandas", "hits-with-counts")]
)
def test_a_table_gives_what_the_command_makes_of_a_file_with_its_rows(folder, tmp_path, monkeypatch, kind, mode):
    of_command = read_report(folder / f"{mode}.avro")
    rejected: list[RejectedEvents] = []
    told = r"1 of [\d,]+ rows are outside.*; 2 of [\d,]+ rows cannot be read .*operator"
    monkeypatch.setattr(replay_table, "fresh_run_id", lambda: of_command.header.run_id)
    monkeypatch.setattr(replay_table.secrets, "token_bytes", lambda size: (folder / "noise.key").read_bytes())
    with pytest.warns(UserWarning, match=told):
        report = replay(as_kind(kind, log()), plan=plan_of(mode), rejected=rejected, **COLUMNS)
    report.write(tmp_path / "report.avro")
    assert (tmp_path / "report.avro").read_bytes() == (folder / f"{mode}.avro").read_bytes()
    assert report == of_command
    assert 5 < sum(len(window.heavy_hitters) for window in report) < 80, "noise decides about some"
    lines = io.BytesIO()
    write_rejected_lines(lines, map(pack_rejected, rejected))
    of_file = [{**json.loads(line), "file": "table"} for line in (folder / f"{mode}.jsonl").read_text().splitlines()]
    assert [json.loads(line) for line in lines.getvalue().splitlines()] == of_file
    assert len(of_file) == 2


def test_each_call_draws_anew(folder):
    """600 users have the largest item, and noise decides about others: two draws are alike in 1e-9 of all cases."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        first, second = (replay(log(), plan_of("hits-with-counts"), **COLUMNS) for _ in range(2))
    assert first.header.run_id != second.header.run_id
    assert first.windows != second.windows


def table(**columns: Any):
    usual = {"user": [1, 2], "item": ["secret cell", "b"], "timestamp": [datetime.datetime(2026, 1, 1)] * 2}
    return pa.table({**usual, **columns})


def mixed():
    pandas = pytest.importorskip("pandas")
    return pandas.DataFrame({"user": ["secret cell", 1], "item": ["a", "b"], "timestamp": ["2026-01-01"] * 2})


def with_time(*times):
    return lambda: table(timestamp=times)


@pytest.mark.parametrize(
    ("made", "more", "said"),
    [
        (table, {"user": "uid"}, "no field 'uid'; its fields are: user, item, timestamp. Name one with user="),
        (lambda: table(user=[0.5, 1.0]), {}, "the field 'user' has type double; an id must be text or a whole number"),
        (with_time(7, 8), {}, "numbers without a unit. Give the unit with time_unit= s, ms or us"),
        (mixed, {}, "its rows cannot be read .*values of one type"),
        (lambda: "clicks.csv", {}, "a str is no table that can be read. Give a DataFrame of pandas"),
        (with_time(*[datetime.datetime(2025, 1, 1)] * 2), {}, "2 of 2 rows are outside .*nothing is"),
        (table, {"public_items": "items.txt"}, "public_items"),
    ],
)
def test_what_cannot_be_used_is_said_with_the_argument_and_no_cell(made, more, said):
    with pytest.raises((TypeError, ValueError), match=said) as raised:
        replay(made(), plan_of("contributions"), **more)
    assert "secret" not in str(raised.value)
    assert "--" not in str(raised.value)


def nothing_of(kind):
    """Tables without rows, and without a type where the library has found no value."""
    if kind == "no batch":
        return table().slice(2).to_batches()
    if kind == "a header alone":
        return pa.csv.read_csv(io.BytesIO(b"user,item,timestamp\n"))
    frame = pytest.importorskip("pandas").DataFrame({"user": ["u"], "item": ["i"], "timestamp": ["2026-01-01"]})
    return frame.iloc[:0].astype("category")


@pytest.mark.parametrize("kind", ["pandas categories", "a header alone", "no batch"])
def test_no_rows_of_any_type_are_no_rows(kind):
    assert len(replay(nothing_of(kind), plan_of("contributions"), allow_empty=True)) == 0
    with pytest.raises(ValueError, match="no event is in the range: the table has no rows"):
        replay(nothing_of(kind), plan_of("contributions"))


@pytest.mark.parametrize("column", ["user", "item", "timestamp"])
@pytest.mark.parametrize("null", [pa.null(), pa.dictionary(pa.int8(), pa.null())], ids=str)
def test_whether_there_is_a_report_does_not_depend_on_the_one_user_who_has_a_value(column, null):
    said = f"missing {'time' if column == 'timestamp' else column}: 2"
    with pytest.warns(UserWarning, match=said):
        assert len(replay(table(**{column: pa.nulls(2, null)}), plan_of("contributions"), allow_empty=True)) == 0
    with pytest.raises(ValueError, match=rf"{said}\); no report was made.*allow_empty"):
        replay(table(**{column: pa.nulls(2, null)}), plan_of("contributions"))
