"""What may happen to the files of a ledger: copies of it, older ones, and none."""

from __future__ import annotations

import os
import pathlib
import shutil
from collections.abc import Callable

from dp_transforms.runs.ledger import Ledger
from tests.helpers.ledger_runs import CAPS, part


def counter(path: pathlib.Path) -> pathlib.Path:
    return path.with_name(f"{path.name}.counter")


def restore(path: pathlib.Path) -> None:
    shutil.copy(path.with_name("older.db"), path)


def delete(path: pathlib.Path) -> None:
    path.unlink()


def cut_to(share: float) -> Callable[[pathlib.Path], None]:
    def cut(path: pathlib.Path) -> None:
        os.truncate(path, int(path.stat().st_size * share))

    return cut


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


def take_another(path: pathlib.Path) -> None:
    Ledger.open(path.with_name("another.db")).reserve(part(), CAPS)
    shutil.copy(path.with_name("another.db"), path)
