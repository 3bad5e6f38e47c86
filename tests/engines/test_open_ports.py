"""What engines of this machine listen on: the loopback address and nothing else.

The pipelines on Prism and Flink, and the commands: test_submitted.py.
"""

from __future__ import annotations

import json
import os

import pytest

from examples.engines import flink
from tests.engines import needs, wait_for
from tests.engines.listening import (
    listening,
    outer_addresses,
    run_and_listen,
    start_worker_reaches,
    started,
)
from tests.helpers.small_runs import key_file

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


REPLAY = ["replay", "logs", "--output", "report.jsonl", "--noise-key-file", "noise.key", *PLAN, *RANGE]


@pytest.mark.parametrize("words", [REPLAY, stream()], ids=["replay", "stream"])
def test_a_run_in_process_listens_on_nothing(folder, words):
    run = run_and_listen(words, folder)
    assert run.code == 0, run.err
    assert run.sockets == set()


def test_the_looks_find_a_socket_of_all_addresses(tmp_path):
    """Else the tests of sockets would show nothing."""
    code = "import socket, time; s = socket.create_server(('0.0.0.0', 0)); time.sleep(1)"
    run = run_and_listen([], tmp_path, ["-c", code])
    assert [one.host for one in run.beyond_loopback] == ["0.0.0.0"]


@pytest.mark.skipif(not outer_addresses(), reason="this machine has the loopback address alone.")
@needs("prism")
def test_no_stranger_gives_the_process_with_the_key_a_worker(folder):
    """Tried at every port of a stream that goes on. By the loopback address one obeys, or this would show nothing."""
    range_ = ("--start", "2020-01-01", "--end", "2020-02-01")
    words = stream("--runner=PrismRunner", *range_, "--clock", "event", "--idle-timeout", "1h")
    with started(words, folder) as process:

        def pools_of_workers():
            assert process.poll() is None, (folder / "err").read_text()
            return {one.port for one in listening(process.pid) if "prism" not in one.program}

        pools = wait_for("a pool of workers", pools_of_workers)
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
