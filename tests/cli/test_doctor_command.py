"""``shh doctor LOG`` and ``shh replay LOG`` alone: which roles are proposed, what is asked, and what is wrong.

Most logs are of forms that other programs write. The printed command runs as it is."""

import csv
import datetime
import gzip
import io
import json
import os
import pathlib
import re
import subprocess
import uuid

import fastavro
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dp_transforms.cli.log_sample import sample_file
from dp_transforms.reports import read_report_file
from tests.cli.printed_commands import command_of
from tests.helpers.event_files_oracle import write_avro
from tests.helpers.shh_here import shh

FOR_THE_OPERATOR = "For you, the operator: no privacy covers what follows"
ROWS = 120


def moment(row, form="%Y-%m-%dT%H:%M:%SZ"):
    return (datetime.datetime(2026, 2, 20, 8) + datetime.timedelta(seconds=61 * row)).strftime(form)


def table(header, separator=","):
    """CSV with cells as their names want them."""
    names, text = header.split(separator), io.StringIO()
    csv.writer(text, delimiter=separator).writerows(
        [names, *([cell(name, row) for name in names] for row in range(ROWS))]
    )
    return text.getvalue()


def cell(name, row):
    """Of a column of this name."""
    made = {
        "patient_id": f"p{row * 7 % 43}",
        "to_user_id": f"u{row * 7 % 43}",
        "date": moment(row, "%Y-%m-%d"),
        "time": moment(row, "%H:%M:%S"),
        "timestamp": str(1_771_574_400 + row),
        "fraction": moment(row, "%H:%M:%S") + f",{row:03}",
        "event_date": moment(row, "%Y%m%d"),
        "event_timestamp": str(1_771_574_400_000_000 + row),
        "user_first_touch_timestamp": str(1_771_500_000_000_000 + row // 9),
        "event_time": moment(row, "%Y-%m-%d %H:%M:%S UTC"),
        "time_local": moment(row, "%d/%b/%Y:%H:%M:%S +0000"),
        "year_first": moment(row, "%y/%m/%d %H:%M:%S"),
        "remote_user": "-",
        "usertype": "member" if row % 2 else "casual",
        "session_start": str(1_771_574_400_000 + row // 4),
        "click_timestamp": str(1_771_574_400_000 + row),
        "user_agent": f"agent/{row % 5}",
        "status": "200",
        "host": f"198.51.100.{row % 40}",
        "mail_from": f"u{row % 40}@example.org",
        "mail_to": f"u{row * 7 % 41}@example.org",
    }
    for word, value in (("ip", f"198.51.100.{row % 40}"), ("addr", f"198.51.100.{row % 40}"), ("at", moment(row))):
        if re.search(rf"(?:^|[-_]){word}$", name):
            made.setdefault(name, value)
    return made.get(name, f"{name}-{row % (41 if 'id' in name else 7)}")


@pytest.mark.parametrize(
    ("header", "user", "item", "time"),
    [
        ("user,item,timestamp", "user", "item", "timestamp --time-unit s"),
        ("userId,movieId,rating,timestamp", "userId", "movieId", "timestamp --time-unit s"),  # MovieLens
        ("date,timestamp,user,page", "user", "page", "timestamp --time-unit s"),
        ("date,fraction,level,page", "?", "page", "date"),
        ("event_time,event_type,product_id,category_id,brand,price,user_id,user_session", "user_id", "product_id",
         "event_time --time-format '%Y-%m-%d %H:%M:%S %z'"),  # Kaggle
        ("timestamp,visitorid,event,itemid,transactionid", "visitorid", "itemid", "timestamp --time-unit s"),
        ("user_id,session_id,session_start,click_article_id,click_timestamp", "user_id", "click_article_id",
         "click_timestamp --time-unit ms"),
        ("event_date,event_timestamp,event_name,user_pseudo_id,user_first_touch_timestamp,page_location",
         "user_pseudo_id", "page_location", "event_timestamp --time-unit us"),  # Google Analytics
        ("remote_addr,remote_user,time_local,request,status,user_agent", "remote_addr", "request",
         "time_local --time-format '%d/%b/%Y:%H:%M:%S %z'"),  # nginx
        ("date,time,s-ip,cs-method,cs-uri-stem,cs-username,c-ip", "cs-username", "cs-uri-stem", "date"),  # IIS
        ("host,at,method,url,status", "host", "url", "at"),
        ("usertype,start_station,at", "?", "?", "at"),
        ("prev,curr,n", "?", "?", "?"),
        ("buyer_id,patient_id,product,at", "?", "product", "at"),
        ("mail_from,mail_to,at", "?", "?", "at"),
        ("from_user_id,to_user_id,at", "?", "?", "at"),
        ("user_id,to_user_id,at", "user_id", "?", "at"),
        ("session_id,page,at", "session_id", "page", "at"),
        ("a,b,at", "?", "?", "at"),
        ("user,email,at", "user", "?", "at"),
        ("user_id,created_at,updated_at,page", "user_id", "page", "created_at"),
        ("user_id,seen_at,logged_at,page", "user_id", "page", "seen_at"),  # the same times
        ("user_id,year_first,page", "user_id", "page",
         "year_first --time-format ?"),
    ],
)  # fmt: skip
def test_roles_are_proposed_by_type_and_name_or_asked_for(tmp_path, header, user, item, time):
    (tmp_path / "log.csv").write_text(table(header))
    looked = shh("doctor", "log.csv", cwd=tmp_path)
    assert roles_of(looked.stdout) == (user, item, time), looked.stdout
    command = command_of(looked.stdout)
    assert looked.returncode == (1 if "?" in command else 0)
    for role, found in (("user", user), ("item", item)):
        usual = found == role
        assert usual or command[command.index(f"--{role}-field") + 1] == found


def roles_of(said):
    """As the look proposes them, without what is explained."""
    lines = re.findall(r"^  (?:user|item|time)   --\w+-field (.*)$", said, re.MULTILINE)
    return tuple(re.sub(r" +", " ", line.partition("   (")[0]) for line in lines)


@pytest.mark.parametrize(
    ("header", "said"),
    [
        ("session_id,page,at", "session_id seems to be a session: each session"),
        ("client_ip,page,at", "client_ip seems to be an address of the network"),
        ("user_pseudo_id,page,at", "user_pseudo_id seems to be a device"),
        ("user_id,session_id,page,at", "besides user_id the user could be session_id"),
        ("date,fraction,level,page", "date holds days, and the clock is in fraction: join both"),
        ("user_id,year_first,page", "must be said: '%d/%m/%y %H:%M:%S' or '%y/%m/%d %H:%M:%S'"),
        ("a,b,at", "--user-field ?   (the one that a person keeps; weighed: a, b)"),
        ("user_id,seen_at,sent_in,page", "seen_at   (text with a zone)"),
        ("usertype,page", "--time-field ?   (when the event was; weighed: none)"),
    ],
)
def test_what_a_choice_means_is_said(tmp_path, header, said):
    (tmp_path / "log.csv").write_text(table(header))
    assert said in shh("doctor", "log.csv", cwd=tmp_path).stdout


def json_lines(make):
    return "".join(json.dumps(make(row)) + "\n" for row in range(ROWS))


def traefik(row):
    return {
        "ClientAddr": f"203.0.113.{row % 40}:{50000 + row}",
        "ClientHost": f"203.0.113.{row % 40}",
        **{"ClientUsername": "-", "RequestCount": row, "RequestHost": "shop.example", "RequestPath": f"/p{row % 8}"},
        **{"ServiceAddr": "10.0.0.2:80", "StartUTC": moment(row), "time": moment(row)},
    }


def caddy(row):
    request = {"remote_ip": f"203.0.113.{row % 40}", "remote_port": str(row), "method": "GET", "uri": f"/p{row % 8}"}
    return {"level": "info", "ts": 1_771_574_400.25 + row, "request": request, "user_id": "", "status": 200}


def github(row):
    actor = {"id": row % 40, "login": f"dev{row % 40}", "url": "https://api.example/u"}
    repo = {"id": row % 7, "name": f"org/r{row % 7}", "url": "https://api.example/r"}
    return {"id": str(2489651045 + row), "type": "PushEvent", "actor": actor, "repo": repo, "created_at": moment(row)}


@pytest.mark.parametrize(
    ("make", "roles", "flatten"),
    [
        (traefik, ("ClientHost", "RequestPath", "StartUTC"), None),
        (caddy, ("request.remote_ip", "request.uri", "ts --time-unit s"),
         "{user: .request.remote_ip, item: .request.uri, timestamp: .ts}"),
        (github, ("actor.login", "repo.name", "created_at"),
         "{user: .actor.login, item: .repo.name, timestamp: .created_at}"),
        (lambda row: {"x": {"user-id": row % 9}, "page": "p", "at": moment(row)}, ("x.user-id", "page", "at"),
         '{user: .x["user-id"], item: .page, timestamp: .at}'),
        (lambda row: {f"u{row}": 1, "user": row % 9, "page": "p", "at": moment(row)}, ("user", "page", "at"), None),
    ],
)  # fmt: skip
def test_fields_inside_of_objects_are_named_by_their_path_with_the_command_that_flattens_them(
    tmp_path, make, roles, flatten
):
    (tmp_path / "log.jsonl.gz").write_bytes(gzip.compress(json_lines(make).encode()))
    looked = shh("doctor", "log.jsonl.gz", cwd=tmp_path)
    assert roles_of(looked.stdout) == roles
    assert looked.returncode == (0 if flatten is None else 1)
    if flatten is not None:
        (line,) = re.findall(r"^  (gzip -cdf .*)$", looked.stdout, re.MULTILINE)
        assert flatten in line
        subprocess.run(["bash", "-c", line], cwd=tmp_path, check=True)
        assert replayed(tmp_path, looked.stdout)


def test_parquet_and_avro_with_structs_name_the_path_too(tmp_path):
    rows = [github(row) for row in range(ROWS)]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "log.parquet")
    record = {"type": "record", "name": "actor", "fields": [{"name": "login", "type": "string"}]}
    fields = [{"name": "actor", "type": record}, {"name": "page", "type": "string"}, {"name": "at", "type": "string"}]
    with open(tmp_path / "log.avro", "wb") as file:
        made = [{"actor": {"login": row["actor"]["login"]}, "page": "p", "at": row["created_at"]} for row in rows]
        fastavro.writer(file, {"type": "record", "name": "e", "fields": fields}, made)
    said = {name: shh("doctor", name, cwd=tmp_path).stdout for name in ("log.parquet", "log.avro")}
    assert """SELECT "actor"."login" AS "user", "repo"."name" AS "item",""" in said["log.parquet"]
    assert "fastavro log.avro | jq -c '{user: .actor.login, item: .page, timestamp: .at}'" in said["log.avro"]


def replayed(folder, said):
    """The items that the printed command finds."""
    ended = shh(*command_of(said), cwd=folder)
    assert ended.returncode == 0, ended.stderr
    assert " 0 outside --start .. --end skipped" in ended.stderr
    assert " 0 unreadable" in ended.stderr
    report = command_of(said)[-1]
    return {found.item for each in read_report_file(str(folder / report))[1] for found in each.heavy_hitters} or {None}


def test_a_log_with_odd_names_is_understood_and_the_command_runs_as_printed(tmp_path):
    lines = ["Nr;x,Leser-Nr,Seite,Zeitpunkt,Dauer"]
    for n in range(4000):
        at = f"2026-03-02T{n // 200:02}:{n % 60:02}:05+01:00"
        lines.append(f"{n},L{n % 900},/artikel/{0 if n % 3 else n % 50},{at},{n % 7}.5")
    (tmp_path / "besuche.csv").write_text("\n".join(lines) + "\n")
    looked = shh("doctor", "besuche.csv", cwd=tmp_path)
    assert (looked.returncode, looked.stderr) == (0, "")
    assert looked.stdout.startswith(FOR_THE_OPERATOR)
    assert re.search(r"^  time   --time-field Zeitpunkt   \(text with a zone\)$", looked.stdout, re.MULTILINE)
    assert "from 2026-03-01 23:00 to 2026-03-02 18:59 UTC" in looked.stdout
    assert "Why the range must be declared" in looked.stdout
    assert command_of(looked.stdout) == [
        *("replay", "besuche.csv", "--user-field", "Leser-Nr", "--item-field", "Seite", "--time-field", "Zeitpunkt"),
        *("--start", "2026-03-01T00:00:00Z", "--end", "2026-03-03T00:00:00Z", "--window", "1h"),
        *("--epsilon", "2", "--delta", "1e-9", "--output", "report.avro"),
    ]
    assert replayed(tmp_path, looked.stdout) == {"/artikel/0"}
    alone = shh("replay", "besuche.csv", "--item-field", "Dauer", cwd=tmp_path)
    assert (alone.returncode, alone.stdout) == (2, ""), "what a replay prints on stdout may be published"
    assert alone.stderr.startswith(FOR_THE_OPERATOR)
    assert alone.stderr.endswith("\nNothing was run: the options of a budget are missing.\n")
    assert "--item-field Dauer" in " ".join(command_of(alone.stderr))
    assert sorted(os.listdir(tmp_path)) == ["besuche.csv", "report.avro"]
    for words in (["--epsilon", "2"], ["--output", "r.avro"], ["--plan", "plan.json"], ["--state", "s"]):
        assert "operator" not in shh("replay", "besuche.csv", *words, cwd=tmp_path).stderr, words


@pytest.mark.parametrize("ending", ["parquet", "avro", "csv", "csv.gz", "jsonl"])
def test_every_format_is_understood(tmp_path, ending):
    source = "log.parquet" if ending == "parquet" else "log.csv"
    assert shh("simulate", "--users", 300, "--output", source, cwd=tmp_path).returncode == 0
    rows = list(csv.DictReader(io.StringIO((tmp_path / "log.csv").read_text()))) if source == "log.csv" else []
    if ending == "csv.gz":
        (tmp_path / "log.csv.gz").write_bytes(gzip.compress((tmp_path / "log.csv").read_bytes()))
    elif ending == "jsonl":
        (tmp_path / "log.jsonl").write_text("\n".join(map(json.dumps, rows)))
    elif ending == "avro":
        write_avro(tmp_path / "log.avro", [tuple(row.values()) for row in rows], ["string"] * 3)
    looked = shh("doctor", f"log.{ending}", cwd=tmp_path)
    assert looked.returncode == 0, looked.stderr
    assert command_of(looked.stdout)[:8] == [
        *("replay", f"log.{ending}", "--start", "2026-01-01T00:00:00Z", "--end", "2026-01-05T00:00:00Z"),
        *("--window", "1h"),
    ]
    assert "Look at this" not in looked.stdout


@pytest.mark.parametrize(("unit", "factor"), [("s", 1), ("ms", 10**3), ("us", 10**6), (None, 10**9)])
@pytest.mark.parametrize("ending", ["jsonl", "csv", "parquet"])
def test_the_unit_of_numbers_is_found(tmp_path, ending, unit, factor):
    """By the years that they would mean. Nanoseconds have no unit, and are named."""
    rows = [{"visitor": n % 9, "sku": n % 4, "at": (1_767_225_600 + 60 * n) * factor} for n in range(60)]
    path = tmp_path / f"log.{ending}"
    if ending == "jsonl":
        path.write_text("\n".join(map(json.dumps, rows)))
    elif ending == "csv":
        path.write_text("visitor,sku,at\n" + "\n".join(",".join(map(str, row.values())) for row in rows))
    else:
        pq.write_table(pa.Table.from_pylist(rows), path)
    looked = shh("doctor", path.name, cwd=tmp_path)
    assert looked.returncode == (0 if unit else 1)
    said = f"--time-field at   --time-unit {unit}" if unit else "at seems to count nanoseconds"
    assert said in looked.stdout


def test_types_of_parquet_are_told_and_its_footer_says_when_the_events_end(tmp_path):
    """Of UUIDs the text; of times that Python's calendar has not, nothing."""
    expires = pa.array([*range(5000), 2**62], pa.timestamp("us", "UTC"))
    nanos = [*(1_771_574_400_000_000_000 + n * 10**10 for n in range(5000)), None]
    columns = {
        "user": pa.array([uuid.UUID(int=(n % 40) << 90).bytes for n in range(5001)], pa.uuid()),
        "item": pa.array([f"p{n % 3}" for n in range(5001)]).dictionary_encode(),
        "timestamp": pa.array(nanos, pa.timestamp("ns")),
        "expires": expires,
        "score": pa.array([0.5] * 5001),
        "tags": pa.array([["a"]] * 5001),
    }
    pq.write_table(pa.table(columns), tmp_path / "log.parquet")
    looked = shh("doctor", "log.parquet", cwd=tmp_path)
    assert roles_of(looked.stdout) == ("user", "item", "timestamp")
    kinds = dict(re.findall(r"^  (\w+) +([a-z ,]+?)  ", looked.stdout, re.MULTILINE))
    assert (kinds["user"], kinds["item"], kinds["timestamp"], kinds["score"]) == ("text", "text", "timestamp", "number")
    assert kinds["tags"] == "lists, objects or several kinds of values"
    assert "to 2026-02-20 21:53 UTC" in looked.stdout
    assert shh("doctor", "log.parquet", "--user-field", "score", cwd=tmp_path).stdout.count("score holds number;") == 1


def test_days_are_those_of_the_zone_that_is_given(tmp_path):
    """All of 24 hours, also where the clock is changed between them."""
    (tmp_path / "log.csv").write_text("user,item,timestamp\nu,i,2026-03-01 00:30\nu,i,2026-03-29 23:30\n")
    looked = shh("doctor", "log.csv", "--time-zone", "Europe/Berlin", cwd=tmp_path)
    assert "are from 2026-03-01 00:30 to 2026-03-29 23:30 Europe/Berlin" in looked.stdout
    words = command_of(looked.stdout)
    assert words[4:8] == ["--start", "2026-03-01T00:00:00+01:00", "--end", "2026-03-30T00:00:00+01:00"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("u1,i1,2026-01-01\nu2,i1,2026-01-01\n", "(echo field1,field2,timestamp; cat log.csv) > named.csv"),
        ("0;2014-04-07T10:00:00Z;21;0\n", "(echo 'field1;timestamp;field3;field4'; cat log.csv) > named.csv"),
        ("u1\t2009-05-04T23:08:57Z\ta\n", r"(printf 'field1\ttimestamp\tfield3\n'; cat log.csv) > named.csv"),
        ("196\t242\t3\t881250949\n", r"(printf 'field1\tfield2\tfield3\tfield4\n'; cat log.csv) > named.csv"),
        ("user,item,timestamp\ru,i,2026-01-01\r", r"carriage returns alone: cat log.csv | tr '\r' '\n' > NEW"),
        ("user;item;timestamp\nu;i;2026-01-01\n", "--csv-separator ';'"),
        ("user,item,time\nu,i,01.03.2026 12:00\n", "--time-format '%d.%m.%Y %H:%M'   (text without a zone"),
        ("user,item,time\nu,i,12h on 3 May 2026\n", "weighed: time"),
        ("user,item,at\nu,i,03/04/2026\n", "--time-format ?   (the order of day, month and year must be said"),
        ("user,item,at\nu,i,03/04/2026\nu,i,13/04/2026\n", "--time-format %d/%m/%Y   (text without a zone"),
        ("user,item,at\nu,i,02/25/26\n", "must be said: %m/%d/%y)"),
        ("user,item\nu,i\n", "time   --time-field ?   (when the event was; weighed: none)"),
        ("user,item,timestamp\nu,i,2026-01-01\nu,i,2026-01-02\n", "--window 1d"),
        (
            'user,item,timestamp\nu,"say \\"hi\\"",2026-01-01\nu,i,2026-01-01\n',
            "1 of 2 rows that were looked at: quote",
        ),
        ("user,item,timestamp\nu,i\nu,i,2026-01-01\n", "1 of 2 rows that were looked at: wrong number of cells"),
        ("user,item,timestamp\nu,i,1970-01-01\nu,i,2026-01-01\n", "1 rows have times before 1990 or after 2100"),
        ("user,item,timestamp\n" + "".join(f"u{n},i,2026-01-01\n" for n in range(60)), "is it the id of a row?"),
        ("user,friend,at\n" + "".join(f"u{n},u{n + 1},2026-01-01\n" for n in range(9)), "weighed: friend"),
        ("user,item,timestamp\n,i,2026-01-01\nu,i,2026-01-01\n", "user: 1 of 2 rows have no user"),
        ("", "There is no row in them"),
    ],
)
def test_what_is_wrong_is_said(tmp_path, text, said):
    (tmp_path / "log.csv").write_bytes(text.encode())
    looked = shh("doctor", "log.csv", cwd=tmp_path)
    assert said in looked.stdout + looked.stderr
    is_ready = "shh replay" in looked.stdout and "?" not in command_of(looked.stdout)
    assert looked.returncode == (0 if is_ready else 1)


