"""The script for cron of docs/budgets_over_runs.md, as it stands there: with a night missed and one run twice, the
log of the day that has begun, and an old log that is rewritten."""

import datetime
import json
import os
import pathlib
import re
import subprocess
import sys

import pytest

from dp_transforms.reports import read_report_file
from tests.helpers.replay_logs import write_parquet

ROOT = pathlib.Path(__file__).parents[2]
FIRST = datetime.date(2026, 12, 1)


def recipe():
    """The commands of the first evening, what cron runs, and night.sh."""
    text = (ROOT / "docs" / "budgets_over_runs.md").read_text()
    section = text.split("## One run in nightly parts")[1].split("\n## ")[0]
    (script,) = re.findall(r"```sh\n(.*?)```", section, re.DOTALL)
    indented = [line[4:] for line in section.replace(script, "").splitlines() if line.startswith("    ")]
    *evening, cron = re.sub(r"\\\n\s*", "", "\n".join(indented)).splitlines()
    assert len(evening) == 2
    return evening, cron.removeprefix("15 1 * * * cd /srv/news && "), script


def begin_of(night):
    return int(datetime.datetime.combine(FIRST, datetime.time(), datetime.UTC).timestamp()) + 86_400 * night


def rows_of(night):
    """An hour's story that most users have, and one that few have; a third of the users come every day."""
    begin, rows = begin_of(night), []
    for user in range(400):
        name = f"user-{user}" if user % 3 == 0 else f"user-{user}-{night}"
        rows.append((name, f"story-{night}", begin + 3600 * (night % 24) + user))
        rows.append((name, f"rare-{user % 97}", begin + 40_000 + user))
    return rows


class Server:
    """A folder /srv/news with the recipe in it, in which time goes by."""

    def __init__(self, folder):
        self.folder = folder
        self.evening, self.cron, script = recipe()
        for name in ("logs", "reports", "bin"):
            (folder / name).mkdir()
        (folder / "night.sh").write_text(script)
        self.has("date", f'[ "$*" = +%s ] && exec cat {folder}/now\nexec /bin/date "$@"')

    def has(self, program, script):
        """Puts a program before those of the machine."""
        path = self.folder / "bin" / program
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)

    def time_is(self, night):
        """01:15 after so many days of the run are over."""
        (self.folder / "now").write_text(str(begin_of(night) + 4_500))

    def shell(self, command, code=0):
        places = [str(self.folder / "bin"), str(pathlib.Path(sys.executable).parent), os.environ["PATH"]]
        environment = {**os.environ, "PATH": os.pathsep.join(places)}
        done = subprocess.run(
            ["sh", "-c", command], cwd=self.folder, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == code, done.stderr
        return done

    def log_of(self, night):
        return self.folder / "logs" / f"{FIRST + datetime.timedelta(days=night)}.parquet"


@pytest.mark.nightly
def test_the_recipe_runs_as_it_stands_in_the_docs(tmp_path):
    """What nights publish, and those that are killed: test_replay_state.py and tests/runs/test_nights.py."""
    nights, missed, twice = 5, 1, 2
    server = Server(tmp_path)
    for command in server.evening:
        server.shell(command)
    for night in range(nights):
        write_parquet(server.log_of(night), rows_of(night))
        write_parquet(server.log_of(night + 1), rows_of(night + 1)[:3])  # that of the next day has begun
        server.time_is(night + 1)
        if night == missed:
            continue
        assert "this part" in server.shell(server.cron).stderr.lower()
        if night == twice:
            kept = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.suffix in (".avro", ".state")}
            assert "is done" in server.shell(server.cron).stderr
            assert {path: path.read_bytes() for path in kept} == kept
    write_parquet(server.log_of(0), rows_of(0)[:-1])
    assert "published already" in server.shell(server.cron).stderr
    reports = [report for path in (tmp_path / "reports").iterdir() for report in read_report_file(path)[1]]
    named = {found.item for report in reports for found in report.heavy_hitters}
    assert {f"story-{night}" for night in range(nights)} <= named
    (population,) = json.loads(server.shell("shh ledger --ledger ledger.db --json").stdout)["populations"]
    assert (population["spent_epsilon"], population["left_epsilon"]) == ("2", "2")


@pytest.mark.parametrize(("codes", "taken", "ends"), [("030", 3, 0), ("010", 2, 1), ("000", 3, 0)])
def test_the_script_takes_the_days_that_are_over_and_stops_where_one_is_not_closed(tmp_path, codes, taken, ends):
    """The script alone, with an `shh` that writes down how it was called: its exit codes are given for each day."""
    server = Server(tmp_path)
    for night in range(5):
        server.log_of(night).touch()
    server.time_is(3)
    server.has("shh", f'echo "$2" "$6" >> called\nexit $(echo {codes} | cut -c $(grep -c . called))')
    assert server.shell(server.cron, code=ends).stderr == ""
    days = [FIRST + datetime.timedelta(days=night) for night in range(taken + 1)]
    called = (tmp_path / "called").read_text().splitlines()
    assert called == [f"logs/{day}.parquet {day + datetime.timedelta(days=1)}" for day in days[:-1]]
