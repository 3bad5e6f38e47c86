"""Text logs: the framing of lines and gzip; CSV cells, quoting, lines that are not rows, blocks of any size."""

import array
import csv
import gzip
import io
import itertools
import json
import pathlib
import subprocess
import sys
import zlib

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from dp_transforms.logs import EventFields, EventFileError, find_log_chunks, text_files
from dp_transforms.logs.discovery import cut_chunks
from dp_transforms.logs.rejected_events import RejectedEvents, as_array, compact, pack_rejected, write_rejected_lines
from tests.helpers.event_files_oracle import SECRET, expected, read_all, read_chunks, write_csv

TIME = "2017-10-01T03:00:00Z"
MICROS = 1_506_826_800_000_000
HEADER = "user,item,timestamp\n"
GOOD = f"u,i,{TIME}\n"
BEHIND = "text behind a closing quote (quotes in a cell are doubled; in Spark: .option('escape', '\"'))"


def test_other_columns_order_delimiter_mark_and_compression(tmp_path):
    rows = [(f"x{n}", "2017-10-01", f"i{n % 7}", SECRET, f"u{n}") for n in range(500)]
    wanted = expected([(row[4], row[2], row[1]) for row in rows])
    header = ("x", "timestamp", "item", "x", "user")
    path = write_csv(tmp_path / "log.csv", rows, header)
    assert read_all(path) == wanted
    text = pathlib.Path(path).read_text()
    (tmp_path / "log.tsv").write_text(text.replace(",", "\t"))
    assert read_all(str(tmp_path / "log.tsv")) == wanted
    (tmp_path / "mark.csv").write_bytes(b"\xef\xbb\xbf" + text.replace("\n", "\r\n").encode())
    assert read_all(str(tmp_path / "mark.csv")) == wanted
    for name, content in (("log.csv.gz", text), ("log.tsv.gz", text.replace(",", "\t"))):
        (tmp_path / name).write_bytes(gzip.compress(content.encode()))
        assert read_all(str(tmp_path / name)) == wanted
    (tmp_path / "cut.csv.gz").write_bytes(gzip.compress(text.encode())[:-400])
    with pytest.raises(EventFileError, match=r"cut\.csv\.gz: it is damaged"):
        read_all(str(tmp_path / "cut.csv.gz"))


@pytest.mark.parametrize("block", [16, 4 << 20])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("separator", ["\t", ",", ";"])
def test_a_line_of_separators_is_a_row_of_empty_cells(tmp_path, monkeypatch, separator, block, end):
    """Also where they are tabs, which else are blanks. It is counted, and other lines are what they are without it."""
    monkeypatch.setattr(text_files, "BLOCK_BYTES", block)
    lines = ["user,item,timestamp", ",,", GOOD[:-1], "", " ", " \r", ",,", ",", f"u,,{TIME}", GOOD[:-1], *[",,"] * 9]
    path = tmp_path / ("log.tsv" if separator == "\t" else "log.csv")
    path.write_bytes((end.join(lines) + end).replace(",", separator).encode())
    fields = EventFields(csv_separator=None if separator == "\t" else separator)
    events = [("u", "i", MICROS)] * 2
    rejected = {"empty user": [2, 7, *range(11, 20)], "wrong number of cells": [8], "empty item": [9]}
    assert read_all(str(path), fields) == (events, rejected)
    parts = cut_chunks(find_log_chunks([str(path)], fields), 4)
    assert read_chunks(parts, fields) == (events, rejected)


def test_bytes_that_are_no_utf8_cost_their_row_alone(tmp_path):
    path = tmp_path / "log.csv"
    secret = SECRET.encode()
    lines = [b"user,item,timestamp", b"\xff" + secret + b",i,2017-10-01", b"u,\xed\xa0\x80,2017-10-01"]
    lines += [b"u,i,\xff", b"\xff" + secret, b"u,i,2017-10-01", b"u\0,i,2017-10-01"]
    path.write_bytes(b"\n".join(lines))
    assert read_all(str(path)) == (
        [("u", "i", 1_506_816_000_000_000), ("u\0", "i", 1_506_816_000_000_000)],
        {
            "user is not valid UTF-8 (of Latin-1: iconv -f latin1 -t utf-8)": [2],
            "item is not valid UTF-8 (of Latin-1: iconv -f latin1 -t utf-8)": [3],
            "bad time": [4],
            "wrong number of cells": [5],
        },
    )


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("user;item;timestamp\n1;2;3\n", "its cells are not separated by commas"),
        ("user,item\n1,2\n", "no field 'timestamp'; its fields are: user, item. Name one with --time-field."),
        ("user,SECRET,2026-01-01\n1,2\n", "no field 'item'. Name it with --item-field"),
        ("user,item,timestamp,user\na,b,2017-10-01,c\n", "2 fields called 'user'. Rename all but one"),
        (f'"us\\"er",item,timestamp\n{GOOD}', "its header has text behind a closing quote"),
        ("user,item,timestamp\rSECRET,b,2017-10-01\r", "its header has a carriage return inside a line."),
        ("\n" * (1 << 20) + HEADER, "it begins with blank lines"),
        ("x" * (1 << 20) + f",{HEADER}", "its header is too long"),
        ("x" * 200_000 + f",{HEADER}", "its header cannot be read"),
    ],
)
def test_a_header_that_cannot_serve(tmp_path, content, words):
    (tmp_path / "log.csv").write_bytes(content.encode())
    with pytest.raises(EventFileError) as caught:
        find_log_chunks([str(tmp_path / "log.csv")], EventFields())
    assert words in str(caught.value)
    assert "SECRET" not in str(caught.value)
    (tmp_path / "log.csv").write_bytes(content.encode("utf-16"))
    with pytest.raises(EventFileError, match="iconv -f utf-16 -t utf-8 OLD > NEW"):
        find_log_chunks([str(tmp_path / "log.csv")], EventFields())


