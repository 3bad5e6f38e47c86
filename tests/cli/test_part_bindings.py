"""What a run that is taken in parts is bound to: its key, the files of its log, its version, and the state it made."""

from __future__ import annotations

import os
import pathlib
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dp_transforms.cli import replay, replay_runs, state_part, stream
from dp_transforms.cli.options import LogError
from dp_transforms.cli.replay_run import ReplayPart
from dp_transforms.cli.state_part import RunAccount
from dp_transforms.runs.state_cells import Kind
from dp_transforms.runs.state_file import StateFile, replace_state, write_state
from tests.helpers.live_parts import LiveParts
from tests.helpers.nights import START, Nights
from tests.helpers.small_runs import SECRET, key_file

OTHER_KEY = bytes(range(100, 164))


@pytest.fixture
def nights(tmp_path: pathlib.Path) -> Nights:
    return Nights(tmp_path)


def exchange_key(folder: pathlib.Path) -> None:
    """As a rotation does."""
    path = folder / "noise.key.new"
    path.write_bytes(OTHER_KEY)
    path.chmod(0o600)
    path.replace(folder / "noise.key")


@pytest.mark.parametrize("when", ["before it is drawn", "before it is published"])
def test_a_part_whose_key_is_exchanged_publishes_nothing(
    nights: Nights, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    class Account(RunAccount):
        def start(self, facts: Any) -> None:
            exchange_key(nights.folder)

    with monkeypatch.context() as patch:
        if when == "before it is drawn":
            patch.setattr(replay_runs, "RunAccount", Account)
        else:
            patch.setattr(ReplayPart, "check_log", lambda part: exchange_key(nights.folder))
        done = nights.run(1)
    assert (done.returncode, "another key than that of the run" in done.stderr) == (1, True), done.stderr
    assert not (nights.folder / "1.jsonl").exists()
    assert not nights.state.rows
    key_file(nights.folder, SECRET)
    nights.taken(1)
    assert nights.reports("1.jsonl") == nights.expected(range(1))[:1]


def test_a_log_that_is_exchanged_when_its_row_groups_are_listed_is_refused(
    nights: Nights, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half of the new file would be read, and all of it would be fingerprinted."""
    rows = {"user": ["a"], "item": ["b"], "timestamp": pa.array([START], pa.timestamp("s", "UTC"))}
    for name, groups in (("0.parquet", 1), ("new", 2)):
        table = pa.table(rows)
        with pq.ParquetWriter(nights.folder / name, table.schema) as writer:
            for _ in range(groups):
                writer.write_table(table)
    before = replay.hint_of_log

    def exchanged(*arguments: Any) -> str | None:
        os.replace("new", "0.parquet")
        return before(*arguments)

    monkeypatch.setattr(replay, "hint_of_log", exchanged)
    done = nights.run(1)
    assert (done.returncode, "was changed while it was looked at" in done.stderr) == (1, True), done.stderr
    assert not (nights.folder / "run.state").exists()


def test_a_state_that_was_made_without_the_noise_key_is_refused(nights: Nights) -> None:
    """With right checksums: as it was, but with full purses."""
    nights.taken(1)
    path = nights.folder / "run.state"
    state = StateFile(path)
    poor = [(row.kind, row.bucket, bytes(state.cell(row))) for row in state.rows if row.kind is not Kind.PURSES]
    assert len(poor) < len(state.rows)
    write_state(nights.folder / "forged", state.header, poor, OTHER_KEY[:32])
    replace_state(nights.folder / "forged", path)
    assert "is not sealed with the noise key of its run" in nights.refused(2)


def interrupted(*_: object, **__: object) -> None:
    raise KeyboardInterrupt


def test_a_part_that_was_begun_by_another_version_is_finished_by_that(
    nights: Nights, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another version may draw otherwise, and the report that was moved away would have a second answer beside it."""
    with monkeypatch.context() as patch:
        patch.setattr(replay_runs, "run_replay", interrupted)
        assert nights.run(1).returncode == 130
    assert nights.state.header.intent is not None
    with monkeypatch.context() as patch:
        patch.setattr(state_part, "_VERSION", "99.0")
        assert "was begun by shh 0.1.0 and not finished, and this is shh 99.0" in nights.refused(1)
    nights.taken(1)
    monkeypatch.setattr(state_part, "_VERSION", "99.0")
    nights.taken(2)  # a new part may be taken by a new version


def test_a_part_that_may_have_been_published_keeps_its_input_even_if_its_log_is_bad_then(
    nights: Nights, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(ReplayPart, "_replace_state", interrupted)
        assert nights.run(1).returncode == 130
    assert (nights.folder / "1.jsonl").exists()
    header = nights.state.header
    assert header.next_fingerprint
    monkeypatch.setattr(replay_runs, "run_replay", bad_log)
    assert "unreadable" in nights.run(1).stderr
    assert nights.state.header == header
    monkeypatch.undo()
    nights.taken(1)
    assert nights.state.header.next_fingerprint == ""


def bad_log(*_: object, **__: object) -> None:
    raise LogError("the log is unreadable.")


def test_a_stream_whose_key_is_exchanged_publishes_nothing(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = LiveParts(tmp_path)

    class Account(RunAccount):
        def start(self, facts: Any) -> None:
            exchange_key(tmp_path)

    with monkeypatch.context() as patch:
        patch.setattr(stream, "RunAccount", Account)
        done = parts.run("stream", "out", *parts.until(3))
    assert (done.returncode, "another key than that of the run" in done.stderr) == (1, True), done.stderr
    assert not list((tmp_path / "out").glob("2*.jsonl"))
    assert not parts.state().rows
