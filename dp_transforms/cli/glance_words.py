"""What a glance at a log says, in plain words, and the command that it ends in. No privacy covers it."""

from __future__ import annotations

import datetime
import shlex
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from dp_transforms.cli.field_roles import (
    ADDRESS,
    CLOCKS,
    DEVICE,
    ITEM,
    ROLES,
    SESSION,
    TIME,
    USER,
    Field,
    Times,
    is_private,
    user_candidates,
    user_kind,
)
from dp_transforms.cli.log_glance import LogGlance
from dp_transforms.cli.output_file import free_report_name
from dp_transforms.logs.estimate import OTHER, FileSample
from dp_transforms.logs.text_files import NOT_UTF8_TEXT
from dp_transforms.plan.window_schedule import MICROS_PER_SECOND
from dp_transforms.stores.remote_files import is_remote
from dp_transforms.views.report_words import escape_text, label_text, length_text, local_text

_NOT_PERSONS = {
    DEVICE: "a device: each device or browser of a person gets a budget of its own, so the person is not protected",
    ADDRESS: "an address of the network: a person with several gets a budget for each, so the person is not protected,"
    " and people behind one address share one",
    SESSION: "a session: each session of a person gets a budget of its own, so the person is not protected",
}
FOR_THE_OPERATOR = "For you, the operator: no privacy covers what follows, so do not publish it."
_DAY = 86_400
_WINDOWS = ((42 * _DAY, 3600), (1100 * _DAY, _DAY))  # up to such a range: the proposed length
_FLAGS = {USER: ("--user-field", "user"), ITEM: ("--item-field", "item"), TIME: ("--time-field", "timestamp")}
_BUDGET = ("--epsilon", "2", "--delta", "1e-9")
_MOST_FIELDS, _MOST_FAULTS = 40, 10
_FORMATS = {"parquet": "Parquet", "avro": "Avro", "csv": "CSV", "json": "JSON lines"}
WHY_DECLARED = (
    "Why the range must be declared: a plan and a report are public, and --start and --end are in them. Copied from the"
    " data they would say when the first and the last event were, which are events of two people, and no noise covers"
    " that. So give the range that you would give without the log, such as the month that was collected. For a trial of"
    " your own it does not matter."
)


class Proposal(NamedTuple):
    """A range of whole days, and how long its windows are; in seconds. offset: of the days from UTC."""

    start: int
    end: int
    window: int
    offset: int = 0

    def as_texts(self) -> tuple[str, str]:
        """The range, in ISO 8601."""
        zone = datetime.timezone(datetime.timedelta(seconds=self.offset))
        start, end = (datetime.datetime.fromtimestamp(at, zone).isoformat() for at in (self.start, self.end))
        return start.replace("+00:00", "Z"), end.replace("+00:00", "Z")


