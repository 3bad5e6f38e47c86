"""CSV logs: headers, cells and quotes, and that each line is judged by itself."""

import gzip

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dp_transforms.logs import EventFields, EventFileError, find_log_chunks, text_files
from dp_transforms.logs.discovery import cut_chunks
from tests.helpers.event_files_oracle import SECRET, expected, read_all, read_chunks

TIME = "2017-10-01T03:00:00Z"
MICROS = 1_506_826_800_000_000
HEADER = "user,item,timestamp\n"
GOOD = f"u,i,{TIME}\n"
WRONG_QUOTE = (
    "quote that is not closed in its line, or before its cell ends (in a cell it is doubled; in Spark:"
    " .option('escape', '\"'))"
)
BEGIN = "\xef\xbb\xbf".encode("latin1")


@pytest.mark.parametrize("ending", ["csv", "tsv", "csv.gz", "tsv.gz"])
def test_columns_in_any_order_among_others_of_any_name(tmp_path, ending):
    rows = [("x", "timestamp", "item", "x", "user")]
    rows += [(f"x{n}", "2017-10-01", f"i{n % 7}", SECRET, f"u{n}") for n in range(500)]
    text = "".join(("\t" if "tsv" in ending else ",").join(row) + "\n" for row in rows)
    wanted = expected([(row[4], row[2], row[1]) for row in rows[1:]])
    for content in (text.encode(), BEGIN + text.replace("\n", "\r\n").encode()):
        path = tmp_path / f"log.{ending}"
        path.write_bytes(gzip.compress(content) if ending.endswith("gz") else content)
        assert read_all(str(path)) == wanted


@pytest.mark.parametrize("block", [16, 4 << 20])
@pytest.mark.parametrize("separator", ["\t", ","])
def test_a_line_of_separators_is_a_row_of_empty_cells(tmp_path, monkeypatch, separator, block):
    """Also where they are tabs, which else are blanks. It is counted, and other lines are what they are without it."""
    monkeypatch.setattr(text_files, "BLOCK_BYTES", block)
    lines = ["user,item,timestamp", ",,", GOOD[:-1], "", " ", " \r", ",,", ",", f"u,,{TIME}", GOOD[:-1], *[",,"] * 9]
    path = tmp_path / ("log.tsv" if separator == "\t" else "log.csv")
    path.write_bytes(("\r\n".join(lines) + "\r\n").replace(",", separator).encode())
    events = [("u", "i", MICROS)] * 2
    rejected = {"empty user": [2, 7, *range(11, 20)], "wrong number of cells": [8], "empty item": [9]}
    assert read_all(str(path)) == (events, rejected)
    parts = cut_chunks(find_log_chunks([str(path)], EventFields()), 4)
    assert read_chunks(parts, EventFields()) == (events, rejected)


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
        ("user;item;timestamp\n1;2;3\n", "no ',' separates its cells. If ';' does, add --csv-separator ';'."),
        ((HEADER + GOOD).encode("utf-16"), "iconv -f utf-16 -t utf-8 OLD > NEW"),
        ("user,item\n1,2\n", "no field 'timestamp'; its first line must name the fields. Name one with --time-field."),
        ("SECRET,story,2026-01-01\n1,2,3\n", "no field 'user'; its first line must name the fields."),
        ("user,item,timestamp,user\na,b,2017-10-01,c\n", "2 fields called 'user'. Rename all but one"),
        (f'"us\\"er",item,timestamp\n{GOOD}', "its first line must name its fields"),
        ("user,item,timestamp\rSECRET,b,2017-10-01\r", "its first line must name its fields"),
        ("\n" * (1 << 20) + HEADER, "its first line must name its fields"),
        ("x" * (1 << 20) + f",{HEADER}", "its first line must name its fields"),
        ("x" * 200_000 + f",{HEADER}", "its first line must name its fields"),
    ],
)
def test_a_header_that_cannot_serve_is_an_error_that_shows_no_cell(tmp_path, content, words):
    (tmp_path / "log.csv").write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(EventFileError) as caught:
        find_log_chunks([str(tmp_path / "log.csv")], EventFields())
    assert words in str(caught.value)
    assert "SECRET" not in str(caught.value)


