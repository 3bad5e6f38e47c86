"""`--ledger` of `shh replay` and `shh stream`: what a run takes, what is refused, and what a kill leaves."""

import json
import shutil

import pytest

from dp_transforms.beam import jobs
from dp_transforms.logs import EventFileError
from dp_transforms.reports import read_report_file
from dp_transforms.runs.ledger import Ledger
from tests.helpers.replay_logs import START, log_rows, write_parquet
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


def replay(folder, output, *words, log="log.parquet"):
    return shh("replay", log, *RANGE, *BUDGET, *ACCOUNT, "--output", output, *words, cwd=folder)


def spent(folder):
    shown = shh("ledger", *ACCOUNT[:2], "--json", cwd=folder)
    assert shown.returncode == 0, shown.stderr
    (population,) = json.loads(shown.stdout)["populations"]
    return str(population["spent_epsilon"])


def statuses(folder):
    """Of the parts of each run."""
    ledger = folder / "ledger.db"
    return [[str(part.status) for part in parts] for _, parts in (Ledger(ledger).runs() if ledger.exists() else [])]


def error_of(done):
    assert done.returncode == 1, done.stderr
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("shh: ")]
    return line


def test_a_run_says_what_it_takes_and_one_that_does_not_fit_reads_nothing(folder):
    first = replay(folder, "first.avro", "--run-id", "monday", *CAPS)
    assert first.returncode == 0, first.stderr
    assert "This run takes 2 of the 5 that users of *news* may ever lose; 3 is left." in first.stderr
    assert "monday was used before" in error_of(replay(folder, "second.avro", "--run-id", "monday"))
    second = replay(folder, "second.avro")
    assert second.returncode == 0, second.stderr
    assert "drew from the same input before" in second.stderr
    assert spent(folder) == "4"
    # It is not even looked for.
    refused = error_of(replay(folder, "third.avro", log="gone.parquet"))
    assert "this run takes 2" in refused
    assert "1 of 5" in refused
    assert "Nothing was drawn" in refused
    refused = error_of(replay(folder, "third.avro", *PARTS, log="gone.parquet"))
    assert "Nothing was drawn" in refused
    assert not (folder / "run.state").exists()
    assert not (folder / "third.avro").exists()
    assert spent(folder) == "4"
    assert statuses(folder) == [["finished"], ["finished"]]


def test_parts_of_one_run_pay_once(folder):
    first = replay(folder, "1.avro", *PARTS, "--until", EVENING, *CAPS)
    assert "This run takes 2 of the 5" in first.stderr
    shutil.copy(folder / "run.state", folder / "backup.state")
    second = replay(folder, "2.avro", *PARTS)
    assert second.returncode == 0, second.stderr
    assert "This part continues a run that has paid, and takes nothing more" in second.stderr
    done = replay(folder, "2.avro", *PARTS)
    assert (done.returncode, "is done" in done.stderr) == (0, True)
    earlier = replay(folder, "1.avro", *PARTS, "--until", EVENING)
    assert (earlier.returncode, "is done" in earlier.stderr) == (0, True)
    assert "1.avro" in earlier.stderr
    assert spent(folder) == "2"
    assert statuses(folder) == [["finished", "finished"]]
    header = read_report_file(folder / "1.avro")[0]
    assert header.run_id == read_report_file(folder / "2.avro")[0].run_id
    alone = error_of(shh("replay", "log.parquet", *RANGE, *BUDGET, "--output", "3.avro", *PARTS, cwd=folder))
    assert "was begun with the --population 'news'" in alone, "all parts of a run are in the ledger, or none is"
    # An older copy of the state is of the right run, plan and key. The ledger knows that it is older.
    doctor = ("ledger", "doctor", *ACCOUNT[:2])
    assert "sound" in shh(*doctor, "run.state", "1.avro", "2.avro", cwd=folder).stdout
    sick = shh(*doctor, "run.state", "backup.state", cwd=folder)
    assert "FAULT" in sick.stdout
    assert "an older copy" in sick.stdout
    assert "must not be used" in error_of(sick)
    shutil.move(folder / "backup.state", folder / "run.state")
    older = error_of(replay(folder, "3.avro", *PARTS))
    assert "it is an older copy" in older
    assert not (folder / "3.avro").exists()


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("moved", "no report is seen at "),
        ("tried again", "log.parquet: it was changed while it was read"),
        ("withheld", "the job has withheld its report"),
    ],
)
def test_a_run_on_a_runner_is_for_no_other_log_whatever_is_seen_of_it(folder, monkeypatch, what, said):
    """The job publishes by itself: two answers for one price would be read. Its report is gone when the command looks,
    or another attempt at the job fails on the log once the first one has published."""
    good, run_to_end = (folder / "log.parquet").read_bytes(), jobs.run_to_end

    def and_then(pipeline):
        result = run_to_end(pipeline)
        if what != "withheld":
            (folder / "report.avro").rename(folder / "read.avro")
        if what == "tried again":
            raise EventFileError("log.parquet", "it was changed while it was read")
        return result

    monkeypatch.setattr(jobs, "run_to_end", and_then)
    if what == "withheld":
        rows = [(user if at % 10 == 0 else "", item, time) for at, (user, item, time) in enumerate(log_rows())]
        write_parquet(folder / "log.parquet", rows)
    failed = replay(folder, "report.avro", *CAPS, "--runner=DirectRunner", *PARTS[2:])
    assert said in error_of(failed)
    assert "stays charged" in failed.stderr
    assert "--run-id" not in failed.stderr
    assert (spent(folder), statuses(folder)) == ("2", [["failed"]])
    ((run, _),) = Ledger(folder / "ledger.db").runs()
    (folder / "log.parquet").write_bytes(good)
    write_parquet(folder / "other.parquet", log_rows()[1:])
    assert f"{run.run_id} was used before" in error_of(
        replay(folder, "2.avro", "--run-id", run.run_id, log="other.parquet")
    )
    assert not (folder / "2.avro").exists()


