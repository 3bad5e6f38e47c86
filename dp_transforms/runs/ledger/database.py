"""Transactions of a ledger: all reading and writing of one decision happens while no other process can write.

The ledger is an SQLite file with one table, the entries of the journal. A lock file beside it is held for the whole
transaction, which begins as BEGIN IMMEDIATE, and the copy of the journal is written before the commit. The rollback
journal with ``synchronous = EXTRA`` is the mode in which one file is the whole ledger at every moment, and a commit
that returned survives a loss of power. Not for network file systems, whose locks cannot be relied on.

A connection lives for one transaction.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import pathlib
import sqlite3
import stat
import time
from collections.abc import Iterator, Sequence
from typing import Any
from urllib.parse import quote

from dp_transforms.checks import on_one_line, without_secrets
from dp_transforms.runs.ledger.book import Actor, Book, Entry, Transaction
from dp_transforms.runs.ledger.copy_file import CopyFile, copy_path, promise, read_copy, replace_copy, settle
from dp_transforms.runs.records import LedgerBusyError, LedgerDamagedError, LedgerError, NoLedgerError
from dp_transforms.stores.local_files import create_new

_POLL_SECONDS = 0.02
_MAKE = "CREATE TABLE shh_entries (counter BIGINT NOT NULL, entry TEXT NOT NULL, PRIMARY KEY (counter))"


class Database:
    """An open ledger."""

    def __init__(self, file: pathlib.Path, wait_seconds: float) -> None:
        self.file = file
        self.name = str(file)
        self._wait_seconds = wait_seconds
        self._seen: Book | None = None

    @classmethod
    def open(
        cls, place: str | os.PathLike[str], actor: Actor, *, create: bool, wait_seconds: float, rebuild: bool = False
    ) -> Database:
        """place: the path of the file. create: make one that is missing. rebuild: also in place of one that was deleted
        or emptied; until it is repaired, it is an older copy."""
        if "://" in os.fspath(place):
            raise LedgerError("--ledger must be the path of a file, got a URL.")
        database = cls(pathlib.Path(place).absolute(), wait_seconds)
        with database._errors():
            try:
                database._check_file(create, rebuild)  # before a lock file is made beside it
            except LedgerDamagedError:
                if not os.path.lexists(database.file):  # else another process has made it meanwhile
                    raise
        with database._locked(writes=False), database._errors():
            is_ready = database._is_ready()
        if not is_ready:
            with database._locked(), database._errors():
                database._prepare(actor, create, rebuild)
        return database

    @contextlib.contextmanager
    def write(self, actor: Actor, *, must_settle: bool = False) -> Iterator[Transaction]:
        """One transaction. It is committed at the end of the block if it has an entry, and else changes nothing.

        must_settle: raise LedgerError unless afterwards no older copy can pass for this ledger. What the entry
        allows must not be done then. The same call again settles it, although it has no entry.
        """
        with self._locked(), self._errors():
            with self._transaction() as connection:
                book, known = self._checked_book(connection)
                transaction = Transaction(book, actor)
                yield transaction
                entry = transaction.entry
                if entry is None:
                    if must_settle and known and not known.settled:
                        self._settle(known.last, must_settle)
                    return
                _insert(connection, [entry])
                promise(self.file, entry)
            book.add(entry)
            self._seen = book
            self._settle(entry, must_settle)

    @contextlib.contextmanager
    def mend(self) -> Iterator[tuple[list[Any], CopyFile | None, list[Entry]]]:
        """For a ledger that does not agree with its copy: the texts of its entries, its copy, and a list. What is in
        the list at the end of the block is the ledger from then on; nothing changes if it is empty."""
        with self._locked(), self._errors():
            entries: list[Entry] = []
            with self._transaction() as connection:
                self._seen = None
                yield _texts(connection), self.copy(), entries
                if not entries:
                    return
                connection.execute("DELETE FROM shh_entries")
                _insert(connection, entries)
                replace_copy(self.file, entries)
            self._settle(entries[-1])

    @contextlib.contextmanager
    def read(self) -> Iterator[Book]:
        """A consistent look at a ledger that ends where its copy says."""
        with self._locked(writes=False), self._errors(), self._transaction(writes=False) as connection:
            book = self._seen = self._checked_book(connection)[0]
            yield book

    @contextlib.contextmanager
    def look(self) -> Iterator[sqlite3.Connection]:
        """The same at any ledger."""
        with self._locked(writes=False), self._errors(), self._transaction(writes=False) as connection:
            yield connection

    def book(self, connection: sqlite3.Connection, *, anew: bool = False) -> Book:
        """Only what is new is read, after the last entry that this process has seen; all of it if that is not there, or
        anew. Raises LedgerDamagedError for a journal that is not whole."""
        book, self._seen = self._seen or Book(), None  # whoever gets it may change it, and fail
        if book.journal and not anew:
            last, *new = _texts(connection, book.counter) or [None]
            if last == book.journal[-1].text:
                book.extend(new)
                return book
        return Book(_texts(connection))

    def copy(self) -> CopyFile | None:
        """None if there is none. Raises LedgerDamagedError, and OSError."""
        return read_copy(self.file)

    def check(self, book: Book, copy: CopyFile | None) -> None:
        """Raises LedgerDamagedError unless the ledger ends where its copy says."""
        if copy is None:
            raise LedgerDamagedError(
                f"{copy_path(self.file)} is missing: it shows that {self.file.name} is not an old copy. Bring back the"
                f" newest copy of {self.file.name}, or see: shh ledger doctor"
            )
        copy.check(book, self.file)

    def _checked_book(self, connection: sqlite3.Connection) -> tuple[Book, CopyFile | None]:
        book, copy = self.book(connection), self.copy()
        self.check(book, copy)
        return book, copy

    def _settle(self, entry: Entry, must: bool = False) -> None:
        """The entry is committed, so an error here must not say that nothing was changed.

        A promise that cannot be settled is as one that a crash left: the ledger is used as before, the next entry
        settles it, and until then the doctor says so, since a copy that is older by this one entry would pass.
        """
        try:
            settle(self.file, entry)
        except OSError as error:
            if must:
                raise LedgerError(
                    f"the counter file of the ledger {self.name} cannot be written ({error.strerror}), so an older copy"
                    " could pass for the ledger. Nothing was drawn. Check its folder and the space that is left, and"
                    " give the same command again."
                ) from None

    @contextlib.contextmanager
    def _transaction(self, *, writes: bool = True) -> Iterator[sqlite3.Connection]:
        # mode=rw: the file is made by us alone, with its mode. The driver must not begin transactions by itself.
        uri = f"file:{quote(os.fsencode(self.file))}?mode=rw"  # a name may be any bytes
        connection = sqlite3.connect(uri, uri=True, timeout=self._wait_seconds, isolation_level=None)
        with contextlib.closing(connection):
            connection.execute("PRAGMA synchronous = EXTRA")
            connection.execute("PRAGMA trusted_schema = OFF")
            connection.execute("BEGIN IMMEDIATE" if writes else "BEGIN")
            with connection:  # commits, or rolls back after an error
                yield connection

    def _is_ready(self) -> bool:
        """Whether the table is there, which needs no writing."""
        if not os.path.lexists(self.file):
            return False
        with self._transaction(writes=False) as connection:
            return _has_table(connection)

    def _prepare(self, actor: Actor, create: bool, rebuild: bool) -> None:
        """Makes the table and its first entry, unless another process has done so."""
        if not self._check_file(create, rebuild):
            create_new(self.file, 0o600).close()
        with self._transaction() as connection:
            if _has_table(connection):
                return
            was_deleted = self._was_deleted(create, rebuild)
            connection.execute(_MAKE)
            if was_deleted:
                return  # its copy stays as it is: without its entries the ledger is an older copy
            first = Entry.first(actor)
            _insert(connection, [first])
            replace_copy(self.file, [first])
        self._settle(first)

    def _was_deleted(self, create: bool, rebuild: bool) -> bool:
        """Of a ledger that is not there. Raises LedgerError unless it may be made."""
        found = self.copy()
        if found and (found.settled or found.last.counter):  # else it is of a process that died while it made one
            if not rebuild:
                raise LedgerDamagedError(
                    f"{self.name} was deleted or emptied: its counter file knows {found.last.counter} entries. Bring"
                    " back the newest copy. If there is none, charge all that was spent: shh ledger doctor --repair"
                )
            return True
        if not create:
            raise NoLedgerError(f"there is no ledger at {self.name}. Make one with: shh ledger reserve")
        return False

    def _check_file(self, create: bool, rebuild: bool) -> bool:
        """Whether the file is there. Raises LedgerError for one that is no safe place, and for a deleted one."""
        try:
            mode = os.lstat(self.name)
        except FileNotFoundError:
            self._was_deleted(create, rebuild)
            return False
        if not stat.S_ISREG(mode.st_mode):
            raise LedgerError(f"{self.name} is not a regular file. Name another path with --ledger.")
        if mode.st_uid != os.geteuid():
            raise LedgerError(f"{self.name} belongs to another user of this machine. Name a file of your own.")
        if mode.st_mode & 0o077:
            raise LedgerError(f"{self.name} can be opened by other users of this machine. Use: chmod 600 {self.name}")
        return True

    @contextlib.contextmanager
    def _locked(self, *, writes: bool = True) -> Iterator[None]:
        """Holds the lock file. Raises LedgerBusyError if another process does so for too long."""
        path = self.file.with_name(f"{self.file.name}.lock")
        try:
            made = os.O_CREAT if writes else 0  # a lock needs no file that is open for writing
            descriptor = os.open(path, os.O_RDONLY | made | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except OSError as error:
            if writes:
                raise LedgerError(f"cannot open {path}: {error.strerror}. Check the folder of --ledger.") from None
            yield  # nobody has written since the lock was removed, or can: a read-only file system
            return
        try:
            deadline = time.monotonic() + self._wait_seconds
            while True:
                try:
                    fcntl.flock(descriptor, (fcntl.LOCK_EX if writes else fcntl.LOCK_SH) | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > deadline:
                        raise self._busy() from None
                    time.sleep(_POLL_SECONDS)
                except OSError as error:
                    raise LedgerError(
                        f"{path} cannot be locked: {error.strerror}. A ledger must be on a local disk."
                    ) from None
            yield
        finally:
            os.close(descriptor)

    def _busy(self) -> LedgerBusyError:
        return LedgerBusyError(
            f"another process has had the ledger {self.name} for {self._wait_seconds:g} s. Try again when it has ended."
        )

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        """Errors of the database and of files as LedgerError."""
        try:
            yield
        except sqlite3.Error as error:
            reason = on_one_line(without_secrets(str(error).strip().partition("\n")[0]), most=200)
            if "is locked" in reason:
                raise self._busy() from None
            if any(word in reason for word in ("malformed", "not a database")):
                raise LedgerDamagedError(
                    f"the ledger {self.name} is damaged ({reason}). Bring back the newest copy. If there is none, move"
                    " this one away, and: shh ledger doctor --repair"
                ) from None
            raise LedgerError(
                f"the ledger {self.name} cannot be used ({reason}); nothing was changed. Check its folder and the space"
                " that is left."
            ) from None
        except (UnicodeError, OverflowError):  # of the driver, for texts and numbers that nobody wrote by shh
            raise LedgerDamagedError(f"the ledger {self.name} is damaged. Bring back the newest copy.") from None
        except OSError as error:
            raise LedgerError(
                f"the ledger {self.name} cannot be used ({error.strerror}); nothing was changed. Check its folder and"
                " the space that is left."
            ) from None


def _has_table(connection: sqlite3.Connection) -> bool:
    return connection.execute("PRAGMA table_info(shh_entries)").fetchone() is not None


def _texts(connection: sqlite3.Connection, since: int = 0) -> list[Any]:
    """What is in the rows of the journal from this one on, in their order: SQLite stores values of any type in each."""
    where, values = ("WHERE counter >= ?", [since]) if since else ("", [])
    rows = connection.execute(f"SELECT entry FROM shh_entries {where} ORDER BY counter", values)
    return [text for (text,) in rows]


def _insert(connection: sqlite3.Connection, entries: Sequence[Entry]) -> None:
    rows = [(entry.counter, entry.text) for entry in entries]
    connection.executemany("INSERT INTO shh_entries (counter, entry) VALUES (?, ?)", rows)
