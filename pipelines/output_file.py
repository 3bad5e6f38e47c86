"""Text files that a command writes: whole or not at all, and never over one that exists."""

from __future__ import annotations

import os
import pathlib

from dp_transforms.report_files import ReportFileError, discard_file, partial_path, publish_file
from dp_transforms.report_files.files import output_exists
from pipelines.options import UserError


def check_output(output: pathlib.Path) -> None:
    """Raises UserError for an output that could not be written: call it before the work."""
    if os.path.lexists(output):
        raise UserError(str(output_exists(output)))
    if not output.parent.is_dir():
        raise UserError(f"the folder {output.parent} does not exist. Create it, or give --output another one.")


def write_output(output: pathlib.Path, text: str) -> None:
    """The file appears whole or not at all, and never replaces one."""
    partial = partial_path(output, str(os.getpid()))
    try:
        with open(partial, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        publish_file(partial, output)
    except ReportFileError as error:
        raise UserError(str(error)) from None
    except OSError as error:
        raise UserError(f"cannot write {output}: {error.strerror}. Give --output another folder.") from None
    finally:
        discard_file(partial)
