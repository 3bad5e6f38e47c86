"""Reports in all their variety, and files of them."""

from __future__ import annotations

import pathlib

import pytest

from dp_transforms.core.window_report import ABOVE, BETWEEN, HeavyHitter, WindowReport
from dp_transforms.reports import ReportFileError, ReportHeader, read_report_file
from dp_transforms.reports.files import write_report_file

HOUR = 3_600_000_000
START = 1_506_826_800_000_000  # 2017-10-01T03:00:00Z
MAX_LONG = (1 << 63) - 1
HEADER = ReportHeader(
    "run-1", "news", "Each user's log is protected with ε = 2.", {"epsilon": 2.0, "notes": ["é", None]}
)


def report(window, *heavy_hitters, stream="news", spent=0.25):
    start = START + window * HOUR
    return WindowReport(stream, start, start + HOUR, list(heavy_hitters), 2.0, 1e-9, spent)


LABELS = report(0, HeavyHitter('Ünï\u2028code "[b]"', ABOVE, None), HeavyHitter("b", BETWEEN, 812))
COUNTS = report(7, HeavyHitter("a", None, 4021), HeavyHitter("", None, -3), spent=1.5)
OTHER_STREAM = report(3, HeavyHitter("x", ABOVE, None), stream="alpha")
NAMES = report(
    9,
    HeavyHitter("largest", None, None, MAX_LONG, MAX_LONG),
    HeavyHitter("big", None, 255, 3, 240),
    HeavyHitter("new", None, None, 1, 12),
    HeavyHitter("known", None, None, 1, 0),
    spent=2.0,
)
REPORTS = [COUNTS, NAMES, LABELS, OTHER_STREAM]
IN_ORDER = [OTHER_STREAM, LABELS, COUNTS, NAMES]


def written(folder, ending, reports=REPORTS, header=HEADER):
    path = folder / f"report.{ending}"
    write_report_file(path, header, reports)
    return path


def write_all(folder, reports, ended=None, header=HEADER):
    """Into a folder of reports. Returns the keys."""
    writer = folder.open(header)
    keys = [writer.write(window) for window in reports]
    return keys if ended is None else [*keys, writer.end(ended)]


def files_of(folder):
    """Hidden ones too: equal if and only if nothing was written meanwhile."""
    return {path.name: path.read_bytes() for path in pathlib.Path(folder).iterdir() if path.is_file()}


def read_all(path):
    header, reports = read_report_file(path)
    return header, list(reports)


def refusal(path):
    """The one line with which a file is refused."""
    with pytest.raises(ReportFileError) as caught:
        read_all(path)
    assert "\n" not in str(caught.value)
    assert str(path.name) in str(caught.value)
    return str(caught.value)
