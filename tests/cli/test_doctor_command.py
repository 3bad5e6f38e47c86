"""``shh doctor LOG`` and ``shh replay LOG`` alone: what a log is like, which command replays it, and what is wrong."""

import csv
import gzip
import io
import json
import os
import pathlib
import re
import subprocess

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dp_transforms.logs import estimate
from dp_transforms.reports import read_report_file
from tests.cli.printed_commands import command_of
from tests.helpers.event_files_oracle import write_avro
from tests.helpers.shh_here import shh

BUDGET = ["--start", "2026-01-01", "--end", "2026-01-02", "--window", "1d", "--epsilon", "2", "--delta", "1e-9"]
FOR_THE_OPERATOR = "For you, the operator: no privacy covers what follows"


def odd_csv(folder):
    """Names that nobody foresaw, a number of the row, and times of an own zone."""
    lines = ["Nr;x,Leser-Nr,Seite,Zeitpunkt,Dauer"]
    for n in range(4000):
        at = f"2026-03-02T{n // 200:02}:{n % 60:02}:05+01:00"
        lines.append(f"{n},L{n % 900},/artikel/{0 if n % 3 else n % 50},{at},{n % 7}.5")
    (folder / "besuche.csv").write_text("\n".join(lines) + "\n")


def test_a_log_with_odd_names_is_understood_and_the_command_runs_as_printed(tmp_path):
    odd_csv(tmp_path)
    looked = shh("doctor", "besuche.csv", cwd=tmp_path)
    assert (looked.returncode, looked.stderr) == (0, "")
    assert looked.stdout.startswith(FOR_THE_OPERATOR)
    assert re.search(r"^  time   --time-field Zeitpunkt   \(text with a zone\)$", looked.stdout, re.MULTILINE)
    assert "from 2026-03-01 23:00 to 2026-03-02 18:59 UTC" in looked.stdout
    assert "Why the range must be declared" in looked.stdout
    words = command_of(looked.stdout)
    assert words == [
        *("replay", "besuche.csv", "--user-field", "Leser-Nr", "--item-field", "Seite", "--time-field", "Zeitpunkt"),
        *("--start", "2026-03-01T00:00:00Z", "--end", "2026-03-03T00:00:00Z", "--window", "1h"),
        *("--epsilon", "2", "--delta", "1e-9", "--output", "report.avro"),
    ]
    ended = shh(*words, cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr
    assert "0 outside --start .. --end skipped" in ended.stderr
    _, reports = read_report_file(str(tmp_path / "report.avro"))
    assert {found.item for report in reports for found in report.heavy_hitters} == {"/artikel/0"}


def test_a_replay_without_a_budget_looks_prints_the_command_and_runs_nothing(tmp_path):
    """On stderr: what `shh replay` prints on stdout may be published."""
    odd_csv(tmp_path)
    looked = shh("replay", "besuche.csv", "--item-field", "Dauer", cwd=tmp_path)
    assert (looked.returncode, looked.stdout) == (2, "")
    assert looked.stderr.startswith(FOR_THE_OPERATOR)
    assert looked.stderr.endswith("\nNothing was run: the options of a budget are missing.\n")
    assert "--item-field" in command_of(looked.stderr)
    assert command_of(looked.stderr)[command_of(looked.stderr).index("--item-field") + 1] == "Dauer"
    assert os.listdir(tmp_path) == ["besuche.csv"]
    for words in (["--epsilon", "2"], ["--output", "report.avro"], ["--plan", "plan.json"], ["--state", "s"]):
        ended = shh("replay", "besuche.csv", *words, cwd=tmp_path)
        assert "operator" not in ended.stderr, words


@pytest.mark.parametrize("ending", ["parquet", "avro", "csv", "csv.gz", "jsonl"])
def test_every_format_is_understood(tmp_path, ending):
    source = "log.parquet" if ending == "parquet" else "log.csv"
    made = shh("simulate", "--users", 300, "--output", source, cwd=tmp_path)
    assert made.returncode == 0, made.stderr
    if ending == "csv.gz":
        os.system(f"gzip {tmp_path / 'log.csv'}")
    elif ending in ("avro", "jsonl"):
        rows = list(csv.DictReader(io.StringIO((tmp_path / "log.csv").read_text())))
        if ending == "jsonl":
            (tmp_path / "log.jsonl").write_text("\n".join(map(json.dumps, rows)))
        else:
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
    if unit is None:
        assert looked.returncode == 1
        assert "at seems to count nanoseconds" in looked.stdout
        assert "shh replay" not in looked.stdout
    else:
        assert looked.returncode == 0, looked.stdout
        fields = ["--user-field", "visitor", "--item-field", "sku", "--time-field", "at", "--time-unit", unit]
        assert command_of(looked.stdout)[2:10] == fields


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
        ("u1,i1,2026-01-01\nu2,i1,2026-01-01\n", "(echo user,item,timestamp; cat OLD) > NEW"),
        ("user;item;timestamp\nu;i;2026-01-01\n", "--csv-separator ';'"),
        ("user,item,time\nu,i,01.03.2026 12:00\n", "--time-format '%d.%m.%Y %H:%M'   (text without a zone"),
        ("user,item,time\nu,i,12h on 3 May 2026\n", "time cannot be read as times"),
        ("user,item,time\nu,i,3:15:09\n", "time looks like times, but not in a form that is known here. Say it with"),
        ("user,item,at\nu,i,03/04/2026\n", "If it is not --time-format %d/%m/%Y, it is %m/%d/%Y"),
        ("user,item,date,time\nu,i,2026-01-01,10:00:00\n", "the clock is in another field"),
        ("user,item\nu,i\n", "time   none was found: name it with --time-field"),
        ("user,item,timestamp\nu,i,2026-01-01\nu,i,2026-01-02\n", "--window 1d"),
        ("user,item,timestamp\n" + 'u,"i,2026-01-01\n' * 3 + "u,i,2026-01-01\n", "3 of 4 rows that were looked at"),
        ("user,item,timestamp\nu,i,1970-01-01\nu,i,2026-01-01\n", "1 rows have times before 1990 or after 2100"),
        ("user,item,timestamp\n" + "".join(f"u{n},i,2026-01-01\n" for n in range(60)), "is it the id of a row?"),
        ("", "There is no row in them"),
    ],
)
def test_what_is_wrong_is_said(tmp_path, text, said):
    (tmp_path / "log.csv").write_text(text)
    looked = shh("doctor", "log.csv", cwd=tmp_path)
    assert said in looked.stdout + looked.stderr
    assert looked.returncode == (0 if "shh replay" in looked.stdout else 1)


