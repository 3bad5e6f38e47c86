"""Thirty nights of one run: one is missed, one runs twice, one is killed in the middle. The transcript is that of the
one run, and the budget is spent once."""

from __future__ import annotations

import pathlib
import signal

import pytest

from dp_transforms.reports import read_report_file
from tests.helpers import forked
from tests.helpers.nights import Nights

# Killed when the report has its name, and the state has not.
KILLED = """
import os, signal
from dp_transforms.cli import replay_run
publish = replay_run.publish_output
def and_die(*arguments):
    publish(*arguments)
    os.kill(os.getpid(), signal.SIGKILL)
replay_run.publish_output = and_die
from dp_transforms.cli.main import main
main()
"""


def take_nights(nights: Nights, days: int, *, missed: int, twice: int, killed: int) -> None:
    for end in range(1, days + 1):
        if end == missed:
            continue
        logs = [f"{end - 2}.parquet", f"{end - 1}.parquet"] if end == missed + 1 else []
        if end == killed:
            ended = forked.run_python("-c", KILLED, *nights.words(end, *logs), cwd=nights.folder)
            assert ended.returncode == -signal.SIGKILL, ended.stderr
            assert nights.state.header.intent is not None
            assert (nights.folder / f"{end}.jsonl").exists()
        nights.taken(end, *logs)
        if end == twice:
            assert "is done" in nights.run(end, *logs).stderr


def check_nights(folder: pathlib.Path, days: int, **faults: int) -> None:
    nights = Nights(folder, days)
    take_nights(nights, days, **faults)
    outputs = [f"{end}.jsonl" for end in range(1, days + 1) if end != faults["missed"]]
    found = nights.reports(*outputs)
    assert found == nights.expected()
    assert len(found) > days // 2
    header = nights.state.header
    assert (header.closed_through, len(header.parts), header.intent) == (days, days - 1, None)
    headers = [read_report_file(folder / output)[0] for output in outputs]
    assert len({(header.run_id, header.plan["fingerprint"]) for header in headers}) == 1
    assert not [path for path in folder.iterdir() if path.name.endswith(".partial")]


def test_six_nights(tmp_path: pathlib.Path) -> None:
    check_nights(tmp_path, 6, missed=2, twice=4, killed=5)


@pytest.mark.nightly
def test_thirty_nights(tmp_path: pathlib.Path) -> None:
    check_nights(tmp_path, 30, missed=9, twice=14, killed=21)
