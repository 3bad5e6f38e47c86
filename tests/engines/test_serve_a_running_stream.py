"""`shh stream --engine flink` on Kafka as an operator runs it, with a live page of its topic and its numbers served."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import re
import signal
import subprocess
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from dp_transforms.engines.flink_rest import ENDED
from tests.engines.kafka_server import KafkaServer
from tests.helpers.pages import Page
from tests.helpers.served import Listener, served
from tests.helpers.shh_process import python

pytest.importorskip("prometheus_client", reason="the extra metrics is not installed")
START = 1_577_836_800  # 2020-01-01T00:00:00Z
HOUR = 3600
RUN = "page"
PATIENCE_SECONDS = 150.0


class Said:
    """What a process says on stderr, read in a thread, so that it never waits for us."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.lines: list[str] = []
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        self.lines.extend(self.process.stderr)

    def wait_for(self, pattern: str) -> re.Match[str]:
        def found() -> re.Match[str] | None:
            return re.search(pattern, "".join(self.lines))

        return until(found, self.process, self.lines)


def until(question: Callable[[], Any], process: subprocess.Popen[str], said: list[str]) -> Any:
    """The first answer that is true."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not (answer := question()):
        assert process.poll() is None, said
        assert time.monotonic() < deadline, said
        time.sleep(0.3)
    return answer


@contextlib.contextmanager
def stream(folder: pathlib.Path, *words: object) -> Iterator[Said]:
    """The command in a process of its own; at the end it is stopped at once."""
    pipes = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
    with python("-m", "dp_transforms.cli.main", "stream", *words, cwd=folder, **pipes) as process:
        said = Said(process)
        try:
            yield said
        finally:
            for _ in range(2):  # the second one ends it without a drain
                with contextlib.suppress(ProcessLookupError):
                    process.send_signal(signal.SIGINT)
                time.sleep(1)
            process.wait(120)


def visits(window: int, users: int) -> list[bytes]:
    at = START + window * HOUR + HOUR // 4
    return [json.dumps({"user": f"{window}-{n}", "item": "news", "timestamp": at}).encode() for n in range(users)]


def numbers(address: str) -> dict[str, float]:
    with urllib.request.urlopen(address, timeout=30) as answer:
        lines = answer.read().decode().splitlines()
    found = {}
    for line in lines:
        if not line.startswith("#"):
            name, labels, value = re.fullmatch(r"(\w+)\{(.*)\} (\S+)", line).groups()  # type: ignore[union-attr]
            assert labels == f'engine="flink",run_id="{RUN}",stream="events"'
            found[name] = float(value)
    return found


@pytest.mark.nightly
def test_a_page_and_prometheus_follow_a_stream_that_runs_on_flink(kafka: KafkaServer, cluster, tmp_path) -> None:
    """400 users have the item in each hour. It is missed in one with a probability below 1e-9 (epsilon 8)."""
    clicks, reports = "page-clicks", "page-reports"
    kafka.create_topic(clicks)
    kafka.create_topic(reports)
    (tmp_path / "noise.key").write_bytes(os.urandom(32))
    (tmp_path / "noise.key").chmod(0o600)
    kafka.produce(clicks, [*visits(0, 400), b'{"user": "broken', *visits(1, 400), *visits(2, 1)])
    words = [
        *("--kafka", kafka.bootstrap, "--topic", clicks, "--output-topic", reports, "--run-id", RUN),
        *("--time-unit", "s", "--clock", "event", "--allowed-lateness", "0s", "--out-of-order", "0s"),
        *("--start", "2020-01-01", "--end", "2020-01-02", "--window", "1h", "--epsilon", "8", "--delta", "1e-6"),
        *("--noise-key-file", "noise.key", "--engine", "flink", "--flink-master", cluster.flink.address),
        *("--worker-pool", cluster.pool.address, "--checkpoint-interval", "1s", "--idle-timeout", "1h"),
        *("--metrics-port", "0"),
    ]
    known = cluster.job_ids()
    with stream(tmp_path, *words) as said:
        metrics = said.wait_for(r"http://127\.0\.0\.1:\d+/metrics")[0]
        until(lambda: numbers(metrics).get("shh_records_read_total") == 802, said.process, said.lines)
        found = numbers(metrics)
        assert (found["shh_events_read_total"], found["shh_events_rejected_total"]) == (801, 1)
        assert found["shh_seconds_without_checkpoint"] < 60
        assert {"shh_clock_lag_seconds", "shh_pending_windows", "shh_purse_state_bytes"} <= set(found)
        address = f"kafka://{kafka.bootstrap}/{reports}"
        with served(address, "--run-id", RUN, "--flink-master", cluster.flink.address) as page:
            shown = Page(page.get().text)
            listener = Listener(page.port, shown.data["live"]["after"])
            kafka.produce(clicks, [*visits(2, 399), *visits(3, 1)])
            latest = listener.next("window").data
            while latest["start"] != (START + 2 * HOUR) * 1000:
                latest = listener.next("window").data
            assert [entry[0] for entry in latest["entries"]] == ["news"]
            rows = dict(listener.next("operator").data["rows"])
            while rows.get("events read") != "1,201":
                rows = dict(listener.next("operator").data["rows"])
            (job,) = cluster.job_ids() - known
            assert rows["job"] == f"{job}: RUNNING"
            assert int(rows["completed checkpoints"].replace(",", "")) > 0
            assert rows["events rejected"] == "1"
            assert "1,201" not in page.get().text, "exact numbers are in no page"
    assert cluster.flink.rest.job_state(job) in ENDED