NO_PERSON = "no field looks like a person"
NO_ITEM = "item   no field looks like an item: name it with --item-field; items are published"
NGINX = "User-Agent,remote_addr,request,time_local"


@pytest.mark.parametrize(
    ("header", "user", "item", "said"),
    [
        ("user_id,session_id,page,at", "user_id", "page", ["besides user_id the user could be session_id"]),
        ("session_id,device_id,ip,account,page,at", "account", "page", ["could be device_id, ip, session_id"]),
        ("session_id,page,at", "session_id", "page", [NO_PERSON, "session_id seems to be a session: each"]),
        ("client_ip,page,at", "client_ip", "page", [NO_PERSON, "client_ip seems to be an address of the network"]),
        (NGINX, "remote_addr", "request", [NO_PERSON, "remote_addr seems to be an address"]),
        ("remote_addr,remote_user,request,status,bytes_sent,time_local", "remote_user", "request", ["remote_addr"]),
        ("date,c-ip,cs-method,cs(Host),cs-uri-stem,sc-status,cs(User-Agent),cs-uri-query", "c-ip", "cs-uri-stem", []),
        ("http_user_agent,url,at", None, "url", [NO_PERSON, "user   none was found: name it with --user-field"]),
        ("user,email,at", "user", None, [NO_ITEM]),
        ("user,session_token,at", "user", None, []),
        ("a,b,at", "a", None, [NO_PERSON, NO_ITEM]),
        ("recipient,sender,ts", "sender", None, [NO_ITEM]),
        ("follower_id,contact_code,receiver,at", "follower_id", None, [NO_ITEM]),
        ("user,to_page,from_station,valid_to,at", "user", "to_page", []),
        ("user,item,at", "user", "item", []),
    ],
)
def test_the_user_is_a_person_first_and_what_is_private_never_the_item(tmp_path, header, user, item, said):
    names = header.split(",")
    rows = [[_cell(name, n, len(names) - at) for at, name in enumerate(names)] for n in range(400)]
    (tmp_path / "log.csv").write_text("\n".join([header, *map(",".join, rows)]) + "\n")
    looked = shh("doctor", "log.csv", cwd=tmp_path)
    assert looked.returncode == (0 if user and item else 1), looked.stdout
    roles = dict(re.findall(r"^  (user|item)   --\S+ (\S+)", looked.stdout, re.MULTILINE))
    assert roles == {role: name for role, name in (("user", user), ("item", item)) if name}
    for words in said:
        assert words in looked.stdout
    if header == "user,item,at":
        assert "Look at this" not in looked.stdout


