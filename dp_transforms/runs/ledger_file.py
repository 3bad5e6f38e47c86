"""The SQLite file of a ledger: transactions on records, and which process has a part.

Each kind of record is a table, each record a row, each field a column of text: a delta in units of 10^-30 does not fit
into the 64 bits of SQLite, and sums must be exact. Whoever writes has the file from its first statement on (BEGIN
IMMEDIATE), so what was read is still so when it is written; with ``synchronous = EXTRA`` a commit that returned
survives a loss of power. Not for network file systems, whose locks cannot be relied on.

Beside it lies ``LEDGER.lock``. A process that has a part holds a lock on one byte of it, which ends with the process
however that ends: so whether a process lives is no question of clocks or process numbers. Another machine does not see
it: a ledger is for one machine.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import os
import pathlib
import sqlite3
import stat
from collections.abc import Iterator
from typing import TypeVar
from urllib.parse import quote

import msgspec

from dp_transforms.checks import on_one_line
from dp_transforms.runs.records import LedgerError, Part, Population, Run
from dp_transforms.stores.local_files import create_new

VERSION = 5
_KEYS: dict[type, tuple[str, str]] = {
    Population: ("populations", "name"),
    Run: ("runs", "run_id"),
    Part: ("parts", "part"),
}
_R = TypeVar("_R", Population, Run, Part)
_lock_files: dict[tuple[int, int], int] = {}
"""Open lock files, by their inodes. They stay open: closing one would end all locks of this process on its file."""


class Rows:
    """The records of a ledger, within a transaction."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.connection = connection

    def all(self, kind: type[_R], **where: str) -> list[_R]:
        """Those whose columns have these values, in the order in which they came. Raises LedgerError."""
        names = [field.name for field in dataclasses.fields(kind)]
        query = f"SELECT {', '.join(map(_quoted, names))} FROM {_KEYS[kind][0]}"
        if where:
            query += f" WHERE {' AND '.join(f'{_quoted(name)} = ?' for name in where)}"
        rows = self.connection.execute(f"{query} ORDER BY rowid", list(where.values()))
        try:
            return [msgspec.convert(dict(zip(names, row, strict=True)), kind, strict=False) for row in rows]
        except (msgspec.ValidationError, ArithmeticError):  # the latter: of an order that is no number
            raise LedgerError("a row of the ledger is damaged. Bring back the newest copy.") from None

    def get(self, kind: type[_R], key: str | int) -> _R | None:
        found = self.all(kind, **{_KEYS[kind][1]: str(key)})
        return found[0] if found else None

    def count(self, kind: type) -> int:
        return int(self.connection.execute(f"SELECT count(*) FROM {_KEYS[kind][0]}").fetchone()[0])

    def put(self, record: Population | Run | Part) -> None:
        """The record is so from now on."""
        table, key = _KEYS[type(record)]
        names = [_quoted(name) for name in vars(record)]
        changes = ", ".join(f"{name} = excluded.{name}" for name in names)
        marks = ", ".join("?" * len(names))
        self.connection.execute(
            f"INSERT INTO {table} ({', '.join(names)}) VALUES ({marks}) ON CONFLICT ({key}) DO UPDATE SET {changes}",
            [str(value) for value in vars(record).values()],
        )


