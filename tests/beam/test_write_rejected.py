"""Rejected rows as files: sorted lines for their owner alone, in one file or, for a stream, in a folder."""

from __future__ import annotations

import json
import os
import random
import stat

import apache_beam as beam
import numpy as np
import pytest

from dp_transforms.beam import write_files
from dp_transforms.beam.write_files import WriteRejected, WriteRejectedFolder
from dp_transforms.logs import rejected_events
from dp_transforms.logs.rejected_events import RejectedEvents
from dp_transforms.stores.local_files import publish
from tests.helpers.beam_pipelines import local_pipeline

REPEATED = ["--direct_runner_bundle_repeat=1"]
OTHER_PROCESS = ["--direct_running_mode=multi_processing", "--direct_num_workers=1"]

REJECTED = [
    RejectedEvents("b.jsonl", [30, 2], "broken line"),
    RejectedEvents("a.parquet", [5], "time is missing"),
    RejectedEvents("a.parquet", [9, 1, 5], "user is empty"),
    RejectedEvents("b.jsonl", [7], "broken line"),
    RejectedEvents("ü.csv", [-(1 << 62)], "time is no number"),
]
REJECTED_LINES = [
    ("a.parquet", 1, "user is empty"),
    ("a.parquet", 5, "time is missing"),
    ("a.parquet", 5, "user is empty"),
    ("a.parquet", 9, "user is empty"),
    ("b.jsonl", 2, "broken line"),
    ("b.jsonl", 7, "broken line"),
    ("b.jsonl", 30, "broken line"),
    ("ü.csv", -(1 << 62), "time is no number"),
]


def write_lines_file(path, rejected, flags=()):
    with local_pipeline(flags) as job:
        elements = job | beam.Create(rejected, reshuffle=False)
        elements.element_type = RejectedEvents
        elements | "Shuffle" >> beam.Reshuffle() | "WriteRejected" >> WriteRejected(path)


def lines_of(path):
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert all(list(row) == ["file", "position", "reason"] for row in rows)
    return [tuple(row.values()) for row in rows]


@pytest.mark.parametrize("flags", [[], REPEATED, OTHER_PROCESS], ids=["once", "repeated", "processes"])
def test_rejected_rows_are_written_one_by_one_and_sorted(tmp_path, flags):
    path = tmp_path / "rejected.jsonl"
    write_lines_file(path, random.Random(5).sample(REJECTED, len(REJECTED)), flags)
    assert lines_of(path) == REJECTED_LINES


def test_without_rejected_rows_the_file_is_empty(tmp_path):
    path = tmp_path / "rejected.jsonl"
    write_lines_file(path, [])
    assert path.read_bytes() == b""


def test_rejected_rows_are_for_their_owner_alone_from_the_first_byte_on(tmp_path, monkeypatch):
    modes = []
    write_lines = rejected_events.write_rejected_lines

    def observed(handle, packed):
        modes.extend(entry.stat().st_mode & 0o777 for entry in os.scandir(tmp_path))
        write_lines(handle, packed)
        modes.extend(entry.stat().st_mode & 0o777 for entry in os.scandir(tmp_path))

    monkeypatch.setattr(write_files, "write_rejected_lines", observed)
    before = os.umask(0)
    try:
        write_lines_file(tmp_path / "rejected.jsonl", REJECTED)
    finally:
        os.umask(before)
    assert modes == [0o600, 0o600]
    assert (tmp_path / "rejected.jsonl").stat().st_mode & 0o777 == 0o600
    publish(tmp_path / "rejected.jsonl", tmp_path / "published.jsonl")
    assert (tmp_path / "published.jsonl").stat().st_mode & 0o777 == 0o600


def test_rejected_rows_stay_packed_until_they_are_written():
    positions = np.arange(1_000_000)[::-1]
    packed = rejected_events.pack_rejected(RejectedEvents("a", positions, "broken line"))
    assert len(packed) < 8_000_100
    lines = []

    class Handle:
        def write(self, line):
            lines.append(line)

    rejected_events.write_rejected_lines(Handle(), [packed])
    assert len(lines) == 1_000_000
    assert json.loads(lines[0])["position"] == 0
    assert json.loads(lines[-1])["position"] == 999_999


# ---------------------------------------------------------------------------------------------------------------------
# The folder of a stream
# ---------------------------------------------------------------------------------------------------------------------


def contents(folder):
    return {path: path.read_bytes() for path in sorted(folder.iterdir())}


OF_A_STREAM = [
    RejectedEvents("topic/0", [7, 3], "no user"),
    RejectedEvents("topic/1", list(range(100)), "broken line"),
]


def write_folder(path, rejected, flags=()):
    with local_pipeline(flags) as job:
        _ = (
            job
            | beam.Create(rejected, reshuffle=False).with_output_types(RejectedEvents)
            | "Write" >> WriteRejectedFolder(path)
        )


@pytest.mark.parametrize("flags", [[], REPEATED], ids=["once", "repeated"])
def test_rejected_events_become_private_files_with_the_lines_of_a_replay(tmp_path, flags):
    folder = tmp_path / "deep" / "rejected"
    write_folder(folder, OF_A_STREAM, flags)
    before = contents(folder)
    write_folder(folder, OF_A_STREAM[::-1], flags)
    assert contents(folder) == before
    assert len(before) == 2
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {0o600}
    with local_pipeline() as job:
        _ = job | beam.Create(OF_A_STREAM).with_output_types(RejectedEvents) | WriteRejected(tmp_path / "replay.jsonl")
    lines = sorted(line for content in before.values() for line in content.decode().splitlines())
    assert lines == sorted((tmp_path / "replay.jsonl").read_text().splitlines())
    assert {"file": "topic/0", "position": 3, "reason": "no user"} in map(json.loads, lines)


def test_rejected_events_that_cannot_be_written_fail_in_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(Exception, match="is never overwritten"):
        write_folder(tmp_path / "file", OF_A_STREAM[:1])
    assert os.listdir(tmp_path) == ["file"]
