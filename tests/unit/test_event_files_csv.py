"""CSV logs: cells as text, quoting, rows that are no rows, blocks of any size."""

from __future__ import annotations

import csv
import gzip
import io
import pathlib

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from dp_transforms.event_files import EventFields, EventFileError, csv_lines, find_log_chunks
from tests.unit.event_files_oracle import SECRET, expected, read_all, write_csv

TIME = "2017-10-01T03:00:00Z"
MICROS = 1_506_826_800_000_000
ROWS = [
    ("7", "a", TIME),
    ("007", 'quoted "b", with comma', "2017-10-01T03:00:01.5Z"),
    ("line\nend", "ä€𝄞", "2017-10-01"),
    ("", "a", TIME),
    ("u", "", TIME),
    ("u", "i", ""),
    ("u", "i", "1506826800"),
    ("1e3", "null", TIME),
    ("NULL", "NaN", "2017-10-01T03:00:00+02:00"),
    (" u ", "true", TIME),
]


@pytest.mark.parametrize("block", [64, 100, 333, 16 << 20])
def test_cells_stay_text_in_blocks_of_any_size(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, block: int
) -> None:
    monkeypatch.setattr(csv_lines, "_BLOCK_BYTES", block)
    path = write_csv(tmp_path / "log.csv", ROWS * 20)
    assert read_all(path) == expected(ROWS * 20)


def test_other_columns_order_delimiter_mark_and_compression(tmp_path: pathlib.Path) -> None:
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
    with pytest.raises(EventFileError, match=r"cut\.csv\.gz: it (is damaged|cannot be read)"):
        read_all(str(tmp_path / "cut.csv.gz"))


def test_field_names_may_be_any_text(tmp_path: pathlib.Path) -> None:
    names = ("wér", "€, what", "wann\n𝄞")
    path = write_csv(tmp_path / "log.csv", ROWS, names)
    assert read_all(path, EventFields(*names)) == expected(ROWS)


def test_numbers_in_the_declared_unit(tmp_path: pathlib.Path) -> None:
    rows = [
        ("u", "i", cell) for cell in ("1506826800", "1506826800.5", "1e9", "-1", "1e400", "nan", "9" * 30, TIME, "")
    ]
    path = write_csv(tmp_path / "log.csv", rows)
    assert read_all(path, EventFields(time_unit="s")) == expected(rows, "s")
    numbers = write_csv(tmp_path / "numbers.csv", rows[:2])
    with pytest.raises(EventFileError, match=r"'timestamp' holds numbers without a unit\. Give it with --time-unit"):
        find_log_chunks([numbers], EventFields())


@pytest.mark.parametrize("block", [64, 200, 16 << 20])
def test_rows_with_a_wrong_number_of_cells_are_told_by_position(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, block: int
) -> None:
    monkeypatch.setattr(csv_lines, "_BLOCK_BYTES", block)
    lines, wrong, empty, good = ["user,item,timestamp"], [], [], []
    for n, position in zip(range(300), range(1, 301), strict=True):
        if n % 7 == 3 or 100 < n < 140:
            lines.append(SECRET if n % 2 else f"{SECRET},b,c,d")
            wrong.append(position)
        elif n % 11 == 5:
            lines.append(f",i,{TIME}")
            empty.append(position)
        else:
            lines.append(f'"u\n{n}",i,{TIME}')
            good.append((f"u\n{n}", "i", MICROS))
        lines += [""] * (n % 3 == 0)
    path = tmp_path / "log.csv"
    path.write_text("\n".join(lines) + "\n")
    assert read_all(str(path)) == (good, {"wrong number of cells": wrong, "empty user": empty})


