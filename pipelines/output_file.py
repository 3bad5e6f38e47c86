"""How all commands write files: each appears whole or not at all, and never over one that exists."""

from __future__ import annotations

import contextlib
import os
import pathlib
from collections.abc import Callable, Iterator
from typing import BinaryIO

from dp_transforms.local_files import Path, draft_of, publish, remove_dead_drafts, write_whole
from dp_transforms.pipelines.options import UserError


def check_output(output: Path, option: str = "--output") -> None:
    """Raises UserError for an output that could not be written. Call it before the work, which may spend a budget."""
    if os.path.lexists(output):
        remove_dead_drafts(pathlib.Path(output))  # of a run that was killed after it had published
        raise _exists(f"{option} {os.fspath(output)}")
    if not pathlib.Path(output).absolute().parent.is_dir():
        raise UserError(
            f"{option} {os.fspath(output)} cannot be written: No such file or directory. The folder does not exist."
            " Create it, or name another one."
        )
    with output_draft(output):
        return


@contextlib.contextmanager
def output_draft(output: Path) -> Iterator[pathlib.Path]:
    """While the block runs, a folder in which the output takes shape (`dp_transforms.local_files`)."""
    with contextlib.ExitStack() as stack:
        try:
            folder = stack.enter_context(draft_of(output))
        except OSError as error:
            raise _cannot_write(output, error) from None
        yield folder


def publish_output(finished: Path, output: Path) -> None:
    """Gives a file of an `output_draft` its name."""
    try:
        publish(finished, output)
    except OSError as error:
        raise _cannot_write(output, error) from None


def write_output(output: Path, content: str | Callable[[BinaryIO], None]) -> None:
    """content: a text, or a function that writes the file."""
    try:
        write_whole(output, _writes(content) if isinstance(content, str) else content)
    except OSError as error:
        raise _cannot_write(output, error) from None


def _writes(text: str) -> Callable[[BinaryIO], None]:
    def write(file: BinaryIO) -> None:
        file.write(text.encode())

    return write


def _cannot_write(output: Path, error: OSError) -> UserError:
    if isinstance(error, FileExistsError):
        return _exists(os.fspath(output))
    reason = error.strerror or "input or output failed"
    return UserError(f"cannot write {os.fspath(output)}: {reason}. Check the folder and its free space.")


def _exists(output: str) -> UserError:
    return UserError(f"{output} exists and is never overwritten. Name another output, or move it away.")
