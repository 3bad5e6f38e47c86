"""``shh simulate``: the same log in every format, decided by the seed, realistic, never half written."""

from __future__ import annotations

import os
import pathlib
import re
import shlex
import subprocess
import sys

import numpy as np
import pytest

from dp_transforms.cli import simulate
from dp_transforms.cli.main import main
from dp_transforms.logs import EventFields, find_log_chunks, read_log_chunk
from dp_transforms.monitor.event_batch import EventBatch
from tests.helpers import shh_here

START = 1_767_225_600_000_000


def _run(*options: object) -> None:
    main(["simulate", *map(str, options)])


def _events(path: pathlib.Path) -> list[tuple[str, str, int]]:
    batches: list[EventBatch] = []
    for chunk in find_log_chunks([str(path)], EventFields()):
        for block in read_log_chunk(chunk, EventFields()):
            assert not block.rejected
            batches.append(block.batch)
    return [
        row
        for batch in batches
        for row in zip(batch.user.to_pylist(), batch.item.to_pylist(), batch.time_micros.tolist(), strict=True)
    ]


def test_every_format_holds_the_same_events(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    logs = []
    for ending in ("parquet", "pq", "avro", "csv", "jsonl", "ndjson", "json"):
        path = tmp_path / f"log.{ending}"
        _run("--events", 3000, "--users", 200, "--items", 50, "--seed", 9, "--output", path)
        logs.append(_events(path))
        said = capsys.readouterr().out
        assert said == (
            f"Wrote 3,000 events of up to 200 users to {path}. Replay it with:\n"
            f"  shh replay {path} --start 2026-01-01T00:00:00Z --end 2026-01-05T00:00:00Z"
            " --window 1h --epsilon 2 --delta 1e-9 --output report.avro\n"
        )
    assert len(logs[0]) == 3000
    assert all(log == logs[0] for log in logs)
    times = [time for _, _, time in logs[0]]
    assert times == sorted(times)
    assert times[0] >= START
    assert times[-1] < START + 4 * 86_400_000_000
    assert all(re.fullmatch("u[0-9a-f]{6}", user) for user, _, _ in logs[0])
    assert all(re.fullmatch(r"story-\d{5}|page-\d{3}", item) for _, item, _ in logs[0])


def simulated(folder: pathlib.Path, name: str) -> str:
    """The command that is printed."""
    made = shh_here.shh("simulate", "--events", 3_000, "--days", 1, f"--output={name}", cwd=folder)
    assert made.returncode == 0, made.stderr
    return made.stdout.splitlines()[-1]


def test_the_command_that_it_prints_runs_as_printed(tmp_path: pathlib.Path) -> None:
    """The words that a shell makes of it, also a second time in the same folder."""
    for name, report in (("my log.csv", "report.avro"), ("-log.parquet", "report-2.avro")):
        ended = shh_here.shh(*shlex.split(simulated(tmp_path, name))[1:], cwd=tmp_path)
        assert ended.returncode == 0, ended.stderr
        assert (tmp_path / report).exists()


def test_a_shell_runs_the_command_as_printed(tmp_path: pathlib.Path) -> None:
    path = os.pathsep.join((str(pathlib.Path(sys.executable).parent), os.environ["PATH"]))
    command = simulated(tmp_path, "my log.csv")
    ended = subprocess.run(
        command, shell=True, cwd=tmp_path, env={**os.environ, "PATH": path}, capture_output=True, text=True
    )
    assert ended.returncode == 0, ended.stderr
    assert (tmp_path / "report.avro").exists()


@pytest.mark.parametrize("ending", ["parquet", "avro", "csv", "jsonl"])
def test_the_seed_decides_every_byte(tmp_path: pathlib.Path, ending: str) -> None:
    contents = []
    for name, seed in (("a", 4), ("b", 4), ("c", 5)):
        path = tmp_path / f"{name}.{ending}"
        _run("--events", 500, "--seed", seed, "--output", path)
        contents.append(path.read_bytes())
    assert contents[0] == contents[1] != contents[2]


def test_range_and_numbers_are_those_asked_for(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "my log.csv"
    _run("--events", 5000, "--users", 3, "--items", 1, "--start", "2020-02-29T12:00", "--days", 2, "--output", path)
    events = _events(path)
    assert len(events) == 5000
    assert len({user for user, _, _ in events}) == 3
    assert {item for _, item, _ in events} == {"page-000"}
    assert f"shh replay '{path}' --start 2020-02-29T12:00:00Z --end 2020-03-02T12:00:00Z" in capsys.readouterr().out


def test_large_logs_come_in_blocks_in_order_of_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simulate, "_BLOCK_ROWS", 1000)
    plan = simulate.LogPlan(20_000, 5000, 100, 0, 1, 3)
    blocks = list(simulate.simulate_log(plan))
    assert sum(len(block.time_millis) for block in blocks) == 20_000
    assert 20 <= len(blocks) < 60
    assert max(len(block.time_millis) for block in blocks) <= 1100
    assert (np.diff(np.concatenate([block.time_millis for block in blocks])) >= 0).all()


def test_user_ids_are_distinct() -> None:
    for users in (1, 2, 70_000):
        ids = simulate._user_ids(users, np.random.default_rng(1)).to_pylist()
        assert len(set(ids)) == users


def test_the_log_is_realistic() -> None:
    plan = simulate.LogPlan(250_000, 20_000, 3_000, START // 10**6, 4, 1)
    blocks = list(simulate.simulate_log(plan))
    users = np.concatenate([block.users.to_numpy(zero_copy_only=False) for block in blocks])
    items = np.concatenate([block.items.to_numpy(zero_copy_only=False) for block in blocks])
    hours = (np.concatenate([block.time_millis for block in blocks]) - START // 1000) // 3_600_000
    by_hour = np.bincount(hours, minlength=96)
    by_day = by_hour.reshape(4, 24).sum(axis=0)
    assert by_day[2:6].sum() * 5 < by_day[18:22].sum()  # nights are quiet
    activity = np.unique(users, return_counts=True)[1]
    assert np.quantile(activity, 0.99) > 10 * np.median(activity)  # users differ
    heavy = [set(_heavy(users[hours == hour], items[hours == hour], 150)) for hour in range(96)]
    assert sum(bool(names) for names in heavy) >= 48  # most hours of the day have heavy items
    lives = {item: [hour for hour in range(96) if item in heavy[hour]] for item in set().union(*heavy)}
    stories = {item: hours for item, hours in lives.items() if item.startswith("story")}
    assert len(stories) >= 20
    assert np.median([len(hours) for hours in stories.values()]) <= 12  # stories come and go
    pages, counts = np.unique(items[np.char.startswith(items.astype(str), "page")], return_counts=True)
    first = items == pages[np.argmax(counts)]
    assert (np.bincount(hours[first], minlength=96)[12:22] > 0).all()  # pages stay
    assert (np.bincount(hours[first], minlength=96)[84:94] > 0).all()


def _heavy(users: np.ndarray, items: np.ndarray, holders: int) -> list[str]:
    names, counts = np.unique([item for _, item in set(zip(users, items, strict=True))], return_counts=True)
    return [str(name) for name, count in zip(names, counts, strict=True) if count >= holders]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--output", "log.txt"], "is not a known format. Use one of .parquet"),
        (["--output", "log.csv", "--start", "9999-12-31T00:00:00Z"], "years 1970 to 9999. Use another --start"),
    ],
)
def test_expected_failures_are_one_line(
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    options: list[str],
    words: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as caught:
        _run("--events", 10, *options)
    assert caught.value.code == 1
    said = capsys.readouterr().err
    assert words in said
    assert said.count("\n") == 1
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError(28, "No space left on device")])
def test_a_log_that_is_not_finished_does_not_exist(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    blocks = list(simulate.simulate_log(simulate.LogPlan(1000, 10, 10, 0, 1, 1)))

    def breaks_off(_: object) -> object:
        yield blocks[0]
        assert [name for name in os.listdir(tmp_path) if not name.startswith(".")] == []
        raise error

    monkeypatch.setattr(simulate, "simulate_log", breaks_off)
    for ending in ("parquet", "avro", "csv", "jsonl"):
        with pytest.raises(SystemExit):
            _run("--output", tmp_path / f"log.{ending}")
        assert os.listdir(tmp_path) == []
