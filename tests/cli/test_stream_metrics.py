"""``--metrics-port``: the operator's numbers for Prometheus, and the rules and the dashboard that read them."""

import contextlib
import json
import pathlib
import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request

import psutil
import pytest

from dp_transforms.cli.flink_jobs import JobNumbers
from dp_transforms.cli.stream_status import OperatorMetrics, served_metrics
from dp_transforms.errors import UserError
from dp_transforms.monitor import operator_counts
from tests.cli.stream_words import PLAN, run

pytest.importorskip("prometheus_client", reason="the extra metrics is not installed")
yaml = pytest.importorskip("yaml", reason="the extra yaml is not installed")

ROOT = pathlib.Path(__file__).parents[2]
MONITORING = ROOT / "runners" / "monitoring"
RULES = yaml.safe_load((MONITORING / "alerts.yml").read_text())["groups"][0]["rules"]
TO_WATCH = (ROOT / "docs" / "deploy.md").read_text().partition("## What to watch")[2].partition("\n## ")[0]
RUN = {"run_id": 'run "1"', "stream": "news", "engine": "flink"}
COUNTS = {"records_read": 1200, "events_read": 1190, "events_rejected": 10}
GAUGES = {"clock_lag_seconds": 7, "pending_windows": 2}
needs_prometheus = pytest.mark.skipif(
    shutil.which("promtool") is None or shutil.which("prometheus") is None,
    reason="no Prometheus on this machine (Debian: apt-get install prometheus)",
)


def get(url):
    with urllib.request.urlopen(url, timeout=30) as answer:
        text = answer.read().decode()
        return text


def samples(port):
    """The samples of a page by name, all of which have the labels of the run."""
    found = {}
    for line in get(f"http://127.0.0.1:{port}/metrics").splitlines():
        if not line.startswith("#"):
            name, labels, value = re.fullmatch(r"(\w+)\{(.*)\} (\S+)", line).groups()
            assert labels == r'engine="flink",run_id="run \"1\"",stream="news"'
            found[name] = float(value)
    return found


def test_numbers_are_served_as_they_are_now_and_no_longer_than_the_run():
    with served_metrics(0, RUN) as served:
        assert served is not None
        metrics, port = served
        assert samples(port) == {"shh_run_info": 1}
        metrics.update(JobNumbers(COUNTS, GAUGES, 61.5))
        now = samples(port)
        assert {name: now[name] for name in ("shh_records_read_total", "shh_events_rejected_total")} == {
            "shh_records_read_total": 1200,
            "shh_events_rejected_total": 10,
        }
        assert (now["shh_clock_lag_seconds"], now["shh_seconds_without_checkpoint"]) == (7, 61.5)
        assert now["shh_events_late_total"] == 0
        assert "shh_known_items" not in now
        metrics.update(JobNumbers({}, {}, 65.5))
        assert samples(port) == {**now, "shh_seconds_without_checkpoint": 65.5}, "a cluster that does not answer"
        metrics.update(JobNumbers({"records_read": 5}, {}))
        now = samples(port)
        assert now["shh_records_read_total"] == 5
        assert not {"shh_clock_lag_seconds", "shh_seconds_without_checkpoint"} & set(now)
        helps = [line for line in get(f"http://127.0.0.1:{port}/").splitlines() if line.startswith("# HELP")]
        assert helps
        assert all("not covered by the guarantee" in line for line in helps)
    with pytest.raises(urllib.error.URLError):
        get(f"http://127.0.0.1:{port}/metrics")
    with served_metrics(None, RUN) as served:
        assert served is None


def test_no_other_machine_can_ask():
    with served_metrics(0, RUN) as served:
        assert served is not None
        ours = [one.laddr for one in psutil.Process().net_connections("inet") if one.status == psutil.CONN_LISTEN]
        assert [(at.ip, at.port) for at in ours if at.port == served[1]] == [("127.0.0.1", served[1])]


def test_a_page_under_another_name_cannot_ask():
    """Its browser would take our numbers for that page's, once its name has our address."""
    with served_metrics(0, RUN) as served:
        assert served is not None
        served[0].update(JobNumbers(COUNTS, GAUGES))
        url = f"http://127.0.0.1:{served[1]}/metrics"
        for own in ("127.0.0.1", "localhost"):
            assert "shh_events_read" in get(urllib.request.Request(url, headers={"Host": f"{own}:{served[1]}"}))
        for other in ("evil.example", f"evil.example:{served[1]}", "127.0.0.1.evil.example:80", "", "[::1]:80"):
            with pytest.raises(urllib.error.HTTPError) as refused:
                get(urllib.request.Request(url, headers={"Host": other}))
            assert refused.value.code == 403
            assert b"shh_" not in refused.value.read()


