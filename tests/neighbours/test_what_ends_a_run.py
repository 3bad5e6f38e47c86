"""What one user's rows may do to a run as a whole: end it with an error, in the cases of this list and in no other.

Such a run publishes nothing (docs/guarantee.md, "What may be published"). Everywhere else in this folder D and D
without x' must both end, or both not.
"""

from __future__ import annotations

import csv
import io
import pathlib
import random

import pytest

from dp_transforms.logs import EventFields
from tests.neighbours.binary_files import PARQUET, cells_of, hostile_cells, write_avro, write_parquet
from tests.neighbours.hostile_lines import MB
from tests.neighbours.logs import ADDED_USER, NOW, PLACES, Log, crowd, expected_pairs, place
from tests.neighbours.replayed import FIELDS, Given, Neighbours, replayed
from tests.neighbours.rounds import rounds
from tests.neighbours.text_files import FORMATS, write

LINE_ENDS = EventFields(csv_line_ends_in_cells=True)
CELLS = (
    *("\n", "\r\n", "\r", '"', '""', '"\n"', '\n"', f"A,{NOW}\nu1,A,{NOW}\n", "a,b", "\\", '\\"\n', "\u2028", "\0", ""),
    *("user,item,timestamp\n", "\n" * 5_000, '"' * 5_001, "A" * MB, f"{'A' * 70_000}\n" * 20, "\ufeff", "ä", "'\n'"),
)
# What x' cannot write where the log's writer quotes and doubles quotes, as it must: an odd number of quotes in a row.
UNCLOSED = [
    b'"',
    b"\"x',A," + NOW.encode(),
    b"x',\"A," + NOW.encode(),
    b"x',A,\"" + NOW.encode(),
    b'",A',
    b"x',A\"B," + NOW.encode(),
]


def written(cells: list[str], delimiter: str) -> bytes:
    """A row as writers of CSV write it, without its line end."""
    csv.writer(text := io.StringIO(newline=""), delimiter=delimiter, lineterminator="").writerow(cells)
    return text.getvalue().encode()


@pytest.mark.parametrize("name", ["csv", "tsv"])
def test_line_ends_in_cells_of_rows_that_are_whole(tmp_path: pathlib.Path, name: str) -> None:
    form, pair, events = FORMATS[name], Neighbours(tmp_path), crowd(1)
    delimiter = "\t" if name == "tsv" else ","
    others = [form.spell(event) for event in events]
    others += [written([f"o{n % 9}", cell, NOW], delimiter) for n, cell in enumerate(CELLS) if len(cell) < 10_000]
    random.Random(1).shuffle(others)
    for cell in CELLS:
        for source in rounds(name, cell[:9]):
            rows = (
                [ADDED_USER, cell, NOW],
                [cell, "A", NOW],
                [ADDED_USER, "A", cell],
                [ADDED_USER, cell],
                [ADDED_USER, "A", NOW, cell],
                [cell],
            )
            added = [written(source.choice(rows), delimiter) for _ in range(3)]
            log = place(others, added, source.choice(PLACES), source.getrandbits(32))
            given = pair.write(lambda folder, rows: write(folder, form, rows), log).same(LINE_ENDS)
            assert given.pairs >= expected_pairs(events)


@pytest.mark.parametrize("added", UNCLOSED)
@pytest.mark.parametrize("where", ["first", "last"])
def test_an_open_quote_ends_the_run_where_cells_may_hold_line_ends(
    tmp_path: pathlib.Path, added: bytes, where: str
) -> None:
    form, pair = FORMATS["csv"], Neighbours(tmp_path)
    others = [form.spell(event) for event in crowd(1)]
    pair.write(lambda folder, rows: write(folder, form, rows), place(others, [added], where))
    with_added, without = (replayed([str(folder)], LINE_ENDS) for folder in pair.folders)
    assert (with_added.error, with_added.pairs) == ("EventFileError", frozenset())
    assert without.error is None
    # Where no flag says so, the same row costs nobody else anything.
    assert pair.same().pairs >= without.pairs


def damaged(data: bytes, kind: str) -> bytes:
    middle = len(data) // 2
    return {
        "cut": data[:middle],
        "turned": data[:middle] + bytes(byte ^ 0xFF for byte in data[middle : middle + 64]) + data[middle + 64 :],
        "begins with zeros": bytes(16) + data[16:],
    }[kind]


# Where values of Parquet are plain, other bits are other values: nobody can tell.
@pytest.mark.parametrize(
    ("name", "kind"),
    [
        (name, kind)
        for name in ("parquet", "avro", "jsonl.gz")
        for kind in ("cut", "begins with zeros", *(["turned"] if name != "parquet" else []))
    ],
)
def test_a_damaged_file_ends_the_run_whoever_is_in_it(tmp_path: pathlib.Path, name: str, kind: str) -> None:
    """No user damages a file: it is the same one for both."""
    source = random.Random(name + kind)
    folder = tmp_path / "log"
    folder.mkdir()
    events = crowd(1, 2_000)
    if name in FORMATS:
        form = FORMATS[name]
        rows: Log = place(
            [form.spell(event) for event in events], source.choices(form.hostile["well formed"], k=9), "spread"
        )
        write(folder, form, rows)
    else:
        rows = place(cells_of(events, "whole"), hostile_cells("whole")["nulls"], "spread")
        if name == "parquet":
            write_parquet(folder / "log.parquet", PARQUET["no dictionary"], rows)
        else:
            write_avro(folder / "log.avro", "whole", rows, "deflate")
    (path,) = folder.iterdir()
    assert replayed([str(folder)], FIELDS).pairs == expected_pairs(events)
    path.write_bytes(damaged(path.read_bytes(), kind))
    assert replayed([str(folder)], FIELDS) == Given(frozenset(), "EventFileError")


def test_a_block_of_avro_over_16_mb_ends_the_run(tmp_path: pathlib.Path) -> None:
    """Where a writer makes such blocks, one user's many rows can be what fills them. Writers make ones of some kB."""
    added = [(ADDED_USER.encode(), b"A" * 16_000, 0)] * 1_100
    log = place(cells_of(crowd(1), "whole"), added, "spread")
    errors = []
    for block_bytes in (1 << 30, 64_000):
        pair = Neighbours(tmp_path / str(block_bytes))
        pair.write(
            lambda folder, rows, size=block_bytes: write_avro(folder / "log.avro", "whole", rows, "null", size), log
        )  # type: ignore[misc]
        errors.append([replayed([str(folder)], FIELDS).error for folder in pair.folders])
    assert errors == [["EventFileError", None], [None, None]]


@pytest.mark.parametrize("name", [*FORMATS, "parquet", "avro"])
def test_a_log_of_the_added_user_alone_is_no_other_end_than_one_of_nobody(tmp_path: pathlib.Path, name: str) -> None:
    pair = Neighbours(tmp_path)
    if name in FORMATS:
        for case, added in FORMATS[name].hostile.items():
            pair.write(lambda folder, rows: write(folder, FORMATS[name], rows), place([], added, "first"))
            assert pair.same() == Given(frozenset()), case
        return
    log = place([], hostile_cells("whole")["odd items"], "first")
    for rows, folder in zip((log, []), pair.folders, strict=True):
        if name == "parquet":
            write_parquet(folder / "log.parquet", PARQUET["binary"], rows)
        else:
            write_avro(folder / "log.avro", "whole", rows, "null")
    assert pair.same() == Given(frozenset())
