"""The number of the last entry of a ledger file, kept beside it: ``LEDGER.counter``.

A ledger that is deleted, truncated or restored from a backup would forget charges. So each transaction writes here,
before its commit, which entry it is about to make (`promise`), and afterwards that it is made (`settle`). Both replace
the file atomically. Whoever opens the ledger compares. After a crash in between the ledger may be at either entry of an
unsettled promise, and at no other.

The file also names what each population has spent, so after a restored backup the doctor can charge what was lost. The
trail, the digests of the last entries, tells an older copy of this ledger, whose charges are among those that the file
names, from a copy that went on by itself, whose charges are not.
"""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import re
from typing import Any

from dp_transforms.checks import check_names, is_whole
from dp_transforms.runs.ledger.records import LedgerDamagedError
from dp_transforms.runs.ledger.rows import DAMAGED, MOST_DIGITS
from dp_transforms.stores.local_files import create_new, read_regular, sync_folder

FORMAT = 1
TRAIL_ENTRIES = 4096  # the last ones: three years of nights
TRAIL_DIGITS = 16
_MOST_BYTES = 10_000_000
_MOST_TEXT = 500
_HEX = re.compile("[0-9a-f]{0,64}")
_TEXTS = {"kind", "order", "unit", "declared_at"}
_WHOLES = {"max_epsilon", "max_delta", "sampling", "base_epsilon", "base_delta", "runs"}


@dataclasses.dataclass(frozen=True)
class Place:
    """The end of the ledger: the number and the digest of its last entry."""

    counter: int
    digest: str


@dataclasses.dataclass(frozen=True)
class CounterFile:
    """before, after: the end of the ledger before and after the last transaction. settled: that it was committed.

    populations: name to the plain fields of its rule, and what it has ``spent`` (three whole numbers) and ``runs``;
        ``run_ids``: hashes of all run ids that were used (`hash_of_run_id`).
    trail: the first digits of the digests of the last entries up to `after`.
    """

    ledger_id: str
    before: Place
    after: Place
    settled: bool
    populations: dict[str, dict[str, Any]]
    trail: tuple[str, ...] = ()

    def agrees_with(self, ledger_id: str, end: Place) -> bool:
        """Whether a ledger that ends there is the one that was last written."""
        return self.ledger_id == ledger_id and (end == self.after or (end == self.before and not self.settled))

    def continues(self, ledger_id: str, end: Place) -> bool:
        """Whether it is certain that a ledger which ends there is an older copy: all of it is in this one."""
        known = end in (self.before, self.after) or not end.counter or end.digest[:TRAIL_DIGITS] in self.trail
        return self.ledger_id == ledger_id and known


def counter_path(ledger: pathlib.Path) -> pathlib.Path:
    return ledger.with_name(f"{ledger.name}.counter")


def read_counter(ledger: pathlib.Path) -> CounterFile | None:
    """None if there is none. Raises LedgerDamagedError, and OSError."""
    path = counter_path(ledger)
    try:
        content = read_regular(path, _MOST_BYTES)
    except FileNotFoundError:
        return None
    return _parsed(content, path)


def write_counter(ledger: pathlib.Path, content: CounterFile) -> None:
    """Replaces the file atomically, and returns when it is on the disk. Under the lock of the ledger.

    Raises OSError, and LedgerDamagedError for what could not be read again.
    """
    path = counter_path(ledger)
    draft = path.with_name(f"{path.name}.new")
    text = json.dumps({"format": FORMAT, **dataclasses.asdict(content)}, sort_keys=True)
    try:
        _parsed(text, path)
    except LedgerDamagedError:
        raise LedgerDamagedError(DAMAGED) from None
    draft.unlink(missing_ok=True)  # of a process that was killed: the lock is ours
    with create_new(draft, 0o600) as file:
        file.write(text.encode())
        file.flush()
        os.fsync(file.fileno())
    os.replace(draft, path)
    sync_folder(path)


def check_counter(found: CounterFile | None, ledger_id: str, end: Place, ledger: pathlib.Path) -> None:
    """Raises LedgerDamagedError unless the ledger ends where its counter file says."""
    path, remedy = counter_path(ledger), f"Bring back the newest copy of {ledger.name}, or see: shh ledger doctor"
    if found is None:
        raise LedgerDamagedError(f"{path} is missing: it shows that {ledger.name} is not an old copy. {remedy}")
    if found.ledger_id != ledger_id:
        raise LedgerDamagedError(f"{path} belongs to another ledger. {remedy}")
    if found.agrees_with(ledger_id, end):
        return
    lost = found.after.counter - end.counter
    if lost > 0:
        entries = "entry" if lost == 1 else "entries"
        raise LedgerDamagedError(
            f"{ledger} is an older copy: {lost} {entries} less than {path.name} knows, of {found.after.counter}."
            f" {remedy}"
        )
    if lost < 0:
        raise LedgerDamagedError(f"{path} is an older copy than {ledger.name}: {-lost} behind. {remedy}")
    raise LedgerDamagedError(f"{ledger} and {path.name} are of two copies that were both written to. {remedy}")


def _parsed(content: str | bytes, path: pathlib.Path) -> CounterFile:
    try:
        fields = json.loads(content)
        if fields["format"] != FORMAT or not isinstance(fields["settled"], bool):
            raise ValueError
        ledger_id, populations, trail = fields["ledger_id"], fields["populations"], tuple(fields.get("trail", ()))
        if not isinstance(ledger_id, str) or not _HEX.fullmatch(ledger_id) or not isinstance(populations, dict):
            raise ValueError
        if not all(isinstance(digits, str) and _HEX.fullmatch(digits) and digits for digits in trail):
            raise ValueError
        for name, population in populations.items():
            check_names(population=name)
            _check_population(population)
        before, after = (_place(fields[name]) for name in ("before", "after"))
        return CounterFile(ledger_id, before, after, fields["settled"], populations, trail)
    except (ValueError, KeyError, TypeError, RecursionError):
        raise LedgerDamagedError(
            f"{path} cannot be read: it is damaged or of another version. Bring it back from where it was. If it is"
            " lost, remove it, and see: shh ledger doctor"
        ) from None


def _check_population(fields: Any) -> None:
    """Raises ValueError or TypeError."""
    wholes = [*(fields[name] for name in _WHOLES), *fields["spent"]]
    if set(fields) != {*_TEXTS, *_WHOLES, "spent", "run_ids"} or len(fields["spent"]) != 3:
        raise ValueError
    if not all(isinstance(digits, str) and _HEX.fullmatch(digits) and digits for digits in fields["run_ids"]):
        raise ValueError
    if not all(is_whole(value) and 0 <= value < 10**MOST_DIGITS for value in wholes):
        raise ValueError
    for name in _TEXTS:
        if not isinstance(fields[name], str) or not fields[name].isprintable() or len(fields[name]) > _MOST_TEXT:
            raise ValueError


def _place(fields: Any) -> Place:
    counter, digest = fields["counter"], fields["digest"]
    if not is_whole(counter) or not 0 <= counter < 2**63:
        raise ValueError
    if not isinstance(digest, str) or not _HEX.fullmatch(digest):
        raise ValueError
    return Place(counter, digest)
