"""The script for cron of docs/budgets_over_runs.md, as it stands there, with an `shh` that notes how it was called.

What the parts of a run publish: test_replay_state.py and tests/transcripts."""

import datetime
import os
import pathlib
import re
import subprocess

import pytest

ROOT = pathlib.Path(__file__).parents[2]
FIRST = datetime.datetime(2026, 12, 1, tzinfo=datetime.UTC)
NOW = FIRST + datetime.timedelta(days=3, hours=1, minutes=15)


def recipe():
    """What cron runs, and night.sh."""
    section = (ROOT / "docs" / "budgets_over_runs.md").read_text().split("## One run in nightly parts")[1]
    (script,) = re.findall(r"```sh\n(.*?)```", section, re.DOTALL)
    (cron,) = re.findall(r"^    15 1 \* \* \* cd /srv/news && (.*)$", section, re.MULTILINE)
    return cron, script


@pytest.mark.parametrize(("codes", "taken", "ends"), [("030", 3, 0), ("010", 2, 1), ("000", 3, 0)])
def test_the_script_takes_the_days_that_are_over_and_stops_where_one_is_not_closed(tmp_path, codes, taken, ends):
    """Five days have logs, and three are over. codes: with which `shh` ends for each day."""
    cron, script = recipe()
    (tmp_path / "night.sh").write_text(script)
    for folder in ("bin", "logs", "reports"):
        (tmp_path / folder).mkdir()
    days = [FIRST.date() + datetime.timedelta(days=number) for number in range(5)]
    for day in days:
        (tmp_path / "logs" / f"{day}.parquet").touch()
    for name, does in {
        "date": f'[ "$*" = +%s ] && echo {int(NOW.timestamp())} || exec /bin/date "$@"',
        "shh": f'echo "$2" "$6" >> called\nexit $(echo {codes} | cut -c $(grep -c . called))',
    }.items():
        (tmp_path / "bin" / name).write_text(f"#!/bin/sh\n{does}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(["sh", "-c", cron], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (ends, "")
    called = (tmp_path / "called").read_text().splitlines()
    assert called == [f"logs/{day}.parquet {day + datetime.timedelta(days=1)}" for day in days[:taken]]
