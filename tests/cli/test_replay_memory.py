"""A log that may not fit into memory is refused before it is read."""

import contextlib
import gzip
import pathlib
import subprocess
import sys
import time

import psutil
import pytest

from dp_transforms import Plan, WindowSchedule
from dp_transforms.cli import home_workers
from tests.helpers.crowded_logs import replay_request
from tests.helpers.replay_logs import write_parquet
from tests.helpers.shh_process import python

_SHH = "import sys; from dp_transforms.cli.main import main; main(sys.argv[1:])"
PLAN = Plan.for_hits(epsilon=1, delta=1e-6, schedule=WindowSchedule.fixed(0, 7200, 3600))
SLIDING = Plan.for_hits(epsilon=1, delta=1e-6, schedule=WindowSchedule.sliding(0, 7200, 7200, 3600))
ROW = b'{"user": "u", "item": "%s", "timestamp": "1970-01-01T00:00:00Z"}\n'


def request_for(log, plan=PLAN, public_items=None):
    return replay_request(
        log, plan, "report.avro", None, public_items=None if public_items is None else str(public_items)
    )


@pytest.mark.parametrize(
    ("kind", "free", "needed"), [("sliding", 300_000_000, 0.4), ("labels", 570_000_000, 0.6), ("items", 10**9, 1.1)]
)
def test_of_a_log_too_large_for_memory_the_figure_is_said(tmp_path, monkeypatch, kind, free, needed):
    """300,000 distinct labels of 1,000 characters took 2.2 GB, and ten million items in a file of 279 MB 1.8 GB."""
    rows = [("u", f"{n:01000d}", 0) for n in range(30_000)] if kind == "labels" else [("u", "i", 0)] * 1000
    write_parquet(tmp_path / "log.parquet", rows)
    items = tmp_path / "items.txt"
    with items.open("wb") as file:
        file.truncate(100_000_000)
    log, plan = tmp_path / "log.parquet", SLIDING if kind == "sliding" else PLAN
    request = request_for(log, plan, items if kind == "items" else None)
    monkeypatch.setattr(home_workers, "free_memory_bytes", lambda: 4_000_000_000)
    assert home_workers.large_log_words(request) is None
    monkeypatch.setattr(home_workers, "free_memory_bytes", lambda: free)
    assert f" may need {needed} GB, and {free / 1e9:.1f} GB are free." in str(home_workers.large_log_words(request))


def test_long_labels_at_the_end_of_a_packed_log_count_for_one_process(tmp_path):
    """Its first rows do not show them: 134,000 labels of 16 kB, 2.2 GB in a file of 3 MB, took 8.5 GB in one process.
    So a packed log may hold what its size allows; one that is not packed cannot."""
    packed, plain = tmp_path / "log.jsonl.gz", tmp_path / "log.jsonl"
    packed.write_bytes(gzip.compress(ROW % b"i" * 5_000 + ROW % (b"x" * 16_000) * 10_000))
    plain.write_bytes(ROW % b"i" * 5_000)
    assert not home_workers.fits(1_000_000_000, request_for(packed))
    assert home_workers.fits(100_000_000_000, request_for(packed))
    assert home_workers.fits(1_000_000_000, request_for(plain))


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