@pytest.mark.parametrize("separator", [";", "\t", "^", "|", "*", "?"])
def test_cells_are_separated_by_the_declared_character(tmp_path, separator):
    text = 'user,x;item;timestamp\nu,1;"a;""b";5\nu2;i;6\nu3;i\nu4;"x;7\n'.replace(";", separator)
    (tmp_path / "log.csv").write_text(text)
    fields = EventFields("user,x", "item", "timestamp", "s", csv_separator=separator)
    events, rejected = read_all(str(tmp_path / "log.csv"), fields)
    assert events == [("u,1", f'a{separator}"b', 5_000_000), ("u2", "i", 6_000_000)]
    assert rejected == {"wrong number of cells": [4], WRONG_QUOTE: [5]}


@pytest.mark.parametrize("separator", ["", ";;", '"', "\n", "a", "ä"])
def test_a_separator_that_cannot_be_used_is_refused(separator):
    with pytest.raises(ValueError, match=r"^csv_separator must be one character, a tab or one of ,;"):
        EventFields(csv_separator=separator)


def _cells(line):
    """The cells of a line without its line feed, or why it has none: character by character."""
    line = line.rstrip("\r")
    cells, at, is_behind = [""], 0, False
    while at < len(line):
        if line[at] == '"' and (at == 0 or line[at - 1] == ",") and not cells[-1]:
            at += 1
            while line[at : at + 1] != '"' or line[at : at + 2] == '""':
                if at >= len(line):
                    return WRONG_QUOTE
                cells[-1] += line[at]
                at += 2 if line[at] == '"' else 1
            at += 1
            is_behind |= line[at : at + 1] not in ("", ",", "\r")
        while at < len(line) and line[at] != ",":
            cells[-1] += line[at]
            at += 1
        if at < len(line):
            cells.append("")
            at += 1
    return WRONG_QUOTE if is_behind else "carriage return inside a line" if "\r" in line else cells


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


@given(
    lines=_LINES,
    ends_in_feed=st.booleans(),
    block=st.sampled_from([16, 60, 4 << 20]),
    members=st.integers(0, 2),
    separator=st.sampled_from(",,|?^"),  # some mean something in patterns
)
@example([f"u,i,{TIME}\r\r", f"u,i,{TIME}\r", "\r", f"u\r,i,{TIME}\r", f"u,i,\r\r{TIME}", GOOD[:-1]], True, 60, 0, ",")
@example(
    [f'u,"a ""q"" \\ b","{TIME}"', f'x,"say \\"hi\\"",{TIME}', f'x,"a\\"",{TIME}', f'x,"a\\", b",{TIME}'],
    True,
    60,
    0,
    "|",
)
@example(
    [f'x,"{SECRET},{TIME}', *[GOOD[:-1]] * 9, f'x,{SECRET}",{TIME}', f'"q",i,{TIME}\r', GOOD[:-1]], True, 60, 0, ","
)
def test_each_line_is_what_it_is_alone(tmp_path, monkeypatch, lines, ends_in_feed, block, members, separator):
    monkeypatch.setattr(text_files, "BLOCK_BYTES", block)
    data = (HEADER + "\n".join(lines) + "\n" * ends_in_feed).replace(",", separator).encode()
    path = tmp_path / ("log.csv.gz" if members else "log.csv")
    if members:
        cut = len(data) // members
        data = b"".join(gzip.compress(part) for part in (data[:cut], data[cut:]))
    path.write_bytes(data)
    events, rejected = _expected_of_lines(lines)
    events = [(user.replace(",", separator), item.replace(",", separator), micros) for user, item, micros in events]
    assert read_all(str(path), EventFields(csv_separator=separator)) == (events, rejected)
