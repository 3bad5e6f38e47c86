"""``shh doctor LOG``: which roles are proposed, what is asked for, what is wrong. The printed commands run as they are.
The logs are of forms that other programs write.
"""

import csv
import datetime
import gzip
import io
import json
import os
import re
import shlex
import subprocess
import sys
import uuid

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dp_transforms.cli import doctor
from dp_transforms.reports import read_report_file
from tests.helpers.shh_here import shh

ROWS = 120
EPOCH = 1_771_574_400  # 2026-02-20 08:00


def moment(row, form="%Y-%m-%dT%H:%M:%SZ"):
    return (datetime.datetime(2026, 2, 20, 8) + datetime.timedelta(seconds=61 * row)).strftime(form)


CELLS = {  # by the end of a field's name
    "time": lambda row: moment(row, "%H:%M:%S"),
    "clock": lambda row: moment(row, "%H:%M:%S") + f",{row:03}",
    "date": lambda row: moment(row, "%Y-%m-%d"),
    "day": lambda row: moment(row, "%Y%m%d"),
    "timestamp": lambda row: EPOCH + row,
    "touch": lambda row: EPOCH + row // 9,
    "local": lambda row: moment(row, "%d/%b/%Y:%H:%M:%S +0000"),
    "us": lambda row: moment(row, "%m/%d/%Y %I:%M:%S %p"),
    "first": lambda row: moment(row, "%y/%m/%d %H:%M:%S"),
    "at": moment,
    "nobody": lambda row: "-",
    "type": lambda row: "member" if row % 2 else "casual",
    "host": lambda row: f"198.51.100.{row % 40}",
    "six": lambda row: f"2001:db8::{row % 40:x}",
    "hop": lambda row: f"198.51.100.{row % 40}:{row + 4000}",
    "channel": lambda row: f"u{row % 40}@example.org",
    "patient": lambda row: f"p{row * 7 % 43}",
}


def table(header, separator=","):
    """CSV of these columns. Of other ends: ids differ more than items."""
    names, text = header.split(","), io.StringIO()

    def cell(name, row):
        known = CELLS.get(re.split("[-_]", name)[-1])
        return known(row) if known else f"{name}-{row % (41 if 'id' in name else 7)}"

    rows = ([cell(name, row) for name in names] for row in range(ROWS))
    csv.writer(text, delimiter=separator, lineterminator="\n").writerows([names, *rows])
    return text.getvalue()


def command_of(printed):
    """The words of the printed command, without ``shh``; none if the log must be made anew before."""
    shown = re.findall(r"^  (shh replay (?:.*\\\n)*.*)$", printed, re.MULTILINE)
    return shlex.split(shown[0].replace("\\\n", " "))[1:] if shown else ["?"]


def option_of(printed, name):
    words = command_of(printed)
    return words[words.index(f"--{name}") + 1] if f"--{name}" in words else ""


def roles_of(printed):
    """As they are proposed: the user, the item, the time and how it is read."""
    return [option_of(printed, name) for name in ("user-field", "item-field", "time-field", "time-format")]


def replayed(folder, printed):
    """The items that the printed command finds."""
    ended = shh(*command_of(printed), cwd=folder)
    assert ended.returncode == 0, ended.stderr
    assert " 0 outside --start .. --end skipped" in ended.stderr
    assert " 0 unreadable" in ended.stderr
    report = command_of(printed)[-1]
    return {found.item for each in read_report_file(str(folder / report))[1] for found in each.heavy_hitters}


def looked_at(folder, text, *words):
    (folder / "log.csv").write_bytes(text.encode())
    return shh("doctor", "log.csv", *words, cwd=folder)


APACHE = "%d/%b/%Y:%H:%M:%S %z"


