"""``shh doctor LOG...``: a look at a log without a run."""

from __future__ import annotations

import itertools
import json
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import click
from click.core import ParameterSource

from dp_transforms.checks import nearest, shown, without_secrets
from dp_transforms.cli.log_fields import CLOCKS, EARLIEST, LATEST, WITH_PORTS, Choice, Field, choose, fields_of_rows
from dp_transforms.cli.log_sample import sample_log, unpacked
from dp_transforms.cli.operator_log import operator_console
from dp_transforms.cli.options import FIELDS, Command, Options, fields_of, user_errors
from dp_transforms.errors import UserError
from dp_transforms.logs import EventFields, EventFileError, find_log_chunks
from dp_transforms.logs.discovery import format_of_log, read_log_chunk
from dp_transforms.plan.window_schedule import MICROS_PER_SECOND, format_utc
from dp_transforms.stores.output_file import free_report_name
from dp_transforms.views.report_words import escape_text, label_text

FOR_THE_OPERATOR = "For you, the operator: no privacy covers what follows, so do not publish it."
_CHECK = (
    "The user must be the person who is protected: an id of a row, a session, a device or an address protects only"
    " that. Items are published: never take names or addresses. Times without a zone are UTC, or of --time-zone.",
    "The range is public. Copied from the data it would say when two people had the first and the last event, which no"
    " noise covers. So give one that you would give without the log.",
)
_ROLES = ("user", "item", "time")
_MOST_SHOWN = 40
_DAY = 86_400 * MICROS_PER_SECOND
_MOST_ROWS = 10_000_000  # that are read for the range: the end of a longer log is asked
_LOGS = click.Argument(["logs"], nargs=-1, required=True, metavar="LOG...")


@click.command("doctor", cls=Command, params=[_LOGS, *FIELDS])
def command(options: Options) -> None:
    """Look at a log without a run: which fields and times it has, what is damaged, and how to replay it.

    LOG is what `shh replay` takes. Its first rows say which fields may be user, item and time, unless you name them;
    then it is read, up to ten million rows. What is printed is for the operator alone: no privacy covers it.

    \b
    shh doctor clicks.csv
    """
    declared = fields_of(options)
    with operator_console().status("looking at the log"), user_errors(EventFileError, OSError, EOFError):
        files, rows, separator = sample_log(options.logs, declared.csv_separator)
        fields = fields_of_rows(rows, options.time_format)
        choices = _choices(fields, declared)
        words, notes, days = _words(choices, options, separator), [*_notes(fields, choices, declared)], ["?", "?"]
        nested = [label_text(field.name) for field, _ in choices.values() if field and field.name.startswith(".")]
        if "?" not in words and not nested:
            with command.make_context("doctor", [*words, "--", *options.logs]) as context:
                days = _read(options.logs, fields_of(Options(**context.params)), notes)
    wide = max((len(label_text(field.name)) for field in fields), default=0)
    table = [f"  {label_text(field.name):{wide}}   {field.holds}, {len(field.counts):,} different" for field in fields]
    lines = [FOR_THE_OPERATOR, "", f"{len(rows):,} rows of {len(files):,} files have:", *table[:_MOST_SHOWN], ""]
    lines += [*(f"- {note}" for note in (*notes, *_CHECK)), ""]
    if nested:
        lines += [f"{', '.join(nested)}: inside of objects. Make a flat log, and look at that:", f"  {_flat(files)}"]
    else:
        time, _ = choices["time"]
        window = "1d" if time and time.forms and not time.fineness else "1h"
        parts = [["shh", "replay", *options.logs], words, ["--start", days[0], "--end", days[1], "--window", window]]
        parts.append(["--epsilon", "2", "--delta", "1e-9", "--output", free_report_name()])
        text = " \\\n      ".join(shlex.join(part) for part in parts).replace("'?'", "?")
        lines += ["For a private report, with a range of your own:", *f"  {text}".split("\n")]
    click.echo("\n".join(escape_text(without_secrets(line)) for line in lines))
    if nested or "?" in (*words, *days):
        raise UserError("the log cannot be replayed as it is; what is in the way is said above.")


