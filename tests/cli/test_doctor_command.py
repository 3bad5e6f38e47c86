"""``shh doctor LOG`` and ``shh replay LOG`` alone: which roles are proposed, what is asked, and what is wrong.

The logs are of forms that other programs write. The printed commands run as they are."""

import csv
import datetime
import gzip
import io
import json
import os
import re
import subprocess
import uuid

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.cli.printed_commands import command_of, replayed, roles_of
from tests.helpers.shh_here import shh

ROWS = 120
EPOCH = 1_771_574_400  # 2026-02-20 08:00
CELLS = {  # of columns whose name does not say what they hold
    "time": lambda row: moment(row, "%H:%M:%S"),
    "timestamp": lambda row: EPOCH + row,
    "clock": lambda row: moment(row, "%H:%M:%S") + f",{row:03}",
    "event_date": lambda row: moment(row, "%Y%m%d"),
    "event_timestamp": lambda row: (EPOCH + row) * 10**6,
    "user_first_touch_timestamp": lambda row: (EPOCH + row // 9) * 10**6,
    "event_time": lambda row: moment(row, "%Y-%m-%d %H:%M:%S UTC"),
    "time_local": lambda row: moment(row, "%d/%b/%Y:%H:%M:%S +0000"),
    "year_first": lambda row: moment(row, "%y/%m/%d %H:%M:%S"),
    "session_start": lambda row: (EPOCH + row // 4) * 1000,
    "click_timestamp": lambda row: (EPOCH + row) * 1000,
    "year_last": lambda row: moment(row, "%a %b %d %H:%M:%S %Y"),
    "addr": lambda row: f"req-{row}",  # of a request
    "click_url": lambda row: "" if row % 2 else "/p",
    "nanos_at": lambda row: (EPOCH + row) * 10**9,
    "created_at": lambda row: moment(row),
    "remote_user": lambda row: "-",
    "usertype": lambda row: "member" if row % 2 else "casual",
    "host": lambda row: f"198.51.100.{row % 40}",
    "hop": lambda row: f"198.51.100.{row % 40}:{row + 4000}",
    "mail_to": lambda row: f"u{row * 7 % 41}@example.org",
    "patient_id": lambda row: f"p{row * 7 % 43}",
    "to_user_id": lambda row: f"u{row * 7 % 43}",
}


def moment(row, form="%Y-%m-%dT%H:%M:%SZ"):
    return (datetime.datetime(2026, 2, 20, 8) + datetime.timedelta(seconds=61 * row)).strftime(form)


def cell(name, row):
    if name in CELLS:
        return CELLS[name](row)
    by_end = {"ip": CELLS["host"](row), "addr": CELLS["host"](row), "date": moment(row, "%Y-%m-%d"), "at": moment(row)}
    by_end["from"] = f"u{row % 40}@example.org"
    return by_end.get(re.split("[-_]", name)[-1], f"{name}-{row % (41 if 'id' in name else 7)}")


def table(header, separator=","):
    """CSV of these columns."""
    names, text = header.split(","), io.StringIO()
    writer = csv.writer(text, delimiter=separator, lineterminator="\n")
    writer.writerows([names, *([cell(name, row) for name in names] for row in range(ROWS))])
    return text.getvalue()


@pytest.mark.parametrize(
    ("header", "roles"),
    [
        ("user,item,timestamp", "user item timestamp --time-format s"),
        ("userId,movieId,rating,timestamp", "userId movieId timestamp --time-format s"),  # MovieLens
        ("date,timestamp,user,page", "user page timestamp --time-format s"),
        ("date,clock,level,page", "? page date"),
        (  # Kaggle
            "event_time,event_type,product_id,category_id,brand,price,user_id,user_session",
            "user_id product_id event_time --time-format '%Y-%m-%d %H:%M:%S %z'",
        ),
        ("timestamp,visitorid,event,itemid,transactionid", "visitorid itemid timestamp --time-format s"),
        (
            "user_id,session_id,session_start,click_article_id,click_timestamp",
            "user_id click_article_id click_timestamp --time-format ms",
        ),
        (  # Google Analytics
            "event_date,event_timestamp,event_name,user_pseudo_id,user_first_touch_timestamp,page_location",
            "user_pseudo_id page_location event_timestamp --time-format us",
        ),
        (  # nginx
            "remote_addr,remote_user,time_local,request,status,user_agent",
            "remote_addr request time_local --time-format '%d/%b/%Y:%H:%M:%S %z'",
        ),
        ("date,time,s-ip,cs-method,cs-uri-stem,cs-username,c-ip", "cs-username cs-uri-stem date"),  # IIS
        ("host,at,method,url,status", "host url at"),
        ("usertype,start_station,at", "? ? at"),
        ("prev,curr,n", "? ? ?"),
        ("buyer_id,patient_id,product,at", "? product at"),
        ("mail_from,mail_to,at", "? ? at"),
        ("from_user_id,to_user_id,at", "? ? at"),
        ("user_id,to_user_id,at", "user_id ? at"),
        ("session_id,page,at", "session_id page at"),
        ("hop,page,at", "hop page at"),
        ("hop,host,page,at", "host page at"),
        ("a,b,at", "? ? at"),
        ("user,email,at", "user ? at"),
        ("user_id,created_at,updated_at,page", "user_id page created_at"),
        ("user_id,seen_at,logged_at,page", "user_id page seen_at"),  # the same times
        ("user_id,year_first,page", "user_id page year_first --time-format ?"),
        ("user_id,year_first,seen_at,page", "user_id page seen_at"),
        ("user_id,nanos_at,page", "user_id page nanos_at --time-format ns"),
        ("anon_id,query,item_rank,click_url,at", "anon_id query at"),
        ("addr,event_id,year_last", "? ? year_last --time-format '%a %b %d %H:%M:%S %Y'"),
    ],
)
def test_roles_are_proposed_by_type_and_name_or_asked_for(tmp_path, header, roles):
    (tmp_path / "log.csv").write_text(table(header))
    looked = shh("doctor", "log.csv", cwd=tmp_path)
    assert roles_of(looked.stdout) == roles, looked.stdout
    assert looked.returncode == ("?" in command_of(looked.stdout) or "nanos" in roles)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (table("session_id,page,at"), "session_id seems to be a session: each session"),
        (table("client_ip,page,at"), "client_ip seems to be an address of the network"),
        (table("hop,page,at"), "hop holds addresses with ports: each connection would be a user"),
        (table("user_pseudo_id,page,at"), "user_pseudo_id seems to be a device"),
        (
            table("user_id,session_id,page,at"),
            "--user-field user_id   (the one that a person keeps; weighed: session_id)",
        ),
        (table("date,clock,level,page"), "date holds days, and the clock is in clock: join both"),
        (table("user_id,year_first,page"), "must be said: '%d/%m/%y %H:%M:%S' or '%y/%m/%d %H:%M:%S'"),
        (table("a,b,at"), "--user-field ?   (the one that a person keeps; weighed: a, b)"),
        (table("user_id,seen_at,page"), "seen_at   (text with a zone)"),
        (table("user_id,nanos_at,page"), "nanos_at seems to count nanoseconds"),
        (table("user,item,at", ";"), "--csv-separator ';'"),
        ("u1,i1,2026-01-01\nu2,i1,2026-01-01\n", "(echo field1,field2,timestamp; cat log.csv) > named.csv"),
        ("0;2014-04-07T10:00:00Z;21;0\n", "(echo 'field1;timestamp;field3;field4'; cat log.csv) > named.csv"),
        ("1::1193::5\n", r"'::' is between its cells. Make tabs of them: cat log.csv | sed 's/::/\t/g' > NEW.tsv"),
        ("u1,p,de\n" + "u1,q,fr\nu2,p,de\n" * 9, "its first line looks like an event"),
        ("196\t242\t3\t881250949\n", r"(printf 'field1\tfield2\tfield3\tfield4\n'; cat log.csv) > named.csv"),
        ("user,item,timestamp\ru,i,2026-01-01\r", r"carriage returns alone: cat log.csv | tr '\r' '\n' > NEW"),
        ("user,item,time\nu,i,01.03.2026 12:00\n", "--time-format '%d.%m.%Y %H:%M'   (text without a zone"),
        ("user,item,time\nu,i,12h on 3 May 2026\n", "weighed: time"),
        ("user,item,at\nu,i,03/04/2026\n", "--time-format ?   (the order of day, month and year must be said"),
        ("user,item,at\nu,i,03/04/2026\nu,i,13/04/2026\n", "--time-format %d/%m/%Y   (text without a zone"),
        ("user,item,at\nu,i,02/25/26\n", "must be said: %m/%d/%y)"),
        ("user,item\nu,i\n", "time   --time-field ?   (when the event was; weighed: none)"),
        ("user,item,timestamp\nu,i,2026-01-01\nu,i,2026-01-02\n", "--window 1d"),
        ('user,item,timestamp\nu,"say \\"hi\\"",2026-01-01\nu,i,2026-01-01\n', ": quote that is open, or"),
        ("user,item,timestamp\nu,i\nu,i,2026-01-01\n", "1 of 2 rows that were looked at: wrong number of cells"),
        ("user,item,timestamp\nu,i,1970-01-01\nu,i,2026-01-01\n", "are from 2026-01-01 00:00 to 2026-01-01 00:00 UTC"),
        ("user,item,timestamp\n" + "".join(f"u{n},i,2026-01-01\n" for n in range(60)), "is it the id of a row?"),
        ("user,friend,at\n" + "".join(f"u{n},u{n + 1},2026-01-01\n" for n in range(9)), "weighed: friend"),
        ("user,item,timestamp,\x1b]0;owned\x07\nu,i,2026-01-01,1\n", r"\x1b]0;owned\x07"),
        ("", "There is no row in them"),
    ],
)
def test_what_is_wrong_is_said(tmp_path, text, said):
    (tmp_path / "log.csv").write_bytes(text.encode())
    looked = shh("doctor", "log.csv", cwd=tmp_path)
    assert said in looked.stdout + looked.stderr
    assert "\x1b" not in looked.stdout
    is_ready = "shh replay" in looked.stdout and "?" not in command_of(looked.stdout) and "nanos" not in text
    assert looked.returncode == (0 if is_ready else 1)


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
    return {"level": "info", "ts": EPOCH + row + 0.25, "request": request, "user_id": "", "status": 200}


