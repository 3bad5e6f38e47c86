"""``shh doctor LOG``: which roles are proposed, what is asked for, and what is wrong. The printed commands run as they
are.

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
import uuid

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

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
    "first": lambda row: moment(row, "%y/%m/%d %H:%M:%S"),
    "at": moment,
    "nobody": lambda row: "-",
    "type": lambda row: "member" if row % 2 else "casual",
    "host": lambda row: f"198.51.100.{row % 40}",
    "hop": lambda row: f"198.51.100.{row % 40}:{row + 4000}",
    "from": lambda row: f"u{row % 40}@example.org",
    "to": lambda row: f"u{row * 7 % 41}@example.org",
    "addr": lambda row: f"req-{row}",
    "patient": lambda row: f"p{row * 7 % 43}",
}


def table(header, separator=","):
    """CSV of these columns. Of other ends: ids differ more than items."""
    names, text = header.split(","), io.StringIO()
    writer = csv.writer(text, delimiter=separator, lineterminator="\n")
    writer.writerow(names)
    for row in range(ROWS):
        writer.writerow(
            CELLS.get(re.split("[-_]", name)[-1], lambda at, name=name: f"{name}-{at % (41 if 'id' in name else 7)}")(
                row
            )
            for name in names
        )
    return text.getvalue()


def command_of(printed):
    """The words of the printed command, without ``shh``."""
    (shown,) = re.findall(r"^  (shh replay (?:.*\\\n)*.*)$", printed, re.MULTILINE)
    return shlex.split(shown.replace("\\\n", " "))[1:]


def roles_of(printed):
    """As they are proposed, without what is explained."""
    lines = re.findall(r"^  (?:user|item|time)   --\w+-field (.*)$", printed, re.MULTILINE)
    return " ".join(re.sub(r" +", " ", line.partition("   (")[0]) for line in lines)


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


@pytest.mark.parametrize(
    ("header", "roles"),
    [
        ("userId,movieId,rating,timestamp", "userId movieId timestamp --time-format s"),
        ("event_day,event_timestamp,user_pseudo_id,page_location", "user_pseudo_id page_location event_timestamp"),
        ("remote_nobody,remote_host,time_local,request,user_agent", "remote_host request time_local"),
        ("date,timestamp,user,page", "user page timestamp"),  # a full column of seconds beats a day
        ("date,clock,level,page", "? page date"),  # and a clock beside a date is no user
        ("date,time,s-host,cs-uri-stem,cs-username", "cs-username cs-uri-stem date"),
        ("user_id,session_id,click_article_id,first_touch,at", "user_id click_article_id at"),
        ("session_id,page,at", "session_id page at"),
        ("hop,page,at", "hop page at"),
        ("hop,host,page,at", "host page at"),
        ("usertype,start_station,at", "? ? at"),
        ("buyer_id,patient,product,at", "? product at"),
        ("mail_from,mail_to,at", "? ? at"),
        ("user_id,from_user_id,at", "user_id ? at"),
        ("user,mail_from,at", "user ? at"),  # an address is no item
        ("a,b,at", "? ? at"),
        ("addr,event_id,at", "? ? at"),  # of a request
        ("user_id,created_at,updated_at,page", "user_id page created_at"),
        ("user_id,year_first,page", "user_id page year_first --time-format ?"),
    ],
)
def test_roles_are_proposed_by_type_and_name_or_asked_for(tmp_path, header, roles):
    looked = looked_at(tmp_path, table(header))
    assert roles_of(looked.stdout).startswith(roles), looked.stdout
    assert looked.returncode == ("?" in command_of(looked.stdout))


IS_WRONG = [
    (table("session_id,page,at"), "session_id seems to be a session: each session"),
    (table("hop,page,at"), "hop holds addresses with ports: each connection would be a user"),
    (table("user_pseudo_id,page,at"), "user_pseudo_id seems to be a device"),
    (table("date,clock,level,page"), "date holds days, and the clock is in clock: join both"),
    (table("user_id,year_first,page"), "must be said: '%d/%m/%y %H:%M:%S' or '%y/%m/%d %H:%M:%S'"),
    (table("a,b,at"), "--user-field ?   (the one that a person keeps; weighed: a, b)"),
    (table("user,item,at", ";"), "--csv-separator ';'"),
    ("u1,i1,2026-01-01\nu2,i1,2026-01-01\n", "(echo field1,field2,timestamp; cat log.csv) > named.csv"),
    ("0;2014-04-07T10:00:00Z;21;0\n", "(echo 'field1;timestamp;field3;field4'; cat log.csv) > named.csv"),
    ("196\t242\t3\t881250949\n", r"(printf 'field1\tfield2\tfield3\tfield4\n'; cat log.csv) > named.csv"),
    ("u1,p,de\n" + "u1,q,fr\nu2,p,de\n" * 9, "its first line looks like an event"),
    ("user,item,timestamp\ru,i,2026-01-01\r", r"carriage returns alone: cat log.csv | tr '\r' '\n' > NEW"),
    ("user,item,time\nu,i,01.03.2026 12:00\n", "--time-format '%d.%m.%Y %H:%M'   (text without a zone"),
    ("user,item,at\nu,i,03/04/2026\n", "--time-format ?   (the order of day, month and year must be said"),
    ("user,item,at\nu,i,03/04/2026\nu,i,13/04/2026\n", "--time-format %d/%m/%Y   (text without a zone"),
    ("user,item,time\nu,i,12h on 3 May 2026\n", "weighed: time"),
    ("user,item,timestamp\nu,i,2026-01-01\nu,i,2026-01-02\n", "--window 1d"),
    ('user,item,timestamp\nu,"say \\"hi\\"",2026-01-01\nu,i,2026-01-01\n', ": quote that is open, or"),
    ("user,item,timestamp\nu,i\nu,i,2026-01-01\n", "1 of 2 rows that were looked at: wrong number of cells"),
    ("user,item,timestamp\nu,i,1970-01-01\nu,i,2026-01-01\n", "are from 2026-01-01 00:00 to 2026-01-01 00:00 UTC"),
    ("user,item,timestamp\n" + "".join(f"u{n},i,2026-01-01\n" for n in range(60)), "is it the id of a row?"),
    ("user,item,timestamp,\x1b]0;owned\x07\nu,i,2026-01-01,1\n", r"\x1b]0;owned\x07"),
    ("", "There is no row in them"),
]


@pytest.mark.parametrize(("text", "words"), IS_WRONG, ids=[words for _, words in IS_WRONG])
def test_what_is_wrong_is_said(tmp_path, text, words):
    looked = looked_at(tmp_path, text)
    assert words in looked.stdout + looked.stderr
    assert "\x1b" not in looked.stdout
    is_ready = "shh replay" in looked.stdout and "?" not in command_of(looked.stdout)
    assert looked.returncode == (0 if is_ready else 1)


def traefik(row):
    of_client = {"ClientAddr": f"203.0.113.{row % 40}:{50000 + row}", "ClientHost": f"203.0.113.{row % 40}"}
    of_request = {
        "ClientUsername": "-",
        "RequestCount": row,
        "RequestHost": "shop.example",
        "RequestPath": f"/{row % 8}",
    }
    return {**of_client, **of_request, "ServiceAddr": "10.0.0.2:80", "StartUTC": moment(row), "time": moment(row)}


def github(row):
    actor = {"id": row % 40, "login": f"dev{row % 40}", "url": "https://api.example/u"}
    repo = {"id": row % 7, "name": f"org/r{row % 7}", "url": "https://api.example/r"}
    return {"id": str(2489651045 + row), "type": "PushEvent", "actor": actor, "repo": repo, "created_at": moment(row)}


@pytest.mark.parametrize(
    ("make", "roles", "flatten"),
    [
        (traefik, "ClientHost RequestPath StartUTC", None),
        (lambda row: {f"u{row}": 1, "user": row % 9, "page": "p", "at": moment(row)}, "user page at", None),
        (github, "actor.login repo.name created_at", "{user: .actor.login, item: .repo.name, timestamp: .created_at}"),
        (
            lambda row: {"x": {"user-id": row % 9}, "page": "p", "@at": moment(row)},
            "x.user-id page @at",
            '{user: .x["user-id"], item: .page, timestamp: .["@at"]}',
        ),
    ],
    ids=["traefik", "keyed by users", "github", "odd names"],
)
def test_fields_in_objects_are_named_by_their_path_with_the_command_that_flattens_them(tmp_path, make, roles, flatten):
    lines = "".join(json.dumps(make(row)) + "\n" for row in range(ROWS))
    (tmp_path / "log.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    looked = shh("doctor", "log.jsonl.gz", cwd=tmp_path)
    assert roles_of(looked.stdout) == roles
    assert looked.returncode == (0 if flatten is None else 1)
    if flatten is not None:
        (line,) = re.findall(r"^  (gzip -cdf .*)$", looked.stdout, re.MULTILINE)
        assert flatten in line
        subprocess.run(["bash", "-c", line], cwd=tmp_path, check=True)
        replayed(tmp_path, looked.stdout)


def test_a_log_is_understood_and_the_command_runs_as_printed(tmp_path):
    lines = ["Nr;x,Leser-Nr,Seite,Zeitpunkt,Dauer"]
    for n in range(4000):
        at = f"2026-03-02T{n // 200:02}:{n % 60:02}:05+01:00"
        lines.append(f"{n},L{n % 900},/artikel/{0 if n % 3 else n % 50},{at},{n % 7}.5")
    looked = looked_at(tmp_path, "\n".join(lines) + "\n")
    assert (looked.returncode, looked.stderr) == (0, "")
    assert looked.stdout.startswith("For you, the operator: no privacy covers what follows")
    assert "from 2026-03-01 23:00 to 2026-03-02 18:59 UTC" in looked.stdout
    assert "Why the range must be declared" in looked.stdout
    assert command_of(looked.stdout) == [
        *("replay", "log.csv", "--user-field", "Leser-Nr", "--item-field", "Seite", "--time-field", "Zeitpunkt"),
        *("--start", "2026-03-01T00:00:00Z", "--end", "2026-03-03T00:00:00Z", "--window", "1h"),
        *("--epsilon", "2", "--delta", "1e-9", "--output", "report.avro"),
    ]
    assert replayed(tmp_path, looked.stdout) == {"/artikel/0"}
    alone = shh("replay", "log.csv", "--item-field", "Dauer", cwd=tmp_path)
    assert (alone.returncode, alone.stdout) == (2, ""), "what a replay prints on stdout may be published"
    assert alone.stderr.startswith("For you, the operator")
    assert alone.stderr.endswith("\nNothing was run: the options of a budget are missing.\n")
    assert "--item-field Dauer" in " ".join(command_of(alone.stderr))
    assert sorted(os.listdir(tmp_path)) == ["log.csv", "report.avro"]
    for words in (["--epsilon", "2"], ["--output", "r.avro"], ["--plan", "plan.json"], ["--state", "s"]):
        assert "operator" not in shh("replay", "log.csv", *words, cwd=tmp_path).stderr, words


def test_days_are_those_of_the_zone_that_is_given(tmp_path):
    """All of 24 hours, also where the clock is changed between them."""
    text = "user,item,timestamp\nu,i,2026-03-01 00:30\nu,i,2026-03-29 23:30\n"
    looked = looked_at(tmp_path, text, "--time-zone", "Europe/Berlin")
    assert "are from 2026-03-01 00:30 to 2026-03-29 23:30 Europe/Berlin" in looked.stdout
    words = command_of(looked.stdout)
    assert words[4:8] == ["--start", "2026-03-01T00:00:00+01:00", "--end", "2026-03-30T00:00:00+01:00"]


@pytest.mark.parametrize("ending", ["csv", "csv.gz", "jsonl", "avro"])
def test_every_format_is_understood_and_whether_its_end_is_seen_is_said(tmp_path, ending):
    """3,000 rows over four days, of which at most 2,000 are looked at."""
    rows = [{"user": f"u{n % 900}", "sku": n % 4, "at": EPOCH + 115 * n} for n in range(3000)]
    path = tmp_path / f"log.{ending}"
    lines = ["user,sku,at,x", *(f"u{n % 9},{n % 4},{EPOCH + 115 * n},{'x' * 400}" for n in range(3000))]
    if ending == "jsonl":
        path.write_text("\n".join(map(json.dumps, rows)))
    elif ending == "avro":
        fields = [{"name": name, "type": kind} for name, kind in zip(rows[0], ("string", "long", "long"), strict=True)]
        with open(path, "wb") as file:
            fastavro.writer(file, {"type": "record", "name": "e", "fields": fields}, rows)
    else:
        text = "\n".join(lines).encode()
        path.write_bytes(gzip.compress(text) if ending == "csv.gz" else text)
    looked = shh("doctor", path.name, cwd=tmp_path)
    assert looked.returncode == 0, looked.stdout
    assert roles_of(looked.stdout) == "user sku at --time-format s"
    end = command_of(looked.stdout)[command_of(looked.stdout).index("--end") + 1]
    is_seen = ending in ("csv", "jsonl")
    assert ("its end was not seen" in looked.stdout) == (end != "2026-02-25T00:00:00Z") == (not is_seen)


def test_types_of_parquet_are_told_and_its_footer_says_when_the_events_end(tmp_path):
    """Of UUIDs the text; of times that Python's calendar has not, nothing."""
    columns = {
        "user": pa.array([uuid.UUID(int=(n % 40) << 90).bytes for n in range(5001)], pa.uuid()),
        "item": pa.array([f"p{n % 3}" for n in range(5001)]).dictionary_encode(),
        "timestamp": pa.array([*(EPOCH * 10**9 + n * 10**10 for n in range(5000)), None], pa.timestamp("ns")),
        "expires": pa.array([*range(5000), 2**62], pa.timestamp("us", "UTC")),
        "score": pa.array([0.5] * 5001),
        "tags": pa.array([["a"]] * 5001),
        "actor": pa.array([{"login": "a"}] * 5001),
    }
    pq.write_table(pa.table(columns), tmp_path / "log.parquet")
    looked = shh("doctor", "log.parquet", cwd=tmp_path)
    assert roles_of(looked.stdout) == "user item timestamp"
    kinds = dict(re.findall(r"^  ([\w.]+) +([a-z ,-]+?)  ", looked.stdout, re.MULTILINE))
    assert [kinds[name] for name in ("item", "timestamp", "score")] == ["text", "timestamp", "number"]
    assert kinds["tags"] == "lists, objects or several kinds of values"
    assert "to 2026-02-20 21:53 UTC" in looked.stdout
    other = shh("doctor", "log.parquet", "--user-field", "actor.login", "--item-field", "score", cwd=tmp_path).stdout
    assert "score holds number;" in other
    assert """SELECT "actor"."login" AS "user", "score" AS "item", "timestamp" AS "timestamp" FROM""" in other


