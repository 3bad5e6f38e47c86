"""Transactions of a ledger: all reading and writing of one decision happens while no other process can write.

SQLite, a file: a lock file beside it is held for the whole transaction, which begins as BEGIN IMMEDIATE, and the
counter file is written before the commit. The rollback journal with ``synchronous = EXTRA`` is the mode in which one
file is the whole ledger at every moment, and a commit that returned survives a loss of power. Not for network file
systems, whose locks cannot be relied on: use PostgreSQL there.

PostgreSQL: the row of `META` is locked for the whole transaction. There is no counter file: that a server was restored
from an older backup is found by the fingerprints of states, and by nothing else.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import fcntl
import os
import pathlib
import secrets
import stat
import time
from collections.abc import Iterator
from typing import Any

import sqlalchemy as sa

from dp_transforms.runs.ledger.counter_file import (
    TRAIL_DIGITS,
    TRAIL_ENTRIES,
    CounterFile,
    Place,
    check_counter,
    read_counter,
    write_counter,
)
from dp_transforms.runs.ledger.records import (
    Actor,
    LedgerBusyError,
    LedgerDamagedError,
    LedgerError,
    LedgerUnsettledError,
)
from dp_transforms.runs.ledger.rows import (
    JOURNAL,
    META,
    VERSION,
    check_row,
    check_version,
    create_tables,
    entry_digest,
    has_tables,
    read_spent,
)
from dp_transforms.stores.databases import READS, NoDriverError, postgres_engine, reason_of, shown_url, sqlite_engine
from dp_transforms.stores.local_files import create_new

_POLL_SECONDS = 0.02
_ADVISORY_LOCK = 0x7368_686C  # of PostgreSQL, while the tables are made


class Transaction:
    """A transaction that may write one entry.

    connection: for reading and writing the tables. actor: who writes. counter, at: number and time of the entry.
    """

    def __init__(self, connection: sa.Connection, actor: Actor, counter: int) -> None:
        self.connection = connection
        self.actor = actor
        self.counter = counter
        self.at = datetime.datetime.now(datetime.UTC).isoformat(timespec="microseconds")
        self.entry: dict[str, Any] | None = None

    def enter(self, action: str, population: str, run_id: str, part: int, spent: tuple[int, int], note: str) -> None:
        """What this transaction does, for the journal. A transaction without it changes nothing."""
        self.entry = {"action": action, "population": population, "run_id": run_id, "part": part, "note": note}
        self.entry |= {"spent_epsilon": spent[0], "spent_delta": spent[1]}


class Database:
    """An open ledger."""

    def __init__(self, engine: sa.Engine, name: str, file: pathlib.Path | None, wait_seconds: float) -> None:
        self.engine = engine
        self.name = name
        self.file = file
        self._wait_seconds = wait_seconds

    @classmethod
    def open(
        cls, place: str | os.PathLike[str], *, create: bool, wait_seconds: float, rebuild: bool = False
    ) -> Database:
        """place: the path of an SQLite file, or the URL of a PostgreSQL database. create: make one that is missing.
        rebuild: also in place of one that was deleted or emptied; until it is repaired, it is an older copy."""
        text = os.fspath(place)
        if "://" in text and not text.startswith("sqlite:///"):
            database = cls(*_postgres(text, wait_seconds), None, wait_seconds)
        else:
            file = pathlib.Path(text.removeprefix("sqlite:///")).absolute()
            database = cls(sqlite_engine(file, wait_seconds), str(file), file, wait_seconds)
            with database._errors():
                # Before a lock file is made beside it.
                database._check_file(file, read_counter(file), create, rebuild)
        with database._locked(writes=False), database._errors():
            is_ready = database._is_ready()
        if not is_ready:
            with database._locked(), database._errors():
                database._prepare(create, rebuild)
        return database

    @contextlib.contextmanager
    def write(self, actor: Actor, *, must_settle: bool = False, repairs: bool = False) -> Iterator[Transaction]:
        """One transaction. It is committed at the end of the block if it has an entry, and else changes nothing.

        must_settle: raise LedgerUnsettledError unless afterwards no older copy can pass for this ledger. What the entry
        allows must not be done then. The same call again settles it, although it has no entry. repairs: also of a
        ledger that does not end where its counter file says; afterwards it does.
        """
        with self._locked(), self._errors():
            with self.engine.connect() as connection, connection.begin() as begun:
                meta = self.meta(connection, for_update=True)
                known = self.counter()
                if not repairs:
                    self._check(meta, known)
                last = max(meta.counter, known.after.counter if known else 0) if repairs else meta.counter
                transaction = Transaction(connection, actor, last + 1)
                yield transaction
                if transaction.entry is None:
                    begun.rollback()
                    if must_settle and known and not known.settled:
                        self._settle(known, must_settle)
                    return
                promise = self._enter(connection, meta, transaction)
                if repairs:  # no ledger ends there: the copy stays refused if this process dies before the commit
                    promise = dataclasses.replace(promise, before=Place(last, ""))
                if self.file:
                    write_counter(self.file, promise)
            self._settle(promise, must_settle)

    @contextlib.contextmanager
    def read(self, *, checked: bool = True) -> Iterator[sa.Connection]:
        """A consistent look. checked: that the ledger ends where its counter file says."""
        with self._locked(writes=False), self._errors(), self._reading() as connection:
            if checked:
                self._check(self.meta(connection), self.counter())
            yield connection

    def _settle(self, promise: CounterFile, must: bool = False) -> None:
        """The entry is committed, so an error here must not say that nothing was changed.

        A promise that cannot be settled is as one that a crash left: the ledger is used as before, the next entry
        settles it, and until then the doctor says so, since a copy that is older by this one entry would pass.
        """
        try:
            if self.file:
                write_counter(self.file, dataclasses.replace(promise, settled=True))
        except OSError as error:
            if must:
                raise LedgerUnsettledError(
                    f"the counter file of the ledger {self.name} cannot be written ({error.strerror}), so an older copy"
                    " could pass for the ledger. Nothing was drawn. Check its folder and the space that is left, and"
                    " give the same command again."
                ) from None

    def meta(self, connection: sa.Connection, *, for_update: bool = False) -> Any:
        query = sa.select(META)
        meta = connection.execute(query.with_for_update() if for_update else query).one()
        check_row(META, meta._mapping)
        return meta

    def counter(self) -> CounterFile | None:
        """Its counter file. None if there is none, as beside PostgreSQL. Raises LedgerDamagedError, and OSError."""
        return read_counter(self.file) if self.file else None

    def _check(self, meta: Any, counter: CounterFile | None) -> None:
        """Raises LedgerDamagedError unless the ledger ends where its counter file says."""
        if self.file:
            check_counter(counter, meta.ledger_id, Place(meta.counter, meta.digest), self.file)

    def _enter(self, connection: sa.Connection, meta: Any, transaction: Transaction) -> CounterFile:
        assert transaction.entry is not None
        entry = {"counter": transaction.counter, "at": transaction.at, **vars(transaction.actor), **transaction.entry}
        digest = entry_digest(meta.digest, entry)
        connection.execute(sa.insert(JOURNAL).values(digest=digest, **entry))
        connection.execute(sa.update(META).values(counter=transaction.counter, digest=digest))
        before, after = Place(meta.counter, meta.digest), Place(transaction.counter, digest)
        return CounterFile(meta.ledger_id, before, after, False, read_spent(connection), _trail(connection))

    @contextlib.contextmanager
    def _reading(self) -> Iterator[sa.Connection]:
        options: dict[str, Any] = {READS: True}
        if self.file is None:  # one snapshot for all statements
            options["isolation_level"] = "REPEATABLE READ"
        with self.engine.connect().execution_options(**options) as connection, connection.begin():
            yield connection

    def _is_ready(self) -> bool:
        """Whether the tables are there, which needs no writing."""
        if self.file and not os.path.lexists(self.file):
            return False
        with self._reading() as connection:
            if not has_tables(connection):
                return False
            check_version(connection)
            return True

    def _prepare(self, create: bool, rebuild: bool) -> None:
        """Makes the tables, unless another process has done so."""
        found = self.counter()
        if self.file and not self._check_file(self.file, found, create, rebuild):
            create_new(self.file, 0o600).close()
        with self.engine.connect() as connection, connection.begin():
            if not self.file:
                connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_ADVISORY_LOCK)))
            if has_tables(connection):
                check_version(connection)
                return
            was_deleted = self._was_deleted(found, create, rebuild)
            create_tables(connection)
            ledger_id = found.ledger_id if found and was_deleted else secrets.token_hex(16)
            connection.execute(sa.insert(META).values(id=1, ledger_id=ledger_id, version=VERSION, counter=0, digest=""))
            if was_deleted:
                return  # its counter file stays as it is, so that it is an older copy
            empty = CounterFile(ledger_id, Place(0, ""), Place(0, ""), settled=False, populations={})
            if self.file:
                write_counter(self.file, empty)
        self._settle(empty)

    def _was_deleted(self, found: CounterFile | None, create: bool, rebuild: bool) -> bool:
        """Of a ledger that is not there. Raises LedgerError unless it may be made."""
        if found and not _is_of_a_new_ledger(found):
            if not rebuild:
                raise LedgerDamagedError(
                    f"{self.name} was deleted or emptied: its counter file knows {found.after.counter} entries. Bring"
                    " back the newest copy. If there is none, charge all that was spent: shh ledger doctor --repair"
                )
            return True
        if not create:
            raise LedgerError(f"there is no ledger at {self.name}. Make one with: shh ledger reserve")
        return False

    def _check_file(self, file: pathlib.Path, found: CounterFile | None, create: bool, rebuild: bool) -> bool:
        """Whether the file is there. Raises LedgerError for one that is no safe place, and for a deleted one."""
        try:
            mode = os.lstat(file)
        except FileNotFoundError:
            self._was_deleted(found, create, rebuild)
            return False
        if not stat.S_ISREG(mode.st_mode):
            raise LedgerError(f"{self.name} is not a regular file. Name another path with --ledger.")
        if mode.st_uid != os.geteuid():
            raise LedgerError(f"{self.name} belongs to another user of this machine. Use PostgreSQL to share a ledger.")
        if mode.st_mode & 0o077:
            raise LedgerError(f"{self.name} can be opened by other users of this machine. Use: chmod 600 {self.name}")
        return True

    @contextlib.contextmanager
    def _locked(self, *, writes: bool = True) -> Iterator[None]:
        """Holds the lock file of an SQLite ledger. Raises LedgerBusyError if another process does so for too long."""
        if self.file is None:
            yield
            return
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
                        f"{path} cannot be locked: {error.strerror}. A ledger file must be on a local disk; use"
                        " PostgreSQL for several machines."
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
        """Errors of the database and of files as LedgerError, without values and passwords."""
        try:
            yield
        except sa.exc.DBAPIError as error:
            reason = reason_of(error)
            if any(word in reason for word in ("is locked", "lock timeout", "lock_timeout")):
                raise self._busy() from None
            if any(word in reason for word in ("malformed", "not a database")):
                raise LedgerDamagedError(
                    f"the ledger {self.name} is damaged ({reason}). Bring back the newest copy. If there is none, move"
                    " this one away, and: shh ledger doctor --repair"
                ) from None
            raise LedgerError(
                f"the ledger {self.name} cannot be used ({reason}); nothing was changed. Check its folder and the space"
                " that is left, or the server."
            ) from None
        except (UnicodeError, OverflowError):  # of the driver, for texts and numbers that nobody wrote by shh
            raise LedgerDamagedError(f"the ledger {self.name} is damaged. Bring back the newest copy.") from None
        except (sa.exc.NoResultFound, sa.exc.MultipleResultsFound):
            raise LedgerDamagedError(
                f"the ledger {self.name} is damaged: a table has not the one row that it must have. See: shh ledger"
                " doctor"
            ) from None
        except OSError as error:
            raise LedgerError(
                f"the ledger {self.name} cannot be used ({error.strerror}); nothing was changed. Check its folder and"
                " the space that is left."
            ) from None


def _postgres(text: str, wait_seconds: float) -> tuple[sa.Engine, str]:
    """The engine, and the name of the database without a password."""
    try:
        url = sa.make_url(text)
    except (sa.exc.ArgumentError, ValueError):  # ValueError: of its port
        raise LedgerError("--ledger must be a path, or a URL such as postgresql://host/database.") from None
    if url.get_backend_name() != "postgresql":
        raise LedgerError(f"--ledger must be a path or a postgresql:// URL, got one of {url.get_backend_name()}.")
    try:
        return postgres_engine(url, wait_seconds), shown_url(text)
    except NoDriverError as error:
        raise LedgerError(f"a ledger on {error}") from None


def _is_of_a_new_ledger(found: CounterFile) -> bool:
    """Of a process that died while it made the ledger."""
    return not found.settled and found.after.counter == 0


def _trail(connection: sa.Connection) -> tuple[str, ...]:
    query = sa.select(JOURNAL.c.digest).order_by(JOURNAL.c.counter.desc()).limit(TRAIL_ENTRIES)
    return tuple(str(digest)[:TRAIL_DIGITS] for digest in connection.execute(query).scalars())
