"""Local files: only regular files are read, and an output appears whole or not at all.

Others may be able to write to the folder of an output, as in /tmp. So no file is created under a name that they could
guess, no existing file is opened for writing, and no link is followed.

A file is written into a *draft*: a hidden folder beside the output, ``.report.avro.0f1e2d3c4b5a6978.partial``, that
only its owner can enter. `publish` gives the finished file its name. The draft is removed at the end, by
`discard_drafts` if a signal ends the process, and after ``kill -9`` by the next draft of the same output: a living one
is locked.

Imports only the standard library. Everything here raises OSError; `strerror` says why.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import glob
import os
import pathlib
import secrets
import shutil
import stat
import time
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


def check_folder(path: Path) -> None:
    """Raises ValueError unless the folder, or the one that it will be made in, can be written. Its message goes behind
    the name of an option."""
    place = pathlib.Path(path).absolute()
    if place.exists() and not place.is_dir():
        raise ValueError(f"{os.fspath(path)} is a file. Name a folder.")
    existing = next(folder for folder in (place, *place.parents) if folder.exists())
    if not os.access(existing, os.W_OK | os.X_OK):
        raise ValueError(f"{os.fspath(path)} cannot be written: Permission denied. Name another folder.")


def mode_for_others(file: BinaryIO) -> str | None:
    """The mode of an open file that others than its owner can use, as chmod writes it; None for a private file."""
    mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
    return f"{mode:04o}" if mode & (stat.S_IRWXG | stat.S_IRWXO) else None


def read_regular(path: Path, most_bytes: int) -> bytes:
    """The content of a regular file; the first ``most_bytes + 1`` bytes if it is larger. Raises OSError."""
    with open_regular(path) as file:
        return file.read(most_bytes + 1)


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


def write_whole(
    output: Path, write: Callable[[BinaryIO], object], *, mode: int = 0o666, may_replace: bool = False
) -> None:
    """Calls ``write`` with a new file, which then appears as ``output``, in the place of a regular file if it
    may_replace one, and of nothing else. Raises FileExistsError."""
    with draft_of(output) as folder:
        path = folder / "content"
        with new_on_disk(path, mode) as file:
            write(file)
        if may_replace and is_replaceable(output):
            os.replace(path, output)
            sync_folder(output)
        else:
            publish(path, output)


def is_replaceable(path: Path) -> bool:
    """Whether a regular file has this name; not a link to one."""
    return os.path.isfile(path) and not os.path.islink(path)


def publish(finished: Path, output: Path) -> None:
    """Gives a finished file its name, atomically. Raises FileExistsError if the name exists."""
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
    else:
        os.unlink(finished)
    sync_folder(output)


def sync_folder(path: Path) -> None:
    """Writes the name of a file to the disk, if the file system can."""
    with contextlib.suppress(OSError), _opened_folder(pathlib.Path(path).parent) as folder:
        os.fsync(folder)


@contextlib.contextmanager
def _opened_folder(path: Path, flags: int = 0) -> Iterator[int]:
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | flags)
    try:
        yield folder
    finally:
        os.close(folder)


@contextlib.contextmanager
def draft_of(output: Path) -> Iterator[pathlib.Path]:
    """While the block runs, a folder for the files that will be published as ``output``, on the same file system.

    Removes drafts of this output that dead processes of this user left. Raises OSError if no folder can be made.
    """
    target = pathlib.Path(output)
    remove_dead_drafts(target)
    folder = target.with_name(f".{target.name}.{secrets.token_hex(8)}.partial")
    unlocked = folder.with_suffix(".new")
    _OPEN_DRAFTS.update((folder, unlocked))
    try:
        os.mkdir(unlocked, 0o700)
        with _opened_folder(unlocked) as lock:
            with contextlib.suppress(OSError):  # a file system may have no locks
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.rename(unlocked, folder)  # it has its name only while it is locked
            yield folder
    finally:
        _remove(folder)
        _remove(unlocked)


def remove_dead_drafts(output: pathlib.Path) -> None:
    """Removes the drafts that killed processes left beside this output, and none of a live process."""
    for path in output.parent.glob(f".{glob.escape(output.name)}.{'[0-9a-f]' * 16}.partial"):
        with contextlib.suppress(OSError), _opened_folder(path, os.O_NOFOLLOW) as folder:
            if os.fstat(folder).st_uid == os.geteuid():
                fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
                _remove(path)


def discard_drafts() -> None:
    """Removes all drafts of this process. For code that ends it at once."""
    for folder in list(_OPEN_DRAFTS):
        _remove(folder)


def _remove(folder: pathlib.Path) -> None:
    """Again if a worker that still runs has put a file into it meanwhile."""
    for _ in range(10):
        shutil.rmtree(folder, ignore_errors=True)
        if not os.path.lexists(folder):
            break
        time.sleep(0.01)
    _OPEN_DRAFTS.discard(folder)
