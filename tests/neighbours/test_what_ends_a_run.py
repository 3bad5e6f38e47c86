"""What one user's rows may do to a run as a whole: end it with an error, in the cases of this list and in no other.

Such a run publishes nothing (docs/guarantee.md, "What may be published"). Everywhere else in this folder D and D
without x' must both end, or both not.
"""

from __future__ import annotations

import pathlib
import random

import pytest

from dp_transforms.stores import avro_container
from tests.neighbours.binary_files import PARQUET, cells_of, hostile_cells, write_avro, write_parquet
from tests.neighbours.logs import ADDED_USER, Log, crowd, expected_pairs, place
from tests.neighbours.replayed import FIELDS, Given, Neighbours, replayed
from tests.neighbours.text_files import FORMATS, write


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


def test_a_block_of_avro_over_the_limit_ends_the_run(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a writer makes such blocks, one user's many rows, or a very long one, can be what fills them. Writers make
    ones of some kB."""
    assert avro_container.MAX_BLOCK_BYTES == 64 << 20
    monkeypatch.setattr(avro_container, "MAX_BLOCK_BYTES", 16 << 20)
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


@pytest.mark.parametrize("name", ["csv", "jsonl", "parquet", "avro"])
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
