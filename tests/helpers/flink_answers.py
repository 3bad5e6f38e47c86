"""A server that answers as Flink's REST interface does, for tests of what asks it."""

from __future__ import annotations

import contextlib
import http.server
import json
import threading
from collections.abc import Iterable, Iterator

from dp_transforms.engines.flink_rest import FlinkRest


class FlinkAnswers(http.server.BaseHTTPRequestHandler):
    """Tests define what `self.path` gives: `get`, which may give None for what is not there, and `patch`."""

    def get(self) -> object:
        raise NotImplementedError

    def patch(self) -> object:
        raise NotImplementedError

    def do_GET(self) -> None:
        self._answer(self.get())

    def do_PATCH(self) -> None:
        self._answer(self.patch())

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


def overview(jobs: Iterable[tuple[str, str, str]]) -> dict[str, object]:
    """What Flink says at /jobs/overview. jobs: id, name and state of each, the oldest first."""
    return {
        "jobs": [
            {"jid": job_id, "name": name, "state": state, "start-time": number}
            for number, (job_id, name, state) in enumerate(jobs)
        ]
    }


@contextlib.contextmanager
def serving(answers: type[FlinkAnswers]) -> Iterator[FlinkRest]:
    """A client of such a server, on a free port."""
    server = http.server.ThreadingHTTPServer(("localhost", 0), answers)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield FlinkRest(f"localhost:{server.server_address[1]}")
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
