"""The copy of the journal beside a ledger file, ``LEDGER.counter``: which entry was made last, and all before it.

A ledger that is deleted, truncated or restored from a backup would forget charges. So each transaction writes its entry
here before its commit (a *promise*), and afterwards that it is made (*settled*). Both add a line to the end, which is
on the disk before the next step. Whoever opens the ledger compares. After a crash in between the ledger may be at
either end of an unsettled promise, and at no other. A line that was cut off by a crash or a full disk is as if it had
not been begun: what it promised was not committed.

A promise that was never kept is followed by another one that names the same entry before it. From the whole lines the
doctor puts back what a restored ledger has forgotten.
"""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
from collections.abc import Sequence

from dp_transforms.runs.ledger.book import Book, Entry
from dp_transforms.runs.records import LedgerDamagedError
from dp_transforms.stores.local_files import open_regular, remove_dead_drafts, write_whole


class CopyFile:
    """A copy as it was read. last: the entry that was promised last. settled: that it was committed."""

    def __init__(self, path: pathlib.Path, lines: Sequence[bytes]) -> None:
        """Raises LedgerDamagedError."""
        self.path = path
        self._lines = lines
        try:
            self.settled = not lines[-1].startswith(b"{")
            self.first = Entry.parsed(lines[0].decode())
            self.last = Entry.parsed(lines[-2 if self.settled else -1].decode())
            if self.settled and json.loads(lines[-1]) != self.last.digest:
                raise ValueError
        except (ValueError, IndexError, RecursionError, LedgerDamagedError):
            raise self._damaged() from None

    def agrees_with(self, book: Book) -> bool:
        """Whether this ledger is the one that was last written. A repair is kept or made again: without it the ledger
        would forget what was lost."""
        is_open = not self.settled and self.last.fields["action"] != "repair"
        return book.digest == self.last.digest or (is_open and book.digest == self.last.before)

    def check(self, book: Book, ledger: pathlib.Path) -> None:
        """Raises LedgerDamagedError unless it agrees with this ledger."""
        if self.agrees_with(book):
            return
        remedy = f"Bring back the newest copy of {ledger.name}, or see: shh ledger doctor"
        if book.journal and book.journal[0].digest != self.first.digest:
            raise LedgerDamagedError(f"{self.path} belongs to another ledger. {remedy}")
        lost = self.last.counter - book.counter
        if lost > 0:
            entries = "entry" if lost == 1 else "entries"
            raise LedgerDamagedError(
                f"{ledger} is an older copy: {lost} {entries} less than {self.path.name} knows, of"
                f" {self.last.counter}. {remedy}"
            )
        if lost < 0:
            raise LedgerDamagedError(f"{self.path} is an older copy than {ledger.name}: {-lost} behind. {remedy}")
        raise LedgerDamagedError(f"{ledger} and {self.path.name} are of two copies that were both written to. {remedy}")

    def book(self) -> Book:
        """All of it; of two promises after one entry the later one. Raises LedgerDamagedError, and LedgerError."""
        kept: list[Entry] = []
        for line in self._lines:
            if line.startswith(b"{"):
                try:
                    entry = Entry.parsed(line.decode())
                except (LedgerDamagedError, UnicodeError):
                    raise self._damaged() from None
                if kept and entry.counter == kept[-1].counter:
                    kept.pop()
                kept.append(entry)
        try:
            return Book(entry.text for entry in kept)
        except LedgerDamagedError:
            raise self._damaged() from None

    def _damaged(self) -> LedgerDamagedError:
        return LedgerDamagedError(
            f"{self.path} cannot be read: it is damaged or of another version. Bring it back from where it was. If it"
            " is lost, remove it, and see: shh ledger doctor"
        )


def copy_path(ledger: pathlib.Path) -> pathlib.Path:
    return ledger.with_name(f"{ledger.name}.counter")


def read_copy(ledger: pathlib.Path) -> CopyFile | None:
    """None if there is none. Raises LedgerDamagedError, and OSError."""
    path = copy_path(ledger)
    with contextlib.suppress(OSError):
        if not os.stat(path).st_size:  # on a file system without links: of a process that was killed as it made it
            remove_dead_drafts(path)
    try:
        with open_regular(path) as file:
            content = file.read()
    except FileNotFoundError:
        return None
    return CopyFile(path, content[: content.rfind(b"\n") + 1].splitlines())


def promise(ledger: pathlib.Path, entry: Entry) -> None:
    """The entry is on the disk when it returns, before its commit. Under the lock of the ledger. Raises OSError."""
    _append(copy_path(ledger), entry.text)


def settle(ledger: pathlib.Path, entry: Entry) -> None:
    """The same for: this entry is committed."""
    _append(copy_path(ledger), json.dumps(entry.digest))


def replace_copy(ledger: pathlib.Path, entries: Sequence[Entry]) -> None:
    """A copy of these entries alone, of which the last one is promised; in one step. Raises OSError."""
    lines = [f"{entry.text}\n".encode() for entry in entries]
    write_whole(copy_path(ledger), lambda file: file.writelines(lines), mode=0o600, may_replace=True)


def _append(path: pathlib.Path, line: str) -> None:
    descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    with open(descriptor, "r+b") as file:
        file.truncate(file.read().rfind(b"\n") + 1)  # what a crash has cut off
        file.seek(0, os.SEEK_END)
        file.write(f"{line}\n".encode())
        file.flush()
        os.fsync(file.fileno())
