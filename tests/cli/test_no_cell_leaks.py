"""No cell of a log and no noise key is in what a command says or leaves, whatever fails: docs/security.md, "Where raw
data may appear".

Each user's id, and a label that it alone holds, contain a mark, which is then searched: also inside of compressed files
and of base64. At this delta a label of one user is published in one of 10^8 runs.
"""

import csv
import gzip
import io
import json
import stat

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dp_transforms.logs import discovery
from tests.helpers.leak_search import forms_of, places_with
from tests.helpers.shh_here import shh

MARK = "qzx7Vb0"
START = 1_767_225_600  # 2026-01-01T00:00:00Z
SHARED = "all-of-them-hold-this"
KEY = bytes(range(1, 33))
ROWS = [row for n in range(300) for row in ((f"u{n}-{MARK}", SHARED, START), (f"u{n}-{MARK}", f"i{n}-{MARK}", START))]
RANGE = (
    *("--start", "2026-01-01", "--end", "2026-01-01T02:00:00Z", "--window", "1h"),
    *("--epsilon", "8", "--delta", "1e-11"),
)
HITS = (*RANGE, "--charge", "hits", "--time-format", "s")
BEAM = ("--runner", "DirectRunner", "--noise-key-file", "noise.key")
FORMATS = ("csv", "jsonl", "parquet", "avro")


def file_of(form, rows=ROWS, time_type="long"):
    names = ("user", "item", "timestamp")
    records = [dict(zip(names, row, strict=True)) for row in rows]
    file = io.BytesIO()
    if form == "csv":
        text = io.StringIO(newline="")
        csv.writer(text).writerows([names, *rows])
        return text.getvalue().encode()
    if form == "jsonl":
        return b"".join(json.dumps(record).encode() + b"\n" for record in records)
    if form == "parquet":
        pq.write_table(pa.Table.from_pylist(records), file, row_group_size=200)
    else:
        types = zip(names, ("string", "string", time_type), strict=True)
        schema = {"type": "record", "name": "R", "fields": [{"name": name, "type": kind} for name, kind in types]}
        fastavro.writer(file, schema, records, "deflate", sync_interval=2000)
    return file.getvalue()


@pytest.fixture
def run(tmp_path):
    """Runs a command in a folder with a key, and finds the mark and the key nowhere but in the logs. Its result."""
    (tmp_path / "noise.key").write_bytes(KEY)
    (tmp_path / "noise.key").chmod(0o600)

    def run_clean(*words, code=None):
        done = shh(*words, cwd=tmp_path)
        places = {"stdout": done.stdout.encode(), "stderr": done.stderr.encode()}
        for path in tmp_path.rglob("*"):
            places[f"name {path}"] = str(path.relative_to(tmp_path)).encode()
            if path.is_file() and not path.name.startswith("log.") and path.name != "noise.key":
                places[str(path)] = path.read_bytes()
        assert places_with([MARK.encode(), MARK.encode().hex().encode(), *forms_of(KEY)], places) == []
        assert "Traceback" not in done.stderr
        assert code is None or done.returncode == code, done.stderr
        return done

    return run_clean


def test_the_search_finds_what_is_written_down(run, tmp_path):
    """Twin of all tests below."""
    (tmp_path / "a.gz").write_bytes(gzip.compress(f"odd row of u1-{MARK}".encode()))
    with pytest.raises(AssertionError, match=r"a\.gz"):
        run("--version")


def test_commands_that_work(run, tmp_path):
    """Of whole logs of each format, and of rows that cannot be read."""
    for form in FORMATS:
        (tmp_path / f"log.{form}").write_bytes(file_of(form))
    bad = [(None, f"i-{MARK}", START), ([f"u-{MARK}"], "x", START), ("x", {MARK: 1}, START), ("x", "x", f"u-{MARK}")]
    (tmp_path / "log.odd.jsonl").write_bytes(file_of("jsonl", bad))
    logs = [f"log.{form}" for form in (*FORMATS, "odd.jsonl")]
    account = ("--ledger", "ledger.db", "--population", "news", "--caps", "40", "1e-4")
    kept = ("--noise-key-file", "noise.key", "--state", "run.state", "--dead-letter", "bad.jsonl")
    ran = run("replay", *logs, *RANGE, "--time-format", "s", "--output", "1.avro", *kept, *account, code=0)
    assert SHARED in ran.stdout
    assert " 4 unreadable" in ran.stderr
    assert len((tmp_path / "bad.jsonl").read_text().splitlines()) == 4
    assert stat.S_IMODE((tmp_path / "bad.jsonl").stat().st_mode) == 0o600
    assert SHARED in run("replay", "log.csv", *HITS, "--output", "2.jsonl", *BEAM, code=0).stdout
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "log.csv").write_bytes(file_of("csv"))
    (tmp_path / "logs" / "log.jsonl").write_bytes(file_of("jsonl", bad))
    history = ("--clock", "event", "--idle-timeout", "1s", "--dead-letter", "bad", "--html", "3.html")
    assert SHARED in run("stream", "--input", "logs", *HITS, "--output", "3", *history, code=0).stdout
    for words in (
        ["show", "1.avro"],
        ["show", "3", "--output", "3.csv"],
        ["explain", "1.avro"],
        ["ledger", *account[:4]],
    ):
        run(*words, code=0)
    for form in FORMATS:
        run("doctor", f"log.{form}", code=0)


