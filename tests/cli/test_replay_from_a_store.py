"""`shh` with logs, plans, lists of items, reports and dead letters in a store: a real S3 server."""

import dataclasses
import json

import pytest

from dp_transforms.cli import replay_run
from dp_transforms.cli.replay_run import run_replay
from dp_transforms.logs import EventFields, spread_chunks, text_files
from dp_transforms.reports import read_report_file
from dp_transforms.runs.fingerprints import input_fingerprint
from dp_transforms.stores import remote_files
from tests.helpers.crowded_logs import SCHEDULE, replay_request, write_large_piece
from tests.helpers.looks_plans import looks_plan_of
from tests.helpers.replay_logs import BUDGET, log_rows, write_log
from tests.helpers.shh_here import shh
from tests.helpers.shh_process import error_line
from tests.helpers.small_runs import key_file

pytestmark = pytest.mark.xdist_group("s3")

EXPECTED = {hour: [f"heavy-{hour}"] for hour in (0, 1, 3, 5)}


def everything_in(bucket):
    """Also what is hidden."""
    return [file.url.removeprefix(bucket + "/") for file in remote_files.list_beginning(bucket + "/")]


def items(report):
    _, reports = read_report_file(report)
    return {
        report.window_start // 3_600_000_000 % 24: [hitter.item for hitter in report.heavy_hitters]
        for report in reports
    }


@pytest.fixture
def log(bucket, tmp_path):
    """The URL of a folder with a log of two files."""
    write_log(tmp_path / "log.parquet")
    remote_files.put_new(f"{bucket}/logs/a.parquet", (tmp_path / "log.parquet").read_bytes())
    remote_files.put_new(f"{bucket}/logs/b.jsonl", b'{"user": "u", "item": "light", "timestamp": 7.5}\n')
    return f"{bucket}/logs"


