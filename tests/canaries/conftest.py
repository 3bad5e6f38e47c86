"""The canaries of a session, a folder for each test, and what its pipelines are made of."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator
from typing import Any

import pytest

from tests.canaries.search import Search
from tests.canaries.tokens import Canaries
from tests.canaries.traces import Home, Recorded, Shell


@pytest.fixture(scope="session")
def canaries() -> Canaries:
    return Canaries()


@pytest.fixture(scope="session")
def search(canaries: Canaries) -> Search:
    return Search(canaries.kinds())


@pytest.fixture
def home(tmp_path: pathlib.Path) -> Home:
    return Home(tmp_path)


@pytest.fixture
def recorded() -> Iterator[Recorded]:
    with pytest.MonkeyPatch.context() as patch:
        yield Recorded(patch)


@pytest.fixture
def shell(home: Home, recorded: Recorded, search: Search, capfd: Any) -> Shell:
    return Shell(home, recorded, search, capfd)