def _cell(name, row, spread):
    """Fields that come first differ more."""
    if name in ("at", "ts", "time_local", "timestamp", "date"):
        return f"2026-01-{1 + row % 9:02}T0{row % 7}:00:00Z"
    return f"{name} {row * 7919 % (30 * spread)}"


@pytest.mark.parametrize(
    ("values", "what"),
    [
        ([f"10.1.{n % 200}.{n % 7}" for n in range(300)], "addresses of the network"),
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
    looked = shh("doctor", "log.csv", cwd=tmp_path)
    words = command_of(looked.stdout)
    assert words[words.index("--item-field") + 1] == ("topic_name" if what else "page")
    chosen = shh("doctor", "log.csv", "--item-field", "page", cwd=tmp_path)
    assert (f"page holds {what}: items are published" in chosen.stdout) == (what is not None)


@pytest.mark.parametrize(
    ("field", "cells", "said"),
    [
        ("contact", [f"ann{n}@example.com" for n in range(9)], None),
        ("friend", [f"u{n}" for n in range(9)], "friend is named like an address, a token or a person"),
        ("code", [f"u{n}" for n in range(9)], "9 values of code are also values of user: if both are people"),
        ("code", ["u0", *[f"c{n}" for n in range(8)]], None),
    ],
)
def test_people_as_items_are_named_and_not_proposed(tmp_path, field, cells, said):
    rows = [f"u{n % 20},{cells[n % 9]},2026-01-01T00:00:00Z" for n in range(180)]
    (tmp_path / "log.csv").write_text("\n".join([f"user,{field},when", *rows]) + "\n")
    looked = shh("doctor", "log.csv", cwd=tmp_path)
    assert (looked.returncode, "shh replay" in looked.stdout) == ((0, True) if field == "code" else (1, False))
    chosen = shh("doctor", "log.csv", "--item-field", field, cwd=tmp_path).stdout
    assert ("are also values of" in chosen) == (cells[1] == "u1")
    assert said is None or said in chosen


def test_a_user_that_is_the_same_in_most_rows_is_not_proposed_before_an_address(tmp_path):
    """nginx writes - for nobody."""
    rows = [f"{'-' if n % 9 else 'ann'},10.0.0.{n % 99},/p{n % 7},2026-01-01T00:00:00Z" for n in range(300)]
    (tmp_path / "log.csv").write_text("\n".join(["remote_user,remote_addr,uri,at", *rows]) + "\n")
    words = command_of(shh("doctor", "log.csv", cwd=tmp_path).stdout)
    assert words[words.index("--user-field") + 1] == "remote_addr"


def test_files_that_are_converted_first_are_named_with_the_remedy(tmp_path):
    for name, content, said in [
        ("a.csv", b"user,item,timestamp\nM\xfcller,i,2026-01-01\nu,i,2026-01-01\n", "iconv -f latin1 -t utf-8"),
        ("b.jsonl", b'{"user": "M\xfc", "item": "i", "timestamp": "2026-01-01"}\n', "iconv -f latin1 -t utf-8"),
        ("c.json", b'[{"user": "u", "item": "i", "timestamp": "2026-01-01"}]', "jq -c '.[]'"),
    ]:
        (tmp_path / name).write_bytes(content)
        looked = shh("doctor", name, cwd=tmp_path)
        assert said in looked.stdout + looked.stderr, name
    words = ["replay", "a.csv", *BUDGET, "--output", "r.jsonl", "--dead-letter", "bad.jsonl"]
    refused = shh(*words, "--max-bad-fraction", "0", cwd=tmp_path)
    assert "Perhaps: a.csv: it is not UTF-8 text; if it is Latin-1" in refused.stderr
    (tmp_path / "bad.jsonl").unlink()
    assert shh(*words, cwd=tmp_path).returncode == 0
    assert "iconv -f latin1 -t utf-8" in (tmp_path / "bad.jsonl").read_text()


def test_the_line_that_makes_csv_of_an_access_log_does(tmp_path):
    line = '10.0.0.{} - {} [01/Mar/2026:10:{:02}:00 +0100] "GET /a,{} HTTP/1.1" 200 5 "-" "M"\n'
    scan = '10.0.0.1 - - [01/Mar/2026:10:59:00 +0100] "\\x16\\x03" 400 0 "-" "-"\n'
    log = "".join(line.format(n % 9, "anna" if n % 2 else "-", n, n % 3) for n in range(40)) + scan
    (tmp_path / "site.log").write_text(log)
    (tmp_path / "old one.log.gz").write_bytes(gzip.compress(log.encode()))
    for name in ("site.log", "old one.log.gz"):
        said = shh("doctor", name, cwd=tmp_path).stderr
        subprocess.run(["bash", "-c", said[said.index("(echo") :]], cwd=tmp_path, check=True)
        looked = shh("doctor", "access.csv", cwd=tmp_path)
        assert (looked.returncode, "40 rows" in looked.stdout) == (0, True), looked.stdout
        assert "address seems to be an address of the network" in looked.stdout
        assert "--item-field path --time-field time --time-format '%d/%b/%Y:%H:%M:%S %z'" in looked.stdout


def test_of_a_packed_file_the_end_is_not_seen_and_the_range_says_so(tmp_path):
    lines = [f"u{n % 500},i,2026-01-0{1 + n // 20_000}T00:{n % 60:02}:00Z" for n in range(80_000)]
    text = "\n".join(["user,item,timestamp", *lines]) + "\n"
    (tmp_path / "log.csv.gz").write_bytes(gzip.compress(text.encode()))
    (tmp_path / "log.csv").write_text(text)
    (tmp_path / "short.csv.gz").write_bytes(gzip.compress("\n".join(text.splitlines()[:9000]).encode()))
    packed, plain, short = (
        shh("doctor", name, cwd=tmp_path).stdout for name in ("log.csv.gz", "log.csv", "short.csv.gz")
    )
    assert "not seen of" not in short
    assert "(at its beginning and end)" in short
    assert "hold what was seen.\nThe end was not seen of log.csv.gz: if its events go on after 2026-01-01" in packed
    assert "not seen of" not in plain
    assert "2026-01-05T00:00:00Z" in plain


def test_files_that_differ_are_damaged_or_in_partitions_are_named(tmp_path):
    for day in ("01", "02", "03", "04"):
        folder = tmp_path / "logs" / f"date=2026-01-{day}"
        folder.mkdir(parents=True)
        (folder / "part.jsonl").write_text(f'{{"user": "u", "item": "i", "timestamp": "2026-01-{day}"}}\n')
    (tmp_path / "logs" / "date=2026-01-02" / "part.jsonl").write_text('{"user": "u", "page": "i", "timestamp": 7}\n')
    looked = shh("doctor", "logs", cwd=tmp_path)
    assert looked.returncode == 0, looked.stderr
    assert "Their folders are partitions by date: that is part of the path" in looked.stdout
    assert "date=2026-01-02/part.jsonl: it has other fields than the first file" in looked.stdout
    (tmp_path / "logs" / "broken.parquet").write_bytes(b"PAR1")
    broken = shh("doctor", "logs", cwd=tmp_path)
    assert broken.returncode == 1
    assert "broken.parquet: it is damaged, or not in Parquet format" in broken.stdout


def test_names_of_fields_reach_a_terminal_escaped(tmp_path):
    (tmp_path / "log.csv").write_text("user,item,timestamp,\x1b]0;owned\x07\nu,i,2026-01-01,1\n")
    looked = shh("doctor", "log.csv", cwd=tmp_path)
    assert looked.returncode == 0, looked.stderr
    assert "\x1b" not in looked.stdout
    assert r"\x1b" in looked.stdout


def test_a_look_reads_little_of_a_large_log(tmp_path):
    """Of a Parquet file of one large row group, whose footer has the times of all of it, and of a text file."""
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
    (tmp_path / "other.parquet").write_bytes((tmp_path / "log.parquet").read_bytes())
    estimate.sample_file(str(tmp_path / "other.parquet"))  # what is imported first is read from files too
    for name in ("log.parquet", "log.csv"):
        before = _bytes_read()
        sample = estimate.sample_file(str(tmp_path / name))
        assert _bytes_read() - before < min(6 << 20, (tmp_path / name).stat().st_size // 2), name
        assert 1000 <= sample.looked_at <= 2000
    (time,) = [
        field for field in estimate.sample_file(str(tmp_path / "log.parquet")).fields if field.name == "timestamp"
    ]
    assert time.bounds is not None
    assert (time.bounds[1] - time.bounds[0]).total_seconds() == rows - 1


def _bytes_read():
    """Of this process, from files, by the kernel's count."""
    (count,) = re.findall(r"^rchar: (\d+)$", pathlib.Path("/proc/self/io").read_text(), re.MULTILINE)
    return int(count)
