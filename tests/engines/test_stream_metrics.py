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
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import yaml
from confluent_kafka.admin import NewPartitions

from dp_transforms.engines import flink
from dp_transforms.engines.engine_process import EngineError, engine_file, free_ports
from dp_transforms.engines.flink_rest import ENDED
from examples.demos.flink_cluster import worker_pids
from tests.engines import needs
from tests.engines.conftest import ROOT, FlinkCluster
from tests.engines.kafka_server import KafkaServer
from tests.helpers.kubernetes_manifests import manifests
from tests.helpers.pages import Page
from tests.helpers.served import Listener, served
from tests.helpers.shh_process import python

pytest.importorskip("prometheus_client", reason="the extra metrics is not installed")
START = 1_577_836_800  # 2020-01-01T00:00:00Z
HOUR = 3600
MONITORING = ROOT / "runners" / "monitoring"
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


def account(folder: pathlib.Path) -> tuple[object, ...]:
    """A run may have a name where a ledger knows which names were used."""
    return "--ledger", folder / "ledger.db", "--population", "all", "--max-epsilon", "8", "--max-delta", "1e-6"


def visits(window: int, users: int, start: int = START, item: str = "news") -> list[bytes]:
    at = start + window * HOUR + HOUR // 4
    return [json.dumps({"user": f"{window}-{n}", "item": item, "timestamp": at}).encode() for n in range(users)]


def alerts(
    before: dict[str, float], after: dict[str, float], grow: dict[str, float], folder: pathlib.Path, *, lower: float = 1
) -> set[str]:
    """The alerts that fire if what was served goes on for two hours: counters grow in each minute as from ``before`` to
    ``after``, and gauges stay, or grow by so much a minute. lower: so many times less is large state."""
    series = []
    for name, value in after.items():
        if name == "shh_heap_full" and name not in grow:  # between two collections of garbage it says nothing
            continue
        step = value - before.get(name, 0) if name.endswith("_total") else grow.get(name, 0)
        series.append(f"      - {{series: '{name}{{stream=\"s\"}}', values: '{value:f}+{step:f}x120'}}")
    text = (MONITORING / "alerts.yml").read_text()
    (folder / "alerts.yml").write_text(re.sub(r"[\d.]+e\d", lambda limit: f"{float(limit[0]) / lower:f}", text))
    test = [
        *("rule_files: [alerts.yml]", "evaluation_interval: 1m", "tests:", "  - interval: 1m", "    input_series:"),
        *series,
        *("    promql_expr_test:", "      - expr: 'ALERTS{alertstate=\"firing\"}'", "        eval_time: 119m"),
        "        exp_samples: []",
    ]
    (folder / "test.yml").write_text("\n".join(test) + "\n")
    done = subprocess.run(["promtool", "test", "rules", "test.yml"], cwd=folder, capture_output=True, text=True)
    fires = set(re.findall(r'alertname="(\w+)"', done.stdout + done.stderr))  # of what it did not expect
    assert bool(fires) == (done.returncode != 0), done.stderr
    return fires


needs_promtool = pytest.mark.skipif(shutil.which("promtool") is None, reason="no Prometheus on this machine")


