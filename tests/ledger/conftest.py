"""Folders of ledgers are in memory where that is possible: what these tests kill are processes, not the machine."""

from __future__ import annotations

import os
import pathlib
import shutil
import tempfile
from collections.abc import Iterator

import pytest

from dp_transforms.runs.ledger import Ledger
from tests.helpers.ledger_runs import CAPS, part

MEMORY = "/dev/shm"


@pytest.fixture
def folder(tmp_path: pathlib.Path) -> Iterator[pathlib.Path]:
    """As `tmp_path`, in memory: a transaction takes milliseconds."""
    if not (os.path.isdir(MEMORY) and os.access(MEMORY, os.W_OK)):
        yield tmp_path
        return
    place = tempfile.mkdtemp(prefix="shh-ledger-", dir=MEMORY)
    try:
        yield pathlib.Path(place)
    finally:
        shutil.rmtree(place)


@pytest.fixture
def ledger(folder: pathlib.Path) -> Ledger:
    return Ledger.open(folder / "ledger.db")


@pytest.fixture
def path(folder: pathlib.Path) -> pathlib.Path:
    """Of a ledger with two runs; older.db and older.counter beside it are of when it had one."""
    path = folder / "ledger.db"
    ledger = Ledger.open(path)
    ledger.reserve(part(run_id="run 1"), CAPS)
    shutil.copy(path, folder / "older.db")
    shutil.copy(f"{path}.counter", folder / "older.counter")
    verdict = ledger.reserve(part(run_id="run 2"))
    ledger.start(verdict)
    ledger.finish(verdict, "state 1")
    return path
