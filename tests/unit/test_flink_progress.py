"""What a replay asks Flink while its job runs, over HTTP; answers as Flink 1.19.3 gives them."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from dp_transforms.pipelines.flink_progress import FlinkProgress, JobProgress, ReplayWatch
from dp_transforms.runners.flink_rest import FlinkRest

OF_PIPELINE = (
    "java.lang.RuntimeException: Error received from SDK harness for instruction 4: "
    "Traceback (most recent call last):\n"
    '  File "worker.py", line 1, in process\n'
    "dp_transforms.event_files.log_chunk.EventFileError: a.parquet cannot be read.\n"
)
OF_MACHINE = (
    "java.lang.IllegalStateException: Stream for instruction 4 is closed: the worker is gone.\n\tat x.y(Z.java)\n"
)


class _Flink(http.server.BaseHTTPRequestHandler):
    """Two jobs of one name. The newer one has three stages."""

    state = "RUNNING"
    stages = ("FINISHED", "RUNNING", "CREATED")
    failures: tuple[str, ...] = ()
    cancelled: tuple[str, ...] = ()

    def do_GET(self) -> None:
        found: Any
        if self.path == "/jobs/overview":
            jobs = [
                ("old", "mine", "CANCELED", 1),
                ("new", "mine", type(self).state, 2),
                ("x", "mine-too", "FAILED", 3),
            ]
            found = {"jobs": [dict(zip(("jid", "name", "state", "start-time"), job, strict=True)) for job in jobs]}
        elif self.path == "/jobs/new":
            vertices = [{"id": s, "name": s, "status": s} for s in self.stages]
            found = {"state": type(self).state, "vertices": vertices}
        elif self.path == "/jobs/new/exceptions":
            found = {"exceptionHistory": {"entries": [{"stacktrace": text} for text in self.failures]}}
        else:
            self.send_error(404)
            return
        self._answer(found)

    def do_PATCH(self) -> None:
        type(self).cancelled = (*self.cancelled, self.path)
        type(self).state = "CANCELED"
        self._answer({})

    def _answer(self, found: object) -> None:
        body = json.dumps(found).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        return


@pytest.fixture
def says() -> type[_Flink]:
    """What this Flink says can be changed by test."""
    return type("Says", (_Flink,), {})


@pytest.fixture
def flink(says: type[_Flink]) -> Iterator[FlinkRest]:
    server = http.server.ThreadingHTTPServer(("localhost", 0), says)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield FlinkRest(f"localhost:{server.server_address[1]}")
    server.shutdown()
    thread.join()
    server.server_close()


def test_progress_is_of_the_newest_job_of_the_name(flink: FlinkRest) -> None:
    assert ReplayWatch(flink, "mine").look() == JobProgress("new", flink.address, done=1, stages=3)
    assert ReplayWatch(flink, "nobody's").look() is None
    assert ReplayWatch(FlinkRest("localhost:9"), "mine").look() is None


def test_a_failure_of_the_pipeline_that_comes_again_ends_the_run(flink: FlinkRest, says: type[_Flink]) -> None:
    watch = ReplayWatch(flink, "mine")
    says.failures = (OF_PIPELINE, OF_MACHINE, OF_PIPELINE)
    assert watch.look() is not None
    says.failures = (OF_PIPELINE, *says.failures)
    with pytest.raises(RuntimeError, match=r"a\.parquet cannot be read"):
        watch.look()


def test_machines_may_fail_as_often_as_the_cluster_allows(flink: FlinkRest, says: type[_Flink]) -> None:
    says.failures = (OF_MACHINE,) * 30
    progress = ReplayWatch(flink, "mine").look()
    assert progress is not None
    assert progress.failures == 30


def test_where_the_job_is_and_that_it_begins_again_is_told_once(capsys: pytest.CaptureFixture[str]) -> None:
    with FlinkProgress() as shown:
        for failures in (0, 4, 5, 6):
            shown.show(JobProgress("new", "localhost:1", done=1, stages=3, failures=failures))
        shown.show(None)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2
    assert "http://localhost:1/#/job/new" in lines[0]
    assert "again and again" in lines[1]


def test_a_job_is_cancelled_unless_it_is_over(flink: FlinkRest, says: type[_Flink]) -> None:
    watch = ReplayWatch(flink, "mine")
    for _ in range(2):
        watch.cancel(5)
    assert says.cancelled == ("/jobs/new?mode=cancel",)
    assert watch.look() is None
    ReplayWatch(FlinkRest("localhost:9"), "mine").cancel(5)
