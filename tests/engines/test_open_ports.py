"""What engines of this machine listen on: the loopback address and nothing else.

The pipelines on Prism and Flink, and the commands: test_submitted.py.
"""

from __future__ import annotations

import json
import os

import pytest

from examples.engines import flink
from tests.engines.listening import listening, run_and_listen
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


REPLAY = ["replay", "logs", "--output", "report.jsonl", "--noise-key-file", "noise.key", *PLAN, *RANGE]
STREAM = ["stream", "--input", "logs", "--output", "reports", "--noise-key-file", "noise.key", *PLAN, *RANGE, *HISTORY]


@pytest.mark.parametrize("words", [REPLAY, STREAM], ids=["replay", "stream"])
def test_a_run_in_process_listens_on_nothing(folder, words):
    run = run_and_listen(words, folder)
    assert run.code == 0, run.err
    assert run.sockets == set()


def test_a_pool_of_workers_for_flink_listens_on_loopback_alone():
    with flink.WorkerPool() as pool:
        sockets = listening(os.getpid())
    assert int(pool.address.rpartition(":")[2]) in {one.port for one in sockets}
    assert all(one.is_of_loopback for one in sockets)