def damaged(form):
    data = file_of(form)
    size = len(data)
    flipped = bytearray(data)
    for at in range(size // 3, size // 2, 97):
        flipped[at] ^= 8
    return {
        f"{form} cut off": (form, data[: size // 2]),
        f"{form} flipped": (form, bytes(flipped)),
        f"{form} without its begin": (form, data[100:]),
        f"{form} with zeros": (form, data[: size // 2] + bytes(900) + data[size // 2 + 900 :]),
    }


def line(**fields):
    return file_of("jsonl") + json.dumps({"user": "u", "item": "x", "timestamp": START, **fields}).encode() * 2 + b"\n"


USER = f"u-{MARK}"
HOSTILE = {
    **{name: log for form in FORMATS for name, log in damaged(form).items()},
    "no header": ("csv", file_of("csv").split(b"\n", 1)[1]),
    "other marks": ("csv", file_of("csv").replace(b",", b";")),
    "an open quote": ("csv", file_of("csv") + f'"{USER},{START}\n{USER},a,1\n'.encode()),
    "a huge cell": ("csv", file_of("csv") + f"{USER * 200_000},a,{START}\n".encode()),
    "times that are ids": ("csv", file_of("csv", [("a", "b", USER)] * 50)),
    "UTF-16": ("csv", file_of("csv").decode().encode("utf-16")),
    "a cut gzip": ("csv.gz", gzip.compress(file_of("csv"))[:-200]),
    "no gzip": ("csv.gz", file_of("csv")),
    "objects keyed by users": ("jsonl", b"".join(json.dumps({user: SHARED}).encode() + b"\n" for user, _, _ in ROWS)),
    "an array": ("jsonl", json.dumps([USER] * 50).encode()),
    "no JSON": ("jsonl", f"{USER}\n".encode() * 50),
    "a broken line": ("jsonl", line(user=USER)),
    "deep": ("jsonl", file_of("jsonl") + b'{"user": ' + b"[" * 100_000 + USER.encode() + b"\n"),
    "a lone surrogate": ("jsonl", file_of("jsonl") + b'{"user": "\\ud800' + USER.encode() + b'"}\n'),
    "lists": ("parquet", file_of("parquet", [([USER], "x", START)])),
    "texts as times": ("parquet", file_of("parquet", [(USER, "x", USER)])),
    "bytes that are no text": ("parquet", file_of("parquet", [(USER.encode() + b"\xff", "x", START)])),
    "texts as times in Avro": ("avro", file_of("avro", [(USER, "x", USER)], "string")),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_damaged_and_hostile_logs(run, tmp_path, name):
    ending, data = HOSTILE[name]
    (tmp_path / f"log.{ending}").write_bytes(data)
    replayed = run("replay", f"log.{ending}", *HITS, "--output", "report.jsonl", "--dead-letter", "bad.jsonl")
    assert replayed.returncode in (0, 1, 4)
    assert run("doctor", f"log.{ending}").returncode in (0, 1)
    assert "should not happen" not in replayed.stderr


OPTIONS = " ".join(HITS)
MISTAKES = f"""
    audit --plan LOG
    explain LOG
    ledger --ledger LOG
    replay LOG {OPTIONS} --output LOG
    replay LOG {OPTIONS} --output r.avro --time-field user --user-field timestamp
    replay LOG {OPTIONS} --output r.avro --user-field nobody
    replay LOG {" ".join(RANGE)} --output r.avro
    replay log.csv --plan LOG --output r.avro
    replay log.csv {OPTIONS} --output r.avro --public-items log.parquet
    replay log.csv {OPTIONS} --output r.avro --state LOG --noise-key-file noise.key
    show report.jsonl --titles LOG
    stream --input LOG {OPTIONS} --output r
    stream --input kafka://localhost:9/t --kafka-config LOG {OPTIONS} --output r
"""


@pytest.mark.parametrize("line", MISTAKES.strip().splitlines(), ids=str.strip)
@pytest.mark.parametrize("form", ["csv", pytest.param("parquet", marks=pytest.mark.nightly)])
def test_the_log_in_the_place_of_another_file(run, tmp_path, line, form):
    for each in ("csv", "parquet"):  # lines of CSV may be public items, and noise names one in 20 runs
        (tmp_path / f"log.{each}").write_bytes(file_of(each))
        (tmp_path / f"log.{each}").chmod(0o600)
    done = run(*line.replace("LOG", f"log.{form}").split())
    assert done.returncode in (1, 2)


@pytest.mark.parametrize("runner", [(), BEAM], ids=["here", "beam"])
def test_a_library_whose_error_quotes_a_cell(run, tmp_path, monkeypatch, runner):
    """At a place where nobody expects it. --verbose shows it, as its help says."""

    def read(chunk, fields):
        raise pa.ArrowInvalid(f"CSV conversion error: invalid row '{USER}'")
        yield

    monkeypatch.setattr(discovery, "read_log_chunk", read)
    (tmp_path / "log.csv").write_bytes(file_of("csv"))
    words = ("replay", "log.csv", *HITS, "--output", "report.avro", *runner)
    assert "failed with" in run(*words, code=1).stderr
    if not runner:
        assert MARK in shh(*words, "--verbose", cwd=tmp_path).stderr
