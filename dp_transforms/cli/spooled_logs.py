"""Logs that are no files: standard input, and what a query of DuckDB gives.

A log is read twice (`logs.estimate`, fingerprints, many workers), so these go into a file first: a private one in the
folder for temporary files, which is removed when the command ends; after a kill by the next one.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import pathlib
import select
import sys
import tempfile
from collections.abc import Iterator, Sequence
from typing import BinaryIO

from dp_transforms.checks import how_to_install, on_one_line
from dp_transforms.cli.output_file import output_draft, write_errors
from dp_transforms.cli.shared_options import STANDARD_INPUT
from dp_transforms.errors import MissingLibraryError, UserError
from dp_transforms.stores.local_files import create_new

DUCKDB = "duckdb:///"
_QUERY = "?query="
_PIECE_BYTES, _SECONDS_TO_WAIT = 1 << 20, 0.5
_COUNT = itertools.count()


def spooled_logs(
    logs: Sequence[str], log_format: str | None, names: Sequence[str] | None, started: contextlib.ExitStack
) -> tuple[str, ...]:
    """The logs with files in the place of these; they are there as long as ``started``. log_format: of standard input.
    names: the fields of an event; None: all fields are kept. Raises UserError for a log that cannot be read."""
    if log_format is not None and STANDARD_INPUT not in logs:
        raise UserError("--format is for standard input, as -: files say their format by their ending. Leave it out.")
    if logs.count(STANDARD_INPUT) > 1:
        raise UserError("standard input can be read once. Name - once.")
    return tuple(
        started.enter_context(_spooled(log, log_format, names))
        if log == STANDARD_INPUT or log.startswith(DUCKDB)
        else log
        for log in logs
    )


@contextlib.contextmanager
def _spooled(log: str, log_format: str | None, names: Sequence[str] | None) -> Iterator[str]:
    place = pathlib.Path(tempfile.gettempdir()) / f"shh-{os.getuid()}-log-{next(_COUNT)}"
    with output_draft(place) as folder:
        if log != STANDARD_INPUT:
            yield _answer_of_duckdb(log, names, folder)
            return
        if log_format is None:
            raise UserError("standard input does not say its format. Give --format, such as --format csv.")
        path = folder / f"standard-input.{log_format}"
        with write_errors(path), create_new(path, 0o600) as file:
            _copy_standard_input(file)
        yield str(path)


def _copy_standard_input(file: BinaryIO) -> None:
    """Without a wait that a signal to another thread would not end."""
    if sys.stdin is None:
        raise UserError("there is no standard input. Pipe a log into the command, or name a file.")
    source = sys.stdin.fileno()
    while True:
        if select.select([source], [], [], _SECONDS_TO_WAIT)[0]:
            if not (piece := os.read(source, _PIECE_BYTES)):
                return
            file.write(piece)


def _answer_of_duckdb(url: str, names: Sequence[str] | None, folder: pathlib.Path) -> str:
    """The path of a file with the rows of a query, of which only fields of these names are kept. The database is
    opened to be read alone; what it must put on a disk goes into the folder too."""
    database, _, query = url.removeprefix(DUCKDB).partition(_QUERY)
    if not database or not query.strip():
        raise UserError(f"a log in DuckDB is named as '{DUCKDB}FILE{_QUERY}SELECT ...', the query as it stands.")
    try:
        import duckdb
    except ImportError:
        raise MissingLibraryError(f"logs in DuckDB need its library. {how_to_install('duckdb')}") from None
    if not os.path.isfile(database):
        raise UserError(f"{database}: there is no such database. Check the path: one from the root has four slashes.")
    path = str(folder / "query.parquet")
    try:
        with duckdb.connect(database, read_only=True, config={"temp_directory": str(folder)}) as connection:
            found = connection.sql(query)
            if found is None:
                raise UserError(f"{database}: the query gives no rows. It must be a SELECT.")
            kept = names if names and set(names) <= set(found.columns) else found.columns
            found.project(", ".join(map(_quoted, kept))).write_parquet(path)
    except (duckdb.ParserException, duckdb.BinderException, duckdb.CatalogException, duckdb.IOException) as error:
        raise UserError(f"{database}: {on_one_line(str(error).splitlines()[0])}") from None
    except duckdb.Error as error:  # whose words may hold a cell
        raise UserError(f"{database}: the query failed ({type(error).__name__}). Try it in DuckDB.") from None
    return path


def _quoted(name: str) -> str:
    """As SQL names a column."""
    return '"' + name.replace('"', '""') + '"'
