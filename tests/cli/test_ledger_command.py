"""`shh ledger`: what it shows, what it does, and its errors."""

import json

import pytest

from dp_transforms import Plan, WindowSchedule
from dp_transforms.reports import read_report_file
from dp_transforms.runs.ledger import Ledger
from tests.helpers.ledger_runs import done, part
from tests.helpers.report_samples import written
from tests.helpers.shh_here import shh
from tests.helpers.shh_process import error_line

CAPS_GIVEN = ("--caps", "4.0", "1e-8")


@pytest.fixture
def folder(tmp_path):
    schedule = WindowSchedule.fixed("2026-01-01", "2026-01-03", 3600)
    plan = Plan.for_hits(epsilon=0.5, delta=1e-9, schedule=schedule)
    (tmp_path / "plan.json").write_text(plan.to_json())
    return tmp_path


def reserve(folder, *words, run_id="run"):
    options = ("--ledger", "l.db", "--population", "news", "--plan", "plan.json", "--run-id", run_id)
    result = shh("ledger", "reserve", *options, *words, cwd=folder)
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_a_run_is_reserved_shown_and_released(folder):
    said = reserve(folder, *CAPS_GIVEN)
    charged, following = said.splitlines()
    assert charged == "Run run: this run takes 0.5 of the 4 that users of *news* may ever lose; 3.5 is left."
    assert following.startswith("Now run it: shh replay or shh stream with --run-id run, and --plan, --ledger,")
    assert "takes nothing more" in reserve(folder)
    table = shh("ledger", "--ledger", "l.db", "--population", "news", cwd=folder, COLUMNS="160").stdout
    assert "0.5 of 4" in table
    assert "1e-09 of 1e-08" in table
    assert "0 of 48" in table
    assert "drew nothing" in shh("ledger", "release", "run", "--ledger", "l.db", cwd=folder).stdout
    assert "0 of 4" in shh("ledger", "--ledger", "l.db", cwd=folder).stdout


def test_json_has_exact_amounts_and_every_part(folder):
    done(Ledger(folder / "l.db"), part(run_id="run"), "state 1")
    result = shh("ledger", "--ledger", "l.db", "--json", cwd=folder)
    (population,) = json.loads(result.stdout)["populations"]
    assert (population["spent_epsilon"], population["left_delta"]) == ("0.5", "0.000000009")
    (run,) = population["runs"]
    assert (run["status"], run["windows_done"], run["parts"][0]["state_after"]) == ("finished", 1, "state 1")


def test_the_doctor_ends_with_an_error_where_a_report_is_of_a_run_that_the_ledger_does_not_know(folder):
    reserve(folder, *CAPS_GIVEN)
    sound = shh("ledger", "doctor", "--ledger", "l.db", cwd=folder)
    assert sound.returncode == 0
    assert "has no part yet" in sound.stdout
    report = str(written(folder, "jsonl"))
    older = shh("ledger", "doctor", "--ledger", "l.db", report, cwd=folder)
    assert older.returncode == 1
    assert f"FAULT: {report} is of windows of run" in older.stdout
    assert "older copy" in older.stdout
    assert "must not be used" in error_line(older)
    done(Ledger(folder / "l.db"), part(run_id=read_report_file(report)[0].run_id))
    assert shh("ledger", "doctor", "--ledger", "l.db", report, cwd=folder).returncode == 0


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (("--ledger", "none.db"), "there is no ledger"),
        (("release", "other", "--ledger", "l.db"), "knows no run other"),
        (("--ledger", "l.db", "--population", "films"), "knows no population films"),
        (("reserve", "--ledger", "l.db", "--population", "films", "--plan", "plan.json"), "--caps"),
        (("--ledger", "mysql://a:b@c/d"), "--ledger must be the path of a file"),
    ],
)
def test_errors_are_one_line_with_a_remedy(folder, words, what):
    reserve(folder, *CAPS_GIVEN)
    assert what in error_line(shh("ledger", *words, cwd=folder))
