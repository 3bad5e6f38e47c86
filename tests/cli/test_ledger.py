"""`shh ledger`, and `--ledger` of `shh replay` and `shh stream`: what a run takes, what is refused, what is shown."""

import json
import shutil

import pytest

from dp_transforms.reports import read_report_file
from dp_transforms.runs.ledger import Ledger
from tests.helpers.ledger_runs import done, part
from tests.helpers.replay_logs import log_rows, write_parquet
from tests.helpers.report_samples import written
from tests.helpers.shh_here import shh
from tests.helpers.small_runs import key_file

RANGE = ("--start", "2026-01-01", "--end", "2026-01-01T06:00:00Z", "--window", "1h")
BUDGET = ("--epsilon", "2", "--delta", "1e-6", "--charge", "hits")
ACCOUNT = ("--ledger", "ledger.db", "--population", "news")
CAPS = ("--caps", "5", "1e-5")
PARTS = ("--state", "run.state", "--noise-key-file", "noise.key")
EVENING = "2026-01-01T03:00:00Z"


@pytest.fixture
def folder(tmp_path):
    write_parquet(tmp_path / "log.parquet", log_rows())
    key_file(tmp_path)
    return tmp_path


def ledger(folder, *words, **more):
    return shh("ledger", *words, *ACCOUNT[:2], cwd=folder, **more)


def replay(folder, output, *words, log="log.parquet"):
    return shh("replay", log, *RANGE, *BUDGET, *ACCOUNT, "--output", output, *words, cwd=folder)


def succeeds(done):
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def error_of(done):
    assert done.returncode == 1, done.stderr
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("shh: ")]
    return line


def spent(folder):
    (population,) = json.loads(succeeds(ledger(folder, "--json")))["populations"]
    return population["spent_epsilon"]


def statuses(folder):
    """Of the parts of each run."""
    path = folder / "ledger.db"
    return [[str(part.status) for part in parts] for _, parts in (Ledger(path).runs() if path.exists() else [])]


# --- The command


def test_what_is_spent_is_shown_and_a_run_is_ended(folder):
    Ledger(folder / "ledger.db").reserve(part(run_id="run"), ("4.0", "1e-8"))
    table = ledger(folder, *ACCOUNT[2:], COLUMNS="160").stdout
    assert all(each in table for each in ("0.5 of 4", "1e-09 of 1e-08", "0 of 30"))
    assert "Run run is released, and not charged any more." in succeeds(ledger(folder, "--end", "run"))
    assert "0 of 4" in succeeds(ledger(folder))


def test_json_has_exact_amounts_and_every_part(folder):
    done(Ledger(folder / "ledger.db"), part(run_id="run"), "state 1")
    (population,) = json.loads(succeeds(ledger(folder, "--json")))["populations"]
    assert (population["spent_epsilon"], population["left_delta"]) == ("0.5", "0.000000009")
    (run,) = population["runs"]
    assert (run["status"], run["windows_done"], run["parts"][0]["state_after"]) == ("finished", 1, "state 1")


def test_a_ledger_that_does_not_know_the_run_of_a_report_is_an_error(folder):
    done(Ledger(folder / "ledger.db"), part(run_id="run"))
    report = str(written(folder, "jsonl"))
    older = ledger(folder, report)
    assert older.returncode == 1
    assert older.stdout.startswith(f"FAULT: {report} is of windows of run")
    assert "must not be used" in error_of(older)
    done(Ledger(folder / "ledger.db"), part(run_id=read_report_file(report)[0].run_id))
    assert "epsilon spent" in succeeds(ledger(folder, report))


# --- Replays


def test_a_run_says_what_it_takes_and_one_that_does_not_fit_draws_nothing(folder):
    first = succeeds(replay(folder, "first.avro", "--run-id", "monday", *CAPS))
    assert "This run takes 2 of the 5 that users of *news* may ever lose; 3 is left." in first
    assert "monday was used before" in error_of(replay(folder, "second.avro", "--run-id", "monday"))
    succeeds(replay(folder, "second.avro"))
    for words in ((), PARTS):
        refused = error_of(replay(folder, "third.avro", *words))
        assert all(each in refused for each in ("this run takes 2", "1 of 5", "Nothing was drawn"))
    assert not (folder / "run.state").exists()
    assert not (folder / "third.avro").exists()
    assert (spent(folder), statuses(folder)) == ("4", [["finished"], ["finished"]])