@pytest.mark.parametrize(
    ("values", "what"),
    [
        ([f"10.1.{n % 200}.{n % 7}" for n in range(300)], "addresses of the network"),
        ([f"2001:db8::{n:x}" for n in range(300)], "addresses of the network"),
        ([f"a{n % 90}@example.com" for n in range(300)], "e-mail addresses"),
        ([f"{n * 7919:08x}-0000-4000-8000-{n:012x}" for n in range(300)], "tokens"),
        ([f"{n % 20:08x}-0000-4000-8000-{n % 20:012x}" for n in range(300)], None),  # of articles
    ],
    ids=["IPv4", "IPv6", "mail", "tokens", "articles"],
)
def test_values_that_say_who_somebody_is_are_no_items_whatever_their_field_is_called(tmp_path, values, what):
    rows = [f"u{n % 100},{value},y{n % 5},2026-01-01T00:00:00Z" for n, value in enumerate(values)]
    text = "\n".join(["user,page,topic_name,at", *rows]) + "\n"
    words = command_of(looked_at(tmp_path, text).stdout)
    assert words[words.index("--item-field") + 1] == ("topic_name" if what else "page")
    chosen = looked_at(tmp_path, text, "--item-field", "page").stdout
    assert (f"page holds {what}: items are published" in chosen) == (what is not None)


