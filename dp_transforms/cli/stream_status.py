"""What is seen of a run while it goes on: reports on stdout as they appear, a line for the operator on stderr, and with
``--metrics-port`` the operator's numbers for Prometheus, on the loopback address alone.

The operator's numbers depend on the data and are not covered by the guarantee (docs/deploy.md, what to watch); for
Prometheus each says so in its help text. No other machine can ask for them, nor can a page in a browser on this one,
which may give its own name our address (DNS rebinding): only requests to our own names are answered. Whoever can log in
on this machine can ask.
"""

from __future__ import annotations

import contextlib
import importlib
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from rich.console import Console

from dp_transforms.checks import how_to_install
from dp_transforms.cli import operator_log
from dp_transforms.cli.flink_jobs import JobNumbers
from dp_transforms.cli.subcommands import StandardOutputError, drop_standard_output
from dp_transforms.errors import UserError
from dp_transforms.monitor import operator_counts as names
from dp_transforms.monitor.window_report import WindowReport
from dp_transforms.reports import encode_report
from dp_transforms.reports.trends import trends
from dp_transforms.views.report_words import changes_legend, is_ascii_only, tells_epsilon, windows_table

_ITEMS_PER_WINDOW = 8
_SECONDS_BETWEEN_LINES = 60.0  # if stderr is a file
_SECONDS_BETWEEN_JSON_LINES = 10.0
_Application = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]  # of WSGI

LOOPBACK = "127.0.0.1"
_WARNING = "For the operator, not covered by the guarantee."
_COUNTERS = {
    names.RECORDS_READ: "Records read, broken ones too.",
    names.EVENTS_READ: "Events read.",
    names.EVENTS_REJECTED: "Records that cannot be read.",
    names.EVENTS_OUTSIDE_RANGE: "Events before the start of the run or after its end.",
    names.EVENTS_OUTSIDE_DOMAIN: "Events of other items than the declared ones.",
    names.EVENTS_LATE: "Events too late for a window.",
    names.EVENTS_FROM_THE_FUTURE: "Events later than their arrival by too much, rejected.",
    names.EVENTS_AFTER_STOP: "Events that arrived after the stop.",
    names.STOPS_SEEN_LATE: "Partitions that saw the stop after they had counted later arrivals.",
    names.WINDOWS_CLOSED: "Windows closed, with heavy items or without.",
    names.INTENTS: "Moves of a partition's clock by the idle timeout, a stop or its drain.",
    names.PAIRS_UNPAID: "Pairs of user and item that a purse could not pay for.",
    names.LATE_BATCHES: "Messages for a window that was complete: an error.",
}
_GAUGES = {
    names.CLOCK_LAG_SECONDS: "Clock of a partition behind the wall clock, the largest.",
    names.PENDING_WINDOWS: "Windows that a partition has closed and that have no answer yet.",
    names.PARTITIONS_UNREAD: "Partitions that were added to the input since the run was begun.",
    names.PARTITION_STATE_BYTES: "State of a partition.",
    names.BUDGET_STATE_BYTES: "Hits of all users ever charged.",
    names.PURSE_STATE_BYTES: "What the users of one shard have left.",
    names.KNOWN_ITEMS: "Items of one shard that were named lately.",
}


