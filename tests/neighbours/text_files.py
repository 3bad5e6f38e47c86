"""Writers of text logs: lines to files, plain or packed."""

from __future__ import annotations

import gzip
import pathlib
from collections.abc import Callable
from typing import NamedTuple

from tests.neighbours import hostile_lines
from tests.neighbours.logs import Log, as_csv, as_json, odd_csv_lines, odd_json_lines
from tests.reference.log import Event

CSV_HEADER = b"user,item,timestamp"


class TextFormat(NamedTuple):
    """How a format spells a row, and what is odd in it. header: without its line end."""

    ending: str
    header: bytes | None
    spell: Callable[[Event], bytes]
    odd: Callable[[], list[bytes]]
    hostile: dict[str, list[bytes]]
    large: dict[str, list[bytes]]


_CSV = TextFormat(".csv", CSV_HEADER, as_csv, odd_csv_lines, hostile_lines.CSV, hostile_lines.CSV_LARGE)
_JSON = TextFormat(".jsonl", None, as_json, odd_json_lines, hostile_lines.JSON, hostile_lines.JSON_LARGE)

FORMATS = {
    "csv": _CSV,
    "csv.gz": _CSV._replace(ending=".csv.gz"),
    "jsonl": _JSON,
    "jsonl.gz": _JSON._replace(ending=".jsonl.gz"),
}


def text_of(form: TextFormat, log: Log, *, line_end: bytes = b"\n", is_ended: bool = True, mark: bytes = b"") -> bytes:
    """A whole file. is_ended: whether its last line has an end. mark: before everything."""
    lines = [] if form.header is None else [form.header]
    lines += [row.body for row in log]
    text = line_end.join(lines) + (line_end if lines else b"")
    return mark + (text if is_ended else text.removesuffix(line_end))


def write(folder: pathlib.Path, form: TextFormat, log: Log, name: str = "log", **layout: object) -> str:
    path = folder / f"{name}{form.ending}"
    text = text_of(form, log, **layout)  # type: ignore[arg-type]
    path.write_bytes(gzip.compress(text, 1) if form.ending.endswith(".gz") else text)
    return str(path)
