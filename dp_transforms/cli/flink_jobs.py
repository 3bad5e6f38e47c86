"""What a command asks Flink about its job: whether it runs, how far it is, what its numbers are; and how it is ended.

A question to Flink must not end a run, so most answers may be missing: then they are None.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

from apache_beam.runners.runner import PipelineResult, PipelineState

from dp_transforms.beam.set_up_workers import NAMESPACE
from dp_transforms.cli.operator_log import operator_progress, tell
from dp_transforms.engines.engine_process import EngineError
from dp_transforms.engines.flink_rest import ENDED, FlinkJob, FlinkRest
from dp_transforms.errors import UserError
from dp_transforms.monitor.operator_counts import counts_and_gauges

_SECONDS_TO_START = 300.0
_SECONDS_BETWEEN_LOOKS = 0.5
_TAKEN = ("RUNNING", "FINISHED")  # a small replay may be done before anybody looks
_LEAST_PATIENCE_SECONDS = 60.0
_PATIENCE_CHECKPOINTS = 10
_CHECKPOINT_SECONDS = 10.0  # the default of --checkpoint-interval
_SECONDS_TO_ANSWER = 5.0
# A failure of the pipeline itself, or for want of memory, not of a machine: Flink would restart the job as often as the
# cluster allows.
_COMES_AGAIN = re.compile(
    r"Error received from SDK harness.*Traceback \(most recent call last\)"
    r"|java\.lang\.OutOfMemoryError|exceeds the maximum size of a sort buffer",
    re.DOTALL,
)
# Of a stream also what another machine or another day can cure: a broker that is away, a disk. These do not count.
_LASTS = re.compile(
    r"Error received from SDK harness.*^\S*\.LastingError: |java\.lang\.OutOfMemoryError", re.DOTALL | re.MULTILINE
)
_MOST_FAILURES = 3
_MANY_FAILURES = 5  # of any kind, for a word to the operator
_NO_ANSWER = (EngineError, LookupError, TypeError, ValueError)
_T = TypeVar("_T")


class FlinkStart:
    """Made before a job is submitted: an earlier job of its name, which Flink still remembers, is not taken for it.

    Raises UserError where Flink does not answer, as `wait_until_running` does.
    """

    def __init__(self, flink: FlinkRest, name: str) -> None:
        self._flink = flink
        self._name = name
        try:
            self._earlier = {job.job_id for job in flink.jobs()}
        except EngineError as error:
            raise UserError(f"{_one_line(error)} Nothing was started.") from None

    def wait_until_running(self, result: PipelineResult) -> str:
        """The id of the job. Beam says RUNNING before Flink has it, and the job server must stay until Flink has it.

        Raises UserError if the job ends or takes minutes before that.
        """
        deadline = time.monotonic() + _SECONDS_TO_START
        while (job_id := self._taken()) is None:
            if PipelineState.is_terminal(state := result.state) or time.monotonic() > deadline:
                raise UserError(f"the job is {state}, and Flink does not run it. See the log of the Flink cluster.")
            time.sleep(_SECONDS_BETWEEN_LOOKS)
        return job_id

    def _taken(self) -> str | None:
        try:
            job = self._flink.newest(self._name)
        except EngineError as error:
            raise UserError(_one_line(error)) from None
        is_taken = job is not None and job.job_id not in self._earlier and job.state in _TAKEN
        return job.job_id if job is not None and is_taken else None


def _comes_again(failures: Sequence[str], pattern: re.Pattern[str]) -> str:
    """The newest of these failures of a job, once there are three; else nothing."""
    again = [text for text in failures if pattern.search(text)]
    return again[0] if len(again) >= _MOST_FAILURES else ""


def _answer(question: Callable[[], _T]) -> _T | None:
    """None where there is none."""
    try:
        return question()
    except _NO_ANSWER:
        return None


def _one_line(error: EngineError) -> str:
    return " ".join(str(error).split())


class _RunningJob:
    """The job of one name, while it runs. flink: the cluster."""

    def __init__(self, flink: FlinkRest, name: str) -> None:
        self._flink = flink
        self._name = name

    def _job(self) -> FlinkJob | None:
        job = self._flink.newest(self._name)
        return None if job is None or job.state in ENDED else job


class JobNumbers(NamedTuple):
    """What an engine says of a stream, for the operator. counts, gauges: empty while it has none.
    seconds_without_checkpoint: since it has completed one, or the job has begun; None where it has none, or does not
    say. restarts, heap: how often it has restarted the job, and how full the fullest heap of a task manager is, from 0
    to 1; None where it does not say. warning: empty while all is well. failure: of a job that cannot go on, Flink's
    text; else empty.
    """

    counts: dict[str, int]
    gauges: dict[str, int]
    seconds_without_checkpoint: float | None = None
    restarts: int | None = None
    heap: float | None = None
    warning: str = ""
    failure: str = ""


class FlinkWatch(_RunningJob):
    """Watches a stream. checkpoint_seconds: between two checkpoints of the job."""

    def __init__(self, flink: FlinkRest, name: str, checkpoint_seconds: float) -> None:
        super().__init__(flink, name)
        self._patience_seconds = _LEAST_PATIENCE_SECONDS + _PATIENCE_CHECKPOINTS * checkpoint_seconds
        self._completed: tuple[str, int] | None = None  # by the job of this id
        self._completed_at = 0.0  # or when the warning came last
        self._changed_at: float | None = None
        self._begun_millis: int | None = None  # the first look, by Flink's clock

    def numbers(self, now: float) -> JobNumbers:
        """From Flink itself, as Beam's job server has counters only at the end. now: seconds of a clock that never goes
        back."""
        numbers = JobNumbers({}, {})
        with contextlib.suppress(*_NO_ANSWER):
            job = self._job()
            completed = None if job is None else self._flink.completed_checkpoints(job.job_id)
            numbers = numbers._replace(warning=self._notice(job, completed, now))
            if job is not None:
                numbers = self._with_answers(numbers, job.job_id)
        without = None if self._changed_at is None else now - self._changed_at
        return numbers._replace(seconds_without_checkpoint=without)

    def _with_answers(self, numbers: JobNumbers, job_id: str) -> JobNumbers:
        """Each answer that is missing leaves the others."""
        failure = _answer(lambda: self._failure(job_id)) or ""
        counts, gauges = _answer(lambda: counts_and_gauges(self._flink.beam_metrics(job_id, NAMESPACE))) or ({}, {})
        return numbers._replace(
            counts=counts,
            gauges=gauges,
            restarts=_answer(lambda: self._flink.restarts(job_id)),
            heap=_answer(self._flink.fullest_heap),
            failure=failure,
        )

    def _failure(self, job_id: str) -> str:
        """Of a job that cannot go on. A checkpoint behind a failure shows that the job could; and what failed before
        anybody watched may be mended since."""
        if self._begun_millis is None:
            self._begun_millis = self._flink.now_millis(job_id)
        after_millis = max(self._begun_millis, self._flink.checkpoint_millis(job_id))
        return _comes_again(self._flink.failures(job_id, after_millis), _LASTS)

    def _notice(self, job: FlinkJob | None, completed: int | None, now: float) -> str:
        """A warning if no checkpoint has completed for a long time, once in so many seconds; else nothing.

        Flink waits forever for a worker that died before it was connected, and such a job seems to run.
        """
        found = None if job is None or completed is None else (job.job_id, completed)
        if job is None or found != self._completed:
            self._completed, self._completed_at, self._changed_at = found, now, None if job is None else now
            return ""
        if now - self._completed_at < self._patience_seconds:
            return ""
        self._completed_at = now
        return (
            f"Warning: Flink has completed no checkpoint for {self._patience_seconds:,.0f} s; its job is {job.state}."
            f" See http://{self._flink.address}/#/job/{job.job_id}. If this goes on, cancel the job and resume the"
            " run from its newest checkpoint (docs/deploy.md, what happens when something dies)."
        )


class StartedJob(_RunningJob):
    """A job that an earlier command has started, in the place of the `StreamJob` of this one."""

    @property
    def is_over(self) -> bool:
        """Not while the cluster does not answer."""
        try:
            return self._job() is None
        except _NO_ANSWER:
            return False

    def raise_error(self) -> None:
        """Raises Flink's text of what it failed with, if it did."""
        with contextlib.suppress(*_NO_ANSWER):
            job = self._flink.newest(self._name)
            if job is not None and job.state == "FAILED":
                raise RuntimeError("\n".join(self._flink.failures(job.job_id)[:1]))

    def numbers(self, now: float) -> JobNumbers:
        """`FlinkWatch` has them."""
        return JobNumbers({}, {})

    def cancel(self) -> None:
        """Who watches it cancels it on its cluster."""


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


