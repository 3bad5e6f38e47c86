"""`shh replay` as its users run it: files in, files out, one-line errors, nothing that leaks."""

import json
import os

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dp_transforms.cli.options import OF_PROGRAMS, Options, Program, fields_of
from dp_transforms.core.public_items import PublicItems
from dp_transforms.reports import read_report_file
from dp_transforms.stores import files, remote_files
from tests.helpers.replay_logs import BUDGET, FEW, HOURS, MANY, START, log_rows, write_log, write_parquet
from tests.helpers.shh_here import shh
from tests.helpers.shh_process import error_line
from tests.helpers.small_runs import key_file

ONE_ROUND = (
    *BUDGET[: BUDGET.index("--charge")],
    "--usual-contributions",
    1,
    2,
    "--most-contributions",
    20,
)  # in one round
EXPECTED = {hour: [f"heavy-{hour}"] for hour in range(HOURS) if hour not in (2, 4)}


@pytest.fixture
def folder(tmp_path):
    """The current folder of the commands, with log.parquet."""
    write_parquet(tmp_path / "log.parquet", log_rows())
    return tmp_path


def items(report):
    """By the hour of the window."""
    return {
        each.window_start // 3_600_000_000 - START // 3600: [hitter.item for hitter in each.heavy_hitters]
        for each in read_report_file(str(report))[1]
    }


def replayed(folder, *words, log="log.parquet", output="report.jsonl"):
    done = shh("replay", log, *words, "--output", output, cwd=folder)
    assert done.returncode == 0, done.stderr
    return done


def test_contributions_beyond_what_a_user_budget_pays_are_counted_for_the_operator(tmp_path):
    """Each of the users has 30, and 20 count."""
    rows = [(f"user-{n}", f"i{n} {item}", START + 60 * item) for n in range(FEW) for item in range(30)]
    write_parquet(tmp_path / "log.parquet", rows)
    done = replayed(tmp_path, *ONE_ROUND)
    assert f" {FEW * 10:,} contributions beyond --most-contributions of a user did not count," in done.stderr
    assert items(tmp_path / "report.jsonl") == {}
    assert "No window had an item held by enough users. An hour's item (a story, a search, an error)" in done.stdout


def test_a_kept_key_and_a_chosen_run_id_exclude_each_other(folder):
    """Both again on a log that differs in one user give reports that differ in exactly what that user holds."""
    key = key_file(folder, os.urandom(32))
    words = ["replay", "log.parquet", *BUDGET, "--charge", "hits", "--counts", "--output"]
    stderr_text = error_line(shh(*words, "r.jsonl", "--noise-key-file", key, "--run-id", "nightly", cwd=folder))
    assert "--run-id cannot be used with --noise-key-file" in stderr_text
    assert not (folder / "r.jsonl").exists()
    reports = []
    for number, more in enumerate([["--noise-key-file", key], ["--noise-key-file", key], ["--run-id", "nightly"]]):
        assert shh(*words, f"{number}.jsonl", *more, cwd=folder).returncode == 0
        header, windows = read_report_file(str(folder / f"{number}.jsonl"))
        reports.append((header.run_id, str(list(windows))))
    assert reports[2][0] == "nightly"
    # Four noisy counts at a scale of about ten: all equal with probability far below 1e-4, were they not fresh.
    assert len({run_id for run_id, _ in reports}) == len({windows for _, windows in reports}) == 3


def test_too_many_bad_rows_stop_the_run_and_publish_nothing(tmp_path):
    write_log(tmp_path / "log.csv")
    with (tmp_path / "log.csv").open("a") as file:
        file.writelines(["x,y,not-a-time\n"] * (len(log_rows()) + 1))
    words = ("replay", "log.csv", *BUDGET, "--output", "report.jsonl")
    assert "could not be read, more than half; nothing was published" in error_line(shh(*words, cwd=tmp_path))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["log.csv"]
    assert shh(*words, "--allow-empty", cwd=tmp_path).returncode == 0
    assert items(tmp_path / "report.jsonl") == EXPECTED


