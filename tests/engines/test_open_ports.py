"""What engines of this machine listen on: the loopback address and nothing else.

The pipelines on Prism and Flink, and the commands: test_submitted.py.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time

import pytest

from dp_transforms.reports.report_folder import ReportFolder
from examples.engines import flink
from tests.engines import needs
from tests.engines.listening import (
    Socket,
    end_all,
    listening,
    looked_at,
    outer_addresses,
    run_and_listen,
    start_worker_reaches,
    started,
)
from tests.engines.running_jobs import running
from tests.engines.stream_case import history_case
from tests.helpers.small_runs import RUN_ID, key_file

START = 1_577_836_800  # 2020-01-01T00:00:00Z
PLAN = ["--window", "1h", "--epsilon", "8", "--delta", "1e-6", "--charge", "hits", "--time-format", "s"]
RANGE = ["--start", "2020-01-01", "--end", "2020-01-01T03:00:00Z"]
# The log is older than its windows need, so that they close as soon as nothing new comes.
HISTORY = ["--clock", "event", "--out-of-order", "10m", "--idle-timeout", "1s"]


@pytest.fixture
def folder(tmp_path):
    """A log of 300 users in logs/, and noise.key."""
    (tmp_path / "logs").mkdir()
    rows = [{"user": f"user-{n}", "item": "news", "timestamp": START + n} for n in range(300)]
    (tmp_path / "logs" / "0.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n")
    os.rename(key_file(tmp_path), tmp_path / "noise.key")
    return tmp_path


def stream(*more: str):
    words = ["stream", "--input", "logs", "--output", "reports", "--noise-key-file", "noise.key"]
    return [*words, *PLAN, *(more or [*RANGE, *HISTORY])]


def test_a_stream_in_process_listens_on_nothing(folder):
    run = run_and_listen(stream(), folder)
    assert run.code == 0, run.err
    _, reports, ended = ReportFolder(str(folder / "reports")).read()
    assert [report.heavy_hitters[0].item for report in reports] == ["news"]
    assert ended is not None
    assert run.sockets == set()


def test_a_replay_listens_on_nothing(folder):
    words = ["replay", "logs", "--output", "report.jsonl", "--noise-key-file", "noise.key", *PLAN, *RANGE]
    run = run_and_listen(words, folder)
    assert run.code == 0, run.err
    assert run.sockets == set()


def test_the_looks_find_a_socket_of_all_addresses(tmp_path):
    """The twin that must fail: a grandchild that listens for a moment is seen, in both families."""
    code = "import socket, time; s = socket.create_server(('{}', 0), family=socket.{}); time.sleep(60)"
    for host, family in (("0.0.0.0", "AF_INET"), ("::", "AF_INET6")):
        if family == "AF_INET6" and not socket.has_ipv6:
            continue
        process = subprocess.Popen(["sh", "-c", f'"{sys.executable}" -c "{code.format(host, family)}" & wait'])
        try:
            deadline = time.monotonic() + 60
            with looked_at(process.pid) as found:
                while not found and time.monotonic() < deadline:
                    time.sleep(0.01)
            (one,) = found
            assert one.host == host
            assert not one.is_of_loopback
        finally:
            end_all(process)
    assert Socket("java", "::ffff:127.0.0.1", 1).is_of_loopback
    assert Socket("java", "::1", 1).is_of_loopback
    assert not Socket("java", "::ffff:10.0.0.1", 1).is_of_loopback


@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_cluster_of_this_machine_listens_on_loopback_alone(kafka, cluster, key_path):
    """Job manager, task manager, job server, pool and broker; task managers get the class that does it with the job."""
    seen: set[Socket] = set()
    with running(kafka, cluster, key_path, history_case(), seconds=6) as run:
        deadline = time.monotonic() + 240
        while run.sink.read(RUN_ID)[2] is None:
            assert time.monotonic() < deadline
            seen |= listening(os.getpid())
            time.sleep(0.05)
    assert {one for one in seen if not one.is_of_loopback} == set()
    print(f"a cluster, its job server, a pool and a broker: {len({one.port for one in seen})} ports")
    assert len({one.port for one in seen}) >= 12


@pytest.mark.skipif(not outer_addresses(), reason="this machine has the loopback address alone.")
@needs("prism")
def test_no_stranger_gives_the_process_with_the_key_a_worker(folder):
    """Tried at every port of a stream that goes on. By the loopback address one obeys, or this would show nothing."""
    words = stream(
        "--runner=PrismRunner",
        "--start",
        "2020-01-01",
        "--end",
        "2020-02-01",
        "--clock",
        "event",
        "--idle-timeout",
        "1h",
    )
    with started(words, folder) as process:
        deadline = time.monotonic() + 300
        while len(pools := {one.port for one in listening(process.pid) if "prism" not in one.program}) < 1:
            assert process.poll() is None, (folder / "err").read_text()
            assert time.monotonic() < deadline
            time.sleep(0.05)
        ports = {one.port for one in listening(process.pid)}
        for host in outer_addresses():
            assert not any(start_worker_reaches(host, port, 5.0) for port in ports), host
        assert all(start_worker_reaches("127.0.0.1", port, 60.0) for port in pools)


@pytest.mark.skipif(not outer_addresses(), reason="this machine has the loopback address alone.")
def test_no_stranger_gets_a_worker_of_the_pool_for_flink():
    with flink.WorkerPool() as pool:
        port = int(pool.address.rpartition(":")[2])
        assert not any(start_worker_reaches(host, port, 5.0) for host in outer_addresses())
        assert start_worker_reaches("127.0.0.1", port, 60.0)