@pytest.mark.parametrize(
    ("header", "roles"),
    [
        ("userId,movieId,rating,timestamp", ["userId", "movieId", "timestamp", "s"]),
        ("remote_nobody,remote_host,time_local,path", ["remote_host", "path", "time_local", APACHE]),
        ("date,timestamp,user,page", ["user", "page", "timestamp", "s"]),  # a full column of seconds beats a day
        ("date,clock,level,page", ["?", "page", "date", ""]),  # and a clock beside a date is no user
        ("day,user,page", ["user", "page", "day", "%Y%m%d"]),
        ("date,time,s-host,cs-uri-stem,cs-username", ["cs-username", "cs-uri-stem", "date", ""]),
        ("user_id,session_id,click_article_id,first_touch,at", ["user_id", "click_article_id", "at", ""]),
        ("session_id,page,at", ["session_id", "page", "at", ""]),
        ("hop,page,at", ["?", "page", "at", ""]),  # each connection would be a user
        ("six,page,at", ["six", "page", "at", ""]),
        ("usertype,start_station,at", ["?", "?", "at", ""]),
        ("buyer_id,patient,product,at", ["?", "product", "at", ""]),
        ("user_id,from_user_id,at", ["user_id", "?", "at", ""]),
        ("user,profile_url,at", ["user", "?", "at", ""]),  # what is named for a user is no item
        ("user,channel,at", ["user", "?", "at", ""]),  # nor is an address
        ("user_id,created_at,updated_at,page", ["user_id", "page", "created_at", ""]),
        ("user,page,sent_at,created_at", ["user", "page", "sent_at", ""]),  # both the same
        ("user,page,us", ["user", "page", "us", "%m/%d/%Y %I:%M:%S %p"]),
        ("user_id,year_first,page", ["user_id", "page", "year_first", "?"]),
    ],
)
def test_roles_are_proposed_by_type_and_name_or_asked_for(tmp_path, header, roles):
    looked = looked_at(tmp_path, table(header))
    assert roles_of(looked.stdout) == roles, looked.stdout
    assert looked.returncode == ("?" in command_of(looked.stdout))


IS_WRONG = [
    (table("hop,page,at"), "hop: addresses with ports, 120 different\n"),
    (table("date,clock,level,page"), "date holds days, the clock is in clock: join both"),
    (table("a,b,at"), "--user-field ? (weighed: a, b)"),
    (table("user,item,at", ";"), "--csv-separator ';'"),
    ("0;2014-04-07T10:00:00Z;21;0\n", r"(printf 'field1;field2;field3;field4\n'; gzip -cdf log.csv) > named.csv"),
    ("196\t242\t3\t881250949\n", r"(printf 'field1\tfield2\tfield3\tfield4\n'; gzip -cdf log.csv) > named.csv"),
    ("user,item,timestamp\ru,i,2026-01-01\r", r"lines end in line feeds (else: tr '\r' '\n' < OLD > NEW)"),
    ("user,item,time\nu,i,01.03.2026 12:00\n", "needs one: '%d.%m.%Y %H:%M' or '%m.%d.%Y %H:%M')"),
    ("user,item,at\nu,i,03/04/2026\nu,i,13/04/2026\n", "--time-format %d/%m/%Y"),
    ("user,item,time\nu,i,3 May 2026 12:30 UTC\n", "--time-format '%d %b %Y %H:%M %z'"),
    ("user,item,time\nu,i,12h on 3 May 2026\n", "--time-field ? (weighed: none)"),
    ("user,item,timestamp\nu,i,2026-01-01\nu,i,2026-01-02\n", "--window 1d"),
    (
        'user,item,timestamp\nu,"say \\"hi\\"",2026-01-01\nu,i,2026-01-01\n',
        "1 of 2 rows are left out: quote that is not closed",
    ),
    ("user,item,timestamp\nu,i,1970-01-01\n" + "u,i,2026-01-01\n" * 2, "--start 2026-01-01T00:00:00Z --end 2026-01-02"),
    ("user,item,timestamp,\x1b]0;owned\x07\nu,i,2026-01-01,1\n", r"\x1b]0;owned\x07"),
    ("user,item,timestamp\n", "no row of it can be read"),
]


@pytest.mark.parametrize(("text", "words"), IS_WRONG, ids=[words for _, words in IS_WRONG])
def test_what_is_wrong_is_said(tmp_path, text, words):
    looked = looked_at(tmp_path, text)
    assert words in looked.stdout + looked.stderr
    assert "\x1b" not in looked.stdout
    assert looked.returncode == ("?" in command_of(looked.stdout))


def github(row):
    actor = {"id": row % 40, "login": f"dev{row % 40}", "url": "https://api.example/u"}
    repo = {"id": row % 7, "name": f"org/r{row % 7}", "url": "https://api.example/r"}
    return {"id": str(2489651045 + row), "type": "PushEvent", "actor": actor, "repo": repo, "created_at": moment(row)}


def test_json_lines_with_odd_names_are_replayed_as_proposed(tmp_path):
    """Users are also keys of objects."""
    rows = ({f"u{row}": 1, "x.user": row % 9, "page": "p", "@at": moment(row)} for row in range(ROWS))
    write_json(tmp_path / "log.jsonl", rows)
    looked = shh("doctor", "log.jsonl", cwd=tmp_path)
    assert roles_of(looked.stdout) == ["x.user", "page", "@at", ""]
    replayed(tmp_path, looked.stdout)


