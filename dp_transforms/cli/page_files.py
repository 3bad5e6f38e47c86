"""Files that the operator declares for pages: titles of items, and the token of ``shh serve``."""

from __future__ import annotations

import csv
import io
import pathlib

import click

from dp_transforms.cli.output_file import check_output
from dp_transforms.errors import UserError
from dp_transforms.stores.local_files import mode_for_others, open_regular, read_regular

PAGE_ENDINGS = (".html", ".htm")
_MOST_TITLES_BYTES = 16 << 20  # a title takes about 17 times its bytes
_LEAST_CHARACTERS = 20  # of a token: 119 bits of random letters and digits
_MOST_TOKEN_BYTES = 4096


def check_page(path: str | None, *, force: bool | None = None) -> None:
    """Raises, before any work, for a page of --html that could not be written. force: as in `check_output`."""
    if path is not None and not path.lower().endswith(PAGE_ENDINGS):
        raise click.UsageError(f"--html must end in {' or '.join(PAGE_ENDINGS)}, got {path!r}.")
    check_output(path, "--html", force=force)


def read_titles(path: str | pathlib.Path) -> dict[str, str]:
    """Label -> title of a CSV file in UTF-8 whose first line names the columns item and title; others are ignored.

    Of two titles for a label the first counts. Raises UserError, which quotes nothing of the file.
    """
    try:
        data = read_regular(path, _MOST_TITLES_BYTES)
    except OSError as error:
        raise UserError(f"--titles {path} cannot be read: {error.strerror}. Check the path.") from error
    if len(data) > _MOST_TITLES_BYTES:
        raise UserError(
            f"--titles {path} has more than {_MOST_TITLES_BYTES >> 20} MB. Keep the titles that the report needs."
        )
    titles: dict[str, str] = {}
    try:
        rows = csv.DictReader(io.StringIO(data.decode("utf-8-sig"), newline=""), strict=True)
        if any((rows.fieldnames or []).count(name) != 1 for name in ("item", "title")):
            raise UserError(
                f"--titles {path} must name the columns item and title once each in its first line, divided by commas."
            )
        for row in rows:
            if None in row or None in (row["item"], row["title"]):
                raise UserError(
                    f"--titles {path} has too few or too many cells in line {rows.line_num:,}. Put titles with commas"
                    " in quotes."
                )
            titles.setdefault(row["item"], row["title"].strip())
    except (UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"--titles {path} is not CSV in UTF-8 ({type(error).__name__}). Write it again.") from error
    return titles


def read_token(path: str) -> str:
    """The token in a private file, without the end of its line. Raises UserError, which quotes nothing of it."""
    try:
        with open_regular(path) as file:
            mode, data = mode_for_others(file), file.read(_MOST_TOKEN_BYTES + 1)
    except OSError as error:
        raise UserError(f"--token-file {path} cannot be read: {error.strerror}. Check the path.") from error
    if mode is not None:
        raise UserError(
            f"--token-file {path} can be used by others (mode {mode}). Close it with: chmod 600 {path}, and make a"
            " new token if somebody may have read it."
        )
    token = data.decode("ascii", errors="replace").removesuffix("\n").removesuffix("\r")
    is_plain = token.isascii() and token.isprintable() and " " not in token
    if not is_plain or not _LEAST_CHARACTERS <= len(token) < _MOST_TOKEN_BYTES:
        raise UserError(
            f"--token-file {path} must hold one line of at least {_LEAST_CHARACTERS} letters, digits and signs without"
            " blanks. Make one: openssl rand -hex 32"
        )
    return token
