"""A server that answers as Flink's REST interface does, for tests of what asks it."""

from __future__ import annotations

import contextlib
import dataclasses
import http.server
import itertools
import json
import threading
import urllib.parse
from collections.abc import Iterator

from examples.engines.flink_rest import FlinkRest

_BEGIN_MILLIS = 1_790_000_000_000


def _millis(seconds: int) -> int:
    return _BEGIN_MILLIS + 1000 * seconds


@dataclasses.dataclass
class FlinkAnswers:
    """What this Flink says, which a test may change at any time.

    looks: id, name and state of each job, the oldest first; each look shows the next of these, and the last one stays.
    The other answers are about the one job `job`: stages and their states, the texts of its failures and when they
    were (the last of these times is that of all others), how many checkpoints it has completed and when the newest,
    how often it was restarted, and by stage its metrics. now: in seconds, as all times. heap: bytes of the fullest
    heap, and how many it may have; None: no answer. cancelled: the paths of requests to end a job.
    """

    job: str
    looks: list[list[tuple[str, str, str]]]
    stages: dict[str, str] = dataclasses.field(default_factory=dict)
    failures: tuple[str, ...] = ()
    failed_at: tuple[int, ...] = (0,)
    completed: int = 0
    completed_at: int | None = None
    now: int = 0
    restarts: int = 0
    heap: tuple[float, float] | None = (5e8, 1e9)
    metrics: dict[str, dict[str, str]] = dataclasses.field(default_factory=dict)
    task_managers: int = 1
    cancelled: list[str] = dataclasses.field(default_factory=list)

    def get(self, path: str) -> object:
        """None for what is not there."""
        url = urllib.parse.urlsplit(path)
        if url.path == "/overview":
            return {"taskmanagers": self.task_managers, "slots-total": 4 * self.task_managers}
        if url.path == "/jobs/overview":
            jobs = enumerate(self.looks.pop(0) if len(self.looks) > 1 else self.looks[0])
            return {"jobs": [{"jid": i, "name": n, "state": s, "start-time": at} for at, (i, n, s) in jobs]}
        if url.path == "/taskmanagers/metrics":
            values = None if self.heap is None else zip(("Used", "Max"), self.heap, strict=True)
            return values and [{"id": f"Status.JVM.Memory.Heap.{name}", "max": value} for name, value in values]
        times = itertools.chain(self.failed_at, itertools.repeat(self.failed_at[-1]))
        failures = [
            {"stacktrace": text, "timestamp": _millis(at)} for text, at in zip(self.failures, times, strict=False)
        ]
        newest = None if self.completed_at is None else {"latest_ack_timestamp": _millis(self.completed_at)}
        states = {job_id: state for job_id, _, state in self.looks[-1]}
        of_job = {
            "": {
                "state": states.get(self.job),
                "now": _millis(self.now),
                "vertices": [{"id": stage, "name": stage, "status": state} for stage, state in self.stages.items()],
            },
            "/exceptions": {"exceptionHistory": {"entries": failures}},
            "/checkpoints": {
                "counts": {"completed": self.completed, "restored": self.restarts},
                "latest": {"completed": newest},
            },
        }
        wanted = urllib.parse.parse_qs(url.query).get("get", [""])[0].split(",")
        for stage, metrics in self.metrics.items():
            of_job[f"/vertices/{stage}/metrics"] = [
                {"id": name, "value": value} for name, value in metrics.items() if wanted == [""] or name in wanted
            ]
        return of_job.get(url.path.removeprefix(f"/jobs/{self.job}"))

    def patch(self, path: str) -> object:
        self.cancelled.append(path)
        self.looks = [[(i, n, "CANCELED" if i == self.job else s) for i, n, s in self.looks[-1]]]
        return {}


@contextlib.contextmanager
def serving(answers: FlinkAnswers) -> Iterator[FlinkRest]:
    """A client of such a server, on a free port."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer(answers.get(self.path))

        def do_PATCH(self) -> None:
            self._answer(answers.patch(self.path))

        def _answer(self, found: object) -> None:
            if found is None:
                self.send_error(404)
                return
            body = json.dumps(found).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            return

    with http.server.ThreadingHTTPServer(("localhost", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        try:
            yield FlinkRest(f"localhost:{server.server_address[1]}")
        finally:
            server.shutdown()
            thread.join()
