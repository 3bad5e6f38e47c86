"""``shh doctor LOG`` and ``shh replay LOG`` alone: what a log is like, which command replays it, and what is wrong."""

from __future__ import annotations

import json
import os
import pathlib
import re
import shlex

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dp_transforms.event_files import samples
from dp_transforms.report_files import read_report_file
from tests.helpers.shh_here import shh

FOR_THE_OPERATOR = "For you, the operator: no privacy covers what follows"


def command_of(said: str) -> list[str]:
    """The words of the printed command, without ``shh``."""
    (shown,) = re.findall(r"^  (shh replay (?:.*\\\n)*.*)$", said, re.MULTILINE)
    return shlex.split(shown.replace("\\\n", " "))[1:]


def odd_csv(folder: pathlib.Path) -> None:
    """Names that nobody foresaw, a number of the row, and times of an own zone."""
    lines = ["Nr;x,Leser-Nr,Seite,Zeitpunkt,Dauer"]
    for n in range(4000):
        at = f"2026-03-02T{n // 200:02}:{n % 60:02}:05+01:00"
        lines.append(f"{n},L{n % 900},/artikel/{0 if n % 3 else n % 50},{at},{n % 7}.5")
    (folder / "besuche.csv").write_text("\n".join(lines) + "\n")


def test_a_log_with_odd_names_is_understood_and_the_command_runs_as_printed(tmp_path: pathlib.Path) -> None:
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


def test_a_replay_without_a_budget_looks_prints_the_command_and_runs_nothing(tmp_path: pathlib.Path) -> None:
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
def test_every_format_is_understood(tmp_path: pathlib.Path, ending: str) -> None:
    made = shh("simulate", "--events", 3000, "--output", f"log.{ending.removesuffix('.gz')}", cwd=tmp_path)
    assert made.returncode == 0, made.stderr
    if ending == "csv.gz":
        os.system(f"gzip {tmp_path / 'log.csv'}")
    looked = shh("doctor", f"log.{ending}", cwd=tmp_path)
    assert looked.returncode == 0, looked.stderr
    assert command_of(looked.stdout)[:8] == [
        *("replay", f"log.{ending}", "--start", "2026-01-01T00:00:00Z", "--end", "2026-01-05T00:00:00Z"),
        *("--window", "1h"),
    ]
    assert "Look at this" not in looked.stdout


@pytest.mark.parametrize(("unit", "factor"), [("s", 1), ("ms", 10**3), ("us", 10**6), (None, 10**9)])
@pytest.mark.parametrize("ending", ["jsonl", "csv", "parquet"])
def test_the_unit_of_numbers_is_found(tmp_path: pathlib.Path, ending: str, unit: str | None, factor: int) -> None:
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


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("u1,i1,2026-01-01\nu2,i1,2026-01-01\n", "its first line looks like an event"),
        ("user;item;timestamp\nu;i;2026-01-01\n", "its cells are not separated by commas"),
        ("user,item,time\nu,i,01.03.2026 12:00\n", "time looks like times, but not in the form of ISO 8601"),
        ("user,item,bought\nu,i,2026-03-01 12:00:00 +0100\n", "bought looks like times, but not in the form"),
        ("user,item,bought\nu,i,20260301\n", "bought looks like times, but not in the form"),
        ("user,item,time\nu,i,noon\n", "time cannot be read as times"),
        ("user,item,timestamp\nu,i,2026-01-01\nu,i,2026-01-02\n", "--window 1d"),
        ("user,item,timestamp\n" + 'u,"i,2026-01-01\n' * 3 + "u,i,2026-01-01\n", "3 of 4 rows that were looked at"),
        ("user,item,timestamp\n,i,2026-01-01\nu,i,2026-01-01\n", "user: 1 of 2 rows have no user"),
        ("user,item,timestamp\nu,i,soon\nu,i,2026-01-01\n", "timestamp: 1 of 2 values are no times"),
        ("user,item,timestamp\nu,i,1970-01-01\nu,i,2026-01-01\n", "1 rows have times before 1990 or after 2100"),
        ("user,item,timestamp\n" + "".join(f"u{n},i,2026-01-01\n" for n in range(60)), "is it the id of a row?"),
        ("user,item,timestamp\n", "There is no row in them"),
        ("", "There is no row in them"),
    ],
)
def test_what_is_wrong_is_said(tmp_path: pathlib.Path, text: str, said: str) -> None:
    (tmp_path / "log.csv").write_text(text)
    looked = shh("doctor", "log.csv", cwd=tmp_path)
    assert said in looked.stdout + looked.stderr
    assert looked.returncode == (0 if "shh replay" in looked.stdout else 1)


def test_files_that_differ_are_damaged_or_in_partitions_are_named(tmp_path: pathlib.Path) -> None:
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


def test_a_terminal_gets_no_word_cut_in_two_and_the_command_whole(tmp_path: pathlib.Path) -> None:
    odd_csv(tmp_path)
    whole, wrapped = (
        shh("doctor", "besuche.csv", cwd=tmp_path, COLUMNS="80", FORCE_COLOR=each).stdout for each in ("", "1")
    )
    assert max(map(len, whole.splitlines())) > 80
    assert max(len(line) for line in wrapped.splitlines() if not line.startswith("      --")) <= 80
    assert wrapped.split() == whole.split()
    assert command_of(wrapped) == command_of(whole)


def test_names_of_fields_reach_a_terminal_escaped(tmp_path: pathlib.Path) -> None:
    (tmp_path / "log.csv").write_text("user,item,timestamp,\x1b]0;owned\x07\nu,i,2026-01-01,1\n")
    looked = shh("doctor", "log.csv", cwd=tmp_path)
    assert looked.returncode == 0, looked.stderr
    assert "\x1b" not in looked.stdout
    assert r"\x1b" in looked.stdout


def test_a_look_reads_little_of_a_large_log(tmp_path: pathlib.Path) -> None:
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
    samples.sample_file(str(tmp_path / "other.parquet"))  # what is imported first is read from files too
    for name in ("log.parquet", "log.csv"):
        before = _bytes_read()
        sample = samples.sample_file(str(tmp_path / name))
        assert _bytes_read() - before < min(6 << 20, (tmp_path / name).stat().st_size // 2), name
        assert 1000 <= sample.looked_at <= 2000
    (time,) = [field for field in samples.sample_file(str(tmp_path / "log.parquet")).fields if field.zone]
    assert time.bounds is not None
    assert (time.bounds[1] - time.bounds[0]).total_seconds() == rows - 1


def _bytes_read() -> int:
    """Of this process, from files, by the kernel's count."""
    (count,) = re.findall(r"^rchar: (\d+)$", pathlib.Path("/proc/self/io").read_text(), re.MULTILINE)
    return int(count)
