"""Report files by path: written to exactly one path, read as hostile input, published without overwriting anything."""

from __future__ import annotations

import contextlib
import glob
import hashlib
import io
import os
import pathlib
import re
import stat
from collections.abc import Iterable, Iterator
from types import ModuleType

from dp_transforms.monitoring.window_report import WindowReport
from dp_transforms.report_files import avro, json_lines, parquet
from dp_transforms.report_files.records import ReportFileError, ReportHeader, checked_report, in_file_order

_ENDINGS = {
    ".avro": "avro",
    ".json": "json",
    ".jsonl": "json",
    ".ndjson": "json",
    ".parquet": "parquet",
    ".pq": "parquet",
}
_FORMATS: dict[str, ModuleType] = {"avro": avro, "json": json_lines, "parquet": parquet}
_PARTIAL = re.compile(r"\.(?P<name>.+)\.[^.]+\.partial", re.DOTALL)
Path = str | os.PathLike[str]


def report_format(path: Path) -> str:
    """``avro``, ``json`` or ``parquet``, by the ending. A `partial_path` has the format of the file it will become."""
    name = pathlib.Path(path).name
    partial = _PARTIAL.fullmatch(name)
    ending = pathlib.Path(partial["name"] if partial else name).suffix.lower()
    if ending not in _ENDINGS:
        raise ReportFileError(f"{_quoted(path)} must end in one of {', '.join(_ENDINGS)} to say its format.")
    return _ENDINGS[ending]


def write_report_file(
    path: Path, header: ReportHeader, reports: Iterable[WindowReport], *, file_format: str | None = None
) -> None:
    """Writes the reports, sorted by stream and window, to exactly this path, and on to the disk.

    file_format: ``avro``, ``json`` or ``parquet`` where the ending of the path does not say it.
    Zero reports make a valid file. The path must be free: a file that exists is never overwritten. If anything fails,
    no file remains; a process that dies in the middle leaves one, so write to a `partial_path` and `publish_file` it.
    """
    report_writer = _FORMATS[file_format or report_format(path)]
    ordered = in_file_order(map(checked_report, reports))
    try:
        handle = open(path, "xb")  # noqa: SIM115
    except OSError as error:
        raise write_error(path, error) from error
    try:
        with handle:
            report_writer.write(handle, header, ordered)
            handle.flush()
            os.fsync(handle.fileno())
    except BaseException as error:
        with contextlib.suppress(OSError):
            os.unlink(path)
        if isinstance(error, OSError):
            raise write_error(path, error) from error
        raise


def report_file_bytes(header: ReportHeader, reports: Iterable[WindowReport], *, file_format: str) -> bytes:
    """What `write_report_file` would write. In ``avro`` and ``json`` the same reports always give the same bytes."""
    handle = io.BytesIO()
    _FORMATS[file_format].write(handle, header, in_file_order(map(checked_report, reports)))
    return handle.getvalue()


def read_report_file(path: Path) -> tuple[ReportHeader, Iterator[WindowReport]]:
    """The header and, one by one, the reports. Every record is checked.

    Raises ReportFileError at once for what is wrong with the file or its header, and while iterating for the records.
    """
    report_reader = _FORMATS[report_format(path)]
    try:
        handle = open(path, "rb")  # noqa: SIM115
    except OSError as error:
        raise ReportFileError(f"cannot read {_quoted(path)}: {error.strerror}. Check the path.") from error
    stack = contextlib.ExitStack()
    stack.enter_context(handle)
    try:
        with _hostile(path):
            header, reports = report_reader.read(handle)
    except BaseException:
        stack.close()
        raise

    def checked() -> Iterator[WindowReport]:
        with stack, _hostile(path):
            yield from reports

    return header, checked()


def partial_path(output: Path, run_id: str) -> str:
    """Where the file of a run waits to be published: hidden, beside the output, as ``.report.avro.RUN.partial``.

    RUN is short whatever the run id: a name has at most 255 bytes.
    """
    path = pathlib.Path(output)
    run = hashlib.sha256(run_id.encode(errors="surrogatepass")).hexdigest()[:8]
    return str(path.with_name(f".{path.name}.{run}.partial"))


def publish_file(partial: Path, output: Path) -> None:
    """Gives a finished file its name: atomic, and never over a file that exists (ReportFileError then)."""
    try:
        try:
            os.link(partial, output)
        except OSError:  # a file system without links, or one of the faults that the other way meets as well
            _claim_and_replace(partial, output)
        else:
            os.unlink(partial)
    except FileExistsError as error:
        raise output_exists(output) from error
    except OSError as error:
        raise write_error(output, error) from error
    sync_folder(output)


def discard_file(partial: Path) -> None:
    """Removes what a failed run left: the partial file and the unfinished copies that workers made of it."""
    for path in [os.fspath(partial), *glob.glob(f"{glob.escape(os.fspath(partial))}.*.tmp")]:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)


def output_exists(output: Path) -> ReportFileError:
    """The error of an output that exists. Call it before a run as well: a run spends budget."""
    return ReportFileError(f"{_quoted(output)} exists and is never overwritten. Name another output, or move it away.")


def sync_folder(path: Path) -> None:
    """Brings the name of a file to the disk, where the file system can."""
    with contextlib.suppress(OSError):
        folder = os.open(pathlib.Path(path).parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def _claim_and_replace(partial: Path, output: Path) -> None:
    """Without links: whoever creates the name first, owns it and may replace the empty file by the finished one."""
    mode = stat.S_IMODE(os.stat(partial).st_mode)
    os.close(os.open(output, os.O_CREAT | os.O_EXCL | os.O_WRONLY, mode))
    try:
        os.replace(partial, output)
    except BaseException:
        os.unlink(output)
        raise


@contextlib.contextmanager
def _hostile(path: Path) -> Iterator[None]:
    """Turns whatever a parser raises on broken bytes into one line that cites none of them."""
    try:
        yield
    except ReportFileError as error:
        raise ReportFileError(f"{_quoted(path)}: {error}") from error
    except Exception as error:
        raise ReportFileError(
            f"{_quoted(path)} is damaged or no report file ({type(error).__name__}). Write it anew."
        ) from error


def write_error(path: Path, error: OSError) -> ReportFileError:
    """The error of a file that could not be written, in one line."""
    if isinstance(error, FileExistsError):
        return output_exists(path)
    return ReportFileError(f"cannot write {_quoted(path)}: {error.strerror}. Check the folder and its free space.")


def _quoted(path: Path) -> str:
    """The path on one line, whatever is in it."""
    return repr(os.fspath(path))
