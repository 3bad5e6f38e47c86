"""Report files by path: written to exactly one path, or whole in place of the one that the same step wrote first; and
read as hostile input, one by one, or those of one run together."""

from __future__ import annotations

import contextlib
import io
import os
import pathlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import BinaryIO

from dp_transforms.core.window_report import WindowReport
from dp_transforms.plan.window_schedule import format_utc
from dp_transforms.reports.report_records import (
    ReportFileError,
    ReportHeader,
    checked_report,
    in_file_order,
    read_json_lines,
    write_json_lines,
)
from dp_transforms.stores.local_files import Path, open_regular, write_whole
from dp_transforms.stores.remote_files import RemoteFileError, UrlError, is_remote, look_at, open_stored, put_over

_ENDINGS = {
    ".avro": "avro",
    ".json": "json",
    ".jsonl": "json",
    ".ndjson": "json",
}
_ENDINGS_OF_TABLES = (".parquet", ".pq", ".csv")


def report_format(path: Path) -> str:
    """``avro`` or ``json``, by the ending."""
    ending = pathlib.Path(path).suffix.lower()
    if ending not in _ENDINGS:
        table = " For a table of it: shh show REPORT --output FILE." if ending in _ENDINGS_OF_TABLES else ""
        raise ReportFileError(f"{_quoted(path)} must end in one of {', '.join(_ENDINGS)} to say its format.{table}")
    return _ENDINGS[ending]


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
    """A local file of `report_file_bytes`, which appears whole or not at all, and never over another."""
    content = report_file_bytes(header, reports, report_format(path))
    try:
        write_whole(path, lambda handle: handle.write(content))
    except OSError as error:
        raise write_error(path, error) from error


def read_report_file(path: Path) -> tuple[ReportHeader, list[WindowReport]]:
    """The header and the reports of a local file or a URL. Every record is checked. Raises ReportFileError."""
    is_avro = report_format(path) == "avro"
    try:
        handle = _open(path)
    except UrlError as error:
        raise ReportFileError(str(error)) from None
    except OSError as error:
        raise ReportFileError(f"cannot read {_quoted(path)}: {error.strerror}. Check the path.") from error
    with handle, _hostile(path):
        if is_avro:
            from dp_transforms.reports import avro

            header, reports = avro.read(handle)
        else:
            header, reports = read_json_lines(handle)
        return header, list(reports)


def report_files_in(folder: Path) -> list[str]:
    """The paths of the report files of a folder, by their endings. Hidden ones are drafts. Raises ReportFileError."""
    try:
        names = sorted(os.listdir(folder))
    except OSError as error:
        raise ReportFileError(f"cannot read {_quoted(folder)}: {error.strerror}. Check the path.") from error
    found = [name for name in names if pathlib.Path(name).suffix.lower() in _ENDINGS and not name.startswith(".")]
    return [os.path.join(folder, name) for name in found]


def read_report_files(paths: Sequence[Path]) -> tuple[ReportHeader, list[WindowReport]]:
    """The report of a run whose parts are in files of their own.

    Raises ReportFileError as `read_report_file` does, and for a file of another run or a window that two files have.
    """
    headers: list[ReportHeader] = []
    owners: dict[tuple[str, int, int], int] = {}
    found: list[WindowReport] = []
    for number, path in enumerate(paths):
        header, reports = read_report_file(path)
        headers.append(header)
        both = f"{_quoted(paths[0])} and {_quoted(path)}"
        if (header.run_id, header.stream) != (headers[0].run_id, headers[0].stream):
            raise ReportFileError(
                f"{both} are of different runs. Only the parts of one run (shh replay --state) make one report: show"
                " them one by one."
            )
        if header.plan != headers[0].plan:
            raise ReportFileError(f"{both} have one run id and different plans. One of them is not of this run.")
        if header.of_blocks != headers[0].of_blocks:
            raise ReportFileError(
                f"{both} are of the {headers[0].unit}s and of the {header.unit}s of a run. Show them one by one."
            )
        for report in reports:
            first = owners.setdefault((report.stream, report.window_start, report.window_end), number)
            if first != number:
                raise ReportFileError(
                    f"{_quoted(paths[first])} and {_quoted(path)} both have the window that begins at"
                    f" {format_utc(report.window_start)}. Name each part of a run once."
                )
            found.append(report)
    return headers[0], in_file_order(found)


def _open(path: Path) -> BinaryIO:
    """A local regular file, or what a URL names."""
    if is_remote(path):
        return io.BufferedReader(open_stored(look_at(os.fspath(path))))
    return open_regular(path)


@contextlib.contextmanager
def _hostile(path: Path) -> Iterator[None]:
    """Replaces any error of a parser by one line that contains nothing of the file."""
    try:
        yield
    except ReportFileError as error:
        raise ReportFileError(f"{_quoted(path)}: {error}") from error
    except RemoteFileError as error:
        raise ReportFileError(f"cannot read {_quoted(path)}: {error.strerror}.") from error
    except Exception as error:
        raise ReportFileError(
            f"{_quoted(path)} is damaged or not a report file ({type(error).__name__}). Write it again."
        ) from error


def write_error(path: Path, error: OSError) -> ReportFileError:
    """The error for a file that could not be written, in one line. path: as the user named it."""
    if isinstance(error, FileExistsError):
        return ReportFileError(
            f"{_quoted(path)} exists and is never overwritten. Name another output, or move it away."
        )
    remedy = "" if isinstance(error, RemoteFileError) else " Check the folder and its free space."
    return ReportFileError(f"cannot write {_quoted(path)}: {error.strerror}.{remedy}")


def _quoted(path: Path) -> str:
    """The path on one line, whatever it contains."""
    return repr(os.fspath(path))


def replace_whole(
    path: str, write: Callable[[BinaryIO], object], *, mode: int = 0o666, shown_name: str | None = None
) -> None:
    """Puts a file at ``path``, a local one or a URL, whole and in one step, also in the place of the one that this step
    wrote before: for a step that may run twice.

    mode: of a local file, from its creation on, before the umask; who may read one in a store is the store's affair.
    shown_name: the name of the output for errors; None: path. Raises ReportFileError.
    """
    try:
        if is_remote(path):
            content = io.BytesIO()
            write(content)
            put_over(path, content)
        else:
            write_whole(path, write, mode=mode, may_replace=True)
    except OSError as error:
        raise write_error(shown_name or path, error) from None
