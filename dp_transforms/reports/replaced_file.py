"""Outputs of a step that may run twice: each file appears as a whole, in place of the one that the step wrote first."""

from __future__ import annotations

import contextlib
import os
import pathlib
import uuid
from collections.abc import Callable
from typing import IO

from dp_transforms.reports.files import write_error
from dp_transforms.reports.records import ReportFileError
from dp_transforms.stores.local_files import create_new, sync_folder
from dp_transforms.stores.remote_files import put_over

_PRIVATE_MODE = 0o600


def replace_whole(path: str, write: Callable[[str], None], *, shown_name: str | None = None) -> None:
    """Lets ``write`` make a new file beside ``path``, and puts it at ``path`` in one step.

    shown_name: the name of the output for errors; None: path. Raises ReportFileError.
    """
    temporary = str(pathlib.Path(path).with_name(f".{uuid.uuid4().hex}.tmp"))
    try:
        write(temporary)
        os.replace(temporary, path)
    except (OSError, ReportFileError) as error:
        cause = error.__cause__ if isinstance(error, ReportFileError) else error
        if isinstance(cause, OSError):  # with the name that the user knows, not the temporary one
            raise write_error(shown_name or path, cause) from None
        raise
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
    sync_folder(path)


def replace_stored(url: str, content: bytes, *, shown_name: str | None = None) -> None:
    """The same in a store, in which a file always appears as a whole. Who may read it is the store's affair."""
    try:
        put_over(url, content)
    except OSError as error:
        raise write_error(shown_name or url, error) from None


def replace_private(path: str, write: Callable[[IO[bytes]], None], *, shown_name: str | None = None) -> None:
    """The same for a file that only its owner can read, from its creation on."""

    def write_private(temporary: str) -> None:
        with create_new(temporary, _PRIVATE_MODE) as handle:
            write(handle)
            handle.flush()
            os.fsync(handle.fileno())

    replace_whole(path, write_private, shown_name=shown_name)
