"""``--titles FILE.csv``: what people call the items of a report. A public list, declared like a domain."""

from __future__ import annotations

import csv
import io
import pathlib

from dp_transforms.errors import UserError
from dp_transforms.stores.local_files import read_regular

MOST_BYTES = 64 << 20
_COLUMNS = ("item", "title")


def read_titles(path: str | pathlib.Path) -> dict[str, str]:
    """Label -> title of a CSV file in UTF-8 whose first line names the columns item and title; others are ignored.

    Of two titles for a label the first counts. Raises UserError, which quotes nothing of the file.
    """
    try:
        data = read_regular(path, MOST_BYTES)
    except OSError as error:
        raise UserError(f"--titles {path} cannot be read: {error.strerror}. Check the path.") from error
    if len(data) > MOST_BYTES:
        raise UserError(f"--titles {path} has more than {MOST_BYTES >> 20} MB. Keep the titles that the report needs.")
    titles: dict[str, str] = {}
    try:
        rows = csv.reader(io.StringIO(data.decode("utf-8-sig"), newline=""), strict=True)
        head = next(rows, [])
        if any(head.count(name) != 1 for name in _COLUMNS):
            raise UserError(
                f"--titles {path} must name the columns item and title once each in its first line, divided by commas."
            )
        item, title = (head.index(name) for name in _COLUMNS)
        for row in rows:
            if row and len(row) <= max(item, title):
                raise UserError(f"--titles {path} has too few cells in line {rows.line_num:,}. Write it again.")
            if row:
                titles.setdefault(row[item], row[title].strip())
    except (UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"--titles {path} is not CSV in UTF-8 ({type(error).__name__}). Write it again.") from error
    return titles
