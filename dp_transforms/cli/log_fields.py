"""Which field of a log may be the user, the item and the time: by type, a short list of names, and values.

Where that does not decide, nothing is proposed: a wrong guess is worse than a question. Items are published, so what is
named like a user, an address or an e-mail is never proposed as one.
"""

from __future__ import annotations

import contextlib
import datetime
import re
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from dp_transforms.cli.log_sample import ADDRESS
from dp_transforms.errors import InputError
from dp_transforms.logs.log_chunk import TIME_UNITS
from dp_transforms.logs.times import parse_values

TEXT, WHOLE, TIMES, CLOCKS, OTHER = "text", "whole numbers", "times", "clock times", "other values"
ADDRESSES, WITH_PORTS, EMAILS = "addresses", "addresses with ports", "e-mail addresses"
_KINDS = {str: TEXT, uuid.UUID: TEXT, int: WHOLE, float: "numbers", datetime.time: CLOCKS}
_KINDS |= {datetime.datetime: TIMES, datetime.date: TIMES}
_SHAPES = {  # of nearly all texts of a field
    CLOCKS: r"\d{1,2}:\d{2}(:\d{2}([.,]\d+)?)?( ?[ap]\.?m\.?)?",
    WITH_PORTS: r"\d{1,3}(\.\d{1,3}){3}:\d{1,5}|\[[\da-f:.]+\]:\d{1,5}",
    ADDRESSES: ADDRESS,
    EMAILS: r"[^@\s]+@[^@\s]+\.[^@\s]+",
}
_LONG = 200  # characters: no time or address has so many, and a hostile cell may have a million
_ENOUGH_ROWS = 50  # to say that most have the same value, or each another one

_ENDINGS = {"id", "name", "key", "hash", "nr", "number", "stem", "location"}  # of names, which say nothing
_USERS = (  # the best first
    "user usr uid",
    "visitor customer member reader viewer listener subscriber player patient buyer person employee student leser",
    "login username",
    "account email mail actor profile",
    "device cookie browser pseudo anon anonymous fingerprint",
    "ip addr address",
    "session sid visit",
)
_ITEMS = (  # the best first
    "item product sku article story movie film video track song book repo page seite title path uri url query keyword"
    " content post topic category tag channel link request"
)
_USER_KINDS = {word: kind for kind, words in enumerate(_USERS) for word in words.split()}
_ITEM_KINDS = {word: kind for kind, word in enumerate(_ITEMS.split())}
_TIME_WORDS = {"time", "timestamp", "ts", "date", "datetime", "day", "at", "created", "epoch", "utc", "zeitpunkt"}
_OTHER_TIMES = {"first", "last", "updated", "modified", "deleted", "ended", "end", "expires", "birth", "registered"}
_PARTS = (  # of the text of a time, besides numbers
    (r"(:\d\d(?:[.,]\d+)?)( ?)([+-]\d\d:?\d\d|Z|UTC|GMT)(?=\]?$)", r"\1\2%z"),
    (r"[AaPp]\.?[Mm]\.?$", "%p"),
    (r"\b(Mon|Tue|Wed|Thu|Fri|Sat|Sun)\b", "%a"),
    (r"\b[A-Za-z]{3}\b", "%b"),
    (r"[A-Za-z]{4,}", "%B"),
)
EARLIEST, LATEST = 631_152_000_000_000, 4_102_444_800_000_000  # 1990 and 2100: so a number has one unit


class Field(NamedTuple):
    """A field of all rows.

    words: of its name, at least one. holds: the kind of its values, or the shape of its texts. counts: of its values.
    rows: how many there are. forms: what --time-format is to say, "" for nothing; several if only the order of day,
    month and year tells them apart; none unless most values are times. fineness: of these times, 0 for days, 1 for
    minutes, 2 for seconds, 3 for less.
    """

    name: str
    words: list[str]
    holds: str
    counts: Counter[Any]
    rows: int
    forms: list[str]
    fineness: int

    @property
    def is_doubtful(self) -> bool:
        """Whether the form of its times must be asked: that order is never guessed."""
        return len(self.forms) != 1 or "%y" in self.forms[0]


def fields_of_rows(rows: Sequence[Mapping[str, Any]], form: str | None) -> list[Field]:
    """Those that half of the rows have: other names may be cells, of objects that are keyed by user. form: of times, if
    it is declared."""
    counted = Counter(name for row in rows for name in row)
    names = [name for name, count in counted.items() if 2 * count >= len(rows)]
    return [_field(name, [row.get(name) for row in rows], form) for name in names]


