"""Where the stop file of a stream is, unless the operator named one: when it appears, the run drains."""

from __future__ import annotations

import hashlib
import os
import re
import stat
import tempfile

from dp_transforms.errors import UserError

_LONGEST_NAME = 80


def stop_file_of_run(named: str | None, output: str | None, run_id: str, *, is_local: bool) -> str | None:
    """The path of --stop-file; else one beside the folder of reports; else one that only this user can make.

    named, output: --stop-file and --output, None if not given. is_local: whether all workers run on this machine. None:
    nobody can request a stop. Raises UserError if somebody else owns the folder of stop files.
    """
    if named is not None:
        return named
    if output is not None:
        return f"{output}.stop"
    return os.path.join(_private_folder(), f"{_file_name(run_id)}.stop") if is_local else None


def _file_name(run_id: str) -> str:
    """Readable, and different for each run id: a run must find its own file when it is resumed, and no other."""
    readable = re.sub(r"[^A-Za-z0-9-]", "_", run_id)[:_LONGEST_NAME]
    return f"{readable}-{hashlib.sha256(run_id.encode()).hexdigest()[:16]}"


def _private_folder() -> str:
    """A folder of mode 0700 in the temporary folder, where others could make a file of a name that they guess."""
    path = os.path.join(tempfile.gettempdir(), f"shh-{os.geteuid()}")
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        pass
    except OSError as error:
        raise UserError(
            f"the folder {path} for the stop file cannot be made: {error.strerror}. Name --stop-file."
        ) from None
    found = os.lstat(path)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
        raise UserError(
            f"{path} must be a folder of this user with mode 0700, for the stop file. Somebody else may have made it."
            " Remove it, or name --stop-file."
        )
    return path
