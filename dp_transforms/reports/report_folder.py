"""Reports as a folder: one report file per window with heavy items, which appears whole and is never replaced.

A file is written under a hidden name, synced to the disk, and linked to its own name. The link fails if that name is
taken: so one of two workers is first, and a reader sees a whole file or none. A worker that dies leaves at most a
hidden file, which `open` removes when it is old.

    header.json                              the run: a report file without windows
    2017-10-01T030000Z-1f0c2a9b.jsonl        a window, by its start and a digest of the name of the stream
    ended.json                               the run has ended
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import pathlib
import re
import time
import uuid
from collections.abc import Iterator

import msgspec

from dp_transforms.core.window_report import WindowReport
from dp_transforms.errors import StreamError
from dp_transforms.plan.window_schedule import format_utc
from dp_transforms.reports.files import read_report_file, report_file_bytes
from dp_transforms.reports.report_records import (
    EndedFields,
    ReportFileError,
    ReportHeader,
    RunEnded,
    checked_ended,
    decode_json,
    in_file_order,
)
from dp_transforms.reports.report_writer import (
    Answer,
    ReportFollower,
    ReportNews,
    ReportSink,
    ReportWriter,
    StreamContents,
    check_same_run,
)
from dp_transforms.stores.local_files import new_on_disk, open_regular, read_regular, sync_folder

_HEADER, _ENDED = "header.json", "ended.json"
_WINDOW = re.compile(r"\d{4}-\d\d-\d\dT\d{6}(\.\d{6})?Z-[0-9a-f]{8}\.jsonl")
_TEMPORARY = re.compile(r"\..+\.[0-9a-f]{32}\.tmp")
_STALE_SECONDS = 3600  # nobody needs an hour between writing a file and linking it
_MODE = 0o644
_MAX_ENDED_BYTES = 1 << 16


class _EndedFile(msgspec.Struct, forbid_unknown_fields=True):
    ended: EndedFields


@dataclasses.dataclass(frozen=True)
class ReportFolder(ReportSink):
    """A folder that all workers see under one path, on a file system with hard links.

    path: created if it is missing; holds one run of one stream.
    """

    path: str

    def __post_init__(self) -> None:
        if not isinstance(self.path, (str, os.PathLike)) or not os.fspath(self.path):
            raise ValueError(f"path of a report folder must be a path that is not empty, got {self.path!r}.")
        object.__setattr__(self, "path", os.fspath(self.path))

    @property
    def name(self) -> str:
        return f"the folder {self.path!r}"

    @property
    def folder(self) -> str:  # type: ignore[override]
        return self.path

    def open(self, header: ReportHeader) -> ReportWriter:
        """Starts the run, or continues it. Raises StreamError if the folder holds another run, or other files."""
        folder = pathlib.Path(self.path)
        with _folder_errors(folder):
            folder.mkdir(mode=0o755, parents=True, exist_ok=True)
            _remove_stale(folder)
            if not self.is_begun:
                _check_empty(folder)
                _put_first(folder / _HEADER, report_file_bytes(header, [], "json"))
            found, _ = read_report_file(folder / _HEADER)
        check_same_run(self.name, found, header)
        # The header of the folder goes into all files: a later release may word the guarantee in another way.
        return _FolderWriter(folder, self.name, found)

    @property
    def is_begun(self) -> bool:
        """Whether a run has begun to write into it."""
        return (pathlib.Path(self.path) / _HEADER).exists()

    def before(self, run_id: str, *, is_fresh: bool) -> StreamContents:
        """Whichever run is there: a folder holds one. One that is missing is still to be made, or a mount of the
        workers, who check it."""
        folder = pathlib.Path(self.path)
        if not folder.is_dir():
            return None, [], None
        found = self.read()
        if found[0] is None:
            with _folder_errors(folder):
                _check_empty(folder)
        return found

    def follow(self, run_id: str | None = None) -> ReportFollower:
        return _FolderFollower(self, run_id)


class _FolderFollower(ReportFollower):
    """No file is ever replaced, so each is read once."""

    def __init__(self, sink: ReportFolder, run_id: str | None) -> None:
        self._sink, self._folder, self._run_id = sink, pathlib.Path(sink.path), run_id
        self._header: ReportHeader | None = None
        self._known: set[str] = set()

    def read_new(self) -> ReportNews:
        with _folder_errors(self._folder):
            if not self._sink.is_begun:  # a run may be away for a while
                return ReportNews(None, [], None, self._header is None)
            header, _ = read_report_file(self._folder / _HEADER)
            asked = dataclasses.replace(header, run_id=self._run_id or header.run_id)
            check_same_run(self._sink.name, header, asked)
            is_new = header != self._header
            if is_new:
                self._known = set()
            ended = _read_ended(self._folder)  # before the reports, so that none is missed once the end is seen
            names = [name for name in _window_names(self._folder) if name not in self._known]
            reports = [_read_window(self._folder / name, header) for name in names]
        self._header = header
        self._known.update(names)
        return ReportNews(header, in_file_order(reports), ended, is_new)


class _FolderWriter(ReportWriter):
    """Every file is on the disk when it is put, so there is nothing to commit."""

    def __init__(self, folder: pathlib.Path, name: str, header: ReportHeader) -> None:
        super().__init__(name, header)
        self._folder = folder

    def get(self, record: Answer) -> bool | None:
        return self.put_first(record) if self._path(record).exists() else None

    def put_first(self, record: Answer) -> bool:
        path = self._path(record)
        if isinstance(record, RunEnded):
            _put_first(path, json.dumps({"ended": record._asdict()}, ensure_ascii=False).encode() + b"\n")
            return self.ended() == record
        content = report_file_bytes(self.header, [record], "json")
        # Other bytes can be the same report.
        return _put_first(path, content) == content or _read_window(path, self.header) == record

    def count(self) -> int:
        return len(_window_names(self._folder))

    def ended(self) -> RunEnded | None:
        return _read_ended(self._folder)

    def errors(self) -> contextlib.AbstractContextManager[None]:
        return _folder_errors(self._folder)

    def _path(self, record: Answer) -> pathlib.Path:
        return self._folder / (_ENDED if isinstance(record, RunEnded) else _window_name(record))


def _put_first(path: pathlib.Path, content: bytes) -> bytes:
    """Makes the file unless it exists. Returns its content; the content and the name are then on the disk."""
    if not path.exists():
        temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
        try:
            with new_on_disk(temporary, _MODE) as handle:
                os.fchmod(handle.fileno(), _MODE)
                handle.write(content)
            with contextlib.suppress(FileExistsError):
                os.link(temporary, path)
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary)
    sync_folder(path)  # also after another worker, which may have died before it did
    with open_regular(path) as handle:
        return handle.read()


def _window_name(report: WindowReport) -> str:
    stream = hashlib.sha256(report.stream.encode()).hexdigest()[:8]
    return f"{format_utc(report.window_start).replace(':', '')}-{stream}.jsonl"


def _window_names(folder: pathlib.Path) -> list[str]:
    return sorted(name for name in os.listdir(folder) if _WINDOW.fullmatch(name))


def _read_window(path: pathlib.Path, header: ReportHeader) -> WindowReport:
    found, reports = read_report_file(path)
    held = list(reports)
    is_own = found == header and len(held) == 1 and held[0].stream == header.stream
    if not is_own or path.name != _window_name(held[0]):
        raise ReportFileError(f"{str(path)!r} is not a window of this run. Move it away.")
    return held[0]


def _read_ended(folder: pathlib.Path) -> RunEnded | None:
    path = folder / _ENDED
    if not path.exists():
        return None
    found = decode_json(read_regular(path, _MAX_ENDED_BYTES), _EndedFile, _MAX_ENDED_BYTES)
    return checked_ended(msgspec.structs.astuple(found.ended))


def _check_empty(folder: pathlib.Path) -> None:
    """Raises StreamError if the folder has other files. A header that another worker has just written is not one."""
    names = set(os.listdir(folder))
    if _HEADER not in names and any(not _TEMPORARY.fullmatch(name) for name in names):
        raise StreamError(f"the folder {str(folder)!r} holds other files. Name a new or an empty folder.")


def _remove_stale(folder: pathlib.Path) -> None:
    """Removes files of workers that died while they wrote."""
    for name in os.listdir(folder):
        if _TEMPORARY.fullmatch(name):
            with contextlib.suppress(FileNotFoundError):
                if os.stat(folder / name).st_mtime < time.time() - _STALE_SECONDS:
                    os.unlink(folder / name)


@contextlib.contextmanager
def _folder_errors(folder: pathlib.Path) -> Iterator[None]:
    """Turns errors of files into a StreamError of one line."""
    try:
        yield
    except ReportFileError as error:
        raise StreamError(f"the folder {str(folder)!r} cannot be used: {error}") from error
    except OSError as error:
        raise StreamError(
            f"the folder {str(folder)!r} cannot be used: {error.strerror}. All workers must be able to write to"
            " it, and its file system must have hard links and free space."
        ) from error