@pytest.mark.parametrize(
    ("values", "what"),
    [
        ([f"10.1.{n % 200}.{n % 7}" for n in range(300)], "addresses of the network"),
        ([f"10.1.0.{n % 7}:{n + 1024}" for n in range(300)], "addresses with ports"),
        ([f"2001:db8::{n:x}" for n in range(300)], "addresses of the network"),
        ([f"{n % 256:02x}:00:00:aa:bb:{n // 256:02x}" for n in range(300)], "addresses of the network"),
        ([f"a{n % 90}@example.com" for n in range(300)], "e-mail addresses"),
        ([f"{n * 7919:08x}-0000-4000-8000-{n:012x}" for n in range(300)], "tokens"),
        ([f"{n % 20:08x}-0000-4000-8000-{n % 20:012x}" for n in range(300)], None),  # of articles
        ([f"/{n % 20}/a@b" for n in range(300)], None),
    ],
)
def test_values_that_say_who_somebody_is_are_not_proposed_whatever_their_field_is_called(tmp_path, values, what):
    rows = [f"u{n % 100},{value},y{n % 5},2026-01-01T00:00:00Z" for n, value in enumerate(values)]
    (tmp_path / "log.csv").write_text("\n".join(["user,page,topic_name,at", *rows]) + "\n")
    words = command_of(shh("doctor", "log.csv", cwd=tmp_path).stdout)
    assert words[words.index("--item-field") + 1] == ("topic_name" if what else "page")
    chosen = shh("doctor", "log.csv", "--item-field", "page", cwd=tmp_path)
    assert (f"page holds {what}: items are published" in chosen.stdout) == (what is not None)
    shared = shh("doctor", "log.csv", "--user-field", "page", "--item-field", "user", cwd=tmp_path).stdout
    assert "user is named like a user: items are published" in shared


