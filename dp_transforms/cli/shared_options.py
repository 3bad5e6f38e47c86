"""The options that several commands share, each said once, and what is made of them."""

from __future__ import annotations

import csv
import dataclasses
import io
import os
import pathlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from dp_transforms.checks import is_utf8
from dp_transforms.cli.options import BUDGET, ENGINE, INPUT, OUTPUT, Option, Options, check_together
from dp_transforms.cli.output_file import check_output
from dp_transforms.errors import InputError, UserError
from dp_transforms.stores.local_files import open_regular, read_regular, remove_dead_drafts

if TYPE_CHECKING:
    from dp_transforms.logs import EventFields

PAGE_ENDINGS = (".html", ".htm")
_MOST_TITLES_BYTES = 16 << 20  # a title takes about 17 times its bytes

_UNITS = click.Choice(["s", "ms", "us", "iso"])
_FORM = "Form of times not in ISO 8601: %d/%b/%Y:%H:%M:%S %z."
_ZONE = "Of times without a zone, such as Europe/Berlin; and of tables and pages. Default: UTC."
_SEVERAL = "Default: item."

READING = (
    Option(
        "--time-unit", INPUT, "Unit of times that are numbers since 1970.", is_daily=True, type=_UNITS, metavar="UNIT"
    ),
    Option("--time-format", INPUT, _FORM, metavar="FORM"),
    Option("--time-zone", INPUT, _ZONE, metavar="ZONE"),
    Option("--csv-separator", INPUT, "Default: a comma, in .tsv a tab.", metavar="CHARACTER"),
)
FIELDS = (
    Option("--user-field", INPUT, "Field with the user.", is_daily=True, default="user", metavar="NAME"),
    Option(
        *("--item-field", INPUT, "Field with the item; several make one label.", _SEVERAL),
        is_daily=True,
        multiple=True,
        metavar="NAME",
    ),
    Option("--time-field", INPUT, "Field with the time.", is_daily=True, default="timestamp", metavar="NAME"),
    *READING,
)
PLAN_FILE = Option(
    *("--plan", BUDGET, "A file of `shh plan`, or the next five."),
    name="plan_file",
    is_daily=True,
    metavar="FILE",
)
ACCOUNT = (
    Option("--ledger", BUDGET, "Keep account over all runs.", is_daily=True, metavar="FILE"),
    Option("--population", BUDGET, "With --ledger: who the users are, e.g. news.", metavar="NAME"),
    Option("--max-epsilon", BUDGET, "With --ledger: the most its users ever lose.", metavar="FLOAT"),
    Option("--max-delta", BUDGET, "With --ledger: but for this probability.", metavar="FLOAT"),
)
STREAM_NAME = Option("--stream", OUTPUT, "Name of the stream in reports.", metavar="NAME", default="events")
TITLES = Option("--titles", OUTPUT, "CSV with the columns item and title.", metavar="FILE.csv")
VERBOSE = Option("--verbose", ENGINE, "Show Beam's log, which may contain cells.", is_flag=True)

NAMED_WITH_KEY = (
    "if both were used again on a log that has changed, both runs would draw the same noise, and the two reports would"
    " show what changed"
)


def fields_of(options: Options, *, are_named: bool = True) -> EventFields:
    """How events are read. are_named: whether the names of the fields count. Raises InputError."""
    from dp_transforms.logs import EventFields  # a plan needs no reader

    names: dict[str, Any] = {}
    if are_named:
        names = {"user": options.user_field, "item": options.item_field or "item", "time": options.time_field}
    separator = options.csv_separator
    return EventFields(
        **names,
        time_unit=options.time_unit,
        time_format=options.time_format,
        time_zone=options.time_zone,
        csv_separator="\t" if separator in ("tab", "\\t") else separator,
    )


