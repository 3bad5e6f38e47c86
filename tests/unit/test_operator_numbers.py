"""Numbers of the engine beside a live page, by what a real cluster answers; apart from all that is public."""

from __future__ import annotations

import datetime
import http.server
import json
import pathlib
import threading
import urllib.parse
from collections.abc import Iterator

import pytest

from dp_transforms.cli.flink_jobs import OperatorNumbers
from dp_transforms.engines.portable import job_name
from dp_transforms.reports import write_report_file
from dp_transforms.views.page.report_page import report_page
from dp_transforms.views.serving.live_report import LiveReport
from dp_transforms.views.serving.report_source import source_of
from tests.helpers.page_reports import STORIES, header_of, hourly_plan, reports_of
from tests.helpers.served import Listener, served

PLAN = hourly_plan()
HEADER = header_of(PLAN)
POLL = "[2]MonitorStream/PollPartitions/{Poll__Confirm}"  # as a job on Flink 1.19.3 names it
METRICS = {
    f"0.{POLL}.shh_operator_events_read": "722",
    f"1.{POLL}.shh_operator_events_read": "679",
    f"1.{POLL}.shh_operator_clock_lag_seconds": "4",
    "0.numRecordsIn": "12",
}
ANSWERS = {
    "/overview": {"taskmanagers": 2},
    "/jobs/overview": {"jobs": [{"jid": "a1", "name": job_name(HEADER), "state": "RUNNING", "start-time": 1}]},
    "/jobs/a1": {"state": "RUNNING", "vertices": [{"id": "v1", "name": "v", "status": "RUNNING"}]},
    "/jobs/a1/checkpoints": {"counts": {"completed": 17}},
}


class Flink(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        url = urllib.parse.urlsplit(self.path)
        found: object = ANSWERS.get(url.path)
        if url.path == "/jobs/a1/vertices/v1/metrics":
            wanted = urllib.parse.parse_qs(url.query).get("get", [""])[0].split(",")
            found = [
                {"id": name, "value": value} for name, value in METRICS.items() if wanted == [""] or name in wanted
            ]
        self.send_response(200 if found else 404)
        self.end_headers()
        self.wfile.write(json.dumps(found).encode())

    def log_message(self, *_: object) -> None:
        return


@pytest.fixture
def flink() -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Flink) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_the_job_of_the_run_is_found_and_its_numbers_are_told(flink: str) -> None:
    numbers = OperatorNumbers(flink)
    found = numbers.ask(HEADER, 0.0)
    assert found["rows"] == [
        ("Flink", flink),
        ("task managers", "2"),
        ("job", "a1: RUNNING"),
        ("completed checkpoints", "17"),
        ("clock lag seconds", "4"),
        ("events read", "1,401"),
    ]
    assert found["warning"] == ""
    assert "completed no checkpoint" in numbers.ask(HEADER, 1000.0)["warning"]
    assert "no job of this run" in numbers.ask(header_of(PLAN, "other"), 0.0)["warning"]


def test_a_cluster_that_is_away_is_told_and_ends_nothing() -> None:
    assert OperatorNumbers("127.0.0.1:1").ask(HEADER, 0.0)["warning"] == "Flink at 127.0.0.1:1 does not answer."


def test_the_part_for_the_operator_is_in_no_other_page(tmp_path: pathlib.Path) -> None:
    reports = reports_of(PLAN, STORIES)
    write_report_file(tmp_path / "report.avro", HEADER, reports)
    source = [str(tmp_path / "report.avro")]
    pages = {
        for_operator: LiveReport(source_of(source), datetime.UTC, {}, 100, for_operator=for_operator).view.page.decode()
        for for_operator in (True, False)
    }
    assert "not covered by the guarantee</strong>: do not publish" in pages[True]
    for page in (pages[False], report_page(HEADER, reports, datetime.UTC)):
        assert "For the operator" not in page
        assert 'id="operator' not in page


def test_a_browser_hears_of_them_beside_the_report(flink: str, tmp_path: pathlib.Path) -> None:
    write_report_file(tmp_path / "report.avro", HEADER, reports_of(PLAN, STORIES))
    with served(tmp_path / "report.avro", "--flink-master", flink) as server:
        page = server.get().text
        assert "For the operator" in page
        assert "1,401" not in page
        after = page.partition('"after":"')[2].partition('"')[0]
        assert ["events read", "1,401"] in Listener(server.port, after).next("operator").data["rows"]