class LedgerFile:
    """path: of the file. wait_seconds: how long to wait for another process."""

    def __init__(self, place: str | os.PathLike[str], wait_seconds: float) -> None:
        self.path = pathlib.Path(place).absolute()
        self.wait_seconds = wait_seconds

    @contextlib.contextmanager
    def reading(self) -> Iterator[Rows]:
        """A consistent look. Raises LedgerError if there is no ledger."""
        with self._errors(), self._connected("BEGIN") as connection:
            yield Rows(connection)

    @contextlib.contextmanager
    def writing(self, *, may_make: bool = False) -> Iterator[Rows]:
        """What the block does is done at its end, or nothing if it fails. may_make: the ledger if it is not there."""
        with self._errors():
            if may_make and not self._is_there():
                with contextlib.suppress(FileExistsError):
                    create_new(self.path, 0o600).close()
            with self._connected("BEGIN IMMEDIATE", may_be_empty=may_make) as connection:
                yield Rows(connection)

    @contextlib.contextmanager
    def trying(self) -> Iterator[Rows]:
        """Records that may be changed, and at the end nothing was done: a copy in memory, of nothing if there is no
        ledger."""
        with self._errors(), contextlib.closing(sqlite3.connect(":memory:", isolation_level=None)) as copy:
            if self._is_there():
                with self._connected("BEGIN") as connection:
                    connection.backup(copy)
            self._prepare(copy)
            yield Rows(copy)

    def take(self, part: int) -> bool:
        """Whether this process has the part from now on, until it ends or lets it go."""
        with self._errors():
            try:
                fcntl.lockf(self._lock_file(), fcntl.LOCK_EX | fcntl.LOCK_NB, 1, part)
            except (BlockingIOError, PermissionError):
                return False
        return True

    def let_go(self, part: int) -> None:
        with contextlib.suppress(OSError):
            fcntl.lockf(self._lock_file(), fcntl.LOCK_UN, 1, part)

    def _lock_file(self) -> int:
        path = self.path.with_name(f"{self.path.name}.lock")
        with contextlib.suppress(FileNotFoundError):
            found = os.lstat(path)
            if (known := _lock_files.get((found.st_dev, found.st_ino))) is not None:
                return known
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        found = os.fstat(descriptor)
        return _lock_files.setdefault((found.st_dev, found.st_ino), descriptor)

    def _is_there(self) -> bool:
        """Whether there is more than an empty file, as a process leaves that is killed when it makes one. Raises
        LedgerError for what is no safe place."""
        try:
            found = os.lstat(self.path)
        except FileNotFoundError:
            return False
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
            raise LedgerError(f"{self.path} must be a regular file of your own. Close it with: chmod 600 {self.path}")
        return found.st_size > 0

    @contextlib.contextmanager
    def _connected(self, begin: str, *, may_be_empty: bool = False) -> Iterator[sqlite3.Connection]:
        if not self._is_there() and not may_be_empty:
            raise LedgerError(f"there is no ledger at {self.path}. The first run with --caps makes one.")
        # mode=rw: the file is made by us alone, with its mode. The driver must not begin transactions by itself.
        uri = f"file:{quote(os.fsencode(self.path))}?mode=rw"  # a name may be any bytes
        connection = sqlite3.connect(uri, uri=True, timeout=self.wait_seconds, isolation_level=None)
        with contextlib.closing(connection):
            connection.execute("PRAGMA synchronous = EXTRA")
            connection.execute("PRAGMA trusted_schema = OFF")
            connection.execute(begin)
            with connection:  # commits, or rolls back after an error
                self._prepare(connection)
                yield connection

    def _prepare(self, connection: sqlite3.Connection) -> None:
        """Makes the tables of a new file. Raises LedgerError for a file of another version, or of something else."""
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if version == VERSION:
            return
        if version or connection.execute("SELECT name FROM sqlite_master").fetchone():
            raise LedgerError(
                f"{self.path} is no ledger, or one of version {version}, and this program knows version {VERSION}"
                " alone. Use the shh that wrote it."
            )
        for kind, (table, key) in _KEYS.items():
            columns = ", ".join(f"{_quoted(field.name)} TEXT NOT NULL" for field in dataclasses.fields(kind))
            connection.execute(f"CREATE TABLE {table} ({columns}, UNIQUE ({key}))")
        connection.execute(f"PRAGMA user_version = {VERSION}")

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        """Errors of the database and of files as LedgerError."""
        try:
            yield
        except (sqlite3.Error, UnicodeDecodeError, OSError) as error:  # the second: a name of any bytes in the schema
            reason = (error.strerror if isinstance(error, OSError) else str(error)) or "input or output failed"
            raise LedgerError(
                f"the ledger {self.path} cannot be used ({on_one_line(reason, most=200)}); nothing was changed. If it"
                " is locked, wait until the other process has ended. If it is damaged, bring back the newest copy. Else"
                " check its folder, and the space that is left."
            ) from None


def _quoted(name: str) -> str:
    return f'"{name}"'
