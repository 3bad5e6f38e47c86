"""Readers of what an operator writes by hand: titles of items."""

from __future__ import annotations

import csv
import functools
import io
from typing import Any

from dp_transforms.cli.options import read_titles
from dp_transforms.errors import UserError
from tests.fuzz.reader import Reader, Sample, place_file


@functools.cache
def _titles_samples() -> list[Sample]:
    text = io.StringIO(newline="")
    csv.writer(text).writerows(
        [["item", "title", "x"], ["a", 'First, "quoted"', ""], ["b", "two\nlines", ""], [], ["Ü", "x"]]
    )
    return [
        Sample("titles", text.getvalue().encode(), ".csv"),
        Sample("mark", b"\xef\xbb\xbftitle,item\r\nOne,1\r\nTwo,2\r\n", ".csv"),
    ]


def _read_titles(_sample: Sample, path: str) -> Any:
    return sorted(read_titles(path).items())


def option_readers() -> list[Reader]:
    public: dict[str, Any] = {"marks": ()}
    return [
        Reader("titles", _titles_samples, (UserError,), place_file, _read_titles, cost=0.3, **public),
    ]
