"""A log that may not fit into the memory of one process."""

import contextlib
import gzip
import pathlib
import subprocess
import sys
import time

import psutil
import pytest

from dp_transforms import Plan, WindowSchedule
from dp_transforms.local import machine
from tests.helpers.crowded_logs import replay_request
from tests.helpers.replay_logs import write_parquet
from tests.helpers.shh_process import python

_SHH = "import sys; from dp_transforms.cli.main import main; main(sys.argv[1:])"
PLAN = Plan.for_hits(epsilon=1, delta=1e-6, schedule=WindowSchedule.fixed(0, 7200, 3600))
SLIDING = Plan.for_hits(epsilon=1, delta=1e-6, schedule=WindowSchedule.sliding(0, 7200, 7200, 3600))
ROW = b'{"user": "u", "item": "%s", "timestamp": "1970-01-01T00:00:00Z"}\n'


@pytest.mark.parametrize("kind", ["packed", "rows"])
def test_a_small_file_that_may_hold_much_is_replayed_by_a_worker(tmp_path, kind):
    """Which keeps on disk what does not fit into memory."""
    log = tmp_path / ("log.jsonl.gz" if kind == "packed" else "log.parquet")
    if kind == "packed":
        log.write_bytes(gzip.compress(ROW % b"i" * 5_000 + ROW % (b"x" * 16_000) * 10_000))
    else:
        write_parquet(log, [("u", "i", 0)] * 300_000)
    assert log.stat().st_size < machine.SMALL_LOG_BYTES
    assert replay_request(log, PLAN, "report.avro", None).spread.number


def test_windows_that_overlap_count_as_often(tmp_path):
    write_parquet(tmp_path / "log.parquet", [("u", "i", 0)] * 150_000)
    numbers = [replay_request(tmp_path / "log.parquet", plan, "r.avro", None).spread.number for plan in (PLAN, SLIDING)]
    assert numbers[0] == 0 < numbers[1]


def _own_memory(command):
    """Bytes that it and its workers do not share. Pages of files do not count: the system takes them back."""
    total = 0
    with contextlib.suppress(psutil.Error, OSError, IndexError):  # one has ended
        here = psutil.Process(command)
        for process in [here, *here.children(recursive=True)]:
            status = pathlib.Path(f"/proc/{process.pid}/status").read_text()
            total += 1024 * int(status.split("RssAnon:")[1].split(None, 1)[0])
    return total


@pytest.mark.nightly
@pytest.mark.skipif(sys.platform != "linux", reason="the memory of processes is read from /proc")
@pytest.mark.parametrize("users", [1, 134_000])
def test_2_gb_of_labels_are_replayed_in_little_memory(tmp_path, users):
    """134,000 labels of 16,378 bytes, of one user or of many. They ended the run, after 8.5 GB: Arrow's texts end at
    2^31 bytes. The processes may have 1.25 GB of their own; what they share is what --memory leaves, 0.3 GB."""
    with gzip.open(tmp_path / "log.jsonl.gz", "wb", compresslevel=1) as file:
        for n in range(134_000):
            file.write(
                b'{"user":"u%d","item":"%s%07d","timestamp":"2026-01-01T00:00:01Z"}\n' % (n % users, b"x" * 16_371, n)
            )
    words = ["replay", "log.jsonl.gz", "--start", "2026-01-01", "--end", "2026-01-02", "--window", "1h"]
    words += ["--epsilon", "2", "--delta", "1e-9", "--memory", "1GB", "--output", "report.jsonl"]
    most = 0
    with python("-c", _SHH, *words, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        while process.poll() is None:
            most = max(most, _own_memory(process.pid))
            time.sleep(0.05)
    assert process.returncode == 0
    assert 300_000_000 < most < 1_250_000_000
    assert not (tmp_path / "report.jsonl").read_text().splitlines()[1:], "no item has many users"