def github(row):
    actor = {"id": row % 40, "login": f"dev{row % 40}", "url": "https://api.example/u"}
    repo = {"id": row % 7, "name": f"org/r{row % 7}", "url": "https://api.example/r"}
    return {"id": str(2489651045 + row), "type": "PushEvent", "actor": actor, "repo": repo, "created_at": moment(row)}


@pytest.mark.parametrize(
    ("make", "roles", "flatten"),
    [
        (traefik, "ClientHost RequestPath StartUTC", None),
        (lambda row: {f"u{row}": 1, "user": row % 9, "page": "p", "at": moment(row)}, "user page at", None),
        (
            caddy,
            "request.remote_ip request.uri ts --time-format s",
            "{user: .request.remote_ip, item: .request.uri, timestamp: .ts}",
        ),
        (
            github,
            "actor.login repo.name created_at",
            "{user: .actor.login, item: .repo.name, timestamp: .created_at}",
        ),
        (
            lambda row: {"x": {"user-id": row % 9}, "page": "p", "@at": moment(row)},
            "x.user-id page @at",
            '{user: .x["user-id"], item: .page, timestamp: .["@at"]}',
        ),
    ],
)
def test_fields_in_objects_are_named_by_their_path_with_the_command_that_flattens_them(tmp_path, make, roles, flatten):
    (tmp_path / "log.jsonl.gz").write_bytes(gzip.compress(json_lines(make).encode()))
    looked = shh("doctor", "log.jsonl.gz", cwd=tmp_path)
    assert roles_of(looked.stdout) == roles
    assert looked.returncode == (0 if flatten is None else 1)
    if flatten is not None:
        (line,) = re.findall(r"^  (gzip -cdf .*)$", looked.stdout, re.MULTILINE)
        assert flatten in line
        subprocess.run(["bash", "-c", line], cwd=tmp_path, check=True)
        replayed(tmp_path, looked.stdout)


