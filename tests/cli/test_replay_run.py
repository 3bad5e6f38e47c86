"""What a replay does of a log: which processes read it, what it is known by, and names that are not UTF-8."""

import gzip
import os

from dp_transforms import Plan, WindowSchedule
from dp_transforms.cli.replay_run import fingerprint_of_log
from dp_transforms.local import machine
from dp_transforms.logs import EventFields
from tests.helpers.crowded_logs import replay_request
from tests.helpers.replay_logs import BUDGET, write_log, write_parquet
from tests.helpers.shh_here import shh

PLAN = Plan.for_hits(epsilon=1, delta=1e-6, schedule=WindowSchedule.fixed(0, 7200, 3600))
SLIDING = Plan.for_hits(epsilon=1, delta=1e-6, schedule=WindowSchedule.sliding(0, 7200, 7200, 3600))
REPLAY = ["replay", "log.csv", *BUDGET, "--output", "report.avro"]


def test_another_reading_is_another_input_of_a_run(tmp_path):
    """So a run with one state cannot change how its times are read."""
    path = tmp_path / "log.csv"
    path.write_text("user,item,timestamp\nu,i,01.02.2026\n")
    forms = [{}, {"time_format": "%d.%m.%Y"}, {"time_format": "%m.%d.%Y"}, {"time_unit": "s"}, {"csv_separator": ","}]
    readings = [EventFields(**form) for form in [*forms, {"time_zone": "Europe/Berlin"}]]
    requests = [replay_request(path, PLAN, tmp_path / "report.avro", None, fields=fields) for fields in readings]
    assert len({fingerprint_of_log(request, b"k" * 32) for request in requests}) == len(readings)


def test_a_state_has_a_name_that_workers_can_be_told_and_a_ledger_any(tmp_path):
    """What is refused is refused before anything is made."""
    write_log(tmp_path / "log.csv")
    odd = os.fsdecode(b"odd\xff")
    refused = shh(*REPLAY, "--state", odd, "--noise-key-file", "noise.key", cwd=tmp_path)
    assert "odd\\udcff: a name that is not UTF-8 cannot be written. Choose another one." in refused.stderr
    assert os.listdir(tmp_path) == ["log.csv"]
    ledger = ["--ledger", odd, "--population", "news", "--caps", "9", "1e-5"]
    assert shh(*REPLAY, *ledger, cwd=tmp_path).returncode == 0
    assert "news" in shh("ledger", "--ledger", odd, cwd=tmp_path).stdout


def test_a_small_file_that_may_hold_much_is_replayed_by_a_worker(tmp_path):
    """Which keeps on disk what does not fit into memory. Windows that overlap count as often."""
    packed, rows = tmp_path / "log.jsonl.gz", tmp_path / "log.parquet"
    row = b'{"user": "u", "item": "%s", "timestamp": "1970-01-01T00:00:00Z"}\n'
    packed.write_bytes(gzip.compress(row % (b"x" * 16_000) * 10_000))
    write_parquet(rows, [("u", "i", 0)] * 150_000)
    assert max(packed.stat().st_size, rows.stat().st_size) < machine.SMALL_LOG_BYTES
    cases = ((packed, PLAN), (rows, PLAN), (rows, SLIDING))
    requests = [(replay_request(log, plan, "r.avro", None), plan) for log, plan in cases]
    sizes = [machine.bytes_in_windows(request.chunks, plan.schedule) for request, plan in requests]
    assert [size >= machine.SMALL_LOG_BYTES for size in sizes] == [True, False, True]
