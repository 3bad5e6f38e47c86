"""How all commands write files: each appears whole or not at all, and not over one that exists.

An output is a path or a URL (`dp_transforms.stores.files`).
"""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Callable, Iterator
from typing import BinaryIO

from dp_transforms.checks import is_utf8
from dp_transforms.errors import UserError
from dp_transforms.stores.files import check_writable, exists, write_file
from dp_transforms.stores.local_files import Path, is_replaceable
from dp_transforms.stores.remote_files import RemoteFileError, UrlError, is_remote


def check_output(output: Path | None, option: str = "--output", *, replaces: bool = False) -> None:
    """Raises UserError for an output that could not be written. Call it before the work, which may spend a budget.

    output: None where none was asked for. replaces: a file that is there is no hindrance.
    """
    if output is None:
        return
    name = f"{option} {os.fspath(output)}"
    if not is_utf8(name):
        raise UserError(f"{name}: a name that is not UTF-8 cannot be written. Choose another one.")
    with write_errors(name):
        is_url, is_there = is_remote(output), exists(output)
        if is_there and not (replaces and (is_url or is_replaceable(output))):
            raise FileExistsError
        check_writable(output)


def write_output(
    output: Path, content: str | bytes | Callable[[BinaryIO], object], *, replaces: bool = False, mode: int = 0o666
) -> None:
    """content: all of it, or a function that writes the file. replaces: in the place of a file that is there. mode: of
    a local file, before the umask. Raises UserError."""

    def write(file: BinaryIO) -> object:
        return (
            content(file)
            if callable(content)
            else file.write(content.encode() if isinstance(content, str) else content)
        )

    with write_errors(output):
        write_file(output, write, replaces=replaces, mode=mode)


@contextlib.contextmanager
def write_errors(output: Path) -> Iterator[None]:
    """Errors of the block, in which it is written, become UserErrors."""
    name = os.fspath(output)
    try:
        yield
    except FileExistsError:
        raise UserError(f"{name} exists and is never overwritten. Name another output, or move it away.") from None
    except UrlError as error:
        raise UserError(f"cannot write {name}: {error}") from None
    except RemoteFileError as error:
        raise UserError(f"cannot write {name}: {error.strerror}.") from None
    except OSError as error:
        reason = error.strerror or "input or output failed"
        raise UserError(f"cannot write {name}: {reason}. Check that its folder is there and has free space.") from None


def free_report_name() -> str:
    """A name in the current folder that no file has yet: for a command that is printed, to be run next."""
    names = itertools.chain(["report.avro"], (f"report-{number}.avro" for number in itertools.count(2)))
    return next(name for name in names if not os.path.lexists(name))


def is_taken(output: Path) -> bool:
    """Whether something has the name. Raises UserError if a store does not say."""
    with write_errors(output):
        return exists(output)
