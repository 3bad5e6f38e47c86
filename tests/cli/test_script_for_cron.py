"""The script for cron of docs/budgets_over_runs.md, as it stands there. What nights publish: test_replay_state.py."""

import datetime
import os
import pathlib
import re
import subprocess
import sys

import pytest

from tests.helpers.replay_logs import write_parquet

ROOT = pathlib.Path(__file__).parents[2]
FIRST = datetime.datetime(2026, 12, 1, tzinfo=datetime.UTC)


def recipe():
    """The commands of the first evening, what cron runs, and night.sh."""
    text = (ROOT / "docs" / "budgets_over_runs.md").read_text()
    section = text.split("## One run in nightly parts")[1].split("\n## ")[0]
    (script,) = re.findall(r"```sh\n(.*?)```", section, re.DOTALL)
    indented = [line[4:] for line in section.replace(script, "").splitlines() if line.startswith("    ")]
    *evening, cron = re.sub(r"\\\n\s*", "", "\n".join(indented)).splitlines()
    assert len(evening) == 2
    return evening, cron.removeprefix("15 1 * * * cd /srv/news && "), script


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
        (self.folder / "now").write_text(str(int(FIRST.timestamp()) + 86_400 * night + 4_500))

    def shell(self, command, code=0):
        places = [str(self.folder / "bin"), str(pathlib.Path(sys.executable).parent), os.environ["PATH"]]
        environment = {**os.environ, "PATH": os.pathsep.join(places)}
        done = subprocess.run(
            ["sh", "-c", command], cwd=self.folder, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == code, done.stderr
        return done

    def log_of(self, night):
        return self.folder / "logs" / f"{FIRST.date() + datetime.timedelta(days=night)}.parquet"


@pytest.mark.nightly
def test_the_recipe_runs_as_it_stands_in_the_docs(tmp_path):
    """Nights one after the other, of which one runs twice."""
    server = Server(tmp_path)
    for command in server.evening:
        server.shell(command)
    for night in range(2):
        begin = int(FIRST.timestamp()) + 86_400 * night
        write_parquet(server.log_of(night), [(f"user-{n}", f"story-{night}", begin + n) for n in range(400)])
        server.time_is(night + 1)
        assert "this part" in server.shell(server.cron).stderr.lower()
    assert "is done" in server.shell(server.cron).stderr
    for night in range(2):
        assert f"story-{night}" in server.shell(f"shh show reports/{server.log_of(night).stem}.avro").stdout


@pytest.mark.parametrize(("codes", "taken", "ends"), [("030", 3, 0), ("010", 2, 1), ("000", 3, 0)])
def test_the_script_takes_the_days_that_are_over_and_stops_where_one_is_not_closed(tmp_path, codes, taken, ends):
    """The script alone, with an `shh` that writes down how it was called: its exit codes are given for each day."""
    server = Server(tmp_path)
    for night in range(5):
        server.log_of(night).touch()
    server.time_is(3)
    server.has("shh", f'echo "$2" "$6" >> called\nexit $(echo {codes} | cut -c $(grep -c . called))')
    assert server.shell(server.cron, code=ends).stderr == ""
    days = [FIRST.date() + datetime.timedelta(days=night) for night in range(taken + 1)]
    called = (tmp_path / "called").read_text().splitlines()
    assert called == [f"logs/{day}.parquet {day + datetime.timedelta(days=1)}" for day in days[:-1]]