def test_what_must_be_converted_is_named_with_the_command(tmp_path):
    for name, content, said in [
        ("a.csv", b"user,item,timestamp\nM\xfcller,i,2026-01-01\nu,i,2026-01-01\n", "iconv -f latin1 -t utf-8"),
        ("b.json", b'[{"user": "u", "item": "i", "timestamp": "2026-01-01"}]', "jq -c '.[]'"),
        ("c.csv", "user,item,timestamp\nu,i,2026-01-01\n".encode("utf-16"), "iconv -f utf-16 -t utf-8"),
        ("d.jsonl", b"u,i,2026-01-01\n" * 9, "9 of 9 rows that were looked at: no JSON object. Write one per line"),
        ("e.parquet", b"PAR1", "it is damaged, or not in Parquet format"),
        ("f.log", b'{"user": "u", "item": "i"}\n', "Let its name say so: cat f.log > access.jsonl"),
        ("g.log", b"nothing that is known\n", "it cannot be read as it is"),
    ]:
        (tmp_path / name).write_bytes(content)
        looked = shh("doctor", name, cwd=tmp_path)
        assert said in looked.stdout + looked.stderr, name


def test_files_that_differ_are_named_and_no_secret_of_a_path(tmp_path):
    folder = tmp_path / "token=s3cret"
    folder.mkdir()
    for name, item in (("1", "item"), ("2", "item"), ("3", "page")):
        (folder / f"{name}.jsonl").write_text(f'{{"user": "u", "{item}": "i", "timestamp": "2026-01-01"}}\n')
    looked = shh("doctor", "token=s3cret", cwd=tmp_path)
    assert looked.returncode == 0, looked.stderr
    assert "it has other fields than most files" in looked.stdout
    assert "s3cret" not in looked.stdout
    assert "no field 'usr'. Do you mean user?" in shh("doctor", str(folder), "--user-field", "usr", cwd=tmp_path).stderr