def test_all_files_of_a_replay_by_url(s3, bucket, log, tmp_path):
    labels = sorted({item for _, item, _ in log_rows()})
    remote_files.put_new(f"{bucket}/items.txt", "\n".join(labels).encode())
    domain = ["--public-items", f"{bucket}/items.txt"]
    made = shh("plan", *BUDGET, *domain, "--output", f"{bucket}/plan.json", cwd=tmp_path)
    assert made.returncode == 0, made.stderr
    s3.forget()
    outputs = ["--output", f"{bucket}/reports/a.avro", "--dead-letter", f"{bucket}/reports/bad.jsonl"]
    result = shh("replay", log, "--plan", f"{bucket}/plan.json", *domain, *outputs, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    found = items(f"{bucket}/reports/a.avro")  # with a known domain, in one of thirty runs an item of few as well
    assert all(set(expected) <= set(found[window]) for window, expected in EXPECTED.items())
    shown = shh("show", f"{bucket}/reports/a.avro", cwd=tmp_path)
    assert "heavy-5" in shown.stdout
    (line,) = remote_files.read_stored(f"{bucket}/reports/bad.jsonl", 1000).splitlines()
    assert json.loads(line)["file"] == f"{log}/b.jsonl"
    assert everything_in(f"{bucket}/reports") == ["a.avro", "bad.jsonl"], "no draft is left"
    published = [one for one in s3.requests if one.method == "PUT" and "/." not in one.path]
    assert [one.condition for one in published] == ["*", "*"], "in one request each, never over another file"
    again = shh("replay", log, "--plan", f"{bucket}/plan.json", *domain, *outputs, cwd=tmp_path)
    assert f"--output {bucket}/reports/a.avro exists and is never overwritten" in error_line(again)


def test_worker_processes_read_parts_of_one_stored_file(bucket, tmp_path, monkeypatch):
    """The report, the dead letter and the counts of the same file on a disk, which one process reads as a whole. This
    process cuts, so its limit can be small."""
    monkeypatch.setattr(text_files, "_LEAST_BYTES", 1 << 15)
    path = write_large_piece(tmp_path / "log.csv")
    url = f"{bucket}/log.csv"
    remote_files.put_new(url, path.read_bytes())
    plan, key, fields = looks_plan_of(SCHEDULE, most_ids=5000), key_file(tmp_path), EventFields(time_unit="s")
    here, there = (
        replay_request(
            source,
            plan,
            tmp_path / f"{name}.jsonl",
            key,
            fields=fields,
            dead_letter=str(tmp_path / f"{name}.bad"),
            processes=processes,
        )
        for name, source, processes in (("here", str(path), None), ("there", url, 2))
    )
    parts = [chunk for joined in spread_chunks(there.chunks, 2) for chunk in joined.chunks]
    assert all(part.span and part.stored for part in parts)
    assert len(parts) >= 8
    expected = run_replay(here)
    found = run_replay(there)
    assert dataclasses.replace(found, seconds=0) == dataclasses.replace(expected, seconds=0)
    assert expected.rejected > 100
    report = (tmp_path / "here.jsonl").read_bytes()
    assert b"i1" in report
    assert (tmp_path / "there.jsonl").read_bytes() == report
    bad = (tmp_path / "here.bad").read_text().replace(str(path), url)
    assert bad.count("\n") == expected.rejected
    assert (tmp_path / "there.bad").read_text() == bad


def test_a_replay_that_fails_publishes_nothing_at_all(bucket, log, tmp_path, monkeypatch):
    monkeypatch.setattr(replay_run, "MOST_REJECTED", 0)
    output = ["--output", f"{bucket}/reports/a.avro"]
    failed = shh("replay", log, *BUDGET, *output, cwd=tmp_path)
    assert "nothing was published" in error_line(failed)
    assert everything_in(bucket) == ["logs/a.parquet", "logs/b.jsonl"]


def test_the_output_of_another_is_not_replaced(s3, bucket, log, tmp_path):
    """Somebody writes it while the replay runs."""

    def write():
        s3.before_read = None
        remote_files.put_new(f"{bucket}/a.avro", b"of another")

    s3.before_read = write
    failed = shh("replay", log, *BUDGET, "--output", f"{bucket}/a.avro", cwd=tmp_path)
    assert "exists and is never overwritten" in error_line(failed)
    assert remote_files.read_stored(f"{bucket}/a.avro", 100) == b"of another"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["replay", "s3://absent-bucket/a.csv", *BUDGET, "--output", "a.avro"], "there is no such bucket"),
        (
            ["replay", "log.csv", *BUDGET, "--output", "s3://absent-bucket/a.avro"],
            "--output s3://absent-bucket/a.avro cannot be written: there is no such bucket",
        ),
        (["show", "s3://absent-bucket/a.avro"], "cannot read 's3://absent-bucket/a.avro': there is no such file"),
        (
            ["replay", "log.csv", *BUDGET, "--noise-key-file", "k", "--state", "s3://b/s", "--output", "a.avro"],
            "--state must be a path on a disk, got a URL.",
        ),
        (["replay", "ftp://b/log.csv", *BUDGET, "--output", "a.avro"], "URLs ftp://... are not known. Use s3://, gs:"),
    ],
)
def test_what_is_missing_is_named_with_its_flag(s3, tmp_path, words, said):
    write_log(tmp_path / "log.csv")
    failed = shh(*words, cwd=tmp_path)
    assert failed.returncode == 1
    assert said in error_line(failed)
    assert "test-secret" not in failed.stdout + failed.stderr


def test_the_fingerprint_of_a_stored_log_is_that_of_its_content(bucket, tmp_path):
    """So a log may move."""
    write_log(tmp_path / "log.csv")
    url = f"{bucket}/elsewhere.csv"
    remote_files.put_new(url, (tmp_path / "log.csv").read_bytes())
    stored = input_fingerprint([(url, ".csv")], ["user"], stored={url: remote_files.look_at(url)})
    assert stored == input_fingerprint([(str(tmp_path / "log.csv"), ".csv")], ["user"])
