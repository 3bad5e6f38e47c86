"""What the fields of a log hold, and which may be user, item and time: by type, a short list of names, and values.

Where that does not decide, nothing is proposed: a wrong guess is worse than a question. The user is a person before an
account, a device, an address of the network and a session: what is protected is one user with all of its events. Items
are published, so an item is never an address, an e-mail, a person or a token.
"""

from __future__ import annotations

import datetime
import itertools
import re
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from dp_transforms.cli.log_sample import IP_ADDRESS
from dp_transforms.logs import time_formats, times

Path = tuple[str, ...]  # the name of a field; of one inside of objects, all names from the outermost on
Reading = tuple[str | None, str | None, str | None]  # unit, form and zone of times, of `EventFields`

TEXT, WHOLE, NUMBER = "text", "whole number", "number"
NOTHING, OTHER = "nothing", "lists, objects or several kinds of values"
_KINDS = {str: TEXT, uuid.UUID: TEXT, int: WHOLE, float: NUMBER, datetime.datetime: "timestamp", datetime.date: "date"}
_SHAPES = {  # of texts
    "clock times": r"\d{1,2}:\d{2}(?::\d{2}(?:[.,]\d+)?)?(?: ?[ap]\.?m\.?)?",
    "addresses with ports": r"\d{1,3}(?:\.\d{1,3}){3}:\d{1,5}|\[[\da-f:.]+\]:\d{1,5}",
    "addresses of the network": rf"(?:{IP_ADDRESS})(?:/\d+)?|(?:[\da-f]{{2}}[:-]){{5}}[\da-f]{{2}}",
    "e-mail addresses": r"[^@\s]+@[^@\s]+\.[^@\s]+",
    "tokens": r"[\da-f]{8}-?(?:[\da-f]{4}-?){3}[\da-f]{12}|[\da-f]{16,}",
}
CLOCKS, WITH_PORTS, ADDRESSES, EMAILS, TOKENS = _SHAPES
_IDS = (TEXT, WHOLE, *_SHAPES)
_DEPTH, _MOST_FIELDS = 3, 200
_LONG = 200  # characters: no time or address has so many, and a hostile cell may have a million
_ENOUGH_ROWS = 50  # to say that a field has the same value in most of them, or another one in each

# What the last word of a name says, without its ending: a client_ip is an address, and a user_agent is no user.
_ENDINGS = {"id", "name", "key", "hash", "nr", "number", "stem", "location"}
_PLAIN = {"user", "usr", "uid"}
_PERSONS = (
    "visitor|customer|member|reader|viewer|listener|subscriber|player|patient|buyer|person|employee|student|leser"
)
_USERS = {  # the likeliest first
    "person": {*_PLAIN, *_PERSONS.split("|")},
    "account": {"account", "login", "username", "email", "mail", "actor", "profile"},
    "device": {"device", "cookie", "browser", "pseudo", "anon", "anonymous", "fingerprint"},
    "address": {"ip", "addr", "address"},
    "session": {"session", "sid", "visit"},
}
_, ACCOUNT, DEVICE, ADDRESS, SESSION = _USERS
_SERVERS = {"s", "server", "service", "upstream", "backend", "destination"}  # whose addresses are no users
_ORDER = (  # the first one of these that a log has is proposed as the item
    "item|product|sku|article|story|movie|film|video|track|song|book|repo|page|seite|title|path|uri|url|query|keyword"
    "|content|post|topic|category|tag|channel|link|request"
)
_ITEMS = _ORDER.split("|")
_TIMES = {"time", "timestamp", "ts", "date", "datetime", "day", "at", "when", "created", "epoch", "utc", "zeitpunkt"}
_OTHERS = (  # words of other times than that of the event
    "first|last|updated|modified|deleted|ended|end|until|expires|expiry|birth|registered|released|published|joined"
    "|processed|ingest|upload|user|customer|session"
)
_OTHER_TIMES = {*_OTHERS.split("|")}