def test_files_that_are_converted_first_are_named_with_the_remedy(tmp_path):
    for name, content, said in [
        ("a.csv", b"user,item,timestamp\nM\xfcller,i,2026-01-01\nu,i,2026-01-01\n", "iconv -f latin1 -t utf-8"),
        ("b.jsonl", b'{"user": "M\xfc", "item": "i", "timestamp": "2026-01-01"}\n', "iconv -f latin1 -t utf-8"),
        ("c.json", b'[{"user": "u", "item": "i", "timestamp": "2026-01-01"}]', "jq -c '.[]'"),
        ("d.csv", "user,item,timestamp\nu,i,2026-01-01\n".encode("utf-16"), "iconv -f utf-16 -t utf-8"),
        ("e.jsonl", b"u,i,2026-01-01\n" * 9, "9 of 9 rows that were looked at: no JSON object. Write one per line"),
        ("f.parquet", b"PAR1", "it is damaged, or not in Parquet format"),
        ("g.csv.gz", b"user,item", "it is damaged, or not in CSV format"),
    ]:
        (tmp_path / name).write_bytes(content)
        looked = shh("doctor", name, cwd=tmp_path)
        assert said in looked.stdout + looked.stderr, name


REQUEST = '"GET /page HTTP/1.1" 200 1 "https://s.example/?q=caf\xe9" "agent/1.0"'
CLOCK = "20/Feb/2026:08:{:02}:00 +0000"
W3C = "#Version: 1.0\r\n#Fields: date time s-ip cs-uri-stem c-ip sc-status\r\n"
ACCESS_LOGS = {
    "combined": ("", f"198.51.100.{{}} - an na [{CLOCK}] {REQUEST}\n"),
    "virtual host first": ("", f"www.example.org:443 198.51.100.{{}} - - [{CLOCK}] {REQUEST}\n"),
    "names of hosts": ("", f"pc{{}}.example.org - - [{CLOCK}] {REQUEST}\n"),
    "HAProxy": (
        "",
        "Feb  6 12:14:14 lb haproxy[143]: 198.51.100.{}:33317 [06/Feb/2026:12:{:02}:14.655] in s/1 10/0 200 2750 - -"
        ' {{a}} "GET /page HTTP/1.1"\n',
    ),
    "load balancer": (
        "",
        'http 2026-02-20T22:{1:02}:00.186641Z app/lb/5 198.51.100.{0}:2817 10.0.0.1:80 0.0 200 "GET /page HTTP/1.1"\n',
    ),
    "IIS": (W3C, "2026-02-20 08:{1:02}:00 10.0.0.1 /page 198.51.100.{0} 200\r\n"),
    "CloudFront": (W3C.replace(" sc-", "\tsc-"), "2026-02-20\t08:{1:02}:00\t10.0.0.1\t/page\t198.51.100.{0}\t200\n"),
}