def test_parts_of_one_run_pay_once_in_one_ledger_which_knows_its_newest_state(folder):
    succeeds(replay(folder, "1.avro", *PARTS, "--until", EVENING, *CAPS))
    shutil.copy(folder / "run.state", folder / "backup.state")
    assert "This part is of a run that has paid, and takes nothing more" in succeeds(replay(folder, "2.avro", *PARTS))
    assert (spent(folder), statuses(folder)) == ("2", [["finished", "finished"]])
    alone = shh("replay", "log.parquet", *RANGE, *BUDGET, "--output", "3.avro", *PARTS, cwd=folder)
    assert "the ledger has run" in error_of(alone)
    succeeds(ledger(folder, "run.state", "1.avro", "2.avro"))
    sick = ledger(folder, "run.state", "backup.state")
    assert "an older copy" in sick.stdout
    assert "must not be used" in error_of(sick)


def test_a_run_on_a_runner_is_for_no_other_log_whatever_is_seen_of_it(folder):
    """The job publishes by itself: two answers for one price may be read."""
    rows = [(user if at % 10 == 0 else "", item, time) for at, (user, item, time) in enumerate(log_rows())]
    write_parquet(folder / "bad.parquet", rows)
    failed = replay(folder, "report.avro", *CAPS, "--runner=DirectRunner", *PARTS[2:], log="bad.parquet")
    assert "the job has withheld its report" in error_of(failed)
    assert "stays charged" in failed.stderr
    assert "--run-id" not in failed.stderr
    assert (spent(folder), statuses(folder)) == ("2", [["failed"]])
    ((run, _),) = Ledger(folder / "ledger.db").runs()
    again = replay(folder, "2.avro", "--run-id", run.run_id)
    assert f"{run.run_id} was used before" in error_of(again)
    assert not (folder / "2.avro").exists()


@pytest.mark.parametrize("words", [(), (*PARTS, "--until", EVENING)], ids=["whole", "part"])
def test_a_log_of_another_year_is_found_out_before_its_run_is_charged(folder, words):
    """It took all of the budget for an empty report, whose name was taken and whose run was refused."""
    write_parquet(folder / "old.parquet", [(user, item, time - 366 * 86_400) for user, item, time in log_rows()])
    (folder / "bad.csv").write_text("user,item,timestamp\nu,i,2031-01-01\nu,i,never\n")
    before = sorted(folder.iterdir())
    for log, message in (("old.parquet", "2026-01-01T00:00:00Z .. 2026-01-01T06:00:00Z"), ("bad.csv", "1 are outside")):
        refused = replay(folder, "report.avro", *words, *CAPS, "--dead-letter", "bad.jsonl", log=log)
        assert (refused.returncode, refused.stdout) == (4, ""), refused.stderr
        assert f"no event of the log is inside {message}" in refused.stderr or message in refused.stderr
        assert "No report was written, and nothing is spent." in refused.stderr
        assert statuses(folder) == []
        assert [path for path in sorted(folder.iterdir()) if not path.name.startswith(".")] == before
    succeeds(replay(folder, "empty.avro", *words, *CAPS, "--allow-empty", log="old.parquet"))
    # The run of parts is charged: what comes later is not looked at before.
    later = replay(folder, "later.avro", *words[:-2], log="old.parquet")
    assert (later.returncode == 0) == bool(words)
    assert statuses(folder) == [["finished", "finished"] if words else ["finished"]]


# --- Streams


def test_a_stream_pays_for_its_run_when_it_starts_and_its_name_is_used_once(folder):
    (folder / "logs").mkdir()
    late = [("last", "none", log_rows()[-1][2] + 7200)]  # so that the clock passes the end of the range
    write_parquet(folder / "logs" / "log.parquet", [*log_rows(), *late])

    def stream(output, *words):
        clock = ("--clock", "event", "--idle-timeout", "1h", "--out-of-order", "0s")
        options = (*RANGE, *BUDGET, *ACCOUNT, *clock, "--noise-key-file", "noise.key")
        return shh("stream", "--input", "logs", *options, "--output", output, *words, cwd=folder)

    assert "This run takes 2 of the 5" in succeeds(stream("first", "--run-id", "live", *CAPS))
    assert (spent(folder), statuses(folder)) == ("2", [["finished"]])
    assert "may have been drawn" in error_of(stream("again", "--run-id", "live"))
    succeeds(stream("second"))
    assert "Nothing was drawn" in error_of(stream("third"))
    assert not list((folder / "third").glob("*"))
    assert spent(folder) == "4"