class ReplayWatch(_RunningJob):
    """Watches a replay."""

    def look(self) -> JobProgress | None:
        """Raises RuntimeError with Flink's text if the job fails by itself, and again when it is restarted."""
        try:
            job = self._job()
            if job is None:
                return None
            states = [stage.state for stage in self._flink.stages(job.job_id)]
            failures = self._flink.failures(job.job_id)
        except _NO_ANSWER:
            return None
        if again := _comes_again(failures, _COMES_AGAIN):
            raise RuntimeError(again)
        return JobProgress(job.job_id, self._flink.address, states.count("FINISHED"), len(states), len(failures))

    def cancel(self, seconds: float) -> None:
        """Ends the job if Flink has it: a job server that ends leaves it on a cluster."""
        with contextlib.suppress(*_NO_ANSWER):
            cancel_job(self._flink, self._name, seconds)


def _page(progress: JobProgress) -> str:
    return f"http://{progress.address}/#/job/{progress.job_id}"


class FlinkProgress:
    """On stderr: where the job is, once; and on a terminal a bar of stages, while the block runs."""

    def __init__(self) -> None:
        self._bars = operator_progress()
        self._task = self._bars.add_task("starting on Flink", total=None)
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
        stages = f"on Flink, {progress.done} of {progress.stages} stages"
        self._bars.update(self._task, description=stages, total=max(1, progress.stages), completed=progress.done)

    def __enter__(self) -> FlinkProgress:
        self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bars.stop()


def cancel_job(flink: FlinkRest, name: str, seconds: float) -> None:
    """Ends the jobs of this name that run. Raises EngineError."""
    for job in flink.jobs():
        if job.name == name and job.state not in ENDED:
            flink.cancel(job.job_id)
            flink.wait_for_state(job.job_id, ENDED, seconds)