@pytest.mark.parametrize("form", ACCESS_LOGS)
def test_the_line_that_makes_csv_of_an_access_log_does_in_every_locale_with_any_bytes(tmp_path, form):
    head, line = ACCESS_LOGS[form]
    scan = b'10.0.0.1 - - [01/Mar/2026:10:59:00 +0100] "\x16\x03\xff" 400 0 "-" "-"\n'
    log = (head + "".join(line.format(n % 250, n % 60) for n in range(300))).encode("latin1") + scan * (not head)
    for name, content in (("site.log", log), ("old one.log.gz", gzip.compress(log))):
        (tmp_path / name).write_bytes(content)
        said = shh("doctor", name, cwd=tmp_path).stderr
        environment = {"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8"}
        subprocess.run(["bash", "-c", said[said.index("(echo") :]], cwd=tmp_path, check=True, env=environment)
        looked = shh("doctor", "access.csv", cwd=tmp_path)
        assert roles_of(looked.stdout)[:2] == ("address", "path"), looked.stdout
        assert ("address seems to be an address of the network" in looked.stdout) or form == "names of hosts"
        rows = list(csv.DictReader(io.StringIO((tmp_path / "access.csv").read_text())))
        assert [row["path"] for row in rows] == ["/page"] * 300
        assert len({row["address"] for row in rows}) == 250
    assert replayed(tmp_path, looked.stdout) == {"/page"}