def test_what_is_wrong_with_the_port_is_told_in_one_line(tmp_path, monkeypatch, capsys):
    with served_metrics(0, RUN) as served:
        assert served is not None
        with pytest.raises(UserError, match=r"--metrics-port \d+ cannot be used: Address already in use"):
            served_metrics(served[1], RUN).__enter__()
    words = ["--input", "kafka://h:1/t", *PLAN, "--output", str(tmp_path / "reports"), "--metrics-port", "0"]
    cluster = ["--flink-master", "h:1", "--worker-pool", "localhost:5", "--allow-open-ports", "--detach"]
    (tmp_path / "noise.key").write_bytes(b"k" * 32)
    (tmp_path / "noise.key").chmod(0o600)
    code, _, err = run([*words, *cluster, "--noise-key-file", str(tmp_path / "noise.key")], capsys)
    assert (code, "--metrics-port cannot be used with --detach" in err, err.count("\n")) == (1, True, 1)
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(UserError, match=r"pip install '\.\[metrics\]'"):
        served_metrics(0, RUN).__enter__()


def operator_numbers():
    """Names of all counters and gauges that workers count for the operator."""
    return [value for name, value in vars(operator_counts).items() if name.isupper() and isinstance(value, str)]


def all_names():
    """Of all that a run may serve."""
    metrics = OperatorMetrics(RUN)
    ones = dict.fromkeys(operator_numbers(), 1)
    metrics.update(JobNumbers(ones, ones, 1, restarts=1, heap=1))
    return {sample.name for family in metrics.collect() for sample in family.samples}


def expressions():
    dashboard = json.loads((MONITORING / "dashboard.json").read_text())
    return [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]


def unknown(given, known, place=""):
    """The places of a JSON value that another one lacks or has otherwise."""
    if isinstance(given, dict) and isinstance(known, dict):
        pairs = [(f"{place}/{name}", value, known.get(name)) for name, value in given.items()]
    elif isinstance(given, list) and isinstance(known, list) and len(given) == len(known):
        pairs = [(f"{place}/{n}", *each) for n, each in enumerate(zip(given, known, strict=True))]
    else:
        return [] if given == known else [place]
    return [found for where, a, b in pairs for found in unknown(a, b, where)]


def as_grafana_reads_it(dashboard):
    """By Grafana's own types: what they do not know is lost."""
    plugins = pytest.importorskip("grafana_foundation_sdk.cog.plugins")
    plugins.register_default_plugins()
    from grafana_foundation_sdk.cog.encoder import JSONEncoder
    from grafana_foundation_sdk.models.dashboard import Dashboard

    return json.loads(JSONEncoder().encode(Dashboard.from_json(dashboard)))


def test_grafana_knows_each_field_of_the_dashboard():
    dashboard = json.loads((MONITORING / "dashboard.json").read_text())
    assert unknown(dashboard, as_grafana_reads_it(dashboard)) == []
    panel = dashboard["panels"][0]
    for held in (dashboard, panel, panel["options"]["legend"], panel["targets"][0], panel["fieldConfig"]["defaults"]):
        held["shown"] = 1
        assert len(unknown(dashboard, as_grafana_reads_it(dashboard))) == 1, "a field that it does not know is found"
        del held["shown"]


def test_rules_and_dashboard_ask_for_what_is_served_and_what_the_page_names_is_served():
    served = all_names()
    asked = " ".join(
        [*expressions(), *re.findall(r"expr: (.*(?:\n {10}.*)*)", (MONITORING / "alerts.yml").read_text())]
    )
    found = set(re.findall(r"shh_\w+", asked))
    assert len(found) > 15
    assert found <= served
    for cell in re.findall(r"^\| (`[^|]*`) \|", TO_WATCH, re.MULTILINE):
        for name in re.findall(r"`(\w+)`", cell):
            assert {f"shh_{name}", f"shh_{name}_total"} & served, name


def test_there_is_a_rule_for_each_number_that_the_page_says_to_worry_about():
    rows = re.findall(r"^\| (`[^|]*`) \|[^|]*\| ([^|]*) \|$", TO_WATCH, re.MULTILINE)
    assert len(rows) > 15
    tested = re.findall(r'alertname="(\w+)"', (MONITORING / "alerts_test.yml").read_text())
    assert set(tested) == {rule["alert"] for rule in RULES}
    asked = " ".join(rule["expr"] for rule in RULES)
    for names, worry in rows:
        if worry != "never":
            assert any(re.search(rf"\bshh_{name}(_total)?\b", asked) for name in re.findall(r"`(\w+)`", names)), names