def _field(name: str, cells: Sequence[Any], form: str | None) -> Field:
    spaced = re.sub(r"(?<=[a-z\d])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", " ", name)
    words = re.sub(r"[\W\d_]+", " ", spaced).lower().split() or [""]
    words = [re.sub("(?<=...)id$", "", word) for word in words if word not in _ENDINGS] or words
    values = [cell for cell in cells if cell is not None and cell != ""]
    kinds = {_KINDS.get(type(value), OTHER) for value in values}
    holds = kinds.pop() if len(kinds) == 1 else TEXT if kinds == {TEXT, WHOLE} else OTHER
    if holds == OTHER:
        return Field(name, words, holds, Counter(), len(cells), [], 0)
    for shape, pattern in _SHAPES.items() if holds == TEXT else ():
        alike = sum(bool(re.fullmatch(pattern, str(value)[:_LONG], re.IGNORECASE)) for value in values)
        holds = shape if alike >= 0.9 * len(values) else holds
    forms, fineness = ([], 0) if holds in _SHAPES else _times(values, form)
    # Numbers may be ids: only their name says that they are times.
    if forms and (forms[0] not in TIME_UNITS or not _TIME_WORDS.isdisjoint(words)):
        holds = TIMES
    return Field(name, words, holds, Counter(values), len(cells), forms, fineness)


def _times(values: Sequence[Any], declared: str | None) -> tuple[list[str], int]:
    """Forms and fineness of a field: by the parser of runs, in the declared form or those that fit best."""
    likely = [declared] if declared else ["", "s", "ms", "us", "%Y%m%d", *_likely_forms(str(values[0])[:_LONG])]
    found: dict[bytes, tuple[float, str]] = {}  # what is read -> which part of it is times, and by which form
    for form in likely:
        with contextlib.suppress(InputError):
            micros = parse_values(values, *((form, None) if form in TIME_UNITS else (None, form or None))).micros
            found.setdefault(micros.tobytes(), (((micros >= EARLIEST) & (micros < LATEST)).mean(), form))
    most = max(part for part, _ in found.values())
    best = {data: form for data, (part, form) in found.items() if part == most > 0.5}
    micros = np.frombuffer(next(iter(best), b""), np.int64)
    return [*best.values()], sum(bool((micros % size).any()) for size in (86_400_000_000, 60_000_000, 1_000_000))


def _likely_forms(text: str) -> Iterator[str]:
    """A date and perhaps a clock, in each usual order of day, month and year. Some are no forms of times."""
    for part, directive in _PARTS:
        text = re.sub(part, directive, text)
    begin, *rest = re.split(r"\d+", text)
    for order in ("dmY", "mdY", "Ymd", "dmy", "mdy", "ymd"):
        letters = order.replace("m", "") if "%b" in text.lower() else order
        letters += "IMS" if "%p" in text else "HMSf"
        yield begin + "".join(f"%{letter}{part}" for letter, part in zip(letters, rest, strict=False))


Choice = tuple[Field | None, list[Field]]  # None where it must be asked; the fields that were weighed, likeliest first


def choose(role: str, fields: Sequence[Field]) -> Choice:
    """The first one by rank, unless nothing names it, or another one is as good."""
    rank = {"user": _rank_as_user, "item": _rank_as_item, "time": _rank_as_time}[role]
    found = sorted(filter(rank, fields), key=rank)
    rivals = [field for field in found[1:] if rank(field) == rank(found[0]) and field.counts != found[0].counts]
    return found[0] if found and not rivals and not rank(found[0])[0] else None, found


# The least is the best. The first part: whether it must be asked. Nothing: it cannot be.


def _rank_as_user(field: Field) -> tuple[Any, ...]:
    """Not what has one value in most rows, which tells nobody apart."""
    is_address = field.holds in (ADDRESSES, WITH_PORTS)
    is_one = field.rows >= _ENOUGH_ROWS and 2 * max(field.counts.values(), default=0) >= field.rows
    if is_one or not (is_address or field.holds in (TEXT, WHOLE, EMAILS)):
        return ()
    kind = _USER_KINDS["ip"] if is_address else _USER_KINDS.get(field.words[-1])
    return kind is None, kind or 0, field.holds == WITH_PORTS, len(field.words)


def _rank_as_item(field: Field) -> tuple[Any, ...]:
    """Not what says who somebody is, nor what differs in each row: nothing is held by many there."""
    if field.holds not in (TEXT, WHOLE) or not _USER_KINDS.keys().isdisjoint(field.words):
        return ()
    kind, differ = _ITEM_KINDS.get(field.words[-1]), len(field.counts)
    is_row_id = field.rows >= _ENOUGH_ROWS and differ >= 0.98 * field.rows
    return kind is None or is_row_id, differ < 2, kind or 0, len(field.words), field.name.lower().endswith("id")


def _rank_as_time(field: Field) -> tuple[Any, ...]:
    """The finest one. What is named for another time than that of the event is the last resort."""
    if not field.forms:
        return ()
    is_other, is_named = (not words.isdisjoint(field.words) for words in (_OTHER_TIMES, _TIME_WORDS))
    is_nested, fineness = field.name.startswith("."), field.fineness
    return field.holds != TIMES, is_nested, is_other, not fineness, not is_named, -fineness
