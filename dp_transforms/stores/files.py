"""Files by path or by URL, for whoever need not know which of the two it is.

An output appears whole or not at all, and in the place of no other file unless that is asked for. What looks at a file,
reads or writes it raises OSError, whose `strerror` says why, or `UrlError` for a URL that cannot be used. What makes an
output of a user raises UserError.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import os
from collections.abc import Callable, Iterator
from typing import BinaryIO

from dp_transforms.checks import is_utf8
from dp_transforms.errors import UserError
from dp_transforms.stores.local_files import Path, create_new, draft_name, is_replaceable, open_regular, write_whole
from dp_transforms.stores.remote_files import (
    RemoteFileError,
    StoredReader,
    is_remote,
    look_at,
    look_if_there,
    put,
    try_to_put,
)


def full_name(path: str) -> str:
    """What names the same file from any folder: a URL as it is, a path with the current folder."""
    return path if is_remote(path) else os.path.abspath(path)


def exists(path: Path) -> bool:
    """Whether a name is taken, by whatever. Raises OSError only for a URL."""
    return look_if_there(os.fspath(path)) is not None if is_remote(path) else os.path.lexists(path)


def open_file(path: Path) -> BinaryIO:
    """A regular file, or the present version of one in a store, open for reading."""
    return io.BufferedReader(StoredReader(look_at(os.fspath(path)))) if is_remote(path) else open_regular(path)


def read_file(path: Path, most_bytes: int) -> bytes:
    """The content; the first ``most_bytes + 1`` bytes if it is larger."""
    with open_file(path) as file:
        return file.read(most_bytes + 1)


def write_file(path: Path, write: Callable[[BinaryIO], object], *, replaces: bool = False, mode: int = 0o666) -> None:
    """Calls ``write`` with a file, which then appears as ``path``. Raises FileExistsError if the name is taken, even at
    the same moment, and replaces is False.

    mode: of a local file, before the umask; who may read one in a store is the store's affair.
    """
    if is_remote(path):
        content = io.BytesIO()
        write(content)
        put(os.fspath(path), content.getvalue(), replaces=replaces)
    else:
        write_whole(path, write, mode=mode, may_replace=replaces)


def check_output(output: Path | None, option: str = "--output", *, replaces: bool = False) -> None:
    """Raises UserError for an output that could not be written, as a hidden file beside it shows, which is removed
    again. Call it before the work, which may spend a budget.

    output: None where none was asked for. replaces: a file that is there is no hindrance.
    """
    if output is None:
        return
    name = f"{option} {os.fspath(output)}"
    if not is_utf8(name):
        raise UserError(f"{name}: a name that is not UTF-8 cannot be written. Choose another one.")
    with output_errors(name):
        if exists(output) and not (replaces and (is_remote(output) or is_replaceable(output))):
            raise FileExistsError
        if is_remote(output):
            folder, _, last = os.fspath(output).rpartition("/")
            try_to_put(f"{folder}/{draft_name(last)}")
        else:
            create_new(probe := draft_name(output)).close()
            os.unlink(probe)


def write_output(
    output: Path, content: str | bytes | Callable[[BinaryIO], object], *, replaces: bool = False, mode: int = 0o666
) -> None:
    """`write_file`, of all content or of a function that writes it. Raises UserError."""
    data = content.encode() if isinstance(content, str) else content
    with output_errors(output):
        write_file(output, data if callable(data) else lambda file: file.write(data), replaces=replaces, mode=mode)


@contextlib.contextmanager
def output_errors(output: Path) -> Iterator[None]:
    """Errors of the block, in which it is written, become UserErrors."""
    name = os.fspath(output)
    try:
        yield
    except FileExistsError:
        raise UserError(f"{name} exists and is never overwritten. Name another output, or move it away.") from None
    except OSError as error:
        reason = error.strerror or "input or output failed"
        remedy = "" if isinstance(error, RemoteFileError) else " Check that its folder is there and has free space."
        raise UserError(f"cannot write {name}: {reason}.{remedy}") from None


def free_report_name() -> str:
    """A name in the current folder that no file has yet: for a command that is printed, to be run next."""
    names = itertools.chain(["report.avro"], (f"report-{number}.avro" for number in itertools.count(2)))
    return next(name for name in names if not os.path.lexists(name))


def is_taken(output: Path) -> bool:
    """Whether something has the name. Raises UserError if a store does not say."""
    with output_errors(output):
        return exists(output)