@needs("prism")
@needs_promtool
def test_what_is_to_worry_about_happens_on_prism_and_its_alert_fires(kafka: KafkaServer, tmp_path) -> None:
    """A partition falls silent, state grows, and a producer's clock is an hour ahead when the stream is stopped. 300
    users have the item of an hour. It is missed in one with a probability below 1e-9 (epsilon 8)."""
    start = int(time.time()) - 9 * HOUR // 2
    kafka.create_topic("ahead", timestamp_type="CreateTime")
    for window in range(2):
        millis = (start + window * HOUR + HOUR // 4) * 1000
        kafka.produce("ahead", visits(window, 300, start, f"item {window}"), timestamp_millis=millis)
    kafka.produce("ahead", [b'{"user": 7.5}'], timestamp_millis=millis)
    words = [
        *("--input", f"kafka://{kafka.bootstrap}/ahead", "--output", "reports", "--shards", "1", "--window", "1h"),
        *("--start", _utc(start), "--end", _utc(start + 20 * HOUR), "--allowed-lateness", "0s"),
        *("--out-of-order", "10s", "--idle-timeout", "1s", "--shown-within", "1s"),
        *("--clock", "arrival", "--producer-times"),
    ]
    answered = {"shh_known_items": 2, "shh_pending_windows": 0}.items()
    with stream(tmp_path, *words) as streamed:
        found = streamed.until(lambda: now if answered <= (now := streamed.numbers()).items() else None)
        kafka.produce("ahead", visits(5, 1, start), timestamp_millis=(int(time.time()) + HOUR) * 1000)
        streamed.until(lambda: streamed.numbers()["shh_records_read_total"] == 602)
        streamed.process.send_signal(signal.SIGINT)
        stopped = streamed.until(lambda: streamed.numbers().get("shh_stops_seen_late_total") and streamed.numbers())
    assert (found["shh_records_read_total"], found["shh_events_rejected_total"]) == (601, 1)
    assert found["shh_intents_total"] == 1, "the wall clock has closed the second window"
    assert found["shh_clock_lag_seconds"] >= 0
    assert alerts(found, found, {}, tmp_path) == {"ShhNothingRead"}
    grow = {"shh_known_items": found["shh_known_items"]}
    assert alerts({}, found, grow, tmp_path, lower=1e6) == {
        "ShhPartitionsIdle",
        "ShhStateGrows",
        "ShhStateFillsWorkers",
    }
    assert "ShhEngineError" in alerts(found, stopped, {}, tmp_path)


def _utc(seconds: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))


