"""The journal of a ledger, and what it adds up to: each entry is one line that names the digest of the one before.

An entry holds who did what and when, and the populations, runs and parts as they are from then on. So a ledger is its
journal and nothing else: `Book` is all entries, one after the other, and nobody can change an amount, a cap or a status
and leave the chain whole. Amounts are whole numbers of any size. Times are ISO 8601 text in UTC, for people: order is
by the number of the entry, never by a clock. The first entry, of number 0, says which ledger this is.
"""

from __future__ import annotations

import dataclasses
import datetime
import enum
import functools
import getpass
import hashlib
import json
import operator
import os
import pathlib
import secrets
import socket
import typing
from collections.abc import Iterable
from typing import Any

from dp_transforms.runs.lifetime_cost import NOTHING
from dp_transforms.runs.records import Balance, LedgerDamagedError, LedgerError, Part, Population, Run, Status

# Who writes into a ledger, and whether the process that wrote still lives.

_PROC = pathlib.Path("/proc")
_SEPARATOR = ":"


@dataclasses.dataclass(frozen=True)
class Actor:
    """Who writes into a ledger. who: the login name. place: host and process namespace. process: ``number:start:boot``.

    A process is named by its number, its start in ticks since the machine booted, and the boot: no clock that somebody
    can set decides whether it is still the same one. Processes of another place (host, or namespace of a container) are
    never taken for dead.
    """

    who: str
    place: str
    process: str

    @classmethod
    def here(cls) -> Actor:
        """This process."""
        return cls(_login(), _place(), _process(os.getpid()) or str(os.getpid()))


def is_gone(place: str, process: str) -> bool:
    """Whether this process has certainly ended. False if it lives, or if this cannot be known from here."""
    if place != _place() or not process:
        return False
    number = process.partition(_SEPARATOR)[0]
    if not number.isdecimal():
        return False
    now = _process(int(number))
    if now is None:
        return not _exists(int(number))
    return now != process