class StreamStatus:
    """Prints reports as they come. stdout: a table on a terminal, else a JSON line for each window.

    Several threads may use it: what one says is whole before another says something.
    """

    def __init__(
        self,
        plan: Mapping[str, Any] | None = None,
        out: Console | None = None,
        err: Console | None = None,
    ) -> None:
        """plan: of the run, as reports have it. out, err: None for those of this process."""
        self._plan = plan or {}
        self._turn = threading.RLock()
        self._latest: list[WindowReport] = []
        self._out = out or Console(highlight=False)
        self._err = err or Console(stderr=True, highlight=False, soft_wrap=True)
        self._windows_shown = 0
        self._is_mute = False
        self._with_epsilon = False
        self._has_line = False
        self._last_line_at = float("-inf")
        self._last_events: tuple[float, int] | None = None

    def tell(self, text: str) -> None:
        """A line for the operator, on stderr."""
        with self._turn:
            self._clear()
            if operator_log.is_json():
                operator_log.tell(text)
            else:
                self._err.print(text, markup=False)

    def announce(self, text: str) -> None:
        """A line of declared values, on stdout; only on a terminal."""
        if self._out.is_terminal:
            self._out.print(text, markup=False, soft_wrap=True)

    def show_reports(self, reports: Sequence[WindowReport]) -> None:
        """reports: none that was shown before. They are published, whoever can be told: a standard output that does not
        take them gets no more."""
        if reports and not self._is_mute:
            with self._turn:
                try:
                    self._show(reports)
                except StandardOutputError as error:
                    self._is_mute = True
                    drop_standard_output()
                    self.tell(f"Warning: cannot write to standard output: {error.strerror}. The run goes on.")

    def _show(self, reports: Sequence[WindowReport]) -> None:
        self._clear()
        if self._out.is_terminal:
            self._with_epsilon = self._with_epsilon or tells_epsilon(reports)  # rows must not lose a column again
            found = [each for each in trends(self._plan, [*self._latest, *reports]) if each.report in reports]
            self._latest = [found[-1].report]
            if not self._windows_shown:
                self.announce(changes_legend(self._plan, is_ascii_only(self._out)))
            table = windows_table(
                found,
                max_items=_ITEMS_PER_WINDOW,
                ascii_only=is_ascii_only(self._out),
                with_epsilon=self._with_epsilon,
            )
            table.show_header = self._windows_shown == 0
            self._out.print(table, end="")
        else:
            for report in reports:
                self._out.file.write(encode_report(report, ascii_only=True) + "\n")
            self._out.file.flush()
        self._windows_shown += len(reports)

    def show_operator_line(self, counts: Mapping[str, int], gauges: Mapping[str, int]) -> None:
        """Nothing while the engine has none."""
        if counts or gauges:
            with self._turn:
                self._show_line(counts, gauges)

    def _show_line(self, counts: Mapping[str, int], gauges: Mapping[str, int]) -> None:
        now = time.monotonic()
        line = self._operator_line(counts, gauges, now)
        if operator_log.is_json():
            if now - self._last_line_at >= _SECONDS_BETWEEN_JSON_LINES:
                self._last_line_at = now
                operator_log.tell(line, operator_log.PROGRESS, counts=dict(counts), gauges=dict(gauges))
        elif self._err.is_terminal:
            self._clear()
            self._err.print(line[: self._err.width - 1], end="", markup=False, style="dim")
            self._has_line = True
        elif now - self._last_line_at >= _SECONDS_BETWEEN_LINES:
            self._last_line_at = now
            self._err.print(line, markup=False)

    def close(self) -> None:
        self._clear()

    def _operator_line(self, counts: Mapping[str, int], gauges: Mapping[str, int], now: float) -> str:
        events = counts.get(names.EVENTS_READ, 0)
        parts = [f"{events:,} events"]
        if self._last_events is not None and now > self._last_events[0]:
            parts.append(f"{max(0, events - self._last_events[1]) / (now - self._last_events[0]):,.0f}/s")
        self._last_events = now, events
        if names.CLOCK_LAG_SECONDS in gauges:
            parts.append(f"clock {gauges[names.CLOCK_LAG_SECONDS]:,} s behind")
        if names.PENDING_WINDOWS in gauges:
            parts.append(f"{gauges[names.PENDING_WINDOWS]:,} windows pending")
        for name, words in (
            (names.EVENTS_REJECTED, "rejected"),
            (names.EVENTS_LATE, "late"),
            (names.EVENTS_FROM_THE_FUTURE, "from the future"),
            (names.EVENTS_AFTER_STOP, "after the stop"),
            (names.EVENTS_OUTSIDE_RANGE, "outside --start .. --end"),
            (names.EVENTS_OUTSIDE_DOMAIN, "of other items than --domain-file"),
            (names.PAIRS_UNPAID, "user and item pairs beyond --most-looks"),
        ):
            if counts.get(name):
                parts.append(f"{counts[name]:,} {words}")
        # The warning comes first: a narrow terminal cuts the end.
        return f"[not covered by the guarantee, for the operator: {', '.join(parts)}]"

    def _clear(self) -> None:
        if self._has_line:
            self._err.file.write("\r\x1b[2K")
            self._err.file.flush()
            self._has_line = False