EARLIEST, LATEST = 631_152_000_000_000, 4_102_444_800_000_000  # 1990 and 2100
UNITS = {"s": 1_000_000, "ms": 1000, "us": 1}  # of numbers, in microseconds
_DATES = (
    *("%d.%m.%Y", "%d/%m/%Y", "%m/%d/%Y", "%d-%m-%Y", "%m-%d-%Y", "%Y-%m-%d", "%Y/%m/%d", "%Y.%m.%d", "%Y%m%d"),
    *(mark.join(order) for mark in "./-" for order in (("%d", "%m", "%y"), ("%m", "%d", "%y"), ("%y", "%m", "%d"))),
    *("%d/%b/%Y", "%d-%b-%Y", "%d %b %Y", "%b %d, %Y", "%d %B %Y", "%B %d, %Y", "%a, %d %b %Y"),
)
_CLOCK_FORMS = ("", "%H:%M", "%H:%M:%S", "%H:%M:%S.%f", "%H:%M:%S,%f", "%I:%M %p", "%I:%M:%S %p")


class Times(NamedTuple):
    """Values read as times. forms: what --time-format is to say, if anything: one of UNITS, or the form of texts that
    are not ISO 8601; several if only the order of day, month and year tells them apart. micros: of those that can be
    read. fineness: 0 for days, 1 for minutes, 2 for seconds, 3 for less. has_zone: whether all say it."""

    forms: tuple[str, ...]
    micros: npt.NDArray[np.int64]
    fineness: int
    has_zone: bool

    @property
    def unit(self) -> str | None:
        return next((form for form in self.forms if form in UNITS), None)

    @property
    def is_doubtful(self) -> bool:
        """The order of day, month and two-digit year is never guessed."""
        return len(self.forms) > 1 or any("%y" in form for form in self.forms)


class Field(NamedTuple):
    """A field of all records. cells: of each record. holds: their kind, or the shape of nearly all texts. counts: of
    values that are not empty; none of OTHER."""

    path: Path
    cells: list[Any]
    holds: str
    counts: Counter[Any]
    times: Times | None

    @property
    def name(self) -> str:
        return ".".join(self.path)

    @property
    def empty(self) -> int:
        return sum(cell is None or cell == "" for cell in self.cells)

    @property
    def words(self) -> list[str]:
        split = re.sub(r"(?<=[a-z\d])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", " ", self.name)
        return re.sub(r"[\W\d_]+", " ", split).lower().split()

    @property
    def about(self) -> set[str]:
        """The last word of its name, and the last one without an ending."""
        *_, whole = ["", *self.words]
        *_, last = ["", *(word for word in self.words if word not in _ENDINGS)]
        return {whole, last, last.removesuffix("id")}

    @property
    def is_id(self) -> bool:
        return self.holds in _IDS

    @property
    def is_time(self) -> bool:
        """Numbers of ten digits may be ids: only their name says that they are times."""
        return self.times is not None and (self.times.unit is None or not _TIMES.isdisjoint(self.words))

    @property
    def differs_in_each(self) -> bool:
        return len(self.cells) >= _ENOUGH_ROWS and len(self.counts) >= 0.98 * len(self.cells)

    @property
    def user_kind(self) -> str | None:
        """What kind of user it tells apart, such as ADDRESS; None if nothing says that it does."""
        if not _SERVERS.isdisjoint(self.words):
            return None
        if self.holds in (WITH_PORTS, ADDRESSES):
            return ADDRESS
        of_name = next((kind for kind, words in _USERS.items() if words & self.about), None)
        return of_name or (ACCOUNT if self.holds == EMAILS else None)

    @property
    def is_private(self) -> bool:
        """Whether its values say who somebody is, so that they must not be published."""
        return self.user_kind is not None or self.holds in (WITH_PORTS, ADDRESSES, EMAILS, TOKENS)


