"""Logs as other programs write them, from the look at them to the report: separators, forms of times, zones, units."""

import datetime
import json
import os
import zoneinfo

import pytest

from dp_transforms.cli.log_sample import sample_log
from dp_transforms.cli.replay_run import fingerprint_of_log
from dp_transforms.logs import EventFields, find_log_chunks
from dp_transforms.logs.discovery import read_log_chunk
from dp_transforms.logs.streams.log_folder import LogFolder
from dp_transforms.reports import read_report_file
from tests.cli.test_doctor import command_of
from tests.helpers.crowded_logs import replay_request
from tests.helpers.replay_logs import BUDGET, write_log
from tests.helpers.shh_here import shh
from tests.helpers.small_runs import small_plan

BEGIN = datetime.datetime(2026, 10, 24, 12, tzinfo=datetime.UTC)  # in Berlin an hour occurs twice in the night
HOURS, USERS = 20, 400
BERLIN = "Europe/Berlin"
RANGE = ["--start", "2026-10-24", "--end", "2026-10-26", "--window", "1h", "--epsilon", "2", "--delta", "1e-9"]


def moments():
    """In each hour all users have the item of this hour by UTC."""
    events = []
    for hour in range(HOURS):
        for user in range(USERS):
            moment = BEGIN + datetime.timedelta(hours=hour, minutes=user % 60)
            events.append((f"u{user}", f"/hour/{moment:%d-%H}", moment))
    return events


def found(report):
    """Items by window."""
    _, reports = read_report_file(str(report))
    items = {}
    for each in reports:
        begin = datetime.datetime.fromtimestamp(each.window_start / 1e6, datetime.UTC)
        items.setdefault(f"{begin:%d-%H}", set()).update(hitter.item for hitter in each.heavy_hitters)
    return items


GERMAN = ("Kunde;Seite;Zeitpunkt;Preis", ";", "%d.%m.%Y %H:%M", BERLIN, "1,5")
TABS = ("visitor\tpage\tat\tnote", "\t", "%Y-%m-%d %H:%M:%S", BERLIN, "a, b")
US = ("customer,page,bought,session", ",", "%m/%d/%Y %I:%M %p", "America/New_York", "s1")
NGINX = ("remote_user,request,time_local,User-Agent", ",", "%d/%b/%Y:%H:%M:%S %z", BERLIN, "Mozilla/5.0")


