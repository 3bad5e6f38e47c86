"""What the code under test does with SQLite, on the real library: each connection, its statements and its settings."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from typing import Any
from unittest import mock

EXTRA = 3  # of PRAGMA synchronous: what was committed survives a loss of power


class SeenConnection(sqlite3.Connection):
    """statements: in the order in which they ran. synchronous: as it was when the connection was closed."""

    def __init__(self, *words: Any, **options: Any) -> None:
        super().__init__(*words, **options)
        self.statements: list[str] = []
        self.synchronous: int | None = None
        self.set_trace_callback(self.statements.append)

    def close(self) -> None:
        if self.synchronous is None:
            self.set_trace_callback(None)
            (self.synchronous,) = self.execute("PRAGMA synchronous").fetchone()
        super().close()

    @property
    def begins(self) -> list[str]:
        return [statement.strip() for statement in self.statements if statement.startswith("BEGIN")]

    @property
    def writes(self) -> bool:
        return any(statement.startswith(("INSERT", "UPDATE")) for statement in self.statements)


@contextlib.contextmanager
def seen_connections() -> Iterator[list[SeenConnection]]:
    seen: list[SeenConnection] = []
    connect = sqlite3.connect

    def seen_connect(*words: Any, **options: Any) -> SeenConnection:
        seen.append(connect(*words, factory=SeenConnection, **options))
        return seen[-1]

    with mock.patch.object(sqlite3, "connect", seen_connect):
        yield seen


def check_durable_and_in_turns(seen: list[SeenConnection]) -> None:
    """Who writes has the file for itself from its first statement on; all that is committed is on the disk."""
    writers, readers = [each for each in seen if each.writes], [each for each in seen if not each.writes]
    assert writers
    assert readers
    assert {each.synchronous for each in seen} == {EXTRA}
    assert all(each.begins == ["BEGIN IMMEDIATE"] for each in writers)
    assert all(begin in ("BEGIN", "BEGIN IMMEDIATE") for each in readers for begin in each.begins)
