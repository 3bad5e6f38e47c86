"""Write: rejected events, for the operator -> a private file where the pipeline ends, a private folder for a stream."""

from __future__ import annotations

import functools
import hashlib
import io
import os
import pathlib
from collections.abc import Iterable, Iterator
from typing import IO

import apache_beam as beam

from dp_transforms.beam import encode_elements
from dp_transforms.beam.gather_all import gather_all
from dp_transforms.logs.rejected_events import RejectedEvents, pack_rejected, write_rejected_lines
from dp_transforms.reports.files import replace_private, replace_stored, write_error
from dp_transforms.stores.remote_files import is_remote

encode_elements.register_coders()


class WriteRejected(beam.PTransform):
    """Writes a bounded PCollection of `RejectedEvents` as JSON lines, one per row: file, position, reason.

    path: a local path or a URL. Only the owner can read a local file, from its creation on: where a row was broken may
        be as private as the row. In a store its rules say who can. shown_name: as in `WriteReports`.

    Lines are sorted by file and position. Returns a PCollection of the path.
    """

    def __init__(self, path: str | os.PathLike[str], *, shown_name: str | None = None) -> None:
        super().__init__()
        self._path = os.fspath(path)
        self._shown_name = shown_name

    def expand(self, rejected: beam.PCollection) -> beam.PCollection:
        encoded = rejected | "PackRejected" >> beam.Map(pack_rejected).with_output_types(bytes)
        return gather_all(encoded, "WriteRejected") | "WriteRejectedFile" >> beam.ParDo(
            _WriteRejectedDoFn(self._path, self._shown_name)
        ).with_output_types(str)


class WriteRejectedFolder(beam.PTransform):
    """Writes `RejectedEvents` of a stream as JSON lines, a file per element: source, position, reason.

    path: a folder, made with mode 0700 where it is missing. The files have mode 0600.

    The name of a file is a digest of its content, so a file that is written twice is there once. Returns a PCollection
    of the paths.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        super().__init__()
        self._path = os.fspath(path)

    def expand(self, rejected: beam.PCollection) -> beam.PCollection:
        return rejected | "WriteRejected" >> beam.ParDo(_WriteRejectedFolderDoFn(self._path)).with_output_types(str)


class _WriteRejectedDoFn(beam.DoFn):
    """Writes one group of packed rejected events to one file."""

    def __init__(self, path: str, shown_name: str | None = None) -> None:
        self._path = path
        self._shown_name = shown_name

    def process(self, encoded: Iterable[bytes]) -> Iterator[str]:
        packed = [data for data in encoded if data]
        if is_remote(self._path):
            lines = io.BytesIO()
            write_rejected_lines(lines, packed)
            replace_stored(self._path, lines.getvalue(), shown_name=self._shown_name)
        else:
            replace_private(
                self._path, lambda handle: write_rejected_lines(handle, packed), shown_name=self._shown_name
            )
        yield self._path


class _WriteRejectedFolderDoFn(beam.DoFn):
    """Writes each element to a file of its own."""

    def __init__(self, path: str) -> None:
        self._path = path

    def process(self, rejected: RejectedEvents) -> Iterator[str]:
        lines = io.BytesIO()
        write_rejected_lines(lines, [pack_rejected(rejected)])
        name = f"rejected-{hashlib.sha256(lines.getvalue()).hexdigest()[:32]}.jsonl"
        path = pathlib.Path(self._path) / name
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise write_error(self._path, error) from None
        if not path.exists():
            replace_private(str(path), functools.partial(_write_all, lines.getvalue()), shown_name=self._path)
        yield str(path)


def _write_all(content: bytes, handle: IO[bytes]) -> None:
    handle.write(content)
