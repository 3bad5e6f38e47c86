"""The command over D and over D without x', with one noise key and run id: its reports are the same."""

from __future__ import annotations

import pathlib
import random
from collections.abc import Sequence
from typing import Any

import pytest

from dp_transforms.reports import read_report_file
from tests.helpers.shh_here import shh
from tests.helpers.small_runs import MICROS, START, key_file
from tests.neighbours.binary_files import PARQUET, cells_of, hostile_cells, odd_cells, write_avro, write_parquet
from tests.neighbours.logs import WINDOWS, Log, iso, place, without_added
from tests.neighbours.text_files import FORMATS, write
from tests.reference.log import Event


def mine(body: Any, number: int) -> Any:
    """The same row of x', of an item that nobody else holds, and no other row of x'."""
    item = f"mine {number}".encode()
    if isinstance(body, tuple):
        return tuple(item if cell == b"A" else cell for cell in body)
    return body.replace(b"A", item) if len(body) < 100_000 else body


def hostile(cases: dict[str, Sequence[Any]], source: random.Random, count: int = 150) -> list[Any]:
    chosen = source.choices(list(cases.values()), k=count)
    return [mine(source.choice(rows), number) for number, rows in enumerate(chosen)]


def logs_of(events: Sequence[Event]) -> dict[str, Log]:
    """A part of the events in each format, with rows of x' all over."""
    source, logs = random.Random(7), {}
    names = [*FORMATS, "parquet", "avro"]
    for number, name in enumerate(names):
        own = list(events[number :: len(names)])
        if name in FORMATS:
            form = FORMATS[name]
            others, added = [*map(form.spell, own), *form.odd()], hostile(form.hostile, source)
        else:
            others, added = cells_of(own, "whole") + odd_cells("whole"), hostile(hostile_cells("whole"), source)
        logs[name] = place(others, added, "spread", number)
    return logs


def write_all(folder: pathlib.Path, logs: dict[str, Log], *, with_added: bool) -> None:
    folder.mkdir()
    for name, log in logs.items():
        rows = log if with_added else without_added(log)
        if name in FORMATS:
            write(folder, FORMATS[name], rows)
        elif name == "parquet":
            write_parquet(folder / "log.parquet", PARQUET["small dictionary"], rows)
        else:
            write_avro(folder / "log.avro", "whole", rows, "deflate", 2_000)


BUDGET = [
    *("--start", iso(START * MICROS), "--end", iso((START + WINDOWS * 60) * MICROS), "--window", "1m"),
    *("--epsilon", "8", "--delta", "1e-6", "--charge", "hits", "--counts", "--max-items-per-user", "50"),
]


def test_the_replay_command_publishes_the_same(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Noisy counts tell by the digest of an item's holders whether a single one of them was lost. The key is kept, and
    the id of the run is the same: no user may choose both, so the test takes the place of what draws ids."""
    monkeypatch.setattr("dp_transforms.cli.run_account.fresh_run_id", lambda: "7")
    monkeypatch.setattr("dp_transforms.cli.replay_run.MOST_REJECTED", 1)
    events = [
        (f"u{user}", f"item {user % 3}", (START + second) * MICROS + user)
        for user in range(900)
        for second in (user % 60, 60 + user % 60, 180 + user % 60)
    ]
    logs, key, found = logs_of(events), key_file(tmp_path), []
    for kind in ("with", "without"):
        write_all(tmp_path / kind, logs, with_added=kind == "with")
        output = tmp_path / f"{kind}.jsonl"
        done = shh("replay", tmp_path / kind, *BUDGET, "--noise-key-file", key, "--output", output)
        assert done.returncode == 0, done.stderr
        found.append(list(read_report_file(str(output))[1]))
    assert found[0] == found[1]
    assert [len(report.heavy_hitters) for report in found[0]] == [3, 3, 3]
