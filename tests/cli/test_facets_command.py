"""`--by`: named items by declared values of columns, from a table or a log to a report, its tables and its page."""

import csv
import json

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from dp_transforms import read_report, replay
from dp_transforms.reports.report_records import ReportFileError
from tests.helpers.shh_here import shh
from tests.helpers.small_runs import key_file

WORDS = {"start": "2026-01-01", "end": "2026-01-03", "window": "6h", "epsilon": 8.0, "delta": 1e-4}
BUDGET = ("--start", "2026-01-01", "--end", "2026-01-03", "--window", "6h", "--epsilon", "8", "--delta", "1e-4")
BY = {"country": ["DE", "FR", "US"], "device": ["phone"]}
OPTIONS = ("--by", "country=DE,FR,US", "--by", "device=phone", "--user-field", "who", "--item-field", "what")


def log():
    """A third of the users each in DE, FR and elsewhere; every second event from a phone. Nobody is in the US."""
    users, hours = np.meshgrid(np.arange(600), np.arange(0, 48, 6))
    users, hours = users.reshape(-1), hours.reshape(-1)
    moments = 1_767_225_600 + 3600 * hours + users
    return pa.table(
        {
            "who": pc.cast(pa.array(users), pa.string()),
            "what": pc.if_else(pa.array(users % 2 == 0), "even", "odd"),
            "when": pa.array(moments * 1_000_000, pa.timestamp("us", "UTC")),
            "country": pa.array(np.array(["DE", "FR", "XX"])[users % 3]),
            "device": pa.array(np.where(users // 2 % 2, "phone", "desk")),
        }
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("facets")
    pq.write_table(log(), made / "log.parquet")
    key_file(made)
    return made


@pytest.fixture(scope="module")
def report(folder):
    key = key_file(folder)
    return replay(log(), user="who", item="what", time="when", noise_key=key, run_id="run", resume=True, by=BY, **WORDS)


def test_items_have_their_facets_in_every_form_of_a_report(report, tmp_path):
    assert len(report) == 8
    for window in report:
        assert {hitter.item for hitter in window.heavy_hitters} == {"even", "odd"}
        for hitter in window.heavy_hitters:
            sizes = {(facet.by, facet.value): facet.at_least_users for facet in hitter.facets}
            assert sizes.keys() == {("country", "DE"), ("country", "FR"), ("device", "phone")}
            assert all(5 <= size <= most for size, most in zip(sizes.values(), (100, 100, 150), strict=True))
            assert max(sizes.values()) <= hitter.at_least_users <= 300
    for ending in ("avro", "jsonl", "parquet"):
        report.write(tmp_path / f"report.{ending}")
        assert read_report(tmp_path / f"report.{ending}") == report
    table = report.to_arrow()
    assert table.schema.names[-2:] == ["by", "value"]
    of_facets = table.filter(pc.is_valid(table.column("by")))
    assert (len(table), len(of_facets)) == (8 * 2 * 4, 8 * 2 * 3)
    assert of_facets.column("change").null_count == len(of_facets)
    shown = shh("show", "report.avro", "--output", "flat.csv", "--html", "page.html", cwd=tmp_path)
    assert shown.returncode == 0, shown.stderr
    with (tmp_path / "flat.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["value"] for row in rows[:4]] == ["", "DE", "FR", "phone"]
    page = (tmp_path / "page.html").read_text()
    assert '"country: DE"' in page
    assert "Choose an item to see its users by country and device." in page
    words = " ".join(shh("show", "report.avro", cwd=tmp_path).stdout.split())
    assert "(phone≥" in words or "(DE≥" in words or "(FR≥" in words
    assert "In brackets: the largest values of country and device" in words
    as_json = shh("show", "report.avro", "--json", cwd=tmp_path).stdout
    assert as_json.count('"by": "country"') == 2 * 2 * 8
    explained = " ".join(shh("explain", "report.avro", cwd=tmp_path).stdout.split())
    for words in ("at least so many users; and that", "Say of its users that"):
        assert f"{words} at least so many have a declared value of country and device" in explained


def test_the_command_gives_the_same_and_parts_go_on(folder):
    given = ("replay", "log.parquet", *BUDGET, *OPTIONS, "--time-field", "when", "--noise-key-file", key_file(folder))
    whole = shh(*given, "--state", "whole.state", "--output", "whole.avro", cwd=folder)
    assert whole.returncode == 0, whole.stderr
    assert "named items are looked at by 4 values of country and device, for 20% of each purse" in " ".join(
        whole.stderr.split()
    )
    of_file, key = read_report(folder / "whole.avro"), key_file(folder)
    again = {"noise_key": key, "run_id": of_file.header.run_id, "resume": True, **WORDS}
    assert replay(log(), user="who", item="what", time="when", by=BY, **again) == of_file
    for output, until in (("1.avro", ("--until", "2026-01-02")), ("2.avro", ())):
        part = shh(*given, "--state", "run.state", *until, "--output", output, cwd=folder)
        assert part.returncode == 0, part.stderr
    both = read_report(folder / "1.avro", folder / "2.avro")
    assert len(both) == 8
    assert all(hitter.facets for window in both for hitter in window.heavy_hitters)


def test_what_a_report_with_facets_or_their_plan_cannot_do_is_refused(report, folder):
    report.write(folder / "report.avro")
    (folder / "plan.json").write_text(json.dumps(report.header.plan))
    loaded = shh("load", "report.avro", "--output", "sqlite:///d.db", cwd=folder)
    assert "tables have no place for them" in " ".join(loaded.stderr.split())
    assert not (folder / "d.db").exists()
    words = ("--noise-key-file", key_file(folder), "--output", "o", "--engine", "in-process")
    streamed = shh("stream", "--input", ".", "--plan", "plan.json", *words, cwd=folder)
    assert "--plan cannot be one with --by or --weight" in streamed.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("replay", "log.parquet", *OPTIONS, "--by", "country=IT", "--output", "r.avro"), "names a column twice"),
        (("replay", "log.parquet", "--by", "country", "--output", "r.avro"), "some different values"),
        (
            ("replay", "log.parquet", "--by", "land=DE", *OPTIONS[4:], "--time-field", "when", "--output", "r.avro"),
            "--by",
        ),
        (("stream", "--input", ".", "--by", "country=DE", "--output", "o"), "It is for replays: shh replay --by"),
    ],
)
def test_what_cannot_be_done_is_refused(folder, words, message):
    found = shh(*words, *BUDGET, cwd=folder)
    assert found.returncode != 0
    assert message in " ".join(found.stderr.split())


def test_a_facet_that_no_report_has_is_refused(report, tmp_path):
    text = (report.write(tmp_path / "r.jsonl"), (tmp_path / "r.jsonl").read_text())[1]
    for old, new in (
        ('"value": "DE"', '"wert": "DE"'),
        ('"by": "country"', '"by": 7'),
        ('"level": ', '"level": null, "zone": '),
    ):
        (tmp_path / "odd.jsonl").write_text(text.replace(old, new))
        with pytest.raises(ReportFileError):
            read_report(tmp_path / "odd.jsonl")