@pytest.mark.nightly
def test_a_page_and_prometheus_follow_a_stream_that_runs_on_flink(kafka: KafkaServer, cluster, tmp_path) -> None:
    """400 users have the item in each hour. It is missed in one with a probability below 1e-9 (epsilon 8)."""
    clicks, reports = "page-clicks", "page-reports"
    kafka.create_topic(clicks)
    kafka.create_topic(reports)
    kafka.produce(clicks, [*visits(0, 400), b'{"user": "broken', *visits(1, 400), *visits(2, 1)])
    address = f"kafka://{kafka.bootstrap}/{reports}"
    words = [
        *("--input", f"kafka://{kafka.bootstrap}/{clicks}", "--output", address),
        *("--run-id", "page", *account(tmp_path)),
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


@pytest.mark.nightly
@needs_promtool
def test_what_is_to_worry_about_happens_and_its_alert_fires(kafka: KafkaServer, cluster, tmp_path) -> None:
    """The command that watches dies meanwhile: given again, it watches on. What no restart changes ends the job."""
    clicks = "worry-clicks"
    kafka.create_topic(clicks, 2)
    many = [json.dumps({"user": "greedy", "item": f"{n}", "timestamp": START + 5}).encode() for n in range(2000)]
    for window in range(7):
        kafka.produce(clicks, visits(window, 100), 0)
    kafka.produce(clicks, [*visits(0, 100), *many], 1)
    words = [
        *("--input", f"kafka://{kafka.bootstrap}/{clicks}", "--output", tmp_path / "reports"),
        *("--run-id", "worry", *account(tmp_path)),
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


@pytest.mark.nightly
@needs_promtool
def test_the_heap_of_a_task_manager_fills_and_its_alert_fires(kafka: KafkaServer, tmp_path: pathlib.Path) -> None:
    """A window is open, its items have long names, and state is on a heap of 224 MB. Each moment at which the heap was
    looked at came after all garbage was collected."""
    kafka.create_topic("names")
    words = [
        *("--input", f"kafka://{kafka.bootstrap}/names", "--output", "reports", "--end", "2020-01-02"),
        *("--window", "1h", "--idle-timeout", "1h", "--engine", "flink", "--parallelism", "1"),
        *("--checkpoint-interval", "30s"),
    ]
    with (
        FlinkCluster(tmp_path, task_heap_megabytes=160, state_backend="hashmap") as flink_here,
        flink.WorkerPool(log_path=tmp_path / "pool.log", env={"PYTHONPATH": str(ROOT)}) as pool,
        stream(tmp_path, *words, "--flink-master", flink_here.address, "--worker-pool", pool.address) as streamed,
    ):

        def collected() -> float:
            """How full the heap is, as it is served, once its garbage is gone."""
            flink_here.collect_garbage()
            time.sleep(6)  # the command asks every five seconds
            return float(streamed.until(lambda: streamed.numbers().get("shh_heap_full")))

        sent, lowest = 0, collected()
        assert lowest < 0.5
        while lowest < 0.78:
            more = range(sent, sent + 1000 if sent else 14_000)
            kafka.produce("names", long_names(more))
            sent = more.stop
            while streamed.until(lambda: streamed.numbers().get("shh_records_read_total")) < sent:
                time.sleep(1)
            lowest = min(collected() for _ in range(3))
            print(sent, lowest)
        found = {**streamed.numbers(), "shh_heap_full": lowest}
    assert "ShhHeapFull" in alerts(found, found, {"shh_heap_full": 0}, tmp_path)
    assert "ShhHeapFull" not in alerts(found, {**found, "shh_heap_full": 0.7}, {"shh_heap_full": 0}, tmp_path)


@pytest.mark.nightly
@needs_promtool
def test_a_task_manager_without_memory_ends_with_its_workers_and_the_alert_fires(kafka: KafkaServer, tmp_path) -> None:
    """It is started again each time, as Kubernetes would: it fails at the same place, with no checkpoint between. Flink
    itself only knows that it is gone."""
    kafka.create_topic("crowd")
    words = [
        *("--input", f"kafka://{kafka.bootstrap}/crowd", "--output", "reports", "--end", "2020-01-02"),
        *("--window", "1h", "--idle-timeout", "1h", "--engine", "flink", "--parallelism", "1"),
        *("--checkpoint-interval", "5s"),
    ]
    with (
        FlinkCluster(tmp_path, task_heap_megabytes=96, state_backend="hashmap") as flink_here,
        flink.WorkerPool(log_path=tmp_path / "pool.log", env={"PYTHONPATH": str(ROOT)}) as pool,
        stream(tmp_path, *words, "--flink-master", flink_here.address, "--worker-pool", pool.address) as streamed,
    ):
        before = streamed.until(lambda: (found := streamed.numbers()).get("shh_heap_full") and found)
        sent = 0
        for _ in range(3):
            while flink_here.exit_code() is None:
                kafka.produce("crowd", long_names(range(sent, sent + 1500)))
                sent += 1500
                assert sent < 100_000
                time.sleep(4)
            assert flink_here.exit_code() == 3, "of -XX:+ExitOnOutOfMemoryError"
            streamed.until(lambda: not worker_pids(pool))
            flink_here.restart_task_manager()
        found = streamed.until(lambda: (now := streamed.numbers())["shh_restarts_total"] >= 3 and now)
    assert "ShhRestarts" in alerts(before, found, {}, tmp_path)


def long_names(users: range) -> Iterator[bytes]:
    rows = ({"user": f"{n}", "item": os.urandom(4000).hex(), "timestamp": START} for n in users)
    return (json.dumps(row).encode() for row in rows)


@contextlib.contextmanager
def prometheus(folder: pathlib.Path, ports: list[int]) -> Iterator[Callable[[str], Any]]:
    """A real one with the files for Kubernetes, but that it is told which ports to ask, each second. Gives a function
    from a query to its answer, label sets and values."""
    config = yaml.safe_load((MONITORING / "kubernetes.yml").read_text())
    (job,) = config["scrape_configs"]
    del job["kubernetes_sd_configs"], job["relabel_configs"]
    job["static_configs"] = [{"targets": [f"127.0.0.1:{port}" for port in ports]}]
    config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    shutil.copy(MONITORING / "alerts.yml", folder)
    rules = (MONITORING / "flink.yml").read_text()
    for text, soon in {"for: 5m": "for: 5s", "[5m]": "[5s]", "[1h]) > 2": "[1h]) > 0"}.items():
        assert text in rules
        rules = rules.replace(text, soon)
    (folder / "flink.yml").write_text(rules)
    (port,) = free_ports(1)
    words = ["prometheus", "--config.file=prometheus.yml", "--storage.tsdb.path=data"]
    words.append(f"--web.listen-address=127.0.0.1:{port}")

    def ask(query: str) -> Any:
        url = f"http://127.0.0.1:{port}/api/v1/query?query={urllib.parse.quote(query)}"
        try:
            with urllib.request.urlopen(url, timeout=30) as answer:
                found = json.loads(answer.read())["data"]["result"]
        except OSError:  # it is not up yet
            return []
        return [(each["metric"], float(each["value"][1])) for each in found]

    with subprocess.Popen(words, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            yield ask
        finally:
            process.terminate()


@pytest.mark.nightly
@needs_promtool
def test_prometheus_has_from_flink_itself_what_the_command_serves(kafka: KafkaServer, tmp_path) -> None:
    """With the settings and the rules for Kubernetes. Then workers are killed, all of them, and the job is ended."""
    try:
        engine_file(f"flink-{flink.FLINK_RELEASE}/lib/flink-metrics-prometheus-{flink.FLINK_RELEASE}.jar", "flink")
    except EngineError as error:
        pytest.skip(str(error))
    kafka.create_topic("scraped", 2)
    for window in range(4):
        kafka.produce("scraped", visits(window, 100), 0)
    kafka.produce("scraped", [*visits(0, 100), b'{"user": 7.5}', *visits(1, 1)], 1)
    ports = free_ports(2)
    config = manifests()["FlinkDeployment/shh"]["spec"]["flinkConfiguration"]
    settings = {key: value for key, value in config.items() if key.startswith("metrics.")}
    settings["metrics.reporter.prometheus.port"] = ",".join(map(str, ports))
    words = [
        *("--input", f"kafka://{kafka.bootstrap}/scraped", "--output", "reports", "--end", "2020-01-02"),
        *("--window", "1h", "--idle-timeout", "1h", "--engine", "flink", "--parallelism", "2"),
        *("--allowed-lateness", "0s", "--out-of-order", "0s", "--checkpoint-interval", "1s"),
    ]
    with (
        FlinkCluster(tmp_path, settings=settings) as flink_here,
        flink.WorkerPool(log_path=tmp_path / "pool.log", env={"PYTHONPATH": str(ROOT)}) as pool,
        prometheus(tmp_path, ports) as ask,
        stream(tmp_path, *words, "--flink-master", flink_here.address, "--worker-pool", pool.address) as streamed,
    ):
        own = {"shh_run_info", "shh_seconds_without_checkpoint", "shh_restarts_total"}

        def both() -> Any:
            """What Prometheus has, once it is what the command serves, of all that was sent."""
            served = {name: value for name, value in streamed.numbers().items() if name not in own}
            found = {name: ask(name) for name in served}
            may_differ = {"shh_clock_lag_seconds": 60, "shh_heap_full": 1}
            agree = all(
                len(found[name]) == 1 and abs(found[name][0][1] - value) <= may_differ.get(name, 0)
                for name, value in served.items()
            )
            sent = {"shh_pending_windows": 2, "shh_records_read_total": 502, "shh_events_rejected_total": 1}
            return found if agree and sent.items() <= served.items() else None

        found = streamed.until(both)
        assert len(found) > 15
        assert 0 < found.pop("shh_heap_full")[0][1] < 1
        (job,) = flink_here.rest.jobs()
        for name, [(labels, _)] in found.items():
            assert labels == {"__name__": name, "stream": job.name}
        firing = 'ALERTS{alertstate="firing"}'
        assert streamed.until(lambda: ask("flink_jobmanager_job_numberOfCompletedCheckpoints > 3"))
        assert {labels["alertname"] for labels, _ in ask(firing)} <= {"ShhNoCheckpoint"}, "a slow machine"
        for pid in worker_pids(pool):
            os.kill(pid, signal.SIGKILL)
        streamed.until(lambda: ask('ALERTS{alertname="ShhRestarts", alertstate="firing"}'))
        pool.stop()
        streamed.until(lambda: ask('ALERTS{alertname="ShhNoCheckpoint", alertstate="firing"}'))
        flink_here.rest.cancel(job.job_id)
        deadline = time.monotonic() + 120
        while not ask('ALERTS{alertname="ShhNoJob", alertstate="firing"}'):
            assert time.monotonic() < deadline
            time.sleep(0.3)