class OperatorMetrics:
    """The latest numbers, as families of Prometheus. run: labels that name the run, declared values alone."""

    def __init__(self, run: Mapping[str, str]) -> None:
        self._families = importlib.import_module("prometheus_client.core")
        self._run = dict(run)
        self._lock = threading.Lock()
        self._numbers = JobNumbers({}, {})

    def update(self, numbers: JobNumbers) -> None:
        """What the engine says now; while it has no counts, those from before stay. A counter that is lower than before
        began anew, as after a restart of its job."""
        with self._lock:
            if not numbers.counts and not numbers.gauges:
                numbers = numbers._replace(counts=self._numbers.counts, gauges=self._numbers.gauges)
            self._numbers = numbers

    def collect(self) -> Iterator[Any]:
        """As a registry of prometheus_client asks for them."""
        with self._lock:
            numbers = self._numbers
        counts, gauges = numbers.counts, numbers.gauges
        counter, gauge = self._families.CounterMetricFamily, self._families.GaugeMetricFamily
        yield self._family(gauge, "run_info", "1 while the command runs.", 1)
        for name, text in _COUNTERS.items():
            # All of them from the first numbers on, so that a rate is known before the first rejected record.
            if counts or gauges:
                yield self._family(counter, name, text, counts.get(name, 0))
        for name, text in _GAUGES.items():
            if name in gauges:
                yield self._family(gauge, name, text, gauges[name])
        if numbers.seconds_without_checkpoint is not None:
            text = "Seconds since Flink has completed a checkpoint of the job."
            yield self._family(gauge, "seconds_without_checkpoint", text, numbers.seconds_without_checkpoint)
        if numbers.restarts is not None:
            yield self._family(counter, "restarts", "How often Flink has restarted the job.", numbers.restarts)
        if numbers.heap is not None:
            yield self._family(gauge, "heap_full", "The fullest heap of a task manager, from 0 to 1.", numbers.heap)

    def _family(self, kind: Any, name: str, text: str, value: float) -> Any:
        made = kind(f"shh_{name}", f"{text} {_WARNING}", labels=list(self._run))
        made.add_metric(list(self._run.values()), value)
        return made


def _under_own_names(app: _Application) -> _Application:
    """The application for requests to this machine by its loopback names; others get 403."""

    def answer(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        if environ.get("HTTP_HOST", "").rpartition(":")[0] in (LOOPBACK, "localhost"):
            return app(environ, start_response)
        start_response("403 Forbidden", [("Content-Type", "text/plain")])
        return [f"Ask for http://{LOOPBACK} or http://localhost.\n".encode()]

    return answer


@contextlib.contextmanager
def served_metrics(port: int | None, run: Mapping[str, str]) -> Iterator[tuple[OperatorMetrics, int] | None]:
    """Serves them at ``http://127.0.0.1:PORT/metrics`` while the block runs; None without a port. Raises UserError."""
    if port is None:
        yield None
        return
    try:
        prometheus = importlib.import_module("prometheus_client")
    except ImportError:
        raise UserError(f"--metrics-port needs prometheus-client. {how_to_install('metrics')}") from None
    metrics = OperatorMetrics(run)
    registry = prometheus.CollectorRegistry(auto_describe=False)
    try:
        server, thread = prometheus.start_http_server(port, LOOPBACK, registry)
    except OSError as error:
        raise UserError(f"--metrics-port {port} cannot be used: {error.strerror}. Name another one, or 0.") from None
    server.set_app(_under_own_names(server.get_app()))
    registry.register(metrics)  # not before: the server runs already
    try:
        yield metrics, server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