def test_what_else_ends_in_log_is_named(tmp_path):
    (tmp_path / "a.log").write_text(json_lines(traefik))
    assert (
        "it is JSON lines. Let its name say so: cat a.log > access.jsonl" in shh("doctor", "a.log", cwd=tmp_path).stderr
    )
    (tmp_path / "b.log").write_text("nothing that is known\n")
    for command in ("doctor", "replay"):
        assert "it cannot be read as it is" in shh(command, "b.log", cwd=tmp_path).stderr
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "c.log").write_text(ACCESS_LOGS["combined"][1].format(1, 1))
    assert "gzip -cdf logs/c.log" in shh("doctor", "logs", cwd=tmp_path).stderr


def test_of_a_packed_file_the_end_is_not_seen_and_that_is_said(tmp_path):
    lines = [f"u{n % 500},i,2026-01-0{1 + n // 20_000}T00:{n % 60:02}:00Z" for n in range(80_000)]
    text = "\n".join(["user,item,timestamp", *lines]) + "\n"
    (tmp_path / "log.csv.gz").write_bytes(gzip.compress(text.encode()))
    (tmp_path / "log.csv").write_text(text)
    (tmp_path / "short.csv.gz").write_bytes(gzip.compress("\n".join(text.splitlines()[:9000]).encode()))
    packed, plain, short = (
        shh("doctor", name, cwd=tmp_path).stdout for name in ("log.csv.gz", "log.csv", "short.csv.gz")
    )
    assert "log.csv.gz: its end was not seen. If its events go on, --end must be later" in packed
    assert "not seen" not in short + plain
    assert "2026-01-05T00:00:00Z" in plain


