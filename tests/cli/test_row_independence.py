"""What `shh replay` says of damage, of quotes, and of a log in which nothing counts. That no row decides about those of
others, in all formats and with thousands of rows that mean harm: tests/neighbours."""

import io
import json

import fastavro
import pytest

from tests.helpers.shh_here import shh

MICROS = 1_577_838_600_000_000
PLAN = [
    *("--start", "2020-01-01", "--end", "2020-01-01T02:00:00Z", "--window", "1h"),
    *("--epsilon", "8", "--delta", "1e-6", "--charge", "hits"),
]
CSV_HEADER = "user,item,timestamp\n"


def _avro(events):
    """In one block."""
    moment = {"type": "long", "logicalType": "timestamp-micros"}
    types = {"user": "string", "item": "string", "timestamp": moment}
    fields = [{"name": name, "type": each} for name, each in types.items()]
    rows = ({"user": user, "item": item, "timestamp": MICROS} for user, item in events)
    file = io.BytesIO()
    fastavro.writer(file, {"type": "record", "name": "E", "fields": fields}, rows, "deflate", sync_interval=1 << 30)
    return file.getvalue()


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "logs").mkdir()
    return tmp_path


def _replay(folder, *more):
    """Exit code and stderr."""
    done = shh("replay", "logs", *PLAN, "--output", "report.jsonl", *more, cwd=folder)
    return done.returncode, done.stderr


def _items(folder):
    lines = [json.loads(line) for line in (folder / "report.jsonl").read_text().splitlines()]
    return [hitter["item"] for line in lines for hitter in line.get("heavy_hitters", ())]


@pytest.mark.parametrize(
    ("name", "content"), [("log.csv", CSV_HEADER.encode()), ("log.avro", _avro([]))], ids=["csv", "avro"]
)
def test_a_log_without_rows_gives_an_empty_report_where_that_is_asked_for(folder, name, content):
    """Where readers see whether there is one: else the only row of one user decides that."""
    (folder / "logs" / name).write_bytes(content)
    code, err = _replay(folder)
    assert code == 4
    assert err.startswith("shh: the log has no rows. No report was written, and nothing is spent.")
    assert err.count("\n") == 1
    assert not (folder / "report.jsonl").exists()
    code, err = _replay(folder, "--allow-empty")
    assert code == 0, err
    assert "The log has no rows." in err
    assert _items(folder) == []
    assert len((folder / "report.jsonl").read_text().splitlines()) == 1  # the header


def test_a_replay_without_events_in_the_range_keeps_the_list_of_rows_that_cannot_be_read(folder):
    """A list without rows takes no name: the same command must do for the log when it is mended."""
    log, bad = folder / "logs" / "log.csv", folder / "bad.jsonl"
    outside = "u,i,2021-01-01T00:00:00Z\n" * 2
    log.write_text(CSV_HEADER + outside)
    code, _ = _replay(folder, "--dead-letter", "bad.jsonl")
    assert (code, bad.exists()) == (4, False)
    log.write_text(CSV_HEADER + outside + "u,i,never\n")
    code, err = _replay(folder, "--dead-letter", "bad.jsonl")
    assert code == 4
    assert "2 are outside, 1 rows cannot be read" in err
    assert len(bad.read_text().splitlines()) == 1
    assert not (folder / "report.jsonl").exists()