def check_account(options: Options) -> None:
    """Raises InputError."""
    check_together(options, "population max_epsilon max_delta", needs="ledger")
    remedy = "Give it too, for example --population news."
    check_together(options, "ledger", needs="population", why="a name for all streams that share users", remedy=remedy)


def check_page(path: str | None, *, replaces: bool = False) -> None:
    """Raises, before any work, for a page of --html that could not be written."""
    if path is not None and not path.lower().endswith(PAGE_ENDINGS):
        raise click.UsageError(f"--html must end in {' or '.join(PAGE_ENDINGS)}, got {path!r}.")
    check_output(path, "--html", replaces=replaces)


def read_titles(path: str | pathlib.Path | None) -> dict[str, str]:
    """Label -> title of a CSV file in UTF-8 whose first line names the columns item and title; others are ignored.

    Of two titles for a label the first counts. None: no titles. Raises UserError, which quotes nothing of the file.
    """
    if path is None:
        return {}
    try:
        data = read_regular(path, _MOST_TITLES_BYTES)
    except OSError as error:
        raise UserError(f"--titles {path} cannot be read: {error.strerror}. Check the path.") from error
    if len(data) > _MOST_TITLES_BYTES:
        raise UserError(
            f"--titles {path} has more than {_MOST_TITLES_BYTES >> 20} MB. Keep the titles that the report needs."
        )
    wanted = f"--titles {path} must be CSV in UTF-8 that names the columns item and title once each in its first line"
    titles: dict[str, str] = {}
    try:
        rows = csv.DictReader(io.StringIO(data.decode("utf-8-sig"), newline=""), strict=True)
        if any((rows.fieldnames or []).count(name) != 1 for name in ("item", "title")):
            raise UserError(f"{wanted}.")
        for row in rows:
            if None in row or None in (row["item"], row["title"]):
                raise UserError(f"{wanted}; line {rows.line_num:,} has too few or too many. Put titles in quotes.")
            titles.setdefault(row["item"], row["title"].strip())
    except (UnicodeDecodeError, csv.Error):
        raise UserError(f"{wanted}. Write it again.") from None
    return titles


@dataclasses.dataclass(frozen=True)
class StateOptions:
    """What a command says of its part.

    path: of the state. noise_key_file: the key of the run. user_field, item_field: of what is read; several of the item
    as `joined_label` has them.
    output: what is published, as it is named in the state. until_seconds: of ``--until``; None for the end of the plan.
    run_id: of ``--run-id``; None: a fresh one for a new run. population: of ``--population``; None without a ledger.
    """

    path: str
    noise_key_file: str
    user_field: str
    item_field: str
    output: str
    until_seconds: int | None = None
    run_id: str | None = None
    population: str | None = None


def check_state_file(state: str, others: Mapping[str, str | None]) -> None:
    """Raises UserError for a ``--state`` that cannot be one. others: further files of the command, by their options."""
    if "://" in state:
        raise InputError(
            "state",
            "must be a path on a disk, got a URL. One process at a time may work on a state, and stores have no lock"
            " that ends with its process.",
            "Logs, plan, report and dead letters may be URLs.",
        )
    if not is_utf8(state):
        raise UserError(f"--state {state}: a name that is not UTF-8 cannot be written. Choose another one.")
    if os.path.islink(state):
        raise UserError(f"--state {state} is a link, not a regular file. Give the path of the file itself.")
    if not os.path.isdir(os.path.dirname(os.path.abspath(state))):
        raise UserError(
            f"--state {state} cannot be written: its folder does not exist. Create it, or name another one."
        )
    remove_dead_drafts(pathlib.Path(state))
    try:
        open_regular(state).close()
    except FileNotFoundError:
        pass  # the first part makes it
    except OSError as error:
        raise UserError(f"--state {state} cannot be read: {error.strerror}. Check the path.") from None
    for option, path in others.items():
        if path is not None and os.path.realpath(path) == os.path.realpath(state):
            raise UserError(f"--state and {option} name the same file. Name two different ones.")
