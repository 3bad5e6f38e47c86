"""The numbers that `shh stream --metrics-port` serves while a real stream runs, and a live page beside one on Flink."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka.admin import NewPartitions

from dp_transforms.engines.flink_rest import ENDED
from examples.demos.flink_cluster import worker_pids
from tests.engines import needs
from tests.engines.conftest import ROOT
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
    if not (folder / "noise.key").exists():
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


def alerts(before: dict[str, float], after: dict[str, float], grow: dict[str, float], folder: pathlib.Path) -> set[str]:
    """The alerts that fire if what was served goes on for two hours: counters grow in each minute as from ``before`` to
    ``after``, and gauges stay, or grow by so much a minute."""
    series = []
    for name, value in after.items():
        if name == "shh_heap_full":  # a moment between two collections of garbage says nothing of two hours
            continue
        step = value - before.get(name, 0) if name.endswith("_total") else grow.get(name, 0)
        series.append(f"      - {{series: '{name}{{stream=\"s\"}}', values: '{value:.0f}+{step:.0f}x120'}}")
    rules = ROOT / "runners" / "monitoring" / "alerts.yml"
    names = sorted(re.findall(r"alert: (\w+)", rules.read_text()))
    fires = set()
    for name in names:  # promtool says only whether what it is told to expect is there
        expected = "exp_samples: [{labels: '{}', value: 1}]"
        test = [
            *(f"rule_files: [{rules}]", "evaluation_interval: 1m", "tests:", "  - interval: 1m", "    input_series:"),
            *series,
            "    promql_expr_test:",
            f'      - expr: \'max(ALERTS{{alertname="{name}",alertstate="firing"}})\'',
            *("        eval_time: 119m", f"        {expected}"),
        ]
        (folder / "test.yml").write_text("\n".join(test) + "\n")
        done = subprocess.run(["promtool", "test", "rules", "test.yml"], cwd=folder, capture_output=True, check=False)
        if done.returncode == 0:
            fires.add(name)
    return fires


@pytest.mark.nightly
@pytest.mark.skipif(shutil.which("promtool") is None, reason="no Prometheus on this machine")
def test_what_is_to_worry_about_happens_and_its_alert_fires(kafka: KafkaServer, cluster, tmp_path) -> None:
    """The command that watches dies meanwhile: given again, it watches on. What no restart changes ends the job."""
    clicks = "worry-clicks"
    kafka.create_topic(clicks, 2)
    many = [json.dumps({"user": "greedy", "item": f"{n}", "timestamp": START + 5}).encode() for n in range(2000)]
    for window in range(7):
        kafka.produce(clicks, visits(window, 100), 0)
    kafka.produce(clicks, [*visits(0, 100), *many], 1)
    words = [
        *("--input", f"kafka://{kafka.bootstrap}/{clicks}", "--output", tmp_path / "reports", "--run-id", "worry"),
        *("--allowed-lateness", "0s", "--out-of-order", "0s", "--end", "2020-01-02", "--window", "1h"),
        *("--most-looks", "20", "--engine", "flink", "--flink-master", cluster.flink.address),
        *("--worker-pool", cluster.pool.address, "--parallelism", "2", "--checkpoint-interval", "1s"),
        *("--idle-timeout", "1h"),
    ]
    known = cluster.job_ids()
    with stream(tmp_path, *words) as streamed:
        streamed.until(lambda: streamed.numbers().get("shh_records_read_total") == 2800)
        before = streamed.until(lambda: streamed.numbers() if streamed.numbers()["shh_pending_windows"] == 6 else None)
        assert before["shh_clock_lag_seconds"] >= time.time() - (START + HOUR) - 60, "that of the last partition"
        assert (before["shh_windows_closed_total"], before["shh_restarts_total"]) == (0, 0)
        assert 0 < before["shh_heap_full"] < 1
        assert len(worker_pids(cluster.pool)) == 2, "one for each slot of the job"
        assert alerts(before, before, {}, tmp_path) == {"ShhNothingRead", "ShhNoWindowCloses"}
        (job,) = cluster.job_ids() - known
        streamed.process.kill()
        streamed.process.wait()
    assert cluster.flink.rest.job_state(job) == "RUNNING"
    with stream(tmp_path, *words) as streamed:
        streamed.until(lambda: f"runs already at http://{cluster.flink.address}" in "".join(streamed.said))
        outside = [json.dumps({"user": "u", "item": "i", "timestamp": START - 5}).encode()] * 9000
        future = [json.dumps({"user": "u", "item": "i", "timestamp": 4_102_444_800}).encode()] * 300
        kafka.produce(clicks, [*visits(0, 300), *outside, *future, *[b'{"user": 7.5}'] * 300], 0)
        kafka.produce(clicks, visits(1, 1), 1)
        admin = kafka.admin()
        admin.create_partitions([NewPartitions(clicks, 3)])[clicks].result(10)
        streamed.until(lambda: streamed.numbers().get("shh_pairs_unpaid_total"))
        after = streamed.until(lambda: streamed.numbers() if streamed.numbers().get("shh_partitions_unread") else None)
        assert "1 partitions were added to --input. This run does not read them." in "".join(streamed.said)
        assert after["shh_pending_windows"] == 5
        cluster.kill_worker()
        streamed.until(lambda: streamed.numbers()["shh_restarts_total"] > 0)
        after["shh_restarts_total"] = streamed.numbers()["shh_restarts_total"]
        after["shh_windows_closed_total"] = before["shh_windows_closed_total"] = 1  # the monitor waits from here on
        minute = {"shh_clock_lag_seconds": 60, "shh_pending_windows": 1, "shh_seconds_without_checkpoint": 60}
        fires = alerts(before, after, minute, tmp_path)
    assert cluster.flink.rest.job_state(job) in ENDED
    assert fires == {
        *("ShhNoCheckpoint", "ShhRestarts", "ShhPartitionsUnread", "ShhClockBehind", "ShhWindowsWait"),
        *("ShhNoWindowCloses", "ShhManyRejected", "ShhManyLate", "ShhNearlyAllOutside", "ShhFutureEvents", "ShhUnpaid"),
    }
    checkpoint = cluster.flink.rest.checkpoints(job)["latest"]["completed"]["external_path"]  # that which stays
    with stream(tmp_path, *words, "--resume-from", checkpoint) as streamed:
        assert streamed.process.wait(300) == 1
    assert "the run was started with 2 partitions, and the source has 3 now." in streamed.said[-1]
    assert streamed.said[-1].endswith("resume it with --partitions 2.\n")
    assert cluster.job_ids() - known > {job}
    assert {one.state for one in cluster.flink.rest.jobs()} <= set(ENDED)