def test_events_outside_the_range_are_skipped_and_only_the_operator_is_told(folder):
    words = ["--start", "2026-01-01T01:00:00Z", "--end", "2026-01-01T05:00:00Z", *BUDGET[4:]]
    done = replayed(folder, *words)
    assert items(folder / "report.jsonl") == {1: ["heavy-1"], 3: ["heavy-3"]}
    assert f"{2 * (MANY + FEW):,} outside" in done.stderr
    assert "outside" not in done.stdout + (folder / "report.jsonl").read_text()


@pytest.mark.parametrize(
    "runner", [(), ("--runner=DirectRunner", "--noise-key-file", "noise.key")], ids=["here", "beam"]
)
def test_a_log_in_which_nothing_counts_gives_a_report_only_where_that_is_asked_for(folder, runner):
    """Where readers see whether there is one, the only row of one user would decide that. A list of bad rows stays."""
    key_file(folder)
    (folder / "log.csv").write_text("user,item,timestamp\nu,i,2021-01-01\nu,i,2021-01-01\nu,i,never\n")
    bad = () if runner else ("--dead-letter", "bad.jsonl")
    words = ("replay", "log.csv", *ONE_ROUND, "--output", "report.jsonl", *runner)
    ended = shh(*words, *bad, cwd=folder)
    assert ended.returncode == 4, ended.stderr
    assert "2 are outside, 1 rows cannot be read. No report was written, and nothing is spent." in ended.stderr
    assert (folder / "bad.jsonl").exists() == (not runner)
    assert not (folder / "report.jsonl").exists()
    if not runner:
        assert shh(*words, "--allow-empty", cwd=folder).returncode == 0
        assert items(folder / "report.jsonl") == {}


WRONG = """
    missing.parquet: missing.parquet
    log.parquet --public-items no.txt: no.txt cannot be read: No such file or directory
    log.parquet --user-field who: --user-field
    log.parquet --time-field item: --user-field, --item-field and --time-field must name three
    log.parquet --output same.jsonl --dead-letter ./same.jsonl: name the same file
    log.parquet --noise-key-file open.key: chmod
    numbers.parquet: --time-format
    broken.parquet: broken.parquet
    ftp://b/log.csv: a URL must begin with s3://BUCKET, gs:
    log.parquet --runner=FlinkRunner: --runner needs --noise-key-file: workers need one noise key.
    log.parquet --runner=X --noise-key-file k --state s: --state cannot be used with --runner
"""


@pytest.mark.parametrize("line", WRONG.strip().splitlines(), ids=str.strip)
def test_errors_are_one_line_that_names_the_remedy(folder, line):
    words, _, named = line.strip().partition(": ")
    numbers = pa.table({"user": ["a"], "item": ["b"], "timestamp": [START]})
    pq.write_table(numbers, folder / "numbers.parquet")
    content = bytearray((folder / "log.parquet").read_bytes())
    content[40:400] = b"\xff" * 360  # the first pages; the footer, which the check at the start reads, is whole
    (folder / "broken.parquet").write_bytes(content)
    (folder / "open.key").write_bytes(b"k" * 32)
    (folder / "open.key").chmod(0o644)
    output = [] if "--output" in words else ["--output", "report.avro"]
    before = sorted(path.name for path in folder.iterdir())
    assert named in error_line(shh("replay", *words.split(), *BUDGET, *output, cwd=folder))
    assert sorted(path.name for path in folder.iterdir()) == before


ITEMS = [*(f"heavy-{hour}" for hour in (0, 1, 3)), "light", *(f"nobody's-{number}" for number in range(100))]


