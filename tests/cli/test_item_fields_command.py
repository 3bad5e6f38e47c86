"""`--item-field country --item-field page`: pages by country, from a log, a table, rows or a stream to reports: byte
for byte those of a log whose items were joined beforehand."""

import json

import apache_beam as beam
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pytest
from apache_beam.testing.util import assert_that

from dp_transforms import HeavyHitterRows, read_report, replay
from dp_transforms.cli.options import OF_PROGRAMS, Options, Program, fields_of
from tests.helpers.shh_here import shh
from tests.helpers.small_runs import drawn_as, key_file

BUDGET = ("--start", "2026-01-01", "--end", "2026-01-03", "--window", "6h", "--epsilon", "8", "--delta", "1e-4")
WORDS = {"start": "2026-01-01", "end": "2026-01-03", "window": "6h", "epsilon": 8.0, "delta": 1e-4}
FIELDS = ("--item-field", "country", "--item-field", "page")
LABELS = {"DE / even", "DE / odd", "FR / even", "FR / odd"}


def log():
    """800 users: in each window half of them in each country, each on one of two pages; and a row of no country."""
    users, hours = np.meshgrid(np.arange(800), np.arange(0, 48, 6))
    users, hours = users.reshape(-1), hours.reshape(-1)
    countries = np.where((users // 2 + hours // 6) % 2, "FR", "DE").astype(object)
    countries[5] = ""
    return pa.table(
        {
            "user": pa.array(users),
            "page": np.where(users % 2, "odd", "even"),
            "timestamp": pa.array((1_767_225_600 + 3600 * hours + users) * 1_000_000, pa.timestamp("us", "UTC")),
            "country": pa.array(countries, pa.string()),
        }
    )


def joined():
    """The log with its items as they are to be, without the row that is none."""
    table = log().filter(pc.not_equal(log().column("country"), ""))
    items = pc.binary_join_element_wise(table.column("country"), table.column("page"), " / ")
    return table.append_column("item", items).drop_columns(["country", "page"])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("pages")
    pa.csv.write_csv(log(), made / "log.csv")
    key_file(made)
    return made


def report_of_table(folder, table, like, **more):
    """Of a replay of a table with the noise of that other one."""
    run_id = json.loads(like.splitlines()[0])["header"]["run_id"]
    (folder / "table.jsonl").unlink(missing_ok=True)
    with drawn_as(folder / "noise.key", run_id):
        replay(table, **WORDS, **more).write(folder / "table.jsonl")
    return (folder / "table.jsonl").read_bytes()


def test_a_replay_gives_the_bytes_of_a_log_that_was_joined_beforehand(folder):
    given = (
        *BUDGET,
        *FIELDS,
        "--noise-key-file",
        "noise.key",
        "--output",
        "report.jsonl",
        "--dead-letter",
        "bad.jsonl",
    )
    done = shh("replay", "log.csv", *given, cwd=folder)
    assert done.returncode == 0, done.stderr
    found = (folder / "report.jsonl").read_bytes()
    assert all(label.encode() in found for label in LABELS)
    assert json.loads((folder / "bad.jsonl").read_text()) == {"file": "log.csv", "position": 7, "reason": "empty item"}
    assert report_of_table(folder, joined(), found) == found
    for table in (log(), log().to_pandas()):
        with pytest.warns(UserWarning, match="empty item: 1"):
            assert report_of_table(folder, table, found, item=["country", "page"]) == found
    with pytest.raises(ValueError, match=r"no field 'land'.*Name one with item="):
        report_of_table(folder, log(), found, item=("land", "page"))


def test_nights_go_on_with_the_same_fields_alone_and_a_list_of_items_has_labels(folder):
    known = LABELS - {"DE / odd"}
    (folder / "items.txt").write_text("\n".join(sorted(known)) + "\n")
    of_run = ("--public-items", "items.txt", "--noise-key-file", "noise.key", "--state", "run.state")
    night = ("replay", "log.csv", *BUDGET, *of_run)
    first = shh(*night, *FIELDS, "--until", "2026-01-02", "--output", "1.avro", cwd=folder)
    assert first.returncode == 0, first.stderr
    for others in (("--item-field", "page"), ("--item-field", "page", "--item-field", "country")):
        refused = shh(*night, *others, "--output", "2.avro", cwd=folder)
        assert refused.returncode == 1
        assert "used before with --item-field 'country / page'" in " ".join(refused.stderr.split())
    second = shh(*night, *FIELDS, "--output", "2.avro", cwd=folder)
    assert second.returncode == 0, second.stderr
    for name in ("1.avro", "2.avro"):
        found = {hitter.item for window in read_report(folder / name) for hitter in window.heavy_hitters}
        assert found == known


def test_rows_of_a_pipeline_have_them(folder):
    rows = [beam.Row(**{**row, "user": int(row["user"])}) for row in log().to_pylist()]

    def check(found):
        assert {row.item for row in found} == LABELS

    with beam.Pipeline() as pipeline:
        released = pipeline | beam.Create(rows) | HeavyHitterRows(item=["country", "page"], time="timestamp", **WORDS)
        assert_that(released, check)
    with pytest.raises(ValueError, match="item='land' is not a field of the input"):
        _ = beam.Pipeline() | beam.Create(rows) | HeavyHitterRows(item=["country", "land"], time="timestamp", **WORDS)


def test_a_job_has_them():
    job = Program("job", params=list(OF_PROGRAMS))
    for words, item in ((FIELDS, ("country", "page")), (("--item_field=page",), "page"), ((), "item")):
        context = job.make_context("job", ["--plan", "plan.json", *words])
        assert fields_of(Options(**context.params)).item == item


def test_the_command_that_is_proposed_has_them(folder):
    proposed = shh("replay", "log.csv", *FIELDS, cwd=folder)
    assert proposed.returncode == 2
    assert "--item-field country --item-field page" in " ".join(proposed.stderr.split())