def test_parquet_and_avro_with_objects_name_the_path_too(tmp_path):
    rows = [github(row) for row in range(ROWS)]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "log.parquet")
    record = {"type": "record", "name": "actor", "fields": [{"name": "login", "type": "string"}]}
    kinds = {"actor": record, "page": "string", "at": "string", "item": {"type": "enum", "name": "i", "symbols": ["A"]}}
    fields = [{"name": name, "type": kind} for name, kind in kinds.items()]
    with open(tmp_path / "log.avro", "wb") as file:
        more = {"page": "p", "item": "A"}
        made = [{"actor": {"login": row["actor"]["login"]}, "at": row["created_at"], **more} for row in rows]
        fastavro.writer(file, {"type": "record", "name": "e", "fields": fields}, made)
    said = {name: shh("doctor", name, cwd=tmp_path).stdout for name in ("log.parquet", "log.avro")}
    assert """SELECT "actor"."login" AS "user", "repo"."name" AS "item",""" in said["log.parquet"]
    assert "fastavro log.avro | jq -c '{user: .actor.login, item: .page, timestamp: .at}'" in said["log.avro"]


def test_a_log_with_odd_names_is_understood_and_the_command_runs_as_printed(tmp_path):
    lines = ["Nr;x,Leser-Nr,Seite,Zeitpunkt,Dauer"]
    for n in range(4000):
        at = f"2026-03-02T{n // 200:02}:{n % 60:02}:05+01:00"
        lines.append(f"{n},L{n % 900},/artikel/{0 if n % 3 else n % 50},{at},{n % 7}.5")
    (tmp_path / "besuche.csv").write_text("\n".join(lines) + "\n")
    looked = shh("doctor", "besuche.csv", cwd=tmp_path)
    assert (looked.returncode, looked.stderr) == (0, "")
    assert looked.stdout.startswith("For you, the operator: no privacy covers what follows")
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
    assert alone.stderr.startswith("For you, the operator")
    assert alone.stderr.endswith("\nNothing was run: the options of a budget are missing.\n")
    assert "--item-field Dauer" in " ".join(command_of(alone.stderr))
    assert sorted(os.listdir(tmp_path)) == ["besuche.csv", "report.avro"]
    for words in (["--epsilon", "2"], ["--output", "r.avro"], ["--plan", "plan.json"], ["--state", "s"]):
        assert "operator" not in shh("replay", "besuche.csv", *words, cwd=tmp_path).stderr, words