def fields_of(records: Sequence[Mapping[str, Any]], reading: Reading) -> list[Field]:
    """reading: of times, as far as it is declared."""
    rows = [dict(_leaves(record)) for record in records]
    counted = Counter(path for row in rows for path in row)
    # What only some records have is no field of an event, and may be a cell: objects can be keyed by user.
    paths = [path for path, count in counted.items() if 2 * count >= len(rows)][:_MOST_FIELDS]
    return [_field(path, [row.get(path) for row in rows], reading) for path in paths]


def _leaves(record: Mapping[str, Any], above: Path = ()) -> Iterator[tuple[Path, Any]]:
    for name, value in record.items():
        if isinstance(value, dict) and value and len(above) + 1 < _DEPTH:
            yield from _leaves(value, (*above, name))
        else:
            yield (*above, name), value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def _field(path: Path, cells: list[Any], reading: Reading) -> Field:
    values = [cell for cell in cells if cell is not None and cell != ""]
    kinds = {_KINDS.get(type(value), OTHER) for value in values} or {NOTHING}
    kind = kinds.pop() if len(kinds) == 1 else TEXT if kinds == {TEXT, WHOLE} else OTHER
    if kind in (OTHER, NOTHING):
        return Field(path, cells, kind, Counter(), None)
    counts = Counter(values)
    return Field(path, cells, (_shape(counts) if kind == TEXT else None) or kind, counts, _times(kind, values, reading))


def _shape(counts: Counter[Any]) -> str | None:
    for shape, pattern in _SHAPES.items():
        alike = sum(n for text, n in counts.items() if re.fullmatch(pattern, str(text)[:_LONG], re.IGNORECASE))
        if alike >= 0.9 * counts.total() and (shape != TOKENS or 2 * len(counts) > counts.total()):
            return shape  # tokens only if most differ: an article may have a UUID too
    return None


def _times(kind: str, values: list[Any], reading: Reading) -> Times | None:
    """None unless most values are times."""
    unit, form, zone = reading
    if form or unit or kind not in (TEXT, WHOLE, NUMBER):
        return read_times(values, form or unit, zone)
    if kind == TEXT and (read := read_times(values, None, zone)):
        return read
    numbers = np.array([float(text) for value in values if re.match(times.NUMBER, text := str(value)[:_LONG])])
    for name, micros in UNITS.items():
        if ((numbers * micros >= EARLIEST) & (numbers * micros < LATEST)).sum() >= 0.9 * len(values):
            return read_times(values, name, zone)
    likely = dict.fromkeys(form for value in values[:3] if kind == TEXT for form in _likely_forms(str(value)[:_LONG]))
    found = [read for form in likely if (read := read_times(values, form, zone))]
    most = max((len(read.micros) for read in found), default=0)
    different: dict[bytes, Times] = {}  # the short and the long name of May are the same
    for read in found:
        if len(read.micros) == most:
            different.setdefault(read.micros.tobytes(), read)
    forms = tuple(form for read in different.values() for form in read.forms)
    return next((read._replace(forms=forms) for read in different.values()), None)


def read_times(values: list[Any], form: str | None, zone: str | None) -> Times | None:
    """By the parser of runs. None unless most values are times. form: as of `Times`."""
    unit, form = (form, None) if form in (*UNITS, "iso") else (None, form)
    if not (times.parse_values(values[:50], unit, form).faults == 0).any():
        return None
    wall, here, there = (times.parse_values(values, unit, form, each) for each in (None, zone, "Etc/GMT+12"))
    micros = here.micros[here.faults == 0]
    fineness = sum(bool((wall.micros % size).any()) for size in (86_400_000_000, 60_000_000, 1_000_000))
    has_zone = bool((wall.micros == there.micros).all())
    forms = tuple(filter(None, (unit, form)))
    return Times(forms, micros, fineness, has_zone) if 2 * len(micros) > len(values) else None


