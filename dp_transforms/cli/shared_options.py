"""The options that several commands share, as records, and what is made of them: fields of a log; views; one part of a
run, ``--state`` and ``--until``; and where a run is accounted for."""

from __future__ import annotations

import csv
import dataclasses
import datetime
import io
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import click

from dp_transforms.checks import is_utf8
from dp_transforms.cli.options import (
    BUDGET,
    INPUT,
    OUTPUT,
    TIME_ZONE,
    Rule,
    nested,
    opt,
    switch,
)
from dp_transforms.cli.output_file import check_output
from dp_transforms.errors import UserError
from dp_transforms.stores.local_files import open_regular, read_regular, remove_dead_drafts

if TYPE_CHECKING:
    from dp_transforms.logs import EventFields

PAGE_ENDINGS = (".html", ".htm")
_MOST_TITLES_BYTES = 16 << 20  # a title takes about 17 times its bytes


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReadingOptions:
    """How times and cells are read."""

    time_unit: str | None = opt(
        INPUT,
        "Unit of times that are numbers, since 1970 UTC. Not needed for typed times and ISO 8601 text.",
        brief="Of times that are numbers: s, ms or us.",
        type=click.Choice(["s", "ms", "us", "iso"]),
    )
    time_format: str | None = opt(
        INPUT,
        "Form of times that are text and not ISO 8601: %d.%m.%Y %H:%M, %m/%d/%Y %I:%M %p, %d/%b/%Y:%H:%M:%S %z.",
        metavar="FORM",
    )
    time_zone: str | None = opt(
        INPUT,
        "Zone of times that have none, such as Europe/Berlin. Of an hour that occurs twice the first one is"
        " meant; one that is skipped is read with the offset before. Default: UTC.",
        metavar="ZONE",
    )
    csv_separator: str | None = opt(
        INPUT,
        "What separates the cells of CSV files: one character, or tab. Default: a comma, in .tsv a tab.",
        metavar="CHARACTER",
    )

    @property
    def separator(self) -> str | None:
        """The character of --csv-separator."""
        return "\t" if self.csv_separator in ("tab", "\\t") else self.csv_separator

    def fields(
        self,
        user: str = "user",
        item: str | Sequence[str] = "item",
        time: str = "time",
    ) -> EventFields:
        """These fields, read so. Raises InputError."""
        from dp_transforms.logs import EventFields  # a plan needs no reader

        return EventFields(
            user,
            item,
            time,
            self.time_unit,
            time_format=self.time_format,
            time_zone=self.time_zone,
            csv_separator=self.separator,
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class FieldOptions:
    """The names of the fields of an event, and how they are read."""

    user_field: str = opt(
        INPUT, "Name of the field with the user: text or a whole number.", brief="Field with the user.", default="user"
    )
    item_field: tuple[str, ...] = opt(
        INPUT,
        "Name of the field with the item: text or a whole number. Several, each with --item-field, make one label of "
        "their values, such as DE / page. Default: item.",
        brief="Field with the item; several make one label.",
        default=(),
        multiple=True,
        metavar="NAME",
    )
    time_field: str = opt(INPUT, "Name of the field with the time.", brief="Field with the time.", default="timestamp")
    reading: ReadingOptions = nested(ReadingOptions)

    @property
    def items(self) -> tuple[str, ...]:
        """The fields of the item."""
        return self.item_field or ("item",)

    def fields(self) -> EventFields:
        """Raises UserError."""
        return self.reading.fields(self.user_field, self.items, self.time_field)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ViewOptions:
    """How tables and pages name items and times."""

    titles: str | None = opt(
        OUTPUT,
        "What people call the items: CSV with the columns item and title.",
        metavar="FILE.csv",
    )
    page_title: str = opt(OUTPUT, "Title of the page.", metavar="TEXT", default="")
    zone: datetime.tzinfo = opt(
        OUTPUT,
        "Time zone of tables and pages, such as Europe/Berlin. JSON stays in UTC.",
        "--tz",
        type=TIME_ZONE,
        default="UTC",
        metavar="ZONE",
    )

    def read_titles(self) -> dict[str, str]:
        """Label -> title; empty without ``--titles``. Raises UserError."""
        return {} if self.titles is None else read_titles(self.titles)


def force_option() -> bool:
    """The field of a command that writes views."""
    made: bool = switch("", "Replace a page or table that is there.")
    return made


def plan_file_option() -> str | None:
    """The field of a command that takes a plan, or the options of one."""
    made: str | None = opt(
        BUDGET,
        "A plan of `shh plan --output`, in place of the budget options.",
        "--plan",
        brief="A file of `shh plan`.",
        needed="or the next five",
        metavar="FILE",
    )
    return made


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


@dataclasses.dataclass(frozen=True, kw_only=True)
class AccountOptions:
    """Where a run is accounted for."""

    ledger: str | None = opt(
        BUDGET,
        "Keep account over all runs: a run that does not fit is refused before its events are looked at, and"
        " the budget of one that does is reserved before anything is drawn. A file, made by the first run.",
        brief="Keep account over all runs; with --population.",
        metavar="FILE",
    )
    population: str | None = opt(
        BUDGET, "With --ledger: a name for all streams that share users with this one.", metavar="NAME"
    )
    max_epsilon: str | None = opt(
        BUDGET,
        "With --ledger: what users of this population may ever lose in all runs together. Set once.",
        metavar="FLOAT",
    )
    max_delta: str | None = opt(BUDGET, "With --ledger: failure probability of that. Set once.", metavar="FLOAT")


NAMED_WITH_KEY = Rule(
    "--run-id",
    excludes="--noise-key-file",
    why="if both were used again on a log that has changed, both runs would draw the same noise, and the two reports"
    " would show what changed",
    remedy="Leave --run-id out: a fresh one is drawn.",
)
ACCOUNT_RULES = (
    Rule("--population, --max-epsilon, --max-delta", needs="--ledger"),
    Rule(
        "--ledger",
        needs="--population",
        why="a name for all streams that share users with this one",
        remedy="Give it too, for example --population news.",
    ),
)


def check_state_file(state: str, others: Mapping[str, str | None]) -> None:
    """Raises UserError for a ``--state`` that cannot be one. others: further files of the command, by their options."""
    if "://" in state:
        raise UserError(
            "--state must be a path on a disk, got a URL. One process at a time may work on a state, and stores have no"
            " lock that ends with its process. Logs, plan, report and dead letters may be URLs."
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