def test_bytes_that_are_no_utf8_cost_their_row_alone(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "log.csv"
    secret = SECRET.encode()
    lines = [b"user,item,timestamp", b"\xff" + secret + b",i,2017-10-01", b"u,\xed\xa0\x80,2017-10-01"]
    lines += [b"u,i,\xff", b"\xff" + secret, b"u,i,2017-10-01", b"u\0,i,2017-10-01"]
    path.write_bytes(b"\n".join(lines))
    assert read_all(str(path)) == (
        [("u", "i", 1_506_816_000_000_000), ("u\0", "i", 1_506_816_000_000_000)],
        {"user is not valid UTF-8": [1], "item is not valid UTF-8": [2], "bad time": [3], "wrong number of cells": [4]},
    )


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("user;item;timestamp\n1;2;3\n", "not parted by commas"),
        ("user,item\n1,2\n", "no field 'timestamp'"),
        ("user,item,timestamp,user\na,b,2017-10-01,c\n", "2 fields called 'user'. Rename all but one"),
    ],
)
def test_a_header_that_cannot_serve(tmp_path: pathlib.Path, content: str, words: str) -> None:
    (tmp_path / "log.csv").write_text(content)
    with pytest.raises(EventFileError) as caught:
        find_log_chunks([str(tmp_path / "log.csv")], EventFields())
    assert words in str(caught.value)
    (tmp_path / "log.csv").write_bytes(content.encode("utf-16"))
    with pytest.raises(EventFileError, match="UTF-16"):
        find_log_chunks([str(tmp_path / "log.csv")], EventFields())


@pytest.mark.parametrize("rows_behind", [0, 3, 20_000])
def test_a_quote_that_is_never_closed(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, rows_behind: int
) -> None:
    monkeypatch.setattr(csv_lines, "_BLOCK_BYTES", 1 << 16)
    good = f"u,i,{TIME}\n"
    for broken in (f'"{SECRET},i,{TIME}\n', f'u,"{SECRET},{TIME}\n', f'u,i,"{TIME}\n'):
        (tmp_path / "log.csv").write_text("user,item,timestamp\n" + good * 5000 + broken + good * rows_behind)
        if rows_behind == 0 and not broken.startswith("u,i"):
            # Nothing is behind it, so nothing else is lost.
            assert read_all(str(tmp_path / "log.csv"))[1] == {"wrong number of cells": [5001]}
            continue
        with pytest.raises(EventFileError, match=r"after row \d+: a quote that is never closed") as caught:
            read_all(str(tmp_path / "log.csv"))
        assert SECRET not in str(caught.value)


def test_a_quote_that_is_never_closed_in_a_column_of_no_use(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "log.csv"
    for end in ("", '5" wide'):
        lines = ["user,item,timestamp,comment", f"u,i,{TIME},x", f'u,i,{TIME},"x', f"u,i,{TIME},x", f"u,i,{TIME},x", ""]
        path.write_text("\n".join(lines))
        with pytest.raises(EventFileError, match="a quote that is never closed"):
            read_all(str(path))
        lines[2] = f'u,i,{TIME},"x\n"'
        lines[3] += end
        path.write_text("\n".join(lines))
        assert read_all(str(path)) == ([("u", "i", MICROS)] * 4, {})


_CELLS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=5)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(
    rows=st.lists(
        st.tuples(_CELLS, _CELLS, st.sampled_from([TIME, "x", "", "2017-10-01 03:00"])), min_size=1, max_size=12
    ),
    quoting=st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]),
    line_end=st.sampled_from(["\n", "\r\n"]),
    block=st.sampled_from([128, 16 << 20]),
)
def test_what_the_standard_library_writes_is_read(
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
    rows: list[tuple[str, str, str]],
    quoting: int,
    line_end: str,
    block: int,
) -> None:
    # Before Python 3.13 the writer forgets to quote a lone carriage return.
    assume(quoting == csv.QUOTE_ALL or line_end == "\r\n" or "\r" not in "".join(map("".join, rows)))
    monkeypatch.setattr(csv_lines, "_BLOCK_BYTES", block)
    buffer = io.StringIO()
    writer = csv.writer(buffer, quoting=quoting, lineterminator=line_end)
    writer.writerow(("user", "item", "timestamp"))
    writer.writerows(rows)
    (tmp_path / "log.csv").write_bytes(buffer.getvalue().encode())
    assert read_all(str(tmp_path / "log.csv")) == expected(rows)
