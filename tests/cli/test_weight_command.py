"""`--weight`: how much of a column of numbers users of named items have, from a log or a table to what people see."""

import csv
import json

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from dp_transforms import read_report, replay
from dp_transforms.reports.report_records import ReportFileError
from tests.helpers.shh_here import shh
from tests.helpers.small_runs import key_file

BUDGET = ("--start", "2026-01-01", "--end", "2026-01-03", "--window", "6h", "--epsilon", "8", "--delta", "1e-4")
WORDS = {"start": "2026-01-01", "end": "2026-01-03", "window": "6h", "epsilon": 8.0, "delta": 1e-4}
WEIGHT = ("--weight", "seconds", "--most-weight", "100")


def log():
    """300 users of each item; of "long" each has 60 seconds twice, of which 100 count, of "short" 10."""
    users, hours = np.meshgrid(np.arange(600), np.repeat(np.arange(0, 48, 6), 2))
    users, hours = users.reshape(-1), hours.reshape(-1)
    moments = pa.array((1_767_225_600 + 3600 * hours + users) * 1_000_000, pa.timestamp("us", "UTC"))
    items = np.where(users % 2, "short", "long")
    return pa.table(
        {"user": pa.array(users), "item": items, "timestamp": moments, "seconds": np.where(users % 2, 5.0, 60.0)}
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("weight")
    pq.write_table(log(), made / "log.parquet")
    pa.csv.write_csv(log(), made / "log.csv")
    key_file(made)
    return made


@pytest.fixture(scope="module")
def report(folder):
    return replay(
        log(), noise_key=key_file(folder), run_id="run", resume=True, weight="seconds", most_weight=100, **WORDS
    )


def test_items_have_their_weight_in_every_form_of_a_report(report, tmp_path):
    assert len(report) == 8
    for window in report:
        short, long = sorted(window.heavy_hitters, key=lambda hitter: hitter.at_least_weight)
        assert (long.item, short.item) == ("long", "short")
        assert 20_000 < long.at_least_weight <= 30_000
        assert 0 <= short.at_least_weight <= 3_000
        assert all(200 < hitter.at_least_users <= 300 for hitter in window.heavy_hitters)
    assert all(hitter.at_least_weight for window in report for hitter in window.heavy_hitters)
    for ending in ("avro", "jsonl", "parquet"):
        report.write(tmp_path / f"report.{ending}")
        assert read_report(tmp_path / f"report.{ending}") == report
    table = report.to_arrow()
    first = table.column("at_least_weight")[0].as_py()
    assert table.schema.names[-2:] == ["at_least_weight", "weight"]
    weights = {hitter.item: hitter.at_least_weight for hitter in report.windows[0].heavy_hitters}
    assert first == weights[table.column("item")[0].as_py()]
    assert f"<bdi>{first:,}</bdi>" in report.windows[0]._repr_html_()
    shown = shh("show", "report.avro", "--output", "flat.csv", "--html", "page.html", cwd=tmp_path)
    assert shown.returncode == 0, shown.stderr
    with (tmp_path / "flat.csv").open() as file:
        row = next(csv.DictReader(file))
        assert (row["at_least_weight"], row["weight"]) == (str(first), "seconds")
    page = (tmp_path / "page.html").read_text()
    assert f'["seconds",[0,1,2,3,4,5,6,7],[{first},' in page
    assert "Under a size: at least so many seconds of its users together, each at most 100 in a window." in page
    words = " ".join(shh("show", "report.avro", cwd=tmp_path).stdout.split())
    assert f"(≥{first:,} seconds)" in words
    assert "Behind it: at least so many seconds of all its users together, each at most 100" in words
    assert f'"at_least_weight": {first}' in shh("show", "report.avro", "--json", cwd=tmp_path).stdout
    explained = " ".join(shh("explain", "report.avro", cwd=tmp_path).stdout.split())
    for words in ("users; and that they", "Say of its users that they"):
        assert f"{words} have at least so many seconds together, each at most 100 in a window" in explained


def test_the_command_gives_the_same_of_every_format_and_parts_go_on(folder):
    key = key_file(folder)
    given = (*BUDGET, *WEIGHT, "--noise-key-file", key)
    for name, sources in (("parquet", ("log.parquet",)), ("csv", ("log.csv", str(folder / "log.csv")))):  # once read
        made = shh("replay", *sources, *given, "--output", f"{name}.avro", cwd=folder)
        assert made.returncode == 0, made.stderr
        found = read_report(folder / f"{name}.avro")
        again = {"noise_key": key, "run_id": found.header.run_id, "resume": True}
        assert replay(log(), **again, weight="seconds", most_weight=100, **WORDS) == found
    told = " ".join(made.stderr.split())
    assert "for the seconds of their users together, each at most 100 in a window, for 20% of each purse" in told
    for output, until in (("1.avro", ("--until", "2026-01-02")), ("2.avro", ())):
        part = shh("replay", "log.csv", *given, "--state", "run.state", *until, "--output", output, cwd=folder)
        assert part.returncode == 0, part.stderr
    both = read_report(folder / "1.avro", folder / "2.avro")
    assert [len(window.heavy_hitters) for window in both] == [2] * 8
    assert all(10_000 < max(found.at_least_weight for found in window.heavy_hitters) <= 30_000 for window in both)


def test_cells_that_are_no_numbers_are_told_before_and_after(folder):
    numbers = log().column("seconds").to_pylist()
    given = (*BUDGET, *WEIGHT, "--noise-key-file", key_file(folder), "--output")
    for name, text in (("none", "{},5"), ("some", "{}")):
        cells = [text.format(int(number)) if number > 9 else "five" for number in numbers]
        table = log().set_column(3, "seconds", pa.array(cells))
        pa.csv.write_csv(table, folder / f"{name}.csv")
        with pytest.warns(UserWarning, match=r"of 9,600 cells of seconds are no number above 0, and do not count"):
            replay(table, weight="seconds", most_weight=100, **WORDS)
    told = " ".join(shh("replay", "none.csv", "--dry-run", *given, "n.avro", cwd=folder).stderr.split())
    assert "cells of 'seconds' that were looked at is a number above 0. Check --weight, and write numbers as" in told
    assert "The smallest amount that is stated is 500, for which users need about" in told
    made = " ".join(shh("replay", "none.csv", *given, "n.avro", cwd=folder).stderr.split())
    assert "9,600 of 9,600 cells of seconds are no number above 0," in made
    assert "No cell of seconds is a number above 0, so nothing is said of it. Check --weight" in made
    made = " ".join(shh("replay", "some.csv", *given, "s.avro", cwd=folder).stderr.split())
    assert "4,800 of 9,600 cells of seconds are no number above 0," in made
    assert "Check --weight" not in made


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        ("replay log.parquet --weight seconds --output r.avro", 2, "--weight needs --most-weight"),
        ("replay log.parquet --most-weight 9 --output r.avro", 2, "--most-weight needs --weight"),
        ("replay log.parquet {weight} --by item=long --output r.avro", 2, "cannot be used with --by"),
        ("replay log.parquet --weight seconds --most-weight 0 --output r.avro", 1, "--most-weight must be a whole"),
        ("plan --weight seconds --most-weight -5", 1, "--most-weight must be a whole number"),
        ("replay log.parquet --weight a=b --most-weight 9 --output r.avro", 1, "--weight must name a column without"),
        ("replay log.parquet {weight} --counts-for 3 --output r.avro", 1, "with rounds, which --weight turns on."),
        ("replay log.parquet --weight second --most-weight 9 --output r.avro", 1, "with --weight"),
        ("replay log.parquet --weight item --most-weight 9 --output r.avro", 1, "weight must name"),
        ("stream --input . {weight} --output o", 2, "It is for replays: shh replay --weight"),
    ],
)
def test_what_cannot_be_done_is_refused(folder, words, code, message):
    found = shh(*words.format(weight=" ".join(WEIGHT)).split(), *BUDGET, cwd=folder)
    assert message in " ".join(found.stderr.split())
    assert found.returncode == code


def test_what_no_report_has_is_refused_and_streams_and_databases_have_no_weight(report, folder):
    report.write(folder / "report.jsonl")
    text = (folder / "report.jsonl").read_text()
    for old, new in (('"at_least_weight": ', '"at_least_weight": -'), ('"level": ', '"level": null, "zone": ')):
        (folder / "odd.jsonl").write_text(text.replace(old, new))
        with pytest.raises(ReportFileError):
            read_report(folder / "odd.jsonl")
    (folder / "plan.json").write_text(json.dumps(report.header.plan))
    loaded = shh("load", "report.jsonl", "--output", "sqlite:///d.db", cwd=folder)
    words = " ".join(loaded.stderr.split())
    assert "tables have no place for them. For a flat file of all rows: shh show report.jsonl --output" in words
    words = ("--noise-key-file", key_file(folder), "--output", "o", "--engine", "in-process")
    streamed = shh("stream", "--input", ".", "--plan", "plan.json", *words, cwd=folder)
    assert "--plan cannot be one with --by or --weight" in streamed.stderr
