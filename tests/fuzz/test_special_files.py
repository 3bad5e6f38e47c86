"""What is not a regular file where a file is expected: refused at once, whoever waits for it would wait for ever."""

from __future__ import annotations

import contextlib
import os
import pathlib
import shutil
import signal
import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from dp_transforms.logs import EventFields
from dp_transforms.logs.streams.log_folder import LogFolder
from tests.fuzz.log_samples import ROWS, json_samples
from tests.fuzz.reader import outcome
from tests.fuzz.readers import all_readers

_MOST_SECONDS = 120  # where nothing waits a read takes milliseconds
_OF_FILES = ("report", "show", "plan", "domain", "key")


def _socket(path: str) -> None:
    # The name of a socket may have 107 bytes; that of the folder of a test has more.
    folder = os.open(os.path.dirname(path), os.O_PATH)
    with contextlib.closing(socket.socket(socket.AF_UNIX)) as made:
        made.bind(f"/proc/self/fd/{folder}/{os.path.basename(path)}")
    os.close(folder)


_KINDS: dict[str, Callable[[str], Any]] = {
    "pipe": os.mkfifo,
    "endless device": lambda path: os.symlink("/dev/zero", path),
    "empty device": lambda path: os.symlink("/dev/null", path),
    "terminal": lambda path: os.symlink("/dev/tty", path),
    "socket": _socket,
    "folder": os.mkdir,
    "link to itself": lambda path: os.symlink(path, path),
    "link to nothing": lambda path: os.symlink(f"{path}.absent", path),
    "file of the kernel": lambda path: os.symlink("/proc/self/mem", path),
}


@contextlib.contextmanager
def _no_waiting() -> Iterator[None]:
    def stop(*_: object) -> None:
        raise AssertionError("it waits")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(_MOST_SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("kind", _KINDS)
@pytest.mark.parametrize("name", _OF_FILES)
def test_what_is_not_a_file_is_refused_at_once(name: str, kind: str, tmp_path: pathlib.Path) -> None:
    reader = all_readers()[name]
    sample = reader.samples()[0]
    path = str(tmp_path / f"odd{sample.ending}")
    _KINDS[kind](path)
    with _no_waiting():
        verdict, words = outcome(reader, sample, path)
    assert verdict == "refused", words
    assert "odd" in words, "the error names the file"


@pytest.mark.parametrize("kind", _KINDS)
def test_in_the_folder_of_a_report_too(kind: str, tmp_path: pathlib.Path) -> None:
    reader = all_readers()["report-folder"]
    for number, sample in enumerate(reader.samples()):
        folder = reader.place(str(tmp_path), f"r{number}", sample, sample.data)
        os.unlink(os.path.join(folder, sample.ending))
        _KINDS[kind](os.path.join(folder, sample.ending))
        with _no_waiting():
            verdict, result = outcome(reader, sample, folder)
        # What a link leads to nowhere is not there: such a run has not ended.
        is_absent = kind.startswith("link to") and sample.ending == "ended.json"
        assert verdict == "refused" or is_absent, (sample.name, result)


def test_a_stream_passes_over_them_and_reads_the_others(tmp_path: pathlib.Path) -> None:
    for kind, make in _KINDS.items():
        make(str(tmp_path / f"{kind}.jsonl"))
    good = tmp_path / "good.jsonl"
    good.write_bytes(json_samples()[0].data)
    (partition,) = LogFolder(str(tmp_path), EventFields(), settle_seconds=0.1).partitions()
    reader = partition.open()
    with _no_waiting():
        polled = reader.poll(None, max_records=1000, max_seconds=60)
    assert (len(polled.batch), polled.rejected) == (ROWS, ())
    reader.close()
    shutil.rmtree(tmp_path)