def write_json(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.mark.parametrize("ending", ["jsonl.gz", "parquet"])
def test_fields_in_objects_are_named_by_their_path_with_the_command_that_flattens_them(tmp_path, ending):
    rows, log = list(map(github, range(ROWS))), tmp_path / f"log.{ending}"
    if ending == "parquet":
        pq.write_table(pa.Table.from_pylist(rows), log)
    else:
        write_json(tmp_path / "log.jsonl", rows)
        log.write_bytes(gzip.compress((tmp_path / "log.jsonl").read_bytes()))
    looked = shh("doctor", log.name, cwd=tmp_path)
    assert looked.returncode == 1
    assert ".actor.login is inside of an object" in looked.stdout
    command, flat = re.findall(r": (.*) && shh doctor (.*)$", looked.stdout, re.MULTILINE)[0]
    path = f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}"
    subprocess.run(["bash", "-c", command], cwd=tmp_path, check=True, env={**os.environ, "PATH": path})
    looked = shh("doctor", flat, cwd=tmp_path)
    assert roles_of(looked.stdout) == ["actor.login", "repo.name", "created_at", ""]
    replayed(tmp_path, looked.stdout)


def test_several_item_fields_are_in_the_command(tmp_path):
    """That a command runs as printed: docs/tutorial.md."""
    looked = looked_at(tmp_path, table("user,page,section_id,at"), "--item-field", "section_id", "--item-field", "page")
    assert "--item-field section_id --item-field page" in " ".join(command_of(looked.stdout))
    assert replayed(tmp_path, looked.stdout) == set()


def test_what_is_declared_is_not_asked_and_is_in_the_command(tmp_path):
    words = ["--time-format", "%y/%m/%d %H:%M:%S", "--time-zone", "America/New_York"]
    declared = looked_at(tmp_path, table("user,item,timestamp_first"), *words)
    assert "?" not in declared.stdout, "the order of a two-digit year is declared"
    assert option_of(declared.stdout, "time-zone") == "America/New_York"
    assert option_of(declared.stdout, "start") == "2026-02-20T00:00:00Z", "days are those of UTC"


@pytest.mark.parametrize("ending", ["csv.gz", "jsonl", "avro", "parquet"])
def test_every_format_is_understood_and_the_end_of_a_very_long_log_is_asked(tmp_path, ending, monkeypatch):
    rows = [{"user": f"u{n % 90}", "sku": n % 4, "at": EPOCH + 1150 * n} for n in range(300)]
    path = tmp_path / f"log.{ending}"
    lines = "\n".join(["user,sku,at", *(f"{row['user']},{row['sku']},{row['at']}" for row in rows)]).encode()
    if ending == "jsonl":
        path.write_text("\n".join(map(json.dumps, rows)))
    elif ending == "avro":
        fields = [{"name": name, "type": kind} for name, kind in (("user", "string"), ("sku", "long"), ("at", "long"))]
        with open(path, "wb") as file:
            fastavro.writer(file, {"type": "record", "name": "event", "fields": fields}, rows)
    elif ending == "parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    else:
        path.write_bytes(gzip.compress(lines))
    looked = shh("doctor", path.name, cwd=tmp_path)
    assert roles_of(looked.stdout) == ["user", "sku", "at", "s"]
    assert (looked.returncode, option_of(looked.stdout, "end")) == (0, "2026-02-25T00:00:00Z")
    monkeypatch.setattr(doctor, "_MOST_ROWS", 300)
    looked = shh("doctor", path.name, cwd=tmp_path)
    assert (looked.returncode, option_of(looked.stdout, "end")) == (1, "?")


