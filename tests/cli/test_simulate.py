"""``shh simulate``: the same log in both formats, decided by the seed, never half written."""

import os
import re
import shlex
import subprocess

from dp_transforms.cli import simulate
from dp_transforms.logs import EventFields, find_log_chunks
from dp_transforms.logs.discovery import read_log_chunk
from tests.helpers.shh_here import shh

START, FIELDS = 1_767_225_600_000_000, EventFields()


def _simulated(folder, *options):
    """What is printed."""
    made = shh("simulate", *options, cwd=folder)
    assert made.returncode == 0, made.stderr
    return made.stdout


def _events(path):
    blocks = [block for chunk in find_log_chunks([str(path)], FIELDS) for block in read_log_chunk(chunk, FIELDS)]
    assert not any(block.rejected for block in blocks)
    columns = [(each.batch.user.to_pylist(), each.batch.item.to_pylist(), each.batch.time_micros) for each in blocks]
    return [event for batch in columns for event in zip(*batch, strict=True)]


def test_both_formats_hold_the_same_events_and_the_seed_decides_every_byte(tmp_path):
    logs = []
    for ending in ("parquet", "csv"):
        contents = {}
        for name, seed in (("log", 9), ("again", 9), ("other", 5)):
            options = ["--users", 300, "--items", 50, "--seed", seed]
            said = _simulated(tmp_path, *options, "--output", f"{name}.{ending}")
            contents[name] = (tmp_path / f"{name}.{ending}").read_bytes()
            assert said.startswith(f"Wrote 3,000 events of up to 300 users to {name}.{ending}. Replay it with:\n")
        assert contents["log"] == contents["again"] != contents["other"]
        logs.append(_events(tmp_path / f"log.{ending}"))
    assert logs[0] == logs[1]
    users, items, times = zip(*logs[0], strict=True)
    assert list(times) == sorted(times)
    assert START <= times[0] <= times[-1] < START + 4 * 86_400_000_000
    assert len(times) == 3000
    assert all(re.fullmatch("u[0-9a-f]{6}", user) for user in users)
    assert all(re.fullmatch(r"story-\d{5}|page-\d{3}", item) for item in items)


def test_a_shell_runs_the_command_as_printed(tmp_path):
    """Also of names that a shell, or the command, would take for something else."""
    first = _simulated(tmp_path, "--users", 300, "--days", 1, "--output=my log.csv").splitlines()[-1]
    read = subprocess.run(f"printf '%s\\n' {first}", shell=True, check=True, capture_output=True, text=True)
    program, *words = read.stdout.splitlines()
    assert program == "shh"
    ended = shh(*words, cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr
    assert (tmp_path / "report.avro").exists()
    words = shlex.split(_simulated(tmp_path, "--users", 1, "--output=-log.parquet").splitlines()[-1])
    assert words[:3] == ["shh", "replay", "./-log.parquet"]
    assert words[-2:] == ["--output", "report-2.avro"], "a name that is free"


def test_a_log_that_is_not_finished_does_not_exist(tmp_path, monkeypatch):
    blocks = list(simulate.simulate_log(simulate.LogPlan(100, 10, 1, 1)))

    def breaks_off(_):
        yield blocks[0]
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(simulate, "simulate_log", breaks_off)
    for ending in ("parquet", "csv"):
        assert shh("simulate", "--output", f"log.{ending}", cwd=tmp_path).returncode == 1
        assert os.listdir(tmp_path) == []
    assert ".parquet or .csv" in shh("simulate", "--output", "log.txt", cwd=tmp_path).stderr