def _choices(fields: Sequence[Field], declared: EventFields) -> dict[str, Choice]:
    """The field of each role that is named, or is proposed. The time first: numbers may be ids."""
    source = click.get_current_context().get_parameter_source
    choices: dict[str, Choice] = {}
    for role, name in zip(_ROLES, declared.names, strict=False):
        if source(f"{role}_field") != ParameterSource.DEFAULT:
            named = [field for field in fields if field.name == name]
            if not named:
                raise UserError(f"there is no field {shown(name)}{nearest(name, [field.name for field in fields])}")
            choices[role] = named[0], named
    for role in ("time", "user", "item"):
        taken = [field.name for field, _ in choices.values() if field]
        choices.setdefault(role, choose(role, [field for field in fields if field.name not in taken]))
    return {role: choices[role] for role in _ROLES}


def _words(choices: Mapping[str, Choice], options: Options, separator: str | None) -> list[str]:
    """How the log is read, as words of a command."""
    words: list[str] = []
    for role, (field, _) in choices.items():
        more = options.item_field[1:] if role == "item" else ()
        words += [word for name in (field.name if field else "?", *more) for word in (f"--{role}-field", name)]
    time, _ = choices["time"]
    form = options.time_format or (time and ("?" if time.is_doubtful else time.forms[0]))
    separator = "tab" if separator == "\t" else separator
    for flag, value in (("--time-format", form), ("--time-zone", options.time_zone), ("--csv-separator", separator)):
        words += [flag, value] if value else []
    return words


def _notes(fields: Sequence[Field], choices: Mapping[str, Choice], declared: EventFields) -> Iterator[str]:
    """What is asked, and what is wrong with fields. Holds no cell."""
    for role, (field, weighed) in choices.items():
        if field is None:
            names = ", ".join(label_text(each.name) for each in weighed[:_MOST_SHOWN])
            yield f"--{role}-field ? (weighed: {names or 'none'})"
    (user, _), (time, _) = choices["user"], choices["time"]
    if user and user.holds == WITH_PORTS:
        yield f"{label_text(user.name)} holds {WITH_PORTS}: each connection would be a user. Cut the ports off."
    if time and time.is_doubtful and not (declared.time_format or declared.time_unit):
        forms = " or ".join(map(shlex.quote, time.forms)) or "such as '%d.%m.%Y %H:%M'"
        yield f"--time-format ? ({label_text(time.name)} needs one: {forms})"
    clocks = ", ".join(label_text(field.name) for field in fields if field.holds == CLOCKS)
    if clocks and time and time.forms and not time.fineness:
        yield f"{label_text(time.name)} holds days, and the clock is in {clocks}: join both to one time."


def _read(logs: Sequence[str], reading: EventFields, notes: list[str]) -> list[str]:
    """Reads the log as a run does. Returns the first day of events of 1990 to 2100 and the one after the last, in UTC;
    notes what is wrong with rows, without a cell. Raises EventFileError."""
    rows, reasons, bounds = 0, Counter[str](), list[int]()
    chunks = find_log_chunks(logs, reading)
    for block in itertools.chain.from_iterable(read_log_chunk(chunk, reading) for chunk in chunks):
        rows += block.rows
        for rejected in block.rejected:
            reasons[rejected.reason] += len(rejected.positions)
        micros = block.batch.time_micros
        usual = micros[(micros >= EARLIEST) & (micros < LATEST)]
        bounds += [int(usual.min()), int(usual.max())] if len(usual) else []
        if rows >= _MOST_ROWS:
            break
    notes += [f"{count:,} of {rows:,} rows are left out: {reason}" for reason, count in reasons.items()]
    if not bounds:
        return ["?", "?"]
    begin, end = (format_utc(day * _DAY) for day in (min(bounds) // _DAY, max(bounds) // _DAY + 1))
    return [begin, end if rows < _MOST_ROWS else "?"]


def _flat(files: Sequence[str]) -> str:
    """The command that makes a log whose fields are not inside of objects, and looks at it."""
    log_format = format_of_log(files[0])
    if log_format == "parquet":
        program = f'pq.write_table(pq.read_table({json.dumps(files)}).flatten().flatten(), "flat.parquet")'
        return f"python -c {shlex.quote(f'import pyarrow.parquet as pq; {program}')} && shh doctor flat.parquet"
    read = unpacked(*files) if log_format == "json" else f"fastavro {shlex.join(files)}"
    program = '[paths(scalars) as $path | {($path | join(".")): getpath($path)}] | add'
    return f"{read} | jq -c {shlex.quote(program)} > flat.jsonl && shh doctor flat.jsonl"
