"""The numbers that `shh stream --metrics-port` serves while a real stream runs, and a live page beside one on Flink."""

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
from tests.engines import needs
from tests.engines.kafka_server import KafkaServer
from tests.helpers.pages import Page
from tests.helpers.served import Listener, served
from tests.helpers.shh_process import python

pytest.importorskip("prometheus_client", reason="the extra metrics is not installed")
START = 1_577_836_800  # 2020-01-01T00:00:00Z
HOUR = 3600
USUAL = ("--time-unit", "s", "--clock", "event", "--start", "2020-01-01", "--epsilon", "8", "--delta", "1e-6")


class Streamed:
    """The command in a process of its own, whose stderr is read in a thread, so that it never waits for us."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.said: list[str] = []
        threading.Thread(target=lambda: self.said.extend(process.stderr or ()), daemon=True).start()

    def until(self, question: Callable[[], Any]) -> Any:
        """The first answer that is true."""
        deadline = time.monotonic() + 300
        while not (answer := question()):
            assert self.process.poll() is None, self.said
            assert time.monotonic() < deadline, self.said
            time.sleep(0.3)
        return answer

    def numbers(self) -> dict[str, float]:
        """By name; all have the same labels."""
        address = self.until(lambda: re.search(r"http://127\.0\.0\.1:\d+/metrics", "".join(self.said)))[0]
        with urllib.request.urlopen(address, timeout=30) as answer:
            text = answer.read().decode()
        found = re.findall(r'^(\w+)\{engine="\w+",run_id="\w+",stream="events"\} (\S+)$', text, re.MULTILINE)
        assert len(found) == sum(not line.startswith("#") for line in text.splitlines()), text
        return {name: float(value) for name, value in found}


@contextlib.contextmanager
def stream(folder: pathlib.Path, *words: object) -> Iterator[Streamed]:
    """At the end of the block it is stopped at once."""
    (folder / "noise.key").write_bytes(os.urandom(32))
    (folder / "noise.key").chmod(0o600)
    pipes = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
    command = ("-m", "dp_transforms.cli.main", "stream", *USUAL, "--noise-key-file", "noise.key", *words)
    with python(*command, "--metrics-port", "0", cwd=folder, **pipes) as process:
        try:
            yield Streamed(process)
        finally:
            for _ in range(2):  # the second one ends it without a drain
                with contextlib.suppress(ProcessLookupError):
                    process.send_signal(signal.SIGINT)
                time.sleep(1)
            process.wait(120)


def visits(window: int, users: int) -> list[bytes]:
    at = START + window * HOUR + HOUR // 4
    return [json.dumps({"user": f"{window}-{n}", "item": "news", "timestamp": at}).encode() for n in range(users)]


@needs("prism")
def test_a_stream_on_prism_serves_what_it_has_read(tmp_path: pathlib.Path) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "0.jsonl").write_bytes(b"\n".join([*visits(0, 500), b'{"user": 7.5}', b""]))
    words = ("--input", "logs", "--end", "2099-01-01", "--window", "3650d", "--mode", "hits-with-counts")
    with stream(tmp_path, *words, "--output", "sqlite:///reports.db") as streamed:
        streamed.until(lambda: streamed.numbers().get("shh_records_read_total") == 501)
        found = streamed.numbers()
        assert found["shh_events_rejected_total"] == 1
        assert found["shh_clock_lag_seconds"] >= 0


@pytest.mark.nightly
def test_a_page_and_prometheus_follow_a_stream_that_runs_on_flink(kafka: KafkaServer, cluster, tmp_path) -> None:
    """400 users have the item in each hour. It is missed in one with a probability below 1e-9 (epsilon 8)."""
    clicks, reports = "page-clicks", "page-reports"
    kafka.create_topic(clicks)
    kafka.create_topic(reports)
    kafka.produce(clicks, [*visits(0, 400), b'{"user": "broken', *visits(1, 400), *visits(2, 1)])
    words = [
        *(
            "--input",
            f"kafka://{kafka.bootstrap}/{clicks}",
            "--output",
            f"kafka://{kafka.bootstrap}/{reports}",
            "--run-id",
            "page",
        ),
        *("--allowed-lateness", "0s", "--out-of-order", "0s", "--end", "2020-01-02", "--window", "1h"),
        *("--engine", "flink", "--flink-master", cluster.flink.address, "--worker-pool", cluster.pool.address),
        *("--checkpoint-interval", "1s", "--idle-timeout", "1h"),
    ]
    known = cluster.job_ids()
    with stream(tmp_path, *words) as streamed:
        streamed.until(lambda: streamed.numbers().get("shh_records_read_total") == 802)
        found = streamed.numbers()
        assert (found["shh_events_read_total"], found["shh_events_rejected_total"]) == (801, 1)
        assert found["shh_seconds_without_checkpoint"] < 60
        assert {"shh_clock_lag_seconds", "shh_pending_windows", "shh_purse_state_bytes"} <= set(found)
        address = f"kafka://{kafka.bootstrap}/{reports}"
        with served(address, "--run-id", "page", "--flink-master", cluster.flink.address) as page:
            listener = Listener(page.port, Page(page.get().text).data["live"]["after"])
            kafka.produce(clicks, [*visits(2, 399), *visits(3, 1)])
            latest = listener.next("window").data
            while latest["start"] != (START + 2 * HOUR) * 1000:
                latest = listener.next("window").data
            assert [entry[0] for entry in latest["entries"]] == ["news"]
            rows: dict[str, str] = {}
            while rows.get("events read") != "1,201":
                rows = dict(listener.next("operator").data["rows"])
            (job,) = cluster.job_ids() - known
            assert rows["job"] == f"{job}: RUNNING"
            assert int(rows["completed checkpoints"].replace(",", "")) > 0
            assert rows["events rejected"] == "1"
            assert "1,201" not in page.get().text, "exact numbers are in no page"
    assert cluster.flink.rest.job_state(job) in ENDED
