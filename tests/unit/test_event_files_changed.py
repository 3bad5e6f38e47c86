"""A log that is not what was found any more is refused, in whatever format it is and whenever that is noticed."""

from __future__ import annotations

import gzip
import os
import pathlib
import shutil
import subprocess
from collections.abc import Callable

import pytest

from dp_transforms.logs import EventFields, EventFileError, LogChunk, check_unchanged, find_log_chunks, read_log_chunk
from dp_transforms.logs.log_chunk import FileState
from tests.helpers import forked
from tests.helpers.replay_logs import BUDGET, write_log

CHANGED = "it was changed while it was read"


def grown(path: pathlib.Path) -> None:
    with path.open("ab") as file:
        file.write(path.read_bytes())


def cut(path: pathlib.Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def replaced(path: pathlib.Path) -> None:
    """By a file of the same size and time, as tools do that keep times."""
    shutil.copy2(path, path.with_name("other"))
    os.replace(path.with_name("other"), path)


def written_in_place(path: pathlib.Path) -> None:
    before = path.stat()
    with path.open("r+b") as file:
        file.seek(before.st_size // 2)
        file.write(b"\0" * 64)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def removed(path: pathlib.Path) -> None:
    path.unlink()


def change_at_another_time(change: Callable[[pathlib.Path], None], path: pathlib.Path) -> None:
    """The clock of a file system goes by some milliseconds."""
    other, before = path.with_name("clock"), path.stat().st_ctime_ns
    other.touch()
    while other.stat().st_ctime_ns <= before:
        other.touch()
    change(path)


@pytest.fixture(params=["jsonl", "csv", "csv.gz", "parquet", "avro"])
def log(request: pytest.FixtureRequest, tmp_path: pathlib.Path) -> pathlib.Path:
    path = tmp_path / f"log.{request.param}"
    write_log(path.with_suffix("") if path.suffix == ".gz" else path)
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(path.with_suffix("").read_bytes()))
    return path


def read(chunks: list[LogChunk]) -> None:
    for chunk in chunks:
        for _ in read_log_chunk(chunk, EventFields()):
            pass


@pytest.mark.parametrize("change", [grown, cut, replaced, written_in_place, removed])
def test_a_log_that_changes_is_refused_whatever_the_change_looks_like(
    log: pathlib.Path, change: Callable[[pathlib.Path], None]
) -> None:
    """Before it is read, where some changes look like damage; while it is; and after, before anything is published."""
    chunks = find_log_chunks([str(log)], EventFields())
    read(chunks)
    check_unchanged(chunks)
    blocks = read_log_chunk(chunks[-1], EventFields())
    next(blocks)
    change_at_another_time(change, log)
    for look in (lambda: list(blocks), lambda: read(chunks), lambda: check_unchanged(chunks)):
        with pytest.raises(EventFileError, match=CHANGED):
            look()


def test_a_copy_on_another_machine_may_have_its_own_times_and_not_another_size(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"content")
    here = FileState.of(str(path))
    assert here is not None
    there = FileState("elsewhere", here.size, 1, 1)
    assert there.fits(here)
    assert not there.fits(FileState(here.machine, here.size + 1, 1, 1))
    assert FileState.of(str(tmp_path / "absent")) is None


@pytest.mark.parametrize("processes", [1, 2])
def test_a_replay_of_a_log_that_grows_publishes_nothing(tmp_path: pathlib.Path, processes: int) -> None:
    """Whole rows come one after the other, so that no row is damaged."""
    write_log(tmp_path / "log.jsonl")
    line = (tmp_path / "log.jsonl").read_text().splitlines()[0]
    words = ("replay", "log.jsonl", *BUDGET, "--output", "report.avro", "--dead-letter", "bad.jsonl")
    command = ("-m", "dp_transforms.cli.main", *words, "--processes", processes)
    with forked.python(*command, cwd=tmp_path, stderr=subprocess.PIPE) as process:
        while process.poll() is None:
            with (tmp_path / "log.jsonl").open("a") as file:
                file.write(f"{line}\n")
        assert process.stderr is not None
        said = process.stderr.read()
    assert process.returncode == 1
    assert said == f"shh: log.jsonl: {CHANGED}. Use files that nobody writes to any more.\n"
    assert os.listdir(tmp_path) == ["log.jsonl"]