def _process(number: int) -> str | None:
    """None where the system has no /proc, or no such process."""
    try:
        status = (_PROC / str(number) / "stat").read_bytes()
        boot = (_PROC / "sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return None
    fields = status.rpartition(b")")[2].split()  # the name of the program may hold blanks and brackets
    if fields[0] in (b"Z", b"X"):  # it has ended, and only its number is left
        return _SEPARATOR.join((str(number), "ended", boot))
    return _SEPARATOR.join((str(number), fields[19].decode(), boot))


def _exists(number: int) -> bool:
    try:
        os.kill(number, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


@functools.cache
def _place() -> str:
    try:
        namespace = os.readlink(_PROC / "self/ns/pid")
    except OSError:
        namespace = ""
    try:
        machine = pathlib.Path("/etc/machine-id").read_text().strip()
    except OSError:
        machine = ""
    return f"{socket.gethostname()}/{machine}/{namespace}"


def _login() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a user without an entry, as in containers
        return f"uid {os.getuid()}"


VERSION = 3
BROKEN = "Entries of the journal were changed or removed. Bring back a good copy, or see: shh ledger doctor"
_DAMAGED = "an entry of the ledger cannot be read. See: shh ledger doctor"
_KINDS: dict[str, type] = {"population": Population, "run": Run, "part": Part}
_TEXTS = ("at", "action", "population", "run_id", "who", "place", "process", "note", "before")
_WHOLES = ("counter", "part", "spent_epsilon", "spent_delta")
_MOST = 10**60  # a delta in units of 10^-30 does not fit into 64 bits

Record = Population | Run | Part


@dataclasses.dataclass(frozen=True)
class Entry:
    """One line of the journal. fields: of its head, with the digest of the entry `before`. records: as they are now."""

    text: str
    fields: dict[str, Any]
    records: tuple[Record, ...]

    @property
    def counter(self) -> int:
        return int(self.fields["counter"])

    @functools.cached_property
    def digest(self) -> str:
        return hashlib.sha256(self.text.encode()).hexdigest()

    @property
    def before(self) -> str:
        return str(self.fields["before"])

    @classmethod
    def of(cls, fields: dict[str, Any], records: Iterable[Record]) -> Entry:
        """Raises LedgerDamagedError for what could not be read again."""
        names = {kind: name for name, kind in _KINDS.items()}
        plain = [[names[type(record)], dataclasses.asdict(record)] for record in records]
        return cls.parsed(json.dumps({**fields, "records": plain}, sort_keys=True, separators=(",", ":")))

    @classmethod
    def first(cls, actor: Actor) -> Entry:
        """Of a new ledger: its note is drawn at random, so that no two ledgers begin alike."""
        head = {"at": now(), "action": f"ledger {VERSION}", "note": secrets.token_hex(16), **vars(actor)}
        return cls.of({**dict.fromkeys(_TEXTS, ""), **dict.fromkeys(_WHOLES, 0), **head}, [])

    @classmethod
    def parsed(cls, text: Any) -> Entry:
        """Raises LedgerDamagedError for anything but the text of an entry, LedgerError for one of another version."""
        try:
            fields = json.loads(text)
            records = fields.pop("records")
            wholes = [_value(int, fields[name]) for name in _WHOLES]
            texts = [_value(str, fields[name]) for name in _TEXTS]
            if len(fields) != len(wholes) + len(texts) or not datetime.datetime.fromisoformat(fields["at"]).tzinfo:
                raise ValueError
            found = tuple(_value(_KINDS[name], each) for name, each in records)
        except (ValueError, KeyError, TypeError, AttributeError, ArithmeticError, RecursionError):
            raise LedgerDamagedError(_DAMAGED) from None
        if not fields["counter"] and fields["action"] != f"ledger {VERSION}":
            raise LedgerError(
                f"the ledger has version {fields['action'].removeprefix('ledger ')[:20]!r}, and this program knows"
                f" version {VERSION} alone. Use the shh that wrote it."
            )
        return cls(text, fields, found)


def _value(kind: Any, value: Any) -> Any:
    """A field of this type. Raises ValueError or TypeError for any other one."""
    if dataclasses.is_dataclass(kind):
        hints = _hints(typing.cast(type, kind))
        if set(value) != set(hints):
            raise ValueError
        return typing.cast(Any, kind)(**{name: _value(hint, value[name]) for name, hint in hints.items()})
    if issubclass(kind, enum.Enum):
        return kind(value)
    if type(value) is not kind or (kind is int and not 0 <= value < _MOST):
        raise ValueError
    return value


@functools.cache
def _hints(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="microseconds")


class Book:
    """What a journal adds up to. entries: how many, the first one included. digest: of the last one."""

    def __init__(self, texts: Iterable[Any] = ()) -> None:
        """texts: of entries. Raises LedgerDamagedError for one that cannot be read, and for a chain that is broken."""
        self.populations: dict[str, Population] = {}
        self.runs: dict[str, Run] = {}
        self.parts: dict[int, Part] = {}
        self._of_run: dict[str, set[int]] = {}
        self.journal: list[Entry] = []
        self.extend(texts)

    def extend(self, texts: Iterable[Any]) -> None:
        """The entries that follow."""
        for text in texts:
            self.add(Entry.parsed(text))

    @property
    def digest(self) -> str:
        return self.journal[-1].digest if self.journal else ""

    @property
    def counter(self) -> int:
        """Of the last entry."""
        return len(self.journal) - 1

    def is_followed_by(self, entry: Entry) -> bool:
        return (entry.before, entry.counter) == (self.digest, len(self.journal))

    def add(self, entry: Entry) -> None:
        """Raises LedgerDamagedError unless it is the next one."""
        if not self.is_followed_by(entry):
            raise LedgerDamagedError(BROKEN)
        self.put(*entry.records)
        self.journal.append(entry)

    def put(self, *records: Record) -> None:
        """Raises LedgerDamagedError for a run without its population, and a part without its run."""
        for record in records:
            if isinstance(record, Population):
                self.populations[record.name] = record
            elif isinstance(record, Run) and record.population in self.populations:
                self.runs[record.run_id] = record
            elif isinstance(record, Part) and record.run_id in self.runs:
                self.parts[record.part] = record
                self._of_run.setdefault(record.run_id, set()).add(record.part)
            else:
                raise LedgerDamagedError(BROKEN)

    def parts_of(self, run_id: str) -> list[Part]:
        """In the order of their windows; released ones too."""
        found = [self.parts[number] for number in self._of_run.get(run_id, ())]
        return sorted(found, key=lambda part: (part.first_window, part.part))

    def runs_of(self, population: str | None = None) -> list[Run]:
        """By the number of the entry with which each came into the ledger, never by its time; of one population, or of
        all."""
        return [run for run in self.runs.values() if population in (None, run.population)]

    def run_of_input(self, population: str, stream: str, input_fingerprint: str) -> str:
        """The first run of this stream, by its name, of which a part was started on this input; "" if there is none."""
        started = {part.run_id for part in self.parts.values() if part.drew_from(input_fingerprint)}
        found = [run for run in self.runs.values() if run.run_id in started]
        return min((run.run_id for run in found if (run.population, run.stream) == (population, stream)), default="")

    def balances(self) -> list[Balance]:
        """Of all populations, by name."""
        return [self.balance(self.populations[name]) for name in sorted(self.populations)]

    def balance(self, population: Population) -> Balance:
        """The sum over all runs, in whole numbers; of the released ones what they keep."""
        runs = [run for run in self.runs.values() if run.population == population.name]
        prices = [run.price for run in runs if run.status != Status.RELEASED]
        kept = [run.kept for run in runs if run.status == Status.RELEASED]
        total = population.rule.total(functools.reduce(operator.add, prices, NOTHING), len(prices))
        return Balance(population, len(prices), functools.reduce(operator.add, kept, total))


class Transaction:
    """A transaction that may write one entry.

    book: what the ledger holds, with what this transaction has put there. actor: who writes. counter, at: number and
    time of the entry.
    """

    def __init__(self, book: Book, actor: Actor) -> None:
        self.book = book
        self.actor = actor
        self.counter = book.counter + 1
        self.at = now()
        self.entry: Entry | None = None
        self._put: list[Record] = []

    def put(self, *records: Record) -> None:
        """These records are so from now on."""
        self.book.put(*records)
        self._put += records

    def note(self, run: Run, part: int, action: str, text: str = "") -> Balance:
        """The entry, about a run. Returns what its population has spent with it."""
        balance = self.book.balance(self.book.populations[run.population])
        spent = {"spent_epsilon": balance.total.epsilon, "spent_delta": balance.total.delta}
        self.enter(action, text, population=run.population, run_id=run.run_id, part=part, **spent)
        return balance

    def enter(self, action: str, note: str, **about: str | int) -> None:
        """What this transaction does, for the journal. A transaction without it changes nothing."""
        nobody = {"population": "", "run_id": "", "part": 0, "spent_epsilon": 0, "spent_delta": 0}
        when = {"counter": self.counter, "at": self.at, "before": self.book.digest, **vars(self.actor)}
        self.entry = Entry.of({**nobody, **about, **when, "action": action, "note": note}, self._put)