@pytest.mark.parametrize("ending", ["parquet", "csv", "csv.gz", "jsonl", "avro"])
def test_every_format_is_understood_and_its_end_is_seen(tmp_path, ending):
    """But for packed text, where that is said: 3,000 rows over four days, of which half are looked at."""
    rows = [{"user": f"u{n % 900}", "sku": n % 4, "at": EPOCH + 115 * n, "tags": None} for n in range(3000)]
    path, wide = tmp_path / f"log.{ending}", "x" * 400
    lines = ["user,sku,at,x", *(f"u{n % 9},{n % 4},{EPOCH + 115 * n},{wide}" for n in range(3000))]
    if ending == "parquet":
        pq.write_table(pa.Table.from_pylist(rows), path, row_group_size=1500)
    elif ending == "jsonl":
        path.write_text("\n".join(map(json.dumps, rows)))
    elif ending == "avro":
        names = {"user": "string", "sku": "long", "at": "long"}
        fields = [{"name": name, "type": kind} for name, kind in names.items()]
        with open(path, "wb") as file:
            fastavro.writer(file, {"type": "record", "name": "e", "fields": fields}, rows, sync_interval=500)
    else:
        text = "\n".join(lines).encode()
        path.write_bytes(gzip.compress(text) if ending == "csv.gz" else text)
    looked = shh("doctor", path.name, cwd=tmp_path)
    assert looked.returncode == 0, looked.stdout
    assert roles_of(looked.stdout) == "user sku at --time-format s"
    end = command_of(looked.stdout)[command_of(looked.stdout).index("--end") + 1]
    assert ("its end was not seen" in looked.stdout) == (end != "2026-02-25T00:00:00Z") == (ending == "csv.gz")