def proposal_of(glance: LogGlance) -> Proposal | None:
    """Whole days around the times that were seen; None without any."""
    if glance.low is None or glance.high is None:
        return None
    offset = glance.offset_seconds
    low, high = (at // MICROS_PER_SECOND + offset for at in (glance.low, glance.high))
    start, end = low // _DAY * _DAY - offset, (high // _DAY + 1) * _DAY - offset
    window = next((length for most, length in _WINDOWS if end - start <= most), 7 * _DAY)
    return Proposal(start, end, max(window, _DAY) if glance.are_days else window, offset)


def field_words(glance: LogGlance) -> list[str]:
    """The options that say how the log is read; none for what is the default."""
    words = []
    for role, (flag, default) in _FLAGS.items():
        name = glance.chosen.get(role, default)
        words += [] if name == default else [flag, name]
    separator = "tab" if glance.separator == "\t" else glance.separator
    for flag, value in (
        ("--time-unit", glance.unit),
        ("--time-format", glance.time_format),
        ("--time-zone", glance.time_zone),
        ("--csv-separator", separator),
    ):
        words += [] if value is None else [flag, value]
    return words


def replay_command(logs: Sequence[str], fields: Sequence[str], proposal: Proposal) -> str:
    """For a shell, on several lines."""
    named = [f"./{log}" if log.startswith("-") else log for log in logs]
    output = ["--output", free_report_name()]
    start, end = proposal.as_texts()
    budget = ["--window", length_text(proposal.window * MICROS_PER_SECOND), *_BUDGET]
    lines = [["shh", "replay", *named], list(fields), ["--start", start, "--end", end], budget, output]
    return " \\\n      ".join(shlex.join(line) for line in lines if line)


def wrapped(line: str, width: int | None) -> str:
    """Cut between words for a terminal of this width; None: for a program, which gets it whole. Commands stay whole."""
    if width is None or "\n" in line:
        return line
    indent = " " * (len(line) - len(line.lstrip(" -")))
    return textwrap.fill(line, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def log_lines(glance: LogGlance, ascii_only: bool) -> Iterator[str]:
    """The files and their fields."""
    sample = glance.sample
    if len(sample.samples) == 1 and sample.files == 1:
        yield _file_line(sample.samples[0], sample.size)
    else:
        looked_at = len(sample.samples) + len(sample.faults)
        rows = sum(each.looked_at for each in sample.samples)
        formats = ", ".join(sorted({_FORMATS[each.format] for each in sample.samples}))
        which = "all of them" if looked_at == sample.files else f"the first and the last {looked_at // 2} by name"
        yield (
            f"{sample.files:,} files ({formats}), {_size(sample.size)}."
            f" Looked at {rows:,} rows of {looked_at} ({which})."
        )
    if any(is_remote(each.path) for each in sample.samples):
        yield "They are in an object store: only some ranges of them were read."
    if folders := list(_partitions_of(each.path for each in sample.samples)):
        names = ", ".join(label_text(name, ascii_only) for name in folders)
        yield f"Their folders are partitions by {names}: that is part of the path, and no field of an event."
    yield ""
    if not glance.has_rows:
        yield "There is no row in them."
        return
    table = [("field", "holds", "different", "empty")]
    for field in glance.fields[:_MOST_FIELDS]:
        counts = (f"{field.different:,}", f"{field.empty:,}") if field.rows else ("", "")
        table.append((label_text(field.name, ascii_only), _kind(field), *counts))
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for name, kind, different, empty in table:
        cells = (name.ljust(widths[0]), kind.ljust(widths[1]), different.rjust(widths[2]), empty.rjust(widths[3]))
        yield "  " + "   ".join(cells).rstrip()
    if len(glance.fields) > _MOST_FIELDS:
        yield f"  and {len(glance.fields) - _MOST_FIELDS} more"


def choice_lines(glance: LogGlance, ascii_only: bool) -> Iterator[str]:
    """Which field has which role, and how time is read."""
    for role in ROLES:
        name, flag = glance.chosen.get(role), _FLAGS[role][0]
        if name is None:
            none = "none was found" if role != ITEM else "no field looks like an item"
            yield f"  {role}   {none}: name it with {flag}{'; items are published' if role == ITEM else ''}"
            continue
        doubt = "   (a guess: its name does not say so)" if role in glance.guessed else ""
        found = glance.field(role)
        how = f"   {_how(found.times, glance.time_zone)}" if role == TIME and found is not None and found.times else ""
        yield f"  {role}   {flag} {label_text(name, ascii_only)}{how}{doubt}"


def fault_lines(glance: LogGlance, ascii_only: bool) -> list[str]:
    """What stands in the way of a replay, or may be wrong. Holds no cell."""
    faults = list(_faults_of_files(glance, ascii_only))
    if glance.has_rows:
        faults += _faults_of_user(glance, ascii_only)
        for role in ROLES:
            if (name := glance.chosen.get(role)) is not None:
                faults += _faults_of_field(glance, role, label_text(name, ascii_only), ascii_only)
    if glance.odd_times:
        faults.append(f"{glance.odd_times:,} rows have times before 1990 or after 2100: is the unit right?")
    left_out = len(faults) - _MOST_FAULTS
    return [*faults[:_MOST_FAULTS], f"and {left_out} more of this kind."] if left_out > 0 else faults


def _faults_of_files(glance: LogGlance, ascii_only: bool) -> Iterator[str]:
    for error in glance.sample.faults:
        yield escape_text(str(error), ascii_only)
    for sample in glance.sample.samples:
        path = escape_text(sample.path, ascii_only)
        for reason, count in sample.broken.items():
            remedy = " Write cells without line ends." if reason.startswith("quote") else ""
            of_file = f"of {sample.looked_at:,} rows that were looked at are broken"
            yield f"{path}: {count:,} {of_file}: {reason}.{remedy}"
        if sample.not_utf8:
            what = f"in {sample.not_utf8:,} of the lines that were looked at"
            yield f"{path}: {what} {NOT_UTF8_TEXT}. Else such ids are left out."
    for other in glance.differing:
        yield (
            f"{escape_text(other, ascii_only)}: it has other fields than the first file, or another separator. Replay"
            " such files by themselves."
        )


def _faults_of_user(glance: LogGlance, ascii_only: bool) -> Iterator[str]:
    """Whether the user is a person."""
    user, name, candidates = glance.field(USER), glance.chosen.get(USER), user_candidates(glance.fields)
    label = "" if name is None else label_text(name, ascii_only)
    kind = None if user is None else user_kind(user)
    if all(user_kind(field) in _NOT_PERSONS for field in candidates) and (kind is None or kind in _NOT_PERSONS):
        guess = "" if user is None else f": {label} is what is left" if USER in glance.guessed else f", {label} neither"
        yield f"no field looks like a person{guess}. The guarantee protects what --user-field names, no more."
    if kind in _NOT_PERSONS:
        yield f"{label} seems to be {_NOT_PERSONS[kind]}."
    others = [label_text(field.name, ascii_only) for field in candidates if field is not user]
    if user is not None and others:
        yield (
            f"besides {label} the user could be {', '.join(others)}. Name the one that a person keeps: --user-field. A"
            " session or a device as the user protects only that, since each one gets a budget of its own."
        )


def _faults_of_field(glance: LogGlance, role: str, label: str, ascii_only: bool) -> Iterator[str]:
    field = glance.field(role)
    if field is None:
        yield f"there is no field {label}."
        return
    if role == TIME:
        yield from _faults_of_times(glance, field, label)
    elif not field.may_be_id:
        yield f"{label} holds {_kind(field)}; a {role} must be text or a whole number. Convert it."
    if role == ITEM and is_private(field):
        what = f"holds {field.holds}" if field.holds else "is named like an address, a token or a person"
        yield f"{label} {what}: items are published, so choose another field."
    if role == ITEM and glance.shared > 1:
        yield (
            f"{glance.shared:,} values of {label} are also values of {label_text(glance.chosen[USER], ascii_only)}: if"
            " both are people, choose another item, since items are published. (Numbers may be alike by chance.)"
        )
    if field.empty:
        yield f"{label}: {field.empty:,} of {field.rows:,} rows have no {role}; such rows are left out."
    if role != TIME and field.rows >= 50 and field.different >= 0.98 * field.rows:
        what = (
            "is it the id of a row? Then nobody is protected: the guarantee is for one user with all of its events"
            if role == USER
            else "then nothing is held by many. Perhaps there is a coarser field, such as a page in place of a link"
        )
        yield f"{label} differs in nearly every row: {what}."


def _faults_of_times(glance: LogGlance, field: Field, label: str) -> Iterator[str]:
    found = field.times
    if found is None:
        if field.has_nanoseconds:
            yield f"{label} seems to count nanoseconds, which have no unit here. Convert them to microseconds."
        elif field.are_other_dates:
            yield (
                f"{label} looks like times, but not in a form that is known here. Say it with --time-format, such as"
                " '%d.%m.%Y %H:%M' (docs/formats.md)."
            )
        else:
            yield f"{label} cannot be read as times. They must be typed, ISO 8601 text, or numbers in s, ms or us."
        return
    if found.other_format:
        first, other = (shlex.quote(str(form)) for form in (found.time_format, found.other_format))
        yield f"{label}: day and month cannot be told apart. If it is not --time-format {first}, it is {other}."
    if glance.are_days and any(other.holds == CLOCKS for other in glance.fields):
        yield f"{label} holds days, and the clock is in another field: join both, or take windows of days."
    if found.unread:
        yield f"{label}: {found.unread:,} of {field.rows:,} values are no times; such rows are left out."


def range_lines(glance: LogGlance, proposal: Proposal, ascii_only: bool) -> list[str]:
    """When the events are, and why this must not simply be copied."""
    assert glance.low is not None
    assert glance.high is not None
    is_all = glance.sample.files == len(glance.sample.samples) and all(
        each.is_whole or _states_times(each, glance.chosen[TIME]) for each in glance.sample.samples
    )
    seen = "The events are from" if is_all else "The events that were looked at are from"
    low, high = (local_text(micros, glance.zone)[:16] for micros in (glance.low, glance.high))
    start, end = (text[:10] for text in proposal.as_texts())
    zone = glance.time_zone or "UTC"
    hold = "hold them" if is_all else "hold what was seen"
    lines = [f"{seen} {low} to {high} {zone}, so the days {start} .. {end} (exclusive) {hold}."]
    unseen = [
        each.path
        for each in glance.sample.samples
        if not each.sees_end and not _states_times(each, glance.chosen[TIME])
    ]
    if unseen:
        more = f" and of {len(unseen) - 1:,} more" if len(unseen) > 1 else ""
        lines.append(
            f"The end was not seen of {escape_text(unseen[0], ascii_only)}{more}: if its events go on after {high}"
            f" {zone}, --end must be later, or they are left out."
        )
    return [*lines, WHY_DECLARED]


def _states_times(sample: FileSample, name: str) -> bool:
    return any(field.bounds for field in sample.fields if field.name == name)


def _file_line(sample: FileSample, size: int) -> str:
    rows = "" if sample.rows is None else f", {sample.rows:,} rows"
    which = "all of them" if sample.is_whole else f"at its beginning{' and end' if sample.sees_end else ''}"
    what = f"{escape_text(sample.path)}: {_FORMATS[sample.format]}, {_size(size)}{rows}."
    return f"{what} Looked at {sample.looked_at:,} rows ({which})."


def _kind(field: Field) -> str:
    if field.kind == OTHER:
        return "nothing" if field.rows and field.empty == field.rows else "lists, objects or several kinds of values"
    if field.times is not None and field.times.zone != "typed":
        return "text, times"
    return field.kind


def _how(found: Times, time_zone: str | None) -> str:
    if found.time_format is not None:
        return f"--time-format {shlex.quote(found.time_format)}   {_zone_words(found.zone, time_zone)}"
    if found.unit is not None and found.unit != "iso":
        return f"--time-unit {found.unit}   (numbers that count {found.unit} since 1970 UTC)"
    return _zone_words(found.zone, time_zone)


def _zone_words(zone: str, time_zone: str | None) -> str:
    read_as = f"read as of {time_zone}" if time_zone else "read as UTC"
    local = "" if time_zone else "; if it is local time, look again with --time-zone, such as Europe/Berlin"
    return {
        "all": "(text with a zone)",
        "some": f"(text; some with a zone, the others are {read_as}{local})",
        "none": f"(text without a zone: it is {read_as}{local})",
        "typed": f"(it has its own unit; without a zone it is {read_as if time_zone else 'UTC'})",
    }[zone]


def _size(size: int) -> str:
    for unit, factor in (("GB", 10**9), ("MB", 10**6), ("KB", 10**3)):
        if size >= factor:
            return f"{size / factor:.1f} {unit}"
    return f"{size} bytes"


def _partitions_of(paths: Iterable[str]) -> Iterator[str]:
    """Names of folders such as ``date=2026-01-01``, each once."""
    found = dict.fromkeys(
        folder.partition("=")[0] for path in paths for folder in path.split("/")[:-1] if "=" in folder.strip("=")
    )
    yield from found