def test_types_of_parquet_are_told(tmp_path):
    """Of UUIDs the text; of times that Python's calendar has not, nothing."""
    columns = {
        "user": pa.array([uuid.UUID(int=(n % 40) << 90).bytes for n in range(200)], pa.uuid()),
        "item": pa.array([f"p{n % 3}" for n in range(200)]).dictionary_encode(),
        "timestamp": pa.array([EPOCH * 10**9 + n * 10**10 + 1 for n in range(200)], pa.timestamp("ns")),
        "expires": pa.array([2**62] * 200, pa.timestamp("us", "UTC")),
        "tags": pa.array([["a"]] * 200),
        "took": pa.array([1_234_567_891] * 200, pa.duration("ns")),
        "day": pa.array([5_000_000] * 200, pa.int32()).cast(pa.date32()),
        "at": pa.array([123_456_789] * 200, pa.time64("ns")),
        "inside": pa.StructArray.from_arrays([pa.array([1_234_567_891] * 200, pa.timestamp("ns"))], ["x"]),
    }
    pq.write_table(pa.table(columns), tmp_path / "log.parquet")
    looked = shh("doctor", "log.parquet", cwd=tmp_path)
    assert roles_of(looked.stdout)[:4] == ["user", "item", "timestamp", ""]
    other = shh("doctor", "log.parquet", "--item-field", "tags", cwd=tmp_path)
    assert (other.returncode, "'tags' has type list" in other.stderr) == (1, True)


def test_what_must_be_converted_is_named_with_the_command(tmp_path):
    for name, content, said in (
        ("b.json", b'[{"user": "u", "item": "i", "timestamp": "2026-01-01"}]', "jq -c '.[]'"),
        ("c.csv", "user,item,timestamp\nu,i,2026-01-01\n".encode("utf-16"), "iconv -f utf-16 -t utf-8"),
        ("e.parquet", b"PAR1", "it is damaged, or not in .parquet format"),
        ("f.log", b'{"user": "u", "item": "i"}\n', "let its name end in .jsonl"),
        ("g.log.gz", gzip.compress(b"unknown\n" * 99, mtime=0)[:-9], "Truncated compressed stream"),
    ):
        (tmp_path / name).write_bytes(content)
        looked = shh("doctor", name, cwd=tmp_path)
        assert said in looked.stdout + looked.stderr
        assert looked.returncode == 1


def test_a_file_with_other_fields_is_named_and_no_secret_of_a_path(tmp_path):
    folder = tmp_path / "token=s3cret"
    folder.mkdir()
    for name, item in (("1", "item"), ("2", "item"), ("3", "page")):
        (folder / f"{name}.csv").write_text(f"user,{item},timestamp\nu,i,2026-01-01\n")
    looked = shh("doctor", "token=s3cret", cwd=tmp_path)
    assert "no field 'item'" in looked.stderr
    assert "s3cret" not in looked.stderr
    assert "s3cret" not in shh("doctor", "token=s3cret/1.csv", cwd=tmp_path).stdout
    assert (
        "no field 'usr'. Do you mean user?" in shh("doctor", "token=s3cret", "--user-field", "usr", cwd=tmp_path).stderr
    )


CLOCK = "20/Feb/2026:08:{:02}:00 +0000"
REQUEST = '"GET /page HTTP/1.1" 200 1 "https://s.example/?q=caf\xe9" "agent/1.0"'
ACCESS_LOGS = {
    "combined": f"198.51.100.{{}} - an na [{CLOCK}] {REQUEST}\n",
    "virtual host first": f"www.example.org:443 198.51.100.{{}} - - [{CLOCK}] {REQUEST}\n",
    "virtual host by address": f"192.0.2.1 198.51.100.{{}} - - [{CLOCK}] {REQUEST}\n",
}


@pytest.mark.parametrize("form", ACCESS_LOGS)
def test_the_line_that_makes_csv_of_an_access_log_does_in_every_locale_with_any_bytes(tmp_path, form):
    scan = b'10.0.0.1 - - [01/Mar/2026:10:59:00 +0100] "\x16\x03\xff" 400 0 "-" "-"\n'
    log = "".join(ACCESS_LOGS[form].format(n % 250, n % 60) for n in range(300)).encode("latin1") + scan
    (tmp_path / "old one.log.gz").write_bytes(gzip.compress(log))
    (tmp_path / "new.log").write_bytes(log)
    told = shh("doctor", "new.log", "old one.log.gz", cwd=tmp_path).stderr
    environment = {"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8"}
    subprocess.run(["bash", "-c", told[told.index("(echo") :]], cwd=tmp_path, check=True, env=environment)
    looked = shh("doctor", "access.csv", cwd=tmp_path)
    assert roles_of(looked.stdout) == ["address", "path", "time", APACHE], looked.stdout
    rows = list(csv.DictReader(io.StringIO((tmp_path / "access.csv").read_text())))
    assert [row["path"] for row in rows] == ["/page"] * 600
    assert len({row["address"] for row in rows}) == 250
    assert replayed(tmp_path, looked.stdout) == {"/page"}
