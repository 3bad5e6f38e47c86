"""What may happen to the files of a ledger: copies of it, older ones, none, and entries that somebody has changed."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import pathlib
import shutil
import sqlite3
from collections.abc import Callable
from typing import Any

from dp_transforms.runs.ledger import Ledger
from tests.helpers.ledger_runs import CAPS, part

Damage = Callable[[pathlib.Path], None]


def counter(path: pathlib.Path) -> pathlib.Path:
    return path.with_name(f"{path.name}.counter")


def restore(path: pathlib.Path) -> None:
    shutil.copy(path.with_name("older.db"), path)


def delete(path: pathlib.Path) -> None:
    path.unlink()


def cut_to(share: float) -> Damage:
    return lambda path: os.truncate(path, int(path.stat().st_size * share))


def restore_counter(path: pathlib.Path) -> None:
    shutil.copy(path.with_name("older.counter"), counter(path))


def go_on_with_a_copy(path: pathlib.Path) -> None:
    """Two people each write to a copy of their own; then one takes the ledger of the other."""
    copy = path.with_name("copy.db")
    shutil.copy(path, copy)
    shutil.copy(counter(path), counter(copy))
    Ledger.open(copy).reserve(part(run_id="run 3"))
    Ledger.open(path).reserve(part(run_id="run 4"))
    shutil.copy(copy, path)


def copy_anew(path: pathlib.Path) -> None:
    """The counter file, as it is beside this ledger."""
    with contextlib.closing(sqlite3.connect(path)) as connection:
        texts = [text for (text,) in connection.execute("SELECT entry FROM shh_entries ORDER BY counter")]
    digest = hashlib.sha256(texts[-1].encode()).hexdigest()
    counter(path).write_text("".join(f"{line}\n" for line in (*texts, json.dumps(digest))))


def take_another(path: pathlib.Path) -> None:
    Ledger.open(path.with_name("another.db")).reserve(part(), CAPS)
    shutil.copy(path.with_name("another.db"), path)


def both(first: Damage, then: Damage) -> Damage:
    def work(path: pathlib.Path) -> None:
        first(path)
        then(path)

    return work


def change(statement: str, *values: Any) -> Damage:
    def work(path: pathlib.Path) -> None:
        with contextlib.closing(sqlite3.connect(path)) as connection:
            connection.execute(statement, values)
            connection.commit()

    return work


def edit(number: int, old: str, new: str, *, chain: bool = False) -> Damage:
    """Changes words of an entry. chain: and the digests of all after it, so that the chain is whole."""

    def work(path: pathlib.Path) -> None:
        with contextlib.closing(sqlite3.connect(path)) as connection:
            rows = dict(connection.execute("SELECT counter, entry FROM shh_entries ORDER BY counter"))
            assert old in rows[number], rows[number]
            rows[number] = rows[number].replace(old, new)
            for at in range(number + 1, len(rows)) if chain else ():
                before = hashlib.sha256(rows[at - 1].encode()).hexdigest()
                rows[at] = json.dumps(json.loads(rows[at]) | {"before": before}, sort_keys=True, separators=(",", ":"))
            connection.executemany(
                "UPDATE shh_entries SET entry = ? WHERE counter = ?", [(t, n) for n, t in rows.items()]
            )
            connection.commit()

    return work
