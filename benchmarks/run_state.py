"""What the state of a run costs with a hundred million users: bytes, seconds to load, and seconds of a night.

A state with a purse for each user is written, bucket by bucket. Then each measurement is made in a process of its own,
so that its peak of memory is told: all purses are loaded; a night reads those of its users and writes the state after
it; the intent is written.
"""

from __future__ import annotations

import multiprocessing
import pathlib
import resource
import secrets
import tempfile
import time
from collections.abc import Callable, Iterator

import numpy as np

from benchmarks.report import Figure, show_figures, write_results
from dp_transforms.beam.set_up_workers import KeyFile
from dp_transforms.beam.write_state import write_gathered
from dp_transforms.monitor.purses import PurseEntries
from dp_transforms.runs.run_part import RunPart
from dp_transforms.runs.state_cells import BUCKETS, Kind, cells_by_bucket, pack_cell
from dp_transforms.runs.state_file import StateFile, write_state
from dp_transforms.runs.state_header import PartRecord, StateHeader
from dp_transforms.stores.local_files import create_new

_USERS, _QUICK_USERS = 100_000_000, 2_000_000
_ACTIVE_SHARE = 100  # one user of so many comes in a night
_SHARDS = 8
_MOST_BYTES, _MOST_SECONDS = 3e9, 20.0
_KEY = bytes(32)  # by which the states are sealed


def run(*, quick: bool = False) -> list[Figure]:
    users = _QUICK_USERS if quick else _USERS
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "state"
        seconds, _ = _apart(_write, path, users)
        size = path.stat().st_size
        figures = [
            Figure("State", size / 1e6, "MB", ("<=", _MOST_BYTES / 1e6), f"{users:,} users"),
            Figure("State of a user", size / users, "bytes", ("<=", _MOST_BYTES / _USERS)),
            Figure("Writing it", seconds, "s", None, "with the drawing of its users"),
        ]
        for name, target, step in (
            ("Loading all purses, each cell checked", ("<=", _MOST_SECONDS), _load),
            (f"A night: purses of 1 in {_ACTIVE_SHARE}", None, _read_night),
            (f"A night: the state after it, 1 in {_ACTIVE_SHARE} changed", None, _write_night),
            ("A night: the intent", None, _write_intent),
        ):
            seconds, peak = _apart(step, path, users)
            figures.append(Figure(name, seconds, "s", target, f"peak memory {peak / 1e6:,.0f} MB, the file's included"))
    show_figures("State of a run", figures)
    write_results("run_state", figures, quick=quick)
    return figures


def _apart(step: Callable[[pathlib.Path, int], None], path: pathlib.Path, users: int) -> tuple[float, float]:
    """Wall seconds and the peak of memory, bytes, in a fresh process."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(_measured, (step, path, users))


def _measured(step: Callable[[pathlib.Path, int], None], path: pathlib.Path, users: int) -> tuple[float, float]:
    started = time.monotonic()
    step(path, users)
    return time.monotonic() - started, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1e3


def _header(path: pathlib.Path) -> StateHeader:
    header = StateHeader("{}", "a" * 64, "events", "bench", "b" * 64, "user", "item")
    return header.after(PartRecord(0, 1, "1" * 64, str(path)))


def _write(path: pathlib.Path, users: int) -> None:
    def cells() -> Iterator[tuple[Kind, int, bytes]]:
        for bucket in range(BUCKETS):
            drawn = np.frombuffer(secrets.token_bytes(8 * (users // BUCKETS)), dtype=np.uint64)
            of_bucket = np.unique(drawn - drawn % np.uint64(BUCKETS) + np.uint64(bucket))
            for number, cell in cells_by_bucket(_entries(of_bucket, 10**8)):
                yield Kind.PURSES, number, cell

    write_state(path, _header(path), cells(), _KEY)


def _entries(users: np.ndarray, left: int) -> PurseEntries:
    ones = np.ones(len(users), dtype=np.uint32)
    return PurseEntries(users, np.full(len(users), left, dtype=np.int64), ones, np.zeros_like(ones))


def _load(path: pathlib.Path, users: int) -> None:
    loaded = [PurseEntries.from_bytes(cell) for cell in StateFile(path).cells_of(Kind.PURSES)]
    assert sum(map(len, loaded)) > 0.99 * users


def _active(path: pathlib.Path, shard: int) -> np.ndarray:
    """Some users of a shard."""
    state = StateFile(path)
    found = []
    for bucket in range(shard, BUCKETS, _SHARDS):
        found += [
            PurseEntries.from_bytes(cell).users[::_ACTIVE_SHARE] for cell in state.cells_of(Kind.PURSES, [bucket])
        ]
    return np.sort(np.concatenate(found))


def _part(path: pathlib.Path) -> RunPart:
    return RunPart(1, 2, str(path), StateFile(path).fingerprint)


def _read_night(path: pathlib.Path, users: int) -> None:
    part = _part(path)
    for shard in range(_SHARDS):
        asked = _active(path, shard)
        assert len(part.purses(asked)) == len(asked)


def _write_night(path: pathlib.Path, users: int) -> None:
    changed = []
    for shard in range(_SHARDS):
        entries = _entries(_active(path, shard), 10**7)
        changed += [pack_cell(Kind.PURSES, bucket, cell) for bucket, cell in cells_by_bucket(entries)]
    header = _header(path).with_intent(PartRecord(1, 2, "2" * 64, str(path)))
    draft, noise_key = path.with_name("after"), path.with_name("noise.key")
    with create_new(noise_key, 0o600) as file:
        file.write(secrets.token_bytes(32))
    write_gathered(((2, 0), changed), str(draft), header, _part(path), 0, "state", KeyFile(noise_key))
    draft.unlink()
    noise_key.unlink()


def _write_intent(path: pathlib.Path, users: int) -> None:
    state, draft = StateFile(path), path.with_name("intended")
    header = state.header.with_intent(PartRecord(1, 2, "2" * 64, str(path)))
    write_state(draft, header, ((row.kind, row.bucket, state.cell(row)) for row in state.rows), _KEY)
    draft.unlink()