def _likely_forms(text: str) -> Iterator[str]:
    begin, end = ("[", "]") if text.startswith("[") else ("", "")
    for date in _DATES:
        if re.match(time_formats.pattern_of(begin + date)[0].removesuffix("$"), text):
            for joint, clock, zone in itertools.product((" ", ", ", "T", ":"), _CLOCK_FORMS, ("", " %z", "%z")):
                form = f"{begin}{date}{joint if clock else ''}{clock}{zone}{end}"
                if re.match(time_formats.pattern_of(form)[0], text):
                    yield form


Choice = tuple[Field | None, list[Field]]  # None where it must be asked; the fields that were weighed, likeliest first


def _choice(found: Sequence[Field], rank: Callable[[Field], Any], others: Sequence[Field]) -> Choice:
    """The first one by rank, unless another one is as good. others: what to ask for if nothing was found."""
    if not found:
        return None, [*others]
    found = sorted(found, key=rank)
    is_clear = all(field.cells == found[0].cells for field in found if rank(field) == rank(found[0]))
    return (found[0] if is_clear else None), found


def choose_time(fields: Sequence[Field]) -> Choice:
    """The finest one that is full. What is named for another time than that of the event is the last resort."""

    def rank(field: Field) -> tuple[Any, ...]:
        assert field.times is not None
        is_full = 10 * len(field.times.micros) >= 9 * len(field.cells)
        is_other, is_named = not _OTHER_TIMES.isdisjoint(field.words), not _TIMES.isdisjoint(field.words)
        fineness = field.times.fineness
        return len(field.path), not is_full, is_other, not fineness, not is_named, -fineness

    odd = [field for field in fields if field.times or not _TIMES.isdisjoint(field.words)]
    return _choice([field for field in odd if field.is_time], rank, odd)


def choose_user(fields: Sequence[Field]) -> Choice:
    """The best kind, and of it what is named a user. Not what has one value for most rows, which tells nobody apart,
    nor an address that no two rows share, which may be that of a request."""

    def rank(field: Field) -> tuple[Any, ...]:
        is_plain = {*field.words} - _ENDINGS - {"cs"} <= {*_PLAIN, "userid", "username"}
        kind = list(_USERS).index(field.user_kind or SESSION)
        return kind, field.holds == WITH_PORTS, len(field.path), not is_plain, "login" not in field.words

    def tells_apart(field: Field) -> bool:
        is_one = 2 * max(field.empty, *field.counts.values(), 0) >= len(field.cells)
        is_row_id = field.user_kind == ADDRESS and field.holds not in (ADDRESSES, WITH_PORTS) and field.differs_in_each
        return len(field.cells) < _ENOUGH_ROWS or not (is_one or is_row_id)

    ids = [field for field in fields if field.is_id and field.holds != CLOCKS and not field.is_time]
    users = [field for field in ids if field.user_kind and tells_apart(field)]
    return _choice(users, rank, [field for field in ids if len(field.counts) > 1])


def choose_item(fields: Sequence[Field]) -> Choice:
    """The first one by the list of words. Not what differs in each row: nothing is held by many there."""

    def rank(field: Field) -> tuple[Any, ...]:
        first = min(_ITEMS.index(word) for word in field.about if word in _ITEMS)
        is_sparse, is_exact = 10 * field.empty > len(field.cells), field.name.lower() == _ITEMS[first]
        is_named = not {"name", "title", "path"}.isdisjoint(field.words)
        return len(field.counts) < 2, is_sparse, len(field.path), first, not is_exact, not is_named, field.name

    public = [field for field in fields if field.is_id and not field.is_private and not field.is_time]
    public = [field for field in public if field.holds != CLOCKS]
    items = [field for field in public if not field.about.isdisjoint(_ITEMS) and not field.differs_in_each]
    return _choice(items, rank, [field for field in public if len(field.counts) > 1])


CHOOSE = {"user": choose_user, "item": choose_item, "time": choose_time}