CLOCK = "20/Feb/2026:08:{:02}:00 +0000"
REQUEST = '"GET /page HTTP/1.1" 200 1 "https://s.example/?q=caf\xe9" "agent/1.0"'
ACCESS_LOGS = {
    "combined": f"198.51.100.{{}} - an na [{CLOCK}] {REQUEST}\n",
    "virtual host first": f"www.example.org:443 198.51.100.{{}} - - [{CLOCK}] {REQUEST}\n",
    "virtual host by address": f"192.0.2.1:443 198.51.100.{{}} - - [{CLOCK}] {REQUEST}\n",
    "HAProxy": f"Feb  6 12:14:14 lb haproxy[143]: 198.51.100.{{}}:33317 [{CLOCK}] in s/1 10/0 {{{{a}}}} {REQUEST}\n",
}


@pytest.mark.parametrize("form", ACCESS_LOGS)
def test_the_line_that_makes_csv_of_an_access_log_does_in_every_locale_with_any_bytes(tmp_path, form):
    scan = b'10.0.0.1 - - [01/Mar/2026:10:59:00 +0100] "\x16\x03\xff" 400 0 "-" "-"\n'
    log = "".join(ACCESS_LOGS[form].format(n % 250, n % 60) for n in range(300)).encode("latin1") + scan
    (tmp_path / "old one.log.gz").write_bytes(gzip.compress(log))
    told = shh("doctor", "old one.log.gz", cwd=tmp_path).stderr
    environment = {"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8"}
    subprocess.run(["bash", "-c", told[told.index("(echo") :]], cwd=tmp_path, check=True, env=environment)
    looked = shh("doctor", "access.csv", cwd=tmp_path)
    assert roles_of(looked.stdout).startswith("address path time"), looked.stdout
    assert "address seems to be an address of the network" in looked.stdout
    rows = list(csv.DictReader(io.StringIO((tmp_path / "access.csv").read_text())))
    assert [row["path"] for row in rows] == ["/page"] * 300
    assert len({row["address"] for row in rows}) == 250
    assert replayed(tmp_path, looked.stdout) == {"/page"}
