"""``shh doctor LOG...``: a look at a log without a run."""

from __future__ import annotations

import functools
import itertools
import re
import shlex
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import click
import numpy as np
from click.core import ParameterSource

from dp_transforms.checks import nearest, shown, without_secrets
from dp_transforms.cli.log_sample import ADDRESSES, CLOCKS, ITEMS, USERS, USUAL, WITH_PORTS, Field, flat_command, look
from dp_transforms.cli.operator_log import operator_console
from dp_transforms.cli.options import FIELDS, Command, Options, fields_of, user_errors
from dp_transforms.errors import UserError
from dp_transforms.logs import EventFileError, find_log_chunks
from dp_transforms.logs.discovery import read_log_chunk
from dp_transforms.logs.log_chunk import TIME_UNITS
from dp_transforms.plan.window_schedule import MICROS_PER_SECOND, format_utc
from dp_transforms.stores.files import free_report_name
from dp_transforms.views.report_words import escape_text, label_text

_FOR_THE_OPERATOR = "For you, the operator: no privacy covers what follows, so do not publish it."
_CHECK = (
    "Check the user: the person who is protected. An id of a row, a session or a device protects only that.",
    "Check the item: it is published. Never take names or addresses.",
    "The range is public. Give one that you would give without the log: no noise covers one that is copied from it.",
)
_DAY = 86_400 * MICROS_PER_SECOND
_MOST_ROWS = 10_000_000  # that are read for the range: the end of a longer log is asked
_SAY_NOTHING = {"id", "name", "key", "hash", "nr", "number", "stem", "location"}  # words of names
_USERS = (  # the best first
    "user usr uid, visitor customer member reader viewer listener subscriber player patient buyer person employee"
    " student leser, login username, account email mail actor profile, device cookie browser pseudo anon fingerprint,"
    " ip addr address, session sid visit"
)
_ITEMS = (
    "item, product sku article story movie film video track song book repo, page seite path uri url, title query"
    " keyword content post topic category tag channel link request"
)
_USER_PLACES, _ITEM_PLACES = (
    {word: place for place, words in enumerate(names.split(",")) for word in words.split()}
    for names in (_USERS, _ITEMS)
)
_NO_PLACE = 99
_TIMES = {"time", "timestamp", "ts", "date", "datetime", "day", "at", "created", "epoch", "utc", "zeitpunkt"}
_OTHER_TIMES = {"first", "last", "updated", "modified", "deleted", "ended", "end", "expires", "birth", "registered"}
_LOGS = click.Argument(["logs"], nargs=-1, required=True, metavar="LOG...")


@click.command("doctor", cls=Command, params=[_LOGS, *FIELDS])
def command(options: Options) -> None:
    """Look at a log without a run: which fields and times it has, what is damaged, and how to replay it.

    LOG is what `shh replay` takes. Its first rows say which fields may be user, item and time, unless you name them;
    then it is read, up to ten million rows. What is printed is for the operator alone: no privacy covers it.

    \b
    shh doctor clicks.csv
    """
    with operator_console().status("looking at the log"), user_errors(EventFileError, OSError):
        files, fields, options.csv_separator = look(options.logs, fields_of(options).csv_separator, options.time_format)
        notes = [*_propose(fields, files, options)]
        given = [(each.opts[0], getattr(options, str(each.name)) or ()) for each in FIELDS]
        pairs = [(flag, one) for flag, value in given for one in ((value,) if isinstance(value, str) else value)]
        words, days = [*itertools.chain(*pairs)], ["?", "?"]
        if "?" not in words:
            days = _read(options, notes)
    by_day = any(field.name == options.time_field and not field.fineness for field in fields)
    if by_day and (clocks := [label_text(field.name) for field in fields if field.holds == CLOCKS]):
        notes.append(f"{options.time_field} holds days, the clock is in {', '.join(clocks)}: join both to one time.")
    table = [f"  {label_text(field.name)}: {field.holds}, {len(field.counts):,} different" for field in fields]
    run = ["--start", days[0], "--end", days[1], "--window", "1d" if by_day else "1h"]
    budget = ["--epsilon", "2", "--delta", "1e-9", "--output", free_report_name()]
    parts = map(shlex.join, (["shh", "replay", *options.logs], words, run, budget))
    lines = [_FOR_THE_OPERATOR, "", "The first rows have:", *table, ""]
    lines += [*(f"- {note}" for note in (*notes, *_CHECK)), "", "For a private report, with a range of your own:"]
    lines += ("  " + " \\\n      ".join(parts).replace("'?'", "?")).split("\n")
    click.echo("\n".join(escape_text(without_secrets(line)) for line in lines))
    if "?" in (*words, *days):
        raise UserError("the log cannot be replayed as it is; what is in the way is said above.")


