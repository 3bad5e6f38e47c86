"""What a replay on Flink shows while it runs: how far the job is, by Flink's numbers; and failures that come again."""

from __future__ import annotations

import contextlib
import re
from types import TracebackType
from typing import NamedTuple

from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from dp_transforms.cli.operator_log import operator_console, tell
from dp_transforms.engines.engine_process import EngineError
from dp_transforms.engines.flink_rest import ENDED, FlinkRest

# A failure of the pipeline itself, or for want of memory, not of a machine: Flink would restart the job as often as the
# cluster allows.
_COMES_AGAIN = re.compile(
    r"Error received from SDK harness.*Traceback \(most recent call last\)"
    r"|java\.lang\.OutOfMemoryError|exceeds the maximum size of a sort buffer",
    re.DOTALL,
)
_MOST_FAILURES = 3
_MANY_FAILURES = 5  # of any kind, for a word to the operator


class JobProgress(NamedTuple):
    """job_id, address: of the job and of Flink. done, stages: how many stages of the job are done, and how many it has.
    failures: that Flink remembers of it; it forgets old ones.

    Beam's counters are no progress here: in batch mode they come when a stage is done.
    """

    job_id: str
    address: str
    done: int
    stages: int
    failures: int = 0


class ReplayWatch:
    """Asks Flink about the job of one name. A question to Flink must not end a run, so a missing answer is None."""

    def __init__(self, flink: FlinkRest, job_name: str) -> None:
        self._flink = flink
        self._job_name = job_name

    def look(self) -> JobProgress | None:
        """Raises RuntimeError with Flink's text if the job fails by itself, and again when it is restarted."""
        try:
            job = self._flink.newest(self._job_name)
            if job is None or job.state in ENDED:
                return None
            states = [stage.state for stage in self._flink.stages(job.job_id)]
            failures = self._flink.failures(job.job_id)
        except (EngineError, LookupError, TypeError, ValueError):
            return None
        again = [text for text in failures if _COMES_AGAIN.search(text)]
        if len(again) >= _MOST_FAILURES:
            raise RuntimeError(again[0])
        return JobProgress(job.job_id, self._flink.address, states.count("FINISHED"), len(states), len(failures))

    def cancel(self, seconds: float) -> None:
        """Ends the job if Flink has it: a job server that ends leaves it on a cluster."""
        with contextlib.suppress(EngineError, LookupError, TypeError, ValueError):
            job = self._flink.newest(self._job_name)
            if job is not None and job.state not in ENDED:
                self._flink.cancel(job.job_id)
                self._flink.wait_for_state(job.job_id, ENDED, seconds)


def _page(progress: JobProgress) -> str:
    return f"http://{progress.address}/#/job/{progress.job_id}"


class FlinkProgress:
    """On stderr: where the job is, once; and on a terminal a bar of stages, while the block runs."""

    def __init__(self) -> None:
        console = operator_console()
        self._bar: Progress | None = None
        if console.is_terminal:
            columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[stages]}"))
            self._bar = Progress(*columns, TimeElapsedColumn(), console=console, transient=True)
            self._task = self._bar.add_task("starting on Flink", total=None, stages="")
        self._told = self._warned = False

    def show(self, progress: JobProgress | None) -> None:
        if progress is None:
            return
        if not self._told:
            self._told = True
            tell(f"Flink runs the job: {_page(progress)}")
        if progress.failures >= _MANY_FAILURES and not self._warned:
            self._warned = True
            tell(f"Flink begins the job again and again. See why, in the tab Exceptions of {_page(progress)}.")
        if self._bar is not None:
            self._bar.update(
                self._task,
                description="on Flink",
                total=max(1, progress.stages),
                completed=progress.done,
                stages=f"{progress.done} of {progress.stages} stages",
            )

    def __enter__(self) -> FlinkProgress:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
