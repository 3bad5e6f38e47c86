"""Report files by path or URL: written whole, over no other file, and read as hostile input."""

from __future__ import annotations

import io
import os
import pathlib
from collections.abc import Iterable

from dp_transforms.core.window_report import WindowReport
from dp_transforms.reports.report_records import (
    ReportFileError,
    ReportHeader,
    checked_report,
    in_file_order,
    read_json_lines,
    write_json_lines,
)
from dp_transforms.stores.files import open_file, write_output
from dp_transforms.stores.local_files import Path
from dp_transforms.stores.remote_files import RemoteFileError, UrlError

_ENDINGS = {".avro": "avro", ".json": "json", ".jsonl": "json", ".ndjson": "json"}
_ENDINGS_OF_TABLES = (".parquet", ".pq", ".csv")


def report_format(path: Path) -> str:
    """``avro`` or ``json``, by the ending."""
    ending = pathlib.Path(path).suffix.lower()
    if ending not in _ENDINGS:
        table = " For a table of it: shh show REPORT --output FILE." if ending in _ENDINGS_OF_TABLES else ""
        raise ReportFileError(f"{_quoted(path)} must end in one of {', '.join(_ENDINGS)} to say its format.{table}")
    return _ENDINGS[ending]


def is_report_file(path: Path) -> bool:
    """By its ending. Hidden ones are drafts."""
    name = pathlib.Path(path)
    return name.suffix.lower() in _ENDINGS and not name.name.startswith(".")


def report_file_bytes(header: ReportHeader, reports: Iterable[WindowReport], file_format: str) -> bytes:
    """A report file: the reports, checked, and sorted by stream and window. Zero reports make a valid file.

    The same reports always make the same bytes. Raises ReportFileError for what must not be published.
    """
    handle, ordered = io.BytesIO(), in_file_order(map(checked_report, reports))
    if file_format == "avro":
        from dp_transforms.reports import avro  # loads a library that other commands do not need

        avro.write(handle, header, ordered)
    else:
        write_json_lines(handle, header, ordered)
    return handle.getvalue()


def write_report_file(path: Path, header: ReportHeader, reports: Iterable[WindowReport]) -> None:
    """A file of `report_file_bytes`, at a path or a URL, which appears whole or not at all, and never over another.
    Raises UserError."""
    write_output(path, report_file_bytes(header, reports, report_format(path)))


def read_report_file(path: Path) -> tuple[ReportHeader, list[WindowReport]]:
    """The header and the reports of a local file or a URL. Every record is checked. Raises ReportFileError."""
    is_avro = report_format(path) == "avro"
    try:  # a parser may raise anything, with words that hold some of the file
        with open_file(path) as handle:
            if is_avro:
                from dp_transforms.reports import avro

                header, reports = avro.read(handle)
            else:
                header, reports = read_json_lines(handle)
            return header, list(reports)
    except UrlError as error:
        raise ReportFileError(str(error)) from None
    except ReportFileError as error:
        raise ReportFileError(f"{_quoted(path)}: {error}") from error
    except OSError as error:
        remedy = "" if isinstance(error, RemoteFileError) else " Check the path."
        raise ReportFileError(f"cannot read {_quoted(path)}: {error.strerror}.{remedy}") from error
    except Exception as error:
        raise ReportFileError(
            f"{_quoted(path)} is damaged or not a report file ({type(error).__name__}). Write it again."
        ) from error


def _quoted(path: Path) -> str:
    """The path on one line, whatever it contains."""
    return repr(os.fspath(path))