def _propose(fields: Sequence[Field], files: Sequence[str], options: Options) -> Iterator[str]:
    """Sets the options that are not given; to "?" where they must be asked, as nothing names a field or another one is
    as good, and says so. A wrong guess is worse than a question."""
    source = click.get_current_context().get_parameter_source
    roles = [role for role in ("time", "user", "item") if source(f"{role}_field") == ParameterSource.DEFAULT]
    taken = {*options.item_field, options.user_field, options.time_field}
    taken -= {getattr(options, f"{role}_field") for role in roles}
    names = [field.name for field in fields]
    for name in taken.difference(names):
        raise UserError(f"there is no field {shown(name)}{nearest(name, names)}")
    for role in roles:  # the time first: numbers may be ids
        rank = functools.partial(_rank, role)
        weighed = sorted([field for field in fields if rank(field) and field.name not in taken], key=rank)
        best = [field for field in weighed if rank(field) == rank(weighed[0])]
        is_clear = bool(best) and not rank(best[0])[0] and all(field.counts == best[0].counts for field in best)
        name = best[0].name if is_clear else "?"
        taken.add(name)
        if not is_clear:
            yield f"--{role}-field ? (weighed: {', '.join(label_text(each.name) for each in weighed) or 'none'})"
        elif name.startswith("."):
            yield f"{label_text(name)} is inside of an object. Make a flat log, and look at that: {flat_command(files)}"
            name = "?"
        setattr(options, f"{role}_field", (name,) if role == "item" else name)
    time = next((field for field in fields if field.name == options.time_field), None)
    if time and not options.time_format:
        # An order of day, month and year is never guessed.
        is_clear = len(time.forms) == 1 and "%y" not in time.forms[0]
        options.time_format = (time.forms[0] or None) if is_clear else "?"
        forms = " or ".join(map(shlex.quote, time.forms)) or "such as '%d.%m.%Y %H:%M'"
        if not is_clear:
            yield f"--time-format ? ({label_text(time.name)} needs one: {forms})"


def _rank(role: str, field: Field) -> tuple[Any, ...]:
    """The least is the best. Its first part: whether it must be asked. Nothing: it cannot be."""
    spaced = re.sub(r"(?<=[a-z\d])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", " ", field.name)
    words = re.sub(r"[\W\d_]+", " ", spaced).lower().split() or [""]
    words = [re.sub("(?<=...)id$", "", word) for word in words if word not in _SAY_NOTHING] or words
    if role == "time" and field.forms:  # the finest
        is_unnamed, is_other = _TIMES.isdisjoint(words), not _OTHER_TIMES.isdisjoint(words)
        may_be_id = is_unnamed and field.forms[0] in TIME_UNITS  # only its name says that a number is a time
        return may_be_id, field.name.startswith("."), is_other, not field.fineness, is_unnamed, -field.fineness
    if role == "user" and field.holds in USERS:
        place = _USER_PLACES.get("ip" if field.holds in (ADDRESSES, WITH_PORTS) else words[-1], _NO_PLACE)
        is_one = 2 * max(field.counts.values()) >= field.counts.total() >= 50  # which tells nobody apart
        # With ports each connection would be a user.
        return () if is_one else (place == _NO_PLACE or field.holds == WITH_PORTS, place, len(words))
    if role == "item" and field.holds in ITEMS and _USER_PLACES.keys().isdisjoint(words):  # it is published
        place = _ITEM_PLACES.get(words[-1], _NO_PLACE)
        return place == _NO_PLACE, place, len(words), field.name.lower().endswith("id")
    return ()


def _read(options: Options, notes: list[str]) -> list[str]:
    """Reads the log as a run does. Returns the first day of events of 1990 to 2100 and the one after the last, in UTC;
    notes what is wrong with rows, without a cell. Raises EventFileError."""
    reading, rows, reasons, days = fields_of(options), 0, Counter[str](), set[int]()
    chunks = find_log_chunks(options.logs, reading)
    for block in itertools.chain.from_iterable(read_log_chunk(chunk, reading) for chunk in chunks):
        rows += block.rows
        for rejected in block.rejected:
            reasons[rejected.reason] += len(rejected.positions)
        days.update(np.unique(block.batch.time_micros // _DAY).tolist())
        if rows >= _MOST_ROWS:
            break
    notes += [f"{count:,} of {rows:,} rows are left out: {reason}" for reason, count in reasons.items()]
    usual = [day for day in days if day * _DAY in USUAL]
    if not usual:
        return ["?", "?"]
    return [format_utc(min(usual) * _DAY), format_utc((max(usual) + 1) * _DAY) if rows < _MOST_ROWS else "?"]