def test_rules_for_flink_make_every_name_but_those_that_have_alerts_of_their_own():
    numbers, alerts = yaml.safe_load((MONITORING / "flink.yml").read_text())["groups"]
    made = {rule["record"] for rule in numbers["rules"]}
    assert made == all_names() - {"shh_run_info", "shh_seconds_without_checkpoint", "shh_restarts_total"}
    assert {rule["alert"] for rule in alerts["rules"]} == {"ShhNoJob", "ShhNoCheckpoint", "ShhRestarts"}
    for rule in numbers["rules"]:
        for name in re.findall(r"shh_operator_(\w+?)(?:_\[|\b)", rule["expr"]):
            assert name in operator_numbers(), name


@needs_prometheus
def test_promtool_finds_no_fault_and_each_alert_fires_where_it_should(tmp_path):
    rules = [f"      - record: r{n}\n        expr: {json.dumps(text)}\n" for n, text in enumerate(expressions())]
    shown = "".join(rules).replace("$__rate_interval", "5m").replace("$stream", ".*")
    (tmp_path / "panels.yml").write_text(f"groups:\n  - name: panels\n    rules:\n{shown}")
    for words in (
        ["check", "rules", "alerts.yml", str(tmp_path / "panels.yml")],
        ["check", "config", "prometheus.yml"],
        ["test", "rules", "alerts_test.yml"],
        ["check", "rules", "flink.yml"],
        ["test", "rules", "flink_test.yml"],
    ):
        done = subprocess.run(["promtool", *words], cwd=MONITORING, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


def free_port():
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        port = bound.getsockname()[1]
        return port


def asked(port, query):
    try:
        answer = json.loads(get(f"http://127.0.0.1:{port}/api/v1/query?query={urllib.parse.quote(query)}"))
    except OSError:  # it is not up yet
        return []
    found = answer["data"]["result"]
    return found


def as_grafana_asks(expression):
    """With the values of its variables: all streams, and four times the interval of 1 s at which is scraped."""
    return expression.replace("$__rate_interval", "4s").replace("$stream", ".*")


@pytest.mark.waits
@needs_prometheus
def test_a_real_prometheus_scrapes_the_numbers(tmp_path):
    """And says that the stream is gone when nobody answers any more."""
    config = (MONITORING / "prometheus.yml").read_text()
    assert "127.0.0.1:9464" in config
    with contextlib.ExitStack() as stream:
        served = stream.enter_context(served_metrics(0, RUN))
        assert served is not None
        ones = dict.fromkeys(operator_numbers(), 1)
        served[0].update(JobNumbers({**ones, **COUNTS}, {**ones, **GAUGES}, 1, 1, 1))
        rules = (MONITORING / "alerts.yml").read_text()
        (tmp_path / "alerts.yml").write_text(rules.replace("for: 5m", "for: 1s"))
        text = config.replace(":9464", f":{served[1]}").replace("15s", "1s\n  evaluation_interval: 1s")
        (tmp_path / "prometheus.yml").write_text(text)
        port = free_port()
        words = ["prometheus", "--config.file=prometheus.yml", "--storage.tsdb.path=data"]
        words.append(f"--web.listen-address=127.0.0.1:{port}")
        with subprocess.Popen(words, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
            try:
                deadline = time.monotonic() + 120
                while not (found := asked(port, "shh_records_read_total")) and time.monotonic() < deadline:
                    time.sleep(0.2)
                assert found[0]["value"][1] == "1200"
                assert {name: found[0]["metric"][name] for name in RUN} == RUN
                assert asked(port, "up")[0]["value"][1] == "1"
                found_rules = json.loads(get(f"http://127.0.0.1:{port}/api/v1/rules"))["data"]["groups"]
                assert len(found_rules[0]["rules"]) == rules.count("- alert: ")
                for each in expressions():
                    while not (found := asked(port, as_grafana_asks(each))):
                        assert time.monotonic() < deadline, f"a panel stays empty: {each}"
                        time.sleep(0.2)
                    assert all(result["metric"]["stream"] == "news" for result in found), each
                values = json.loads(get(f"http://127.0.0.1:{port}/api/v1/label/stream/values"))["data"]
                assert values == ["news"], "what the dashboard's variable asks for"
                gone = 'ALERTS{alertname="ShhStreamGone",alertstate="firing"}'
                assert not asked(port, gone)
                stream.close()
                while not asked(port, gone):
                    assert time.monotonic() < deadline
                    time.sleep(0.2)
            finally:
                process.terminate()