@pytest.mark.parametrize(
    ("header", "separator", "form", "zone", "rest"), [GERMAN, TABS, US, NGINX], ids=["german", "tabs", "us", "nginx"]
)
def test_the_printed_command_reports_each_hour_as_it_was(tmp_path, header, separator, form, zone, rest):
    """The second of the two hours that have one name in Berlin is read as the first: that is documented."""
    known = zoneinfo.ZoneInfo(zone)
    rows = [[user, item, moment.astimezone(known).strftime(form), rest] for user, item, moment in moments()]
    (tmp_path / "log.csv").write_text("\n".join([header, *map(separator.join, rows)]) + "\n")
    has_zone = "%z" in form
    given = [] if has_zone else ["--time-zone", zone]
    looked = shh("doctor", "log.csv", *given, cwd=tmp_path)
    assert looked.returncode == 0, looked.stdout
    words = command_of(looked.stdout)
    for option, value in (
        ("--csv-separator", {",": None, "\t": "tab"}.get(separator, separator)),
        ("--time-format", form),
    ):
        is_usual = value is None or form.startswith("%Y")
        assert is_usual or words[words.index(option) + 1] == value, option
    assert ("--time-zone" in words) != has_zone
    options = words[2 : words.index("--start")]
    ended = shh("replay", "log.csv", *options, *RANGE, "--output", "report.jsonl", cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr
    assert "; 0 outside --start .. --end skipped, 0 unreadable" in ended.stderr
    twice = "25-01" if zone == BERLIN and not has_zone else ""
    expected = {f"{moment:%d-%H}": {item} for _, item, moment in moments() if f"{moment:%d-%H}" != twice}
    if twice:
        expected["25-00"] = {"/hour/25-00", "/hour/25-01"}
    named = found(tmp_path / "report.jsonl")
    assert {window: items & expected[window] for window, items in named.items() if window in expected} == expected
    # Noise alone names 2.25 in a run; more than 9 once in 10,000 runs.
    assert sum(len(items - expected.get(window, set())) for window, items in named.items()) <= 9, "but for noise"


def test_rows_of_another_form_go_to_the_dead_letter(tmp_path):
    rows = [f"u{n};i;24.10.2026 1{n % 10}:00" for n in range(300)]
    odd = ["u;i;24.13.2026 10:00", "u;i;2026-10-24 10:00", "u;i;", "u;i"]
    (tmp_path / "log.csv").write_text("\n".join(["user;item;timestamp", *rows, *odd]) + "\n")
    reading = ("--time-format", "%d.%m.%Y %H:%M", "--time-zone", "Europe/Berlin", "--csv-separator", ";")
    words = ["replay", "log.csv", *RANGE, "--output", "r.jsonl", "--dead-letter", "bad.jsonl"]
    ended = shh(*words, *reading, cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr
    assert "; 0 outside --start .. --end skipped, 4 unreadable" in ended.stderr
    lines = [json.loads(line) for line in (tmp_path / "bad.jsonl").read_text().splitlines()]
    reasons = sorted((line["position"], line["reason"]) for line in lines)
    assert reasons == [(302, "bad time"), (303, "bad time"), (304, "missing time"), (305, "wrong number of cells")]


def test_another_reading_is_another_input_of_a_run(tmp_path):
    """So a run with one state, or a stream that goes on, cannot change how its times are read."""
    path = tmp_path / "log.csv"
    path.write_text("user,item,timestamp\nu,i,01.02.2026\n")
    readings = [
        EventFields(),
        EventFields(time_format="%d.%m.%Y"),
        EventFields(time_format="%m.%d.%Y"),
        EventFields(time_format="%d.%m.%Y", time_zone=BERLIN),
        EventFields(time_zone=BERLIN),
        EventFields(csv_separator=","),
        EventFields(time_unit="s"),
    ]
    texts = set()
    for fields in readings:
        request = replay_request(path, small_plan(), tmp_path / "report.avro", None, fields=fields)
        texts.add(fingerprint_of_log(request, b"k" * 32))
    assert len(texts) == len(readings)
    assert len({LogFolder(str(tmp_path), fields).fingerprint() for fields in readings}) == len(readings)


REPLAY = ["replay", "log.csv", *BUDGET, "--output", "report.avro"]


@pytest.mark.parametrize("ending", ["csv", "jsonl", "parquet", "avro"])
def test_a_file_whose_name_is_not_utf8_is_read_like_another(tmp_path, ending):
    """It is not called damaged. What is written must have a name that reports and jobs can hold."""
    write_log(tmp_path / f"log.{ending}")
    odd = tmp_path / os.fsdecode(b"log\xff." + ending.encode())
    (tmp_path / f"log.{ending}").rename(odd)
    chunks = find_log_chunks([str(odd)], EventFields())
    assert sum(block.rows for chunk in chunks for block in read_log_chunk(chunk, EventFields())) == 1220
    assert sample_log([str(odd)], None)
    if ending in ("csv", "parquet"):
        refused = shh("simulate", "--users", "1", "--output", str(odd), cwd=tmp_path)
        assert refused.stderr.endswith("a name that is not UTF-8 cannot be written. Choose another one.\n")


def test_a_state_has_a_name_that_workers_can_be_told_and_a_ledger_any(tmp_path):
    """What is refused is refused before anything is made."""
    write_log(tmp_path / "log.csv")
    odd = os.fsdecode(b"odd\xff")
    refused = shh(*REPLAY, "--state", odd, "--noise-key-file", "noise.key", cwd=tmp_path)
    assert "odd\\udcff: a name that is not UTF-8 cannot be written. Choose another one." in refused.stderr
    assert os.listdir(tmp_path) == ["log.csv"]
    ledger = ["--ledger", odd, "--population", "news", "--caps", "9", "1e-5"]
    assert shh(*REPLAY, *ledger, cwd=tmp_path).returncode == 0
    assert shh("ledger", "doctor", "--ledger", odd, cwd=tmp_path).stdout == "The ledger is sound.\n"
