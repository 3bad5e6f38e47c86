"""Run: a step on each element, on the worker of an engine or in the processes of a pool on this machine."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from typing import Any

import apache_beam as beam
from apache_beam.transforms.window import GlobalWindow
from apache_beam.utils.windowed_value import WindowedValue

from dp_transforms.beam.read_events import REJECTED, ReadProgress
from dp_transforms.beam.set_up_workers import operator_counter
from dp_transforms.logs.rejected_events import RejectedEvents
from dp_transforms.workers.pool import ProcessPool, Result
from dp_transforms.workers.read_pairs import BYTES, ROWS
from dp_transforms.workers.step import Step


def run_step(step: Step, noise_key: beam.Secret, pool: str | None, *, rereads: bool = False) -> beam.DoFn:
    """pool: the token of a `ProcessPool` of this process; None: the step runs where its DoFn does."""
    return RunStepDoFn(step, noise_key) if pool is None else RunInPoolDoFn(step, pool, rereads=rereads)


class RunStepDoFn(beam.DoFn):
    """Adapts a step."""

    def __init__(self, step: Step, noise_key: beam.Secret) -> None:
        self._step = step
        self._noise_key = noise_key
        self._counters = Counters()

    def setup(self) -> None:
        self._work = self._step.start(self._noise_key.get_secret_bytes())

    def process(self, element: Any) -> Iterator[Any]:
        counts: Counter[str] = Counter()
        yield from self._work(element, counts)
        self._counters.add(counts)


class RunInPoolDoFn(beam.DoFn):
    """Hands the elements of a bundle to the processes, and yields what comes back, in their order; bounded input in the
    GlobalWindow only.

    rereads: the packed columns of the elements are needed again, by another step. Else they are given back.
    """

    def __init__(self, step: Step, pool: str, *, progress: str | None = None, rereads: bool = False) -> None:
        self._step = step
        self._token = pool
        self._progress = progress
        self._rereads = rereads
        self._counters = Counters()
        self._waiting: deque[tuple[Any, Future[Result]]] = deque()

    def setup(self) -> None:
        self._pool = ProcessPool.of(self._token)

    def process(self, element: Any) -> Iterator[Any]:
        if isinstance(element, tuple):  # a group, whose columns Beam hands out one by one
            element = element[0], list(element[1])
        self._waiting.append((element, self._pool.submit(self._step, element)))
        while self._waiting and self._waiting[0][1].done():
            yield from self._outputs()

    def finish_bundle(self) -> Iterator[Any]:
        while self._waiting:
            for output in self._outputs():
                if isinstance(output, beam.pvalue.TaggedOutput):
                    yield beam.pvalue.TaggedOutput(output.tag, _in_global_window(output.value))
                else:
                    yield _in_global_window(output)

    def _outputs(self) -> Iterator[Any]:
        element, future = self._waiting.popleft()
        result = future.result()
        self._counters.add(result.counts)
        ReadProgress.advance(self._progress, result.counts[ROWS], result.counts[BYTES])
        if isinstance(element, tuple) and not self._rereads:
            for blob in element[1]:
                self._pool.release(blob)
        for output in result.outputs:
            yield beam.pvalue.TaggedOutput(REJECTED, output) if isinstance(output, RejectedEvents) else output


class FetchColumnsDoFn(beam.DoFn):
    """Groups with handles of a pool -> the same with their packed columns, for a step that runs here."""

    def __init__(self, pool: str) -> None:
        self._token = pool

    def process(self, group: tuple[Any, Iterable[bytes]]) -> Iterator[tuple[Any, list[bytes]]]:
        get = ProcessPool.of(self._token).store.get
        yield group[0], [bytes(get(blob)) for blob in group[1]]


class Counters:
    """Operator counters by name."""

    def __init__(self) -> None:
        self._counters: dict[str, Any] = {}

    def add(self, counts: Counter[str]) -> None:
        for name, count in counts.items():
            if count and name not in (ROWS, BYTES):
                if name not in self._counters:
                    self._counters[name] = operator_counter(name)
                self._counters[name].inc(count)


def _in_global_window(value: Any) -> WindowedValue:
    window = GlobalWindow()
    return WindowedValue(value, window.max_timestamp(), (window,))