# --- Streams


def stream(folder, output, *words):
    clock = ("--clock", "event", "--idle-timeout", "1h", "--out-of-order", "0s")
    return shh(
        *("stream", "--input", "logs", *RANGE, *BUDGET, *ACCOUNT, *clock),
        *("--noise-key-file", "noise.key", "--output", output, *words),
        cwd=folder,
    )


def test_a_stream_pays_for_its_run_when_it_starts_and_its_name_is_used_once(folder):
    (folder / "logs").mkdir()
    late = [("last", "none", log_rows()[-1][2] + 7200)]  # so that the clock passes the end of the range
    write_parquet(folder / "logs" / "log.parquet", [*log_rows(), *late])
    first = stream(folder, "first", "--run-id", "live", *CAPS)
    assert first.returncode == 0, first.stderr
    assert "This run takes 2 of the 5" in first.stderr
    assert (spent(folder), statuses(folder)) == ("2", [["finished"]])
    again = error_of(stream(folder, "again", "--run-id", "live"))
    assert "may have been drawn" in again
    assert stream(folder, "second").returncode == 0
    assert spent(folder) == "4"
    third = error_of(stream(folder, "third"))
    assert "Nothing was drawn" in third
    assert not list((folder / "third").glob("*"))
    assert spent(folder) == "4"


def test_a_range_without_events_is_found_out_before_anything_is_reserved(folder):
    """A wrong year took all of the budget for an empty report, whose name was taken and whose run was refused."""
    wrong = ("--start", "2020-01-01", "--end", "2020-01-01T06:00:00Z")
    (folder / "bad.csv").write_text("user,item,timestamp\nu,i,2031-01-01\nu,i,never\n")
    for log, words, message in (
        ("log.parquet", wrong, "no event of the log is inside 2020-01-01T00:00:00Z .. 2020-01-01T06:00:00Z: "),
        ("bad.csv", (), "1 are outside, 1 rows cannot be read"),
    ):
        done = replay(folder, "report.avro", *CAPS, *words, "--dead-letter", "bad.jsonl", log=log)
        assert (done.returncode, done.stdout) == (4, ""), done.stderr
        assert message in done.stderr
        assert "No report was written, and nothing is spent." in done.stderr
        assert "takes 2 of the 5" not in done.stderr
        assert statuses(folder) == []
        assert not (folder / "report.avro").exists()
        assert not (folder / "bad.jsonl").exists()
    corrected = replay(folder, "report.avro", *CAPS)
    assert corrected.returncode == 0, corrected.stderr
    assert spent(folder) == "2"
    empty = replay(folder, "empty.avro", *wrong, "--allow-empty")
    assert empty.returncode == 0, empty.stderr
    assert statuses(folder) == [["finished"], ["finished"]]


def test_a_part_without_events_has_its_report(folder):
    """A night without events is a night: nothing that others see depends on it."""
    (folder / "none.csv").write_text("user,item,timestamp\n")
    write_parquet(folder / "late.parquet", [row for row in log_rows() if row[2] >= START + 4 * 3600])
    for log in ("none.csv", "late.parquet"):
        night = replay(folder, f"{log}.avro", *PARTS, *CAPS, "--until", EVENING, log=log)
        assert night.returncode == 0, night.stderr
        assert list(read_report_file(folder / f"{log}.avro")[1]) == []
        assert statuses(folder)[0] == ["finished"]
        (folder / "run.state").unlink()


def test_a_first_part_whose_log_is_of_another_year_is_found_out_before_its_run_is_charged(folder):
    write_parquet(folder / "old.parquet", [(user, item, time - 366 * 86_400) for user, item, time in log_rows()])
    first = (*PARTS, *CAPS, "--until", EVENING)
    refused = replay(folder, "night.avro", *first, log="old.parquet")
    assert refused.returncode == 4, refused.stderr
    assert "no event of the log is inside 2026-01-01T00:00:00Z .. 2026-01-01T06:00:00Z: " in refused.stderr
    assert statuses(folder) == []
    assert not (folder / "run.state").exists()
    assert not (folder / "night.avro").exists()
    assert replay(folder, "night.avro", *first, "--allow-empty", log="old.parquet").returncode == 0
    # The run is charged: what comes later is not looked at before.
    later = replay(folder, "later.avro", *PARTS, log="old.parquet")
    assert later.returncode == 0, later.stderr
    assert statuses(folder) == [["finished", "finished"]]