def test_files_that_differ_or_are_damaged_are_named(tmp_path):
    for day in ("01", "02", "03", "04"):
        folder = tmp_path / "logs" / f"date=2026-01-{day}"
        folder.mkdir(parents=True)
        (folder / "part.jsonl").write_text(f'{{"user": "u", "item": "i", "timestamp": "2026-01-{day}"}}\n')
    (tmp_path / "logs" / "date=2026-01-02" / "part.jsonl").write_text('{"user": "u", "page": "i", "timestamp": "7"}\n')
    looked = shh("doctor", "logs", cwd=tmp_path)
    assert looked.returncode == 0, looked.stderr
    assert "date=2026-01-02/part.jsonl: it has other fields than most files" in looked.stdout
    (tmp_path / "logs" / "broken.parquet").write_bytes(b"PAR1")
    broken = shh("doctor", "logs", cwd=tmp_path)
    assert broken.returncode == 1
    assert "broken.parquet: it is damaged, or not in Parquet format" in broken.stdout
    unknown = shh("doctor", "logs", "--user-field", "usr", cwd=tmp_path)
    assert "there is no field 'usr'. Do you mean user?" in unknown.stderr


def test_names_of_fields_reach_a_terminal_escaped(tmp_path):
    (tmp_path / "log.csv").write_text("user,item,timestamp,\x1b]0;owned\x07\nu,i,2026-01-01,1\n")
    looked = shh("doctor", "log.csv", cwd=tmp_path)
    assert looked.returncode == 0, looked.stderr
    assert "\x1b" not in looked.stdout
    assert r"\x1b" in looked.stdout


