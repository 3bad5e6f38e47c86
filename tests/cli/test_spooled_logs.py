"""Logs that are no files: what is piped in, and what a query of DuckDB gives, make the report that a file makes."""

import json
import pathlib
import signal
import subprocess
import time

import pytest

from dp_transforms import read_report
from tests.canaries.places import SPOOLED, assert_as_documented
from tests.helpers import forked
from tests.helpers.replay_logs import BUDGET, HOURS, write_log
from tests.helpers.shh_here import shh

NAMED = [(f"2026-01-01T0{hour}", [f"heavy-{hour}"]) for hour in range(HOURS) if hour not in (2, 4)]


def named_in(path):
    table = read_report(path).to_arrow()
    starts = [moment.isoformat()[:13] for moment in table.column("window_start").to_pylist()]
    return [(start, [item]) for start, item in zip(starts, table.column("item").to_pylist(), strict=True)]


@pytest.mark.parametrize("ending", ["csv", "jsonl", "avro", "parquet"])
def test_standard_input_is_read_as_a_file(tmp_path, ending):
    write_log(tmp_path / f"log.{ending}")
    if ending == "csv":
        (tmp_path / "log.csv").write_text((tmp_path / "log.csv").read_text() + "u,i,no time\n")
    words = ("replay", "-", "--format", ending, *BUDGET, "--output", "report.avro", "--dead-letter", "bad.jsonl")
    with open(tmp_path / f"log.{ending}", "rb") as file:
        done = forked.run_python("-m", "dp_transforms.cli.main", *words, cwd=tmp_path, stdin=file)
    assert done.returncode == 0, done.stderr
    assert named_in(tmp_path / "report.avro") == NAMED
    bad = [json.loads(line) for line in (tmp_path / "bad.jsonl").read_text().splitlines()]
    assert [(pathlib.Path(row["file"]).name, row["reason"]) for row in bad] == (
        [("standard-input.csv", "bad time")] if ending == "csv" else []
    )


def test_a_query_of_duckdb_is_read_as_a_file_and_changes_nothing(tmp_path):
    duckdb = pytest.importorskip("duckdb")
    write_log(tmp_path / "log.parquet")
    with duckdb.connect(str(tmp_path / "news.duckdb")) as connection:
        connection.execute("CREATE TABLE visits AS FROM read_parquet(?)", [str(tmp_path / "log.parquet")])
    before = (tmp_path / "news.duckdb").read_bytes()
    url = "duckdb:///news.duckdb?query="

    def replayed(query, name):
        fields = ("--user-field", "who", "--item-field", "the item")
        done = shh("replay", f"{url}{query}", *fields, *BUDGET, "--output", name, cwd=tmp_path)
        return done.returncode, done.stderr

    select = 'SELECT "user" AS who, item AS "the item", timestamp, \'100%20\' AS more FROM visits'
    assert replayed(f"{select} WHERE item LIKE '%-%' -- those with a hyphen", "report.avro")[0] == 0
    assert named_in(tmp_path / "report.avro") == NAMED
    for query, said in (
        ("", "a log in DuckDB is named as 'duckdb:///FILE?query=SELECT ...'"),
        ("SELEC 1", 'Parser Error: syntax error at or near "SELEC"'),
        ("FROM gone", "Catalog Error: Table with name gone does not exist!"),
        ("SELECT item FROM visits", "no field 'who'; its fields are: item"),
        ("DROP TABLE visits", "the query failed (InvalidInputException)"),
        (select.replace("item AS", "item::int AS"), "the query failed (ConversionException)"),
    ):
        code, error = replayed(query, "no.avro")
        assert code == 1
        assert said in error
        assert "heavy" not in error
        assert not (tmp_path / "no.avro").exists()
    assert (tmp_path / "news.duckdb").read_bytes() == before
    assert {path.name for path in tmp_path.iterdir()} == {"log.parquet", "news.duckdb", "report.avro"}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("-",), "Give --format, such as --format csv"),
        (("-", "-", "--format", "csv"), "Name - once"),
        (("log.csv", "--format", "csv"), "--format is for standard input"),
        (("duckdb:///gone.duckdb?query=FROM a",), "there is no such database"),
        (("log.zip",), "unzip -p log.zip | shh replay - --format csv"),
        (("log.xlsx",), "Save the sheet as CSV"),
    ],
)
def test_what_cannot_be_read_so_is_said_with_the_remedy(tmp_path, words, said):
    for name in ("log.csv", "log.zip", "log.xlsx"):
        (tmp_path / name).touch()
    done = shh("replay", *words, *BUDGET, "--output", "report.avro", cwd=tmp_path)
    assert (done.returncode, said in done.stderr) == (1, True), done.stderr


@pytest.mark.parametrize("ending", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_the_file_is_private_and_goes_with_the_command(tmp_path, ending):
    """After a kill with the next command that needs such a file."""
    spool = tmp_path / "temporary"
    spool.mkdir()
    words = ("-m", "dp_transforms.cli.main", "replay", "-", "--format", "csv", *BUDGET, "--output", "report.avro")
    options = {"cwd": tmp_path, "environment": {"TMPDIR": str(spool)}, "stdin": subprocess.PIPE}
    with forked.python(*words, stderr=subprocess.DEVNULL, **options) as running:
        running.stdin.write("user,item,timestamp\n" + "token-1,label-1,2026-01-01\n" * 100_000)
        running.stdin.flush()
        deadline = time.monotonic() + 60
        while not (found := [path for path in spool.rglob("*.csv") if path.stat().st_size]):
            assert time.monotonic() < deadline
            time.sleep(0.02)
        (file,) = found
        assert [path.stat().st_mode & 0o777 for path in (file.parent, file)] == [0o700, 0o600]
        running.send_signal(ending)
        running.wait(60)
    left = list(spool.rglob("*.csv"))
    if ending == signal.SIGKILL:
        text = left[0].read_text()
        assert_as_documented(
            SPOOLED, [kind for kind, token in (("user", "token-1"), ("label", "label-1")) if token in text]
        )
        forked.run_python(*words, **{**options, "stdin": subprocess.DEVNULL})
    assert list(spool.rglob("*.csv")) == []