def test_types_of_parquet_are_told_and_its_footer_says_when_the_events_end(tmp_path):
    """Of UUIDs the text; of times that Python's calendar has not, nothing."""
    nanos = [*(EPOCH * 10**9 + n * 10**10 for n in range(5000)), None]
    columns = {
        "user": pa.array([uuid.UUID(int=(n % 40) << 90).bytes for n in range(5001)], pa.uuid()),
        "item": pa.array([f"p{n % 3}" for n in range(5001)]).dictionary_encode(),
        "timestamp": pa.array(nanos, pa.timestamp("ns")),
        "expires": pa.array([*range(5000), 2**62], pa.timestamp("us", "UTC")),
        "score": pa.array([0.5] * 5001),
        "tags": pa.array([["a"]] * 5001),
    }
    pq.write_table(pa.table(columns), tmp_path / "log.parquet")
    looked = shh("doctor", "log.parquet", cwd=tmp_path)
    assert roles_of(looked.stdout) == "user item timestamp"
    kinds = dict(re.findall(r"^  (\w+) +([a-z ,]+?)  ", looked.stdout, re.MULTILINE))
    assert (kinds["user"], kinds["item"], kinds["timestamp"], kinds["score"]) == ("text", "text", "timestamp", "number")
    assert kinds["tags"] == "lists, objects or several kinds of values"
    assert "to 2026-02-20 21:53 UTC" in looked.stdout
    other = shh("doctor", "log.parquet", "--user-field", "score", "--time-field", "expires", cwd=tmp_path).stdout
    assert "score holds number;" in other
    assert "--time-field expires   (timestamp with a zone)" in other


def test_days_are_those_of_the_zone_that_is_given(tmp_path):
    """All of 24 hours, also where the clock is changed between them."""
    (tmp_path / "log.csv").write_text("user,item,timestamp\nu,i,2026-03-01 00:30\nu,i,2026-03-29 23:30\n")
    looked = shh("doctor", "log.csv", "--time-zone", "Europe/Berlin", cwd=tmp_path)
    assert "are from 2026-03-01 00:30 to 2026-03-29 23:30 Europe/Berlin" in looked.stdout
    words = command_of(looked.stdout)
    assert words[4:8] == ["--start", "2026-03-01T00:00:00+01:00", "--end", "2026-03-30T00:00:00+01:00"]


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
    other = shh("doctor", "log.csv", "--user-field", "page", "--item-field", "user", cwd=tmp_path).stdout
    assert "user is named like a user: items are published" in other


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
    assert "no field 'usr'. Do you mean user?" in shh("doctor", "logs", "--user-field", "usr", cwd=tmp_path).stderr


def test_no_secret_of_a_path_is_said(tmp_path):
    (tmp_path / "token=s3cret.csv").write_text("user,item,timestamp\nu,i,2026-01-01\n")
    looked = shh("doctor", "token=s3cret.csv", cwd=tmp_path)
    assert looked.returncode == 0, looked.stderr
    assert "s3cret" not in looked.stdout