def test_no_secret_of_a_path_is_said(tmp_path):
    (tmp_path / "token=s3cret.csv").write_text("user,item,timestamp\nu,i,2026-01-01\n")
    looked = shh("doctor", "token=s3cret.csv", cwd=tmp_path)
    assert looked.returncode == 0, looked.stderr
    assert "s3cret" not in looked.stdout


def test_a_look_reads_little_of_a_large_log(tmp_path):
    """Of a Parquet file of one large row group, and of a text file."""
    rows = 400_000
    numbers = np.arange(rows)
    columns = {
        "user": numbers % 77_777,
        "item": pa.array(np.char.add("a long label of an item ", (numbers % 9999).astype(str))),
        "timestamp": pa.array(1_767_225_600_000 + numbers * 1000, pa.timestamp("ms", "UTC")),
    }
    pq.write_table(pa.table(columns), tmp_path / "log.parquet", row_group_size=rows, use_dictionary=False)
    line = b"user-%07d,item,2026-01-01T00:00:00Z\n"
    (tmp_path / "log.csv").write_bytes(b"user,item,timestamp\n" + b"".join(line % n for n in range(rows)))
    sample_file(str(tmp_path / "log.parquet"))  # what is imported first is read from files too
    for name in ("log.parquet", "log.csv"):
        before = _bytes_read()
        sample = sample_file(str(tmp_path / name))
        assert _bytes_read() - before < min(6 << 20, (tmp_path / name).stat().st_size // 2), name
        assert 1000 <= sample.rows <= 2000


def _bytes_read():
    """Of this process, from files, by the kernel's count."""
    (count,) = re.findall(r"^rchar: (\d+)$", pathlib.Path("/proc/self/io").read_text(), re.MULTILINE)
    return int(count)
