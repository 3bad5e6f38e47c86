"""Local files: only regular files are read, and an output appears whole or not at all.

Others may be able to write to the folder of an output, as in /tmp. So no file is created under a name that they could
guess, no existing file is opened for writing, and no link is followed.

A file is written as a *draft* beside the output, ``.report.avro.0f1e2d3c4b5a6978.partial``, and gets its name when it
is finished. Only ``kill -9`` in between leaves a draft.

Imports only the standard library. Everything here raises OSError; `strerror` says why.
"""

from __future__ import annotations

import contextlib
import errno
import os
import pathlib
import secrets
import stat
from collections.abc import Callable, Iterator
from typing import BinaryIO

Path = str | os.PathLike[str]
_OPEN_DRAFTS: set[pathlib.Path] = set()


def open_regular(path: Path) -> BinaryIO:
    """The file, open for reading. Raises OSError for anything but a regular file, without waiting for it.

    The open file is checked, not its name, so nobody can exchange the file between the check and the opening.
    """
    odd = OSError(errno.EINVAL, "it is not a regular file", os.fspath(path))
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError as error:
        raise (odd if error.errno == errno.ENXIO else error) from None  # of a socket
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise odd
    return open(descriptor, "rb")


def mode_for_others(file: BinaryIO) -> str | None:
    """The mode of an open file that others than its owner can use, as chmod writes it; None for a private file."""
    mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
    return f"{mode:04o}" if mode & (stat.S_IRWXG | stat.S_IRWXO) else None


def create_new(path: Path, mode: int = 0o666) -> BinaryIO:
    """A new file, open for writing. mode: before the umask. Raises FileExistsError if the name exists."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    return open(os.open(path, flags, mode), "wb")


@contextlib.contextmanager
def new_on_disk(path: Path, mode: int = 0o666) -> Iterator[BinaryIO]:
    """A new file, which is on the disk at the end of the block. If anything fails, no file remains. Raises OSError."""
    handle = create_new(path, mode)
    try:
        with handle:
            yield handle
            handle.flush()
            os.fsync(handle.fileno())
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(path)
        raise


def draft_name(output: Path) -> pathlib.Path:
    """A new hidden name beside the output, which nobody can guess."""
    path = pathlib.Path(output)
    return path.with_name(f".{path.name}.{secrets.token_hex(8)}.partial")


def write_whole(
    output: Path, write: Callable[[BinaryIO], object], *, mode: int = 0o666, may_replace: bool = False
) -> None:
    """Calls ``write`` with a new file, which then appears as ``output``, in the place of a regular file if it
    may_replace one, and of nothing else. Raises FileExistsError."""
    draft = draft_name(output)
    _OPEN_DRAFTS.add(draft)
    try:
        with new_on_disk(draft, mode) as file:
            write(file)
        if may_replace and is_replaceable(output):
            os.replace(draft, output)
        else:
            publish(draft, output)
    finally:
        draft.unlink(missing_ok=True)
        _OPEN_DRAFTS.discard(draft)
    sync_folder(output)


def discard_drafts() -> None:
    """Removes all drafts of this process. For code that ends it at once."""
    for draft in list(_OPEN_DRAFTS):
        draft.unlink(missing_ok=True)


def is_replaceable(path: Path) -> bool:
    """Whether a regular file has this name; not a link to one."""
    return os.path.isfile(path) and not os.path.islink(path)


def publish(finished: Path, output: Path) -> None:
    """Gives a finished file another name, atomically. Raises FileExistsError if the name exists."""
    try:
        os.link(finished, output, follow_symlinks=False)
    except FileExistsError:
        raise
    except OSError:  # without links: who creates the name may replace the empty file, which a kill in between leaves
        create_new(output).close()
        try:
            os.replace(finished, output)
        except BaseException:
            os.unlink(output)  # empty, and ours
            raise


def sync_folder(path: Path) -> None:
    """Writes the name of a file to the disk, if the file system can."""
    with contextlib.suppress(OSError):
        folder = os.open(pathlib.Path(path).parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