def test_a_row_that_is_too_long(tmp_path, monkeypatch):
    monkeypatch.setattr(text_files, "MAX_LINE_BYTES", 10_000)
    monkeypatch.setattr(text_files, "BLOCK_BYTES", 4_000)
    path, long = tmp_path / "log.csv", "x" * 10_000
    path.write_text(f"{HEADER}{GOOD}{long},i,{TIME}\n{GOOD * 9}u,{long[:9_900]},{TIME}\n")
    events, rejected = read_all(str(path))
    assert rejected == {"line too long": [3]}
    assert events == [("u", "i", MICROS)] * 10 + [("u", long[:9_900], MICROS)]


@pytest.mark.parametrize("separator", [";", "\t", "|", ":", "^"])
def test_cells_are_separated_by_the_declared_character(tmp_path, separator):
    text = 'user,x;item;timestamp\nu,1;"a;""b";5\nu2;i;6\nu3;i\n"u4;x\n'.replace(";", separator)
    (tmp_path / "log.csv").write_text(text)
    fields = EventFields("user,x", "item", "timestamp", "s", csv_separator=separator)
    events, rejected = read_all(str(tmp_path / "log.csv"), fields)
    assert events == [("u,1", f'a{separator}"b', 5_000_000), ("u2", "i", 6_000_000)]
    assert sum(map(len, rejected.values())) == 2


@pytest.mark.parametrize("separator", ["", ";;", '"', "\n", "a", "7", " ", "ä"])
def test_a_separator_that_cannot_be_used_is_refused(separator):
    with pytest.raises(ValueError, match=r"^csv_separator must be one character, a tab or one of ,;"):
        EventFields(csv_separator=separator)


# An oracle for a line, character by character, which knows nothing of blocks.
def _cells(line):
    """The cells of a line without its line feed, or why it has none."""
    line = line.rstrip("\r")
    cells, at, is_behind = [""], 0, False
    while at < len(line):
        if line[at] == '"' and (at == 0 or line[at - 1] == ",") and not cells[-1]:
            at += 1
            while line[at : at + 1] != '"' or line[at : at + 2] == '""':
                if at >= len(line):
                    return "quote that is not closed in its line"
                cells[-1] += line[at]
                at += 2 if line[at] == '"' else 1
            at += 1
            is_behind |= at < len(line) and line[at] != ","
        while at < len(line) and line[at] != ",":
            cells[-1] += line[at]
            at += 1
        if at < len(line):
            cells.append("")
            at += 1
    return "carriage return inside a line" if "\r" in line else BEHIND if is_behind else cells


def _expected_of_lines(lines):
    events = []
    rejected = {}
    for number, line in enumerate(lines, 2):
        if not line.strip(" \t\r"):
            continue
        cells = _cells(line)
        if isinstance(cells, list) and len(cells) != 3:
            cells = "wrong number of cells"
        if isinstance(cells, list):
            good, bad = expected([cells], first=number)
            events += good
        else:
            bad = {cells: [number]}
        for reason, positions in bad.items():
            rejected.setdefault(reason, []).extend(positions)
    return events, rejected


_PIECES = st.sampled_from(
    ['"', '"', ",", "a", "\\", "ä", "\ufeff", " ", "\t", "\r", "\0", '""', '","', f",{TIME}", ",i,2017-10-01"]
)
_LINES = st.lists(st.lists(_PIECES, max_size=9).map("".join) | st.just(GOOD[:-1]), max_size=9)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(lines=_LINES, ends_in_feed=st.booleans(), block=st.sampled_from([16, 60, 4 << 20]), members=st.integers(0, 2))
@example([f"u,i,{TIME}\r\r", f"u,i,{TIME}\r", "\r", f"u\r,i,{TIME}\r", f"u,i,\r\r{TIME}", GOOD[:-1]], True, 60, 0)
@example(
    [f'u,"a ""q"" \\ b","{TIME}"', f'x,"say \\"hi\\"",{TIME}', f'x,"a\\"",{TIME}', f'x,"a\\", b",{TIME}'], True, 60, 0
)
@example([f'x,"{SECRET},{TIME}', *[GOOD[:-1]] * 9, f'x,{SECRET}",{TIME}', f'"q",i,{TIME}\r', GOOD[:-1]], True, 60, 0)
def test_each_line_is_what_it_is_alone(tmp_path, monkeypatch, lines, ends_in_feed, block, members):
    monkeypatch.setattr(text_files, "BLOCK_BYTES", block)
    data = (HEADER + "\n".join(lines) + "\n" * ends_in_feed).encode()
    path = tmp_path / ("log.csv.gz" if members else "log.csv")
    if members:
        cut = len(data) // members
        data = b"".join(gzip.compress(part) for part in (data[:cut], data[cut:]))
    path.write_bytes(data)
    assert read_all(str(path)) == _expected_of_lines(lines)


_TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\0\r\n"), max_size=5)
_TEXTS |= st.sampled_from(["7", "007", "1e3", "NULL", "null", "NaN", "true", " u ", "ä€𝄞"])


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(
    rows=st.lists(
        st.tuples(_TEXTS, _TEXTS | st.text('",', max_size=6), st.sampled_from([TIME, "x", "", "2017-10-01 03:00"])),
        min_size=1,
        max_size=12,
    ),
    quoting=st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]),
    line_end=st.sampled_from(["\n", "\r\n"]),
    block=st.sampled_from([128, 4 << 20]),
)
def test_what_the_standard_library_writes_is_read(tmp_path, monkeypatch, rows, quoting, line_end, block):
    monkeypatch.setattr(text_files, "BLOCK_BYTES", block)
    buffer = io.StringIO()
    writer = csv.writer(buffer, quoting=quoting, lineterminator=line_end)
    writer.writerow(("user", "item", "timestamp"))
    writer.writerows(rows)
    (tmp_path / "log.csv").write_bytes(buffer.getvalue().encode())
    assert read_all(str(tmp_path / "log.csv")) == expected(rows, first=2)


GOOD_JSON = '{"user":"u","item":"i","timestamp":"2017-10-01T03:00:00Z"}\n'


@pytest.mark.parametrize("name", ["log.jsonl.gz", "log.csv.gz"])
def test_members_are_joined_and_garbage_behind_them_ends_the_reading(tmp_path, name):
    line = GOOD_JSON if "json" in name else "u,i,2017-10-01T03:00:00Z\n"
    text = ("" if "json" in name else "user,item,timestamp\n") + line * 500
    cuts = [0, 7, len(text) // 2, len(text) // 2 + 3, len(text)]
    members = [gzip.compress(text[begin:end].encode()) for begin, end in itertools.pairwise(cuts)]
    path = tmp_path / name
    path.write_bytes(b"".join(members))
    assert read_all(str(path)) == ([("u", "i", MICROS)] * 500, {})
    for tail in (b"garbage" + SECRET.encode(), bytes(512), members[0][:-5], line.encode()):
        path.write_bytes(b"".join([*members, tail]))
        with pytest.raises(EventFileError, match="it is damaged") as caught:
            read_all(str(path))
        assert SECRET not in str(caught.value)


_READ = """
import sys
from dp_transforms.logs import EventFields, find_log_chunks
from dp_transforms.logs.discovery import read_log_chunk
(chunk,) = find_log_chunks([sys.argv[1]], EventFields())
rows = [(block.rows, len(block.batch)) for block in read_log_chunk(chunk, EventFields())]
with open("/proc/self/status") as status:  # what getrusage tells begins with the memory of the parent
    peak = next(line.split()[1] for line in status if line.startswith("VmHWM"))
print(sum(row for row, _ in rows), sum(good for _, good in rows), peak)
"""


def test_a_line_of_a_quarter_of_a_gigabyte_is_passed_over_in_little_memory(tmp_path):
    """In a process of its own, which must end well: Arrow's own reader of CSV aborted it."""
    line, path, packer = b"u,i,2017-10-01T03:00:00Z\n", tmp_path / "log.csv.gz", zlib.compressobj(1, wbits=31)
    parts = [packer.compress(b"user,item,timestamp\n" + line)]
    parts += [packer.compress(b"x" * (1 << 24)) for _ in range(16)]
    path.write_bytes(b"".join([*parts, packer.compress(b"\n" + line), packer.flush()]))
    done = subprocess.run([sys.executable, "-c", _READ, str(path)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    rows, good, peak_kilobytes = map(int, done.stdout.split())
    assert (rows, good) == (3, 2)
    assert peak_kilobytes < 320_000


@pytest.mark.parametrize(
    ("positions", "kind"),
    [(range(3, 5003), range), (range(1, 20_000, 2), array.array), (range(1, 4), tuple), ([], tuple)],
)
def test_positions_of_many_bad_rows_take_little_memory_and_stay_what_they_are(positions, kind):
    kept = compact(np.array(positions, np.int64))
    assert isinstance(kept, kind)
    assert as_array(kept).tolist() == list(kept) == list(positions)
    written = io.BytesIO()
    write_rejected_lines(written, [pack_rejected(RejectedEvents("log", kept, "broken line"))])
    assert [json.loads(line)["position"] for line in written.getvalue().splitlines()] == list(positions)
