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
USERS = 400


def recipe():
    """The commands of the first evening, what cron runs, and night.sh."""
    text = (
        (ROOT / "docs" / "budgets_over_runs.md").read_text().split("## One run in nightly parts")[1].split("\n## ")[0]
    )
    outside = re.sub(r"```sh\n.*?```", "", text, flags=re.DOTALL)
    indented = [line[4:] for line in outside.splitlines() if line.startswith("    ")]
    commands = re.sub(r"\\\n\s*", "", "\n".join(indented)).splitlines()
    script = re.search(r"```sh\n(.*?)```", text, re.DOTALL)
    assert script is not None
    (cron,) = [line for line in commands if line.startswith("15 1 * * * ")]
    evening = [line for line in commands if line != cron]
    assert len(evening) == 3
    return evening, cron.removeprefix("15 1 * * * ").replace("cd /srv/news && ", ""), script[1]


def begin_of(night):
    return int(datetime.datetime.combine(FIRST, datetime.time(), datetime.UTC).timestamp()) + 86_400 * night


def rows_of(night):
    """An hour's story that most users have, and one that few have; a third of the users come every day."""
    begin, rows = begin_of(night), []
    for user in range(USERS):
        name = f"user-{user}" if user % 3 == 0 else f"user-{user}-{night}"
        rows.append((name, f"story-{night}", begin + 3600 * (night % 24) + user))
        rows.append((name, f"rare-{user % 97}", begin + 40_000 + user))
    return rows


class Server:
    """A folder /srv/news with the recipe in it, in which time goes by."""

    def __init__(self, folder, *, has_run=True):
        self.folder = folder
        evening, self.cron, script = recipe()
        (folder / "logs").mkdir()
        (folder / "reports").mkdir()
        (folder / "night.sh").write_text(script)
        self.has("date", f'[ "$*" = +%s ] && exec cat {folder}/now\nexec /bin/date "$@"')
        self.time_is(0)
        for command in evening if has_run else ():
            done = self.shell(command)
            assert done.returncode == 0, done.stderr

    def has(self, program, script):
        """Puts a program before those of the machine."""
        path = self.folder / "bin" / program
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)

    def time_is(self, night):
        """01:15 after so many days of the run are over."""
        (self.folder / "now").write_text(str(begin_of(night) + 4_500))

    def shell(self, command):
        places = [str(self.folder / "bin"), str(pathlib.Path(sys.executable).parent), os.environ["PATH"]]
        return subprocess.run(
            ["sh", "-c", command],
            cwd=self.folder,
            env={**os.environ, "PATH": os.pathsep.join(places)},
            capture_output=True,
            text=True,
            check=False,
        )

    def log_of(self, night):
        return self.folder / "logs" / f"{FIRST + datetime.timedelta(days=night)}.parquet"

    def log_comes(self, night):
        """That of the next day has begun."""
        write_parquet(self.log_of(night), rows_of(night))
        write_parquet(self.log_of(night + 1), rows_of(night + 1)[:3])
        self.time_is(night + 1)

    def night(self):
        done = self.shell(self.cron)
        assert done.returncode == 0, done.stderr
        return done.stderr

    def reports(self):
        return [report for path in sorted((self.folder / "reports").iterdir()) for report in read_report_file(path)[1]]

    def spent(self):
        shown = self.shell("shh ledger --ledger ledger.db --json")
        assert shown.returncode == 0, shown.stderr
        (population,) = json.loads(shown.stdout)["populations"]
        return population


@pytest.mark.nightly
def test_the_recipe_runs_as_it_stands_in_the_readme(tmp_path):
    """Five nights, or as many as SHH_NIGHTS says (`make test-nightly`: thirty). What nights publish, and those that are
    killed: test_replay_state.py and tests/ledger."""
    nights, missed, twice = int(os.environ.get("SHH_NIGHTS", "5")), 1, 2
    server = Server(tmp_path)
    for night in range(nights):
        server.log_comes(night)
        if night == missed:
            continue
        assert "this part" in server.night().lower()
        if night == twice:
            before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
            assert "is done" in server.night()
            after = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
            changed = {path.name for path in after if after[path] != before.get(path)}
            assert not {name for name in changed if name.endswith((".avro", ".state"))}
    kept = server.log_of(0).read_bytes()
    write_parquet(server.log_of(0), rows_of(0)[:-1])
    said = server.night()
    assert "published already" in said
    assert "is done" in said
    server.log_of(0).write_bytes(kept)
    server.log_of(nights).unlink()
    named = {found.item for report in server.reports() for found in report.heavy_hitters}
    assert {f"story-{night}" for night in range(nights)} <= named
    population = server.spent()
    assert (population["spent_epsilon"], population["left_epsilon"]) == ("2", "2")


@pytest.mark.parametrize(("codes", "taken", "ends"), [("030", 3, 0), ("010", 2, 1), ("000", 3, 0)])
def test_the_script_takes_the_days_that_are_over_and_stops_where_one_is_not_closed(tmp_path, codes, taken, ends):
    """The script alone, with an `shh` that writes down how it was called: its exit codes are given for each day."""
    server = Server(tmp_path, has_run=False)
    for night in range(5):
        server.log_of(night).touch()
    server.time_is(3)
    server.has("shh", f'echo "$2" "$6" >> called\nexit $(echo {codes} | cut -c $(grep -c . called))')
    done = server.shell(server.cron)
    assert (done.returncode, done.stderr) == (ends, "")
    days = [FIRST + datetime.timedelta(days=night) for night in range(taken + 1)]
    called = (tmp_path / "called").read_text().splitlines()
    assert called == [f"logs/{day}.parquet {day + datetime.timedelta(days=1)}" for day in days[:-1]]
