"""How all commands write files: each appears whole or not at all, and not over one that exists.

An output is a path or a URL (`dp_transforms.stores.remote_files`). A replay on this machine writes both into a local
draft, which `publish_output` copies to a URL in one request that fails if the name is taken.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import pathlib
import tempfile
from collections.abc import Callable, Iterator
from typing import BinaryIO

from dp_transforms.checks import is_utf8
from dp_transforms.cli.operator_log import note_done
from dp_transforms.errors import UserError
from dp_transforms.stores.local_files import (
    Path,
    draft_of,
    is_replaceable,
    open_regular,
    publish,
    remove_dead_drafts,
    write_whole,
)
from dp_transforms.stores.remote_files import (
    RemoteFileError,
    UrlError,
    check_writable,
    exists,
    is_remote,
    put_new,
    put_over,
)


def check_output(output: Path | None, option: str = "--output", *, replaces: bool = False) -> None:
    """Raises UserError for an output that could not be written. Call it before the work, which may spend a budget.

    output: None where none was asked for. replaces: a file that is there is no hindrance.
    """
    if output is None:
        return
    name = f"{option} {os.fspath(output)}"
    if not is_utf8(name):
        raise UserError(f"{name}: a name that is not UTF-8 cannot be written. Choose another one.")
    try:
        is_url = is_remote(output)
    except UrlError as error:
        raise UserError(f"{option}: {error}") from None
    if is_url:
        _check_url(os.fspath(output), name, replaces=replaces)
        return
    remove_dead_drafts(pathlib.Path(output))  # of a run that was killed
    if os.path.lexists(output) and not (replaces and is_replaceable(output)):
        raise _exists(name)
    if not pathlib.Path(output).absolute().parent.is_dir():
        raise UserError(
            f"{name} cannot be written: No such file or directory. The folder does not exist. Create it, or name"
            " another one."
        )
    with output_draft(output):
        return


def _check_url(output: str, name: str, *, replaces: bool) -> None:
    """Also by writing and removing a hidden file beside it."""
    try:
        has_name = exists(output)
        if not has_name:
            check_writable(output)
    except OSError as error:
        raise UserError(f"{name} cannot be written: {error.strerror}.") from None
    if has_name and not replaces:
        raise _exists(name)


@contextlib.contextmanager
def output_draft(output: Path) -> Iterator[pathlib.Path]:
    """While the block runs, a folder in which the output takes shape (`dp_transforms.stores.local_files`)."""
    with contextlib.ExitStack() as stack:
        with write_errors(output):
            folder = stack.enter_context(draft_of(output))
        yield folder


@contextlib.contextmanager
def output_draft_file(output: str) -> Iterator[str]:
    """The same, as the path of the file itself; its ending says the format. The draft of a URL is a local file too:
    nothing that is not published ever reaches the store."""
    place = pathlib.Path(tempfile.gettempdir()) / f"shh-{os.getuid()}" if is_remote(output) else output
    with output_draft(place) as folder:  # workers may have another current folder
        yield str(folder.absolute() / f"file{pathlib.PurePath(output).suffix}")


def publish_output(finished: Path, output: Path) -> None:
    """Gives a file of an `output_draft` its name."""
    with write_errors(output):
        if not is_remote(output):
            publish(finished, output)
        else:
            with open_regular(finished) as file:
                put_new(os.fspath(output), file)
    note_done()


def write_output(
    output: Path, content: str | Callable[[BinaryIO], None], *, replaces: bool = False, is_all: bool = True
) -> None:
    """content: all of it, or a function that writes the file. replaces: in the place of a file that is there. is_all:
    the command has then done what it was asked for."""
    write = content if callable(content) else lambda file: file.write(content.encode())
    with write_errors(output):
        if is_remote(output):
            with tempfile.TemporaryFile() as file:  # without a name, for its owner alone
                write(file)
                (put_over if replaces else put_new)(os.fspath(output), file)
        else:
            write_whole(output, write, may_replace=replaces)
    if is_all:
        note_done()


@contextlib.contextmanager
def write_errors(output: Path) -> Iterator[None]:
    """Errors of the block, in which it is written, become UserErrors."""
    try:
        yield
    except FileExistsError:
        raise _exists(os.fspath(output)) from None
    except RemoteFileError as error:
        raise UserError(f"cannot write {os.fspath(output)}: {error.strerror}.") from None
    except OSError as error:
        reason = error.strerror or "input or output failed"
        raise UserError(f"cannot write {os.fspath(output)}: {reason}. Check the folder and its free space.") from None


def free_report_name() -> str:
    """A name in the current folder that no file has yet: for a command that is printed, to be run next."""
    names = itertools.chain(["report.avro"], (f"report-{number}.avro" for number in itertools.count(2)))
    return next(name for name in names if not os.path.lexists(name))


def is_taken(output: Path) -> bool:
    """Whether something has the name. Raises UserError if a store does not say."""
    try:
        return exists(output)
    except OSError as error:
        raise UserError(f"{os.fspath(output)} cannot be looked for: {error.strerror}.") from None


def _exists(output: str) -> UserError:
    return UserError(f"{output} exists and is never overwritten. Name another output, or move it away.")
