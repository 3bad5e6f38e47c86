"""Beam pipelines in this process: how a test runs one, and how it sees what came out. Plans and logs: `small_runs`."""

from __future__ import annotations

import sys
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import apache_beam as beam
from apache_beam.coders import FastPrimitivesCoder
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.testing.test_stream import TestStream
from apache_beam.transforms.window import TimestampedValue
from apache_beam.utils.timestamp import MAX_TIMESTAMP, Timestamp

from dp_transforms.beam import workers  # noqa: F401  (registers that of EventBatch)
from dp_transforms.beam.release_heavy_hitters import ShiftingHeavyHitters
from dp_transforms.core.event_batch import EventBatch
from dp_transforms.plan.plan import Plan
from tests.helpers.small_runs import MICROS, RUN_ID, START
from tests.reference.log import Event


def pairs_of(log: Iterable[Event]) -> list[TimestampedValue]:
    return [TimestampedValue((user, item), Timestamp(micros=time)) for user, item, time in log]


def local_pipeline(flags: Sequence[str] = (), runner: str = "FnApiRunner") -> beam.Pipeline:
    return beam.Pipeline(runner=runner, options=PipelineOptions(list(flags)))


class Collected:
    """Sees every element that reaches it, in the order of arrival, in this process: also those of a repeated bundle."""

    _by_token: dict[str, list[tuple[Any, Timestamp]]] = {}  # noqa: RUF012

    def __init__(self) -> None:
        self._token = uuid.uuid4().hex
        self._by_token[self._token] = []

    def sink(self) -> beam.PTransform:
        return beam.ParDo(_CollectDoFn(self._token))

    @property
    def stamped(self) -> list[tuple[Any, Timestamp]]:
        return list(self._by_token[self._token])

    @property
    def values(self) -> list[Any]:
        return [value for value, _ in self.stamped]

    @classmethod
    def add(cls, token: str, value: Any, timestamp: Timestamp) -> None:
        cls._by_token[token].append((value, timestamp))


class _CollectDoFn(beam.DoFn):
    def __init__(self, token: str) -> None:
        self._token = token

    def process(self, element: Any, timestamp: Timestamp = beam.DoFn.TimestampParam) -> None:
        Collected.add(self._token, element, timestamp)


class Outcome:
    """What a run published and refused, and the numbers for the operator."""

    def __init__(self, reports: Collected, rejected: Collected, result: Any) -> None:
        self.stamped = reports.stamped
        self.reports = reports.values
        self.rejected = rejected.values
        self.result = result


def run_monitor(
    source: Callable[[beam.Pipeline], beam.PCollection],
    plan: Plan,
    *,
    flags: Sequence[str] = (),
    runner: str = "FnApiRunner",
    **arguments: Any,
) -> Outcome:
    """Runs `ShiftingHeavyHitters` over what `source` makes and waits."""
    arguments.setdefault("run_id", RUN_ID)
    pipeline = local_pipeline(flags, runner)
    found = source(pipeline) | "Monitor" >> ShiftingHeavyHitters(plan, **arguments)
    reports, rejected = Collected(), Collected()
    _ = found.reports | "Reports" >> reports.sink()
    _ = found.rejected | "Rejected" >> rejected.sink()
    result = pipeline.run()
    result.wait_until_finish()
    return Outcome(reports, rejected, result)


def batches_source(batches: Sequence[EventBatch]) -> Callable[[beam.Pipeline], beam.PCollection]:
    return lambda pipeline: (
        pipeline | "Batches" >> beam.Create(list(batches), reshuffle=False).with_output_types(EventBatch)
    )


def pairs_source(log: Iterable[Event]) -> Callable[[beam.Pipeline], beam.PCollection]:
    stamped = pairs_of(log)
    return lambda pipeline: (
        pipeline
        | "Events" >> beam.Create(stamped, reshuffle=False)
        | "Stamp" >> beam.Map(lambda value: value).with_output_types(tuple[str, str])
    )


class LocalCounter:
    """Stands in for a Beam counter: the runner that knows `TestStream` reports the counters of one bundle alone."""

    counts: Counter[str] = Counter()  # noqa: RUF012

    def __init__(self, name: str) -> None:
        self._name = name

    def inc(self, count: int = 1) -> None:
        self.counts[self._name] += count

    @classmethod
    def install(cls, monkeypatch: Any) -> Counter[str]:
        """Makes every DoFn that is built from here on count locally. Returns the counts."""
        cls.counts.clear()
        for name, module in list(sys.modules.items()):
            if name.startswith("dp_transforms.beam.") and hasattr(module, "operator_counter"):
                monkeypatch.setattr(module, "operator_counter", cls)
        return cls.counts


def holders(window: int, users: Iterable[int], item: str = "news") -> list[Event]:
    """These users hold the item in one window."""
    return [(f"u{user}", item, (START + 60 * window + 1) * MICROS) for user in users]


class Script:
    """A stream as a test tells it: events, marks and what the watermark does, for `BundleBasedDirectRunner`.

    What reaches the end is collected in one list, in the order in which it does: reports and marks.
    """

    MARK = "mark"

    def __init__(self, plan: Plan) -> None:
        self._stream = TestStream(coder=FastPrimitivesCoder())
        self._plan = plan
        self._watermark = Timestamp(plan.schedule.start_seconds - plan.schedule.window_seconds)
        self._stream.advance_watermark_to(self._watermark)
        self.stamps: list[Timestamp] = []  # of what `run` returned
        self._has_marks = False

    def events(self, log: Iterable[Event]) -> Script:
        self._stream.add_elements(pairs_of(log))
        return self

    def watermark(self, seconds: float) -> Script:
        """Seconds after the declared start, to the millisecond; a watermark that stands there already stays."""
        target = Timestamp(micros=round((START + seconds) * 1000) * 1000)
        if target > self._watermark:
            self._stream.advance_watermark_to(target)
            self._watermark = target
        return self

    def mark(self, name: str) -> Script:
        """A mark shows when it passed, stamped far in the future; it is no event."""
        self._has_marks = True
        self._stream.add_elements([TimestampedValue((self.MARK, name), MAX_TIMESTAMP - 1)])
        return self

    def run(
        self,
        key: str,
        prepare: Callable[[beam.PCollection], beam.PCollection] | None = None,
        *,
        runner: str = "BundleBasedDirectRunner",
        flags: Sequence[str] = (),
        **arguments: Any,
    ) -> list[Any]:
        """Runs to the end of time; returns what was collected: reports and the names of marks.

        prepare: what to make of the pairs (user, item) before the monitor takes them.
        """
        self._stream.advance_watermark_to_infinity()
        collected = Collected()
        pipeline = local_pipeline(["--streaming", *flags], runner)
        elements = pipeline | "Script" >> self._stream
        if self._has_marks:  # the runner starts every step anew for each line of the script
            marks = elements | "Marks" >> beam.Filter(lambda pair: pair[0] == Script.MARK)
            _ = marks | "Names" >> beam.Map(lambda pair: pair[1]) | "See marks" >> collected.sink()
        events = elements | "Events" >> beam.Filter(lambda pair: pair[0] != Script.MARK).with_output_types(
            tuple[str, str]
        )
        reports = (
            events | "Monitor" >> ShiftingHeavyHitters(self._plan, noise_key=key, run_id=RUN_ID, **arguments)
        ).reports
        _ = reports | "See reports" >> collected.sink()
        pipeline.run().wait_until_finish()
        self.stamps = [stamp for _, stamp in collected.stamped]
        return collected.values
