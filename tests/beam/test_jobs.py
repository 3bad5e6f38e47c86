"""The two pipelines that are submitted: how a replay is cut, what starts them, and how they are cancelled."""

from __future__ import annotations

import contextlib
import dataclasses
import http.server
import json
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator

import apache_beam as beam
import pytest
from apache_beam.options.pipeline_options import PipelineOptions, StandardOptions
from apache_beam.runners.runner import PipelineResult, PipelineState

from dp_transforms.beam import jobs
from dp_transforms.beam.runner_options import cluster_address, runner_options
from tests.helpers.crowded_logs import replay_request, write_crowded_log
from tests.helpers.looks_plans import small_looks_plan
from tests.helpers.small_runs import key_file, small_plan


@pytest.mark.parametrize("plan", [small_looks_plan(), small_plan()], ids=["looks", "hits-with-counts"])
def test_parts_hold_so_many_events_whatever_the_size_of_the_log(tmp_path, plan):
    log = write_crowded_log(tmp_path / "log", 600, 30)
    job = replay_request(log, plan, tmp_path / "report.jsonl", key_file(tmp_path))
    window_ranges = 1 if plan.contributions is not None else plan.schedule.horizon

    def parts(events: int, parallelism: int = 1) -> int:
        chunks = [dataclasses.replace(job.chunks[0], events=events)]
        return window_ranges * jobs._shards(dataclasses.replace(job, chunks=chunks), parallelism)

    assert parts(600) >= 8
    assert parts(600, parallelism=20) >= 80, "every worker has something to do"
    for events in (10**8, 10**9):
        assert 800_000 <= events / parts(events) <= 1_000_000
    assert parts(2 * 10**9 * window_ranges) == window_ranges * 1024, "a message for each pair of parts"


class Result(PipelineResult):
    """Of a job that is never over by itself."""

    def __init__(self) -> None:
        super().__init__(PipelineState.RUNNING)
        self.is_cancelled = threading.Event()

    def wait_until_finish(self, duration: int | None = None) -> str:
        self.is_cancelled.wait()
        raise RuntimeError("the job was cancelled")

    def cancel(self) -> None:
        self.is_cancelled.set()


class Pipeline(beam.Pipeline):
    """Starts a child as Beam starts an engine, and takes the signal as it does."""

    def __init__(self) -> None:
        super().__init__(options=PipelineOptions(["--runner=PrismRunner"]))
        self.result, self.child = Result(), b""

    def run(self) -> Result:
        code = "import signal; print(signal.getsignal(signal.SIGINT) == signal.SIG_IGN)"
        self.child = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout.strip()
        signal.signal(signal.SIGINT, lambda *_: None)
        return self.result


def test_an_engine_does_not_hear_ctrl_c_and_this_process_keeps_its_handler():
    before, pipeline = signal.getsignal(signal.SIGINT), Pipeline()
    running = jobs.RunningPipeline(pipeline)
    assert signal.getsignal(signal.SIGINT) is before
    assert pipeline.child == b"True"
    assert not running.is_over
    running.cancel()
    assert running.is_over
    with pytest.raises(RuntimeError, match="cancelled"):
        running.raise_error()


def test_a_job_that_is_not_waited_for_any_more_is_cancelled():
    pipeline = Pipeline()
    pipeline.result.wait_until_finish = lambda: signal.raise_signal(signal.SIGINT)  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        jobs.run_to_end(pipeline)
    assert pipeline.result.is_cancelled.is_set()


def test_a_pipeline_here_fails_with_its_own_error():
    pipeline = beam.Pipeline(options=runner_options([], job_name="job", streaming=False))
    _ = pipeline | beam.Create([0]) | beam.Map(lambda number: 1 // number)
    running = jobs.RunningPipeline(pipeline)
    running._thread.join(120)
    with pytest.raises(Exception, match="division"):
        running.raise_error()


@contextlib.contextmanager
def cluster(states: dict[str, tuple[str, str]], cancelled: list[str]) -> Iterator[str]:
    """Answers as Flink does. states: name and state of each job."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            assert self.path == "/jobs/overview"
            self._answer({"jobs": [{"jid": i, "name": n, "state": s} for i, (n, s) in states.items()]})

        def do_PATCH(self) -> None:
            cancelled.append(self.path)
            self._answer({})

        def _answer(self, found: object) -> None:
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
            yield f"localhost:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


def options(runner: str, master: str) -> PipelineOptions:
    return PipelineOptions([f"--runner={runner}", f"--flink_master={master}", "--job_name=mine"])


def test_on_a_cluster_the_job_of_this_name_is_cancelled_and_no_other() -> None:
    """Its job server leaves it there."""
    states = {"a": ("mine", "RUNNING"), "b": ("other", "RUNNING"), "c": ("mine", "FAILED"), "d": ("mine", "RESTARTING")}
    cancelled: list[str] = []
    with cluster(states, cancelled) as address:
        for master in (address, f"http://{address}"):
            assert cluster_address(options("FlinkRunner", master)) == f"http://{address}"
        cancel = jobs._Cancel(options("FlinkRunner", address))
        assert not cancel(Result())
    assert cancelled == ["/jobs/a?mode=cancel", "/jobs/d?mode=cancel"]
    assert cluster_address(options("FlinkRunner", "[local]")) is None
    assert cluster_address(options("PrismRunner", address)) is None
    assert "The job mine may still be there" in cancel(Result())


class Submitted:
    """What a runner gives back of a job that never ends."""

    def wait_until_finish(self) -> None:
        raise KeyboardInterrupt

    def cancel(self) -> None:
        """A job server leaves the job on the cluster."""


def test_a_job_on_a_cluster_is_known_although_beam_takes_the_runner_out_of_the_options(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cancelled: list[str] = []
    with cluster({"a": ("mine", "RUNNING")}, cancelled) as address:
        pipeline = beam.Pipeline(options=PipelineOptions())
        pipeline._options = options("FlinkRunner", address)

        def submit() -> Submitted:
            pipeline.options.view_as(StandardOptions).runner = None
            return Submitted()

        monkeypatch.setattr(pipeline, "run", submit)
        with pytest.raises(KeyboardInterrupt):
            jobs.run_to_end(pipeline)
    assert cancelled == ["/jobs/a?mode=cancel"]
