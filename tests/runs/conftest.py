"""Folders of ledgers are in memory where that is possible: what these tests kill are processes, not the machine."""

from __future__ import annotations

import os
import pathlib
import shutil
import tempfile
from collections.abc import Iterator

import pytest

from dp_transforms.runs.ledger import Ledger

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
    return Ledger(folder / "ledger.db")