def test_public_items_are_found_and_others_are_left_out(folder):
    (folder / "items.txt").write_text("\n".join(ITEMS))
    done = replayed(folder, *BUDGET, "--public-items", "items.txt")
    # An item that nobody holds is named in about one run of twenty; these three hours never fail.
    found = items(folder / "report.jsonl")
    for hour in (0, 1, 3):
        assert f"heavy-{hour}" in found.pop(hour)
    assert sum(map(len, found.values())) <= 2
    plan = read_report_file(str(folder / "report.jsonl"))[0].plan
    assert plan["public_items"] == {"size": len(ITEMS), "fingerprint": PublicItems.of_ids(ITEMS).fingerprint}
    assert f"0 outside --start .. --end skipped, {MANY} of other items than --public-items skipped" in done.stderr


def test_windows_are_shown_in_the_zone_that_is_asked_for(folder):
    assert "start (Europe/Berlin)" in replayed(folder, *BUDGET, "--time-zone", "Europe/Berlin").stdout


def test_several_item_fields_make_one_label(folder):
    """The row without a page is none. That all readers join alike: tests/logs/test_id_columns.py."""
    pages = [str(number % 2) for number in range(1599)] + [""]
    countries = [("DE", "FR")[number // 2 % 2] for number in range(1600)]
    times = pa.array([(START + number) * 10**6 for number in range(1600)], pa.timestamp("us", "UTC"))
    users = [f"u{number}" for number in range(1600)]
    log = pa.table({"user": users, "country": countries, "page": pages, "timestamp": times})
    pq.write_table(log, folder / "pages.parquet")
    given = ("--item-field", "country", "--item-field", "page")
    assert " 1 unreadable" in replayed(folder, *ONE_ROUND, *given, log="pages.parquet").stderr
    assert sorted(items(folder / "report.jsonl")[0]) == ["DE / 0", "DE / 1", "FR / 0", "FR / 1"]
    job = Program("job", params=list(OF_PROGRAMS))
    for fields, item in ((given, ("country", "page")), (("--item_field=page",), "page"), ((), "item")):
        context = job.make_context("job", ["--plan", "plan.json", *fields])
        assert fields_of(Options(**context.params)).item == item


@pytest.mark.xdist_group("s3")
def test_all_files_of_a_replay_may_be_in_a_store(s3, bucket, tmp_path):
    """A real S3 server. What another wrote meanwhile is not replaced."""
    write_log(tmp_path / "log.parquet")
    remote_files.put(f"{bucket}/logs/a.parquet", (tmp_path / "log.parquet").read_bytes())
    remote_files.put(f"{bucket}/logs/b.jsonl", b'{"user": "u", "item": "light", "timestamp": 7.5}\n')
    assert shh("plan", *BUDGET, "--output", f"{bucket}/plan.json", cwd=tmp_path).returncode == 0
    outputs = ["--output", f"{bucket}/r/a.avro", "--dead-letter", f"{bucket}/r/bad.jsonl"]
    words = ["replay", f"{bucket}/logs", "--plan", f"{bucket}/plan.json"]
    s3.forget()
    result = shh(*words, *outputs, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert items(f"{bucket}/r/a.avro") == EXPECTED
    assert "heavy-5" in shh("show", f"{bucket}/r/a.avro", cwd=tmp_path).stdout
    (line,) = files.read_file(f"{bucket}/r/bad.jsonl", 1000).splitlines()
    assert json.loads(line)["file"] == f"{bucket}/logs/b.jsonl"
    assert [one.condition for one in s3.requests if one.method == "PUT" and "/." not in one.path] == ["*", "*"]
    assert f"--output {bucket}/r/a.avro exists and is never overwritten" in error_line(
        shh(*words, *outputs, cwd=tmp_path)
    )

    def write():
        s3.before_read = None
        remote_files.put(f"{bucket}/b.avro", b"of another")

    s3.before_read = write
    failed = shh(*words, "--output", f"{bucket}/b.avro", cwd=tmp_path)
    assert "exists and is never overwritten" in error_line(failed)
    assert files.read_file(f"{bucket}/b.avro", 100) == b"of another"
    absent = shh("replay", "s3://absent-bucket/a.csv", *BUDGET, "--output", "a.avro", cwd=tmp_path)
    assert "status 404: check the name" in error_line(absent)
