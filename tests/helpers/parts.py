"""A run that is taken in parts, in this process: pipelines of `ReleasePart` with the state between them."""

from __future__ import annotations

import pathlib
from collections.abc import Sequence
from typing import Any, ClassVar

import apache_beam as beam

from dp_transforms.beam.monitor_stream import MonitorStream
from dp_transforms.beam.release_part import ReleasePart
from dp_transforms.beam.set_up_workers import KeyFile
from dp_transforms.beam.write_state import WriteState
from dp_transforms.logs.streams.partition_progress import StreamClock
from dp_transforms.logs.streams.stream_source import StreamSource
from dp_transforms.monitor.event_batch import EventBatch
from dp_transforms.monitor.window_report import RunEnded
from dp_transforms.plan.plan import Plan
from dp_transforms.runs.fingerprints import key_fingerprint, sealing_key
from dp_transforms.runs.run_part import RunPart
from dp_transforms.runs.state_file import StateFile, write_state
from dp_transforms.runs.state_header import PartRecord, StateHeader
from tests.helpers.beam_pipelines import Collected, local_pipeline
from tests.helpers.oracle import Event
from tests.helpers.small_runs import RUN_ID, SECRET, batches_of, key_file

INPUT = "1" * 64
SEALING_KEY = sealing_key(SECRET)


def header_of(plan: Plan) -> StateHeader:
    return StateHeader(plan.to_json(), plan.fingerprint, "events", RUN_ID, key_fingerprint(SECRET), "user", "item")


class ClockOfStop(StreamClock):
    """Knows when a stop is asked for, whatever the clock of the file system says."""

    stop_at: ClassVar[int | None] = None

    def stop_micros(self, asked_micros: int) -> int:
        assert self.stop_at is not None
        return self.stop_at


class Parts:
    """Takes the parts of one run, one after the other. states: the file before the first part, and after each."""

    def __init__(self, folder: pathlib.Path, plan: Plan, **arguments: Any) -> None:
        folder.mkdir(exist_ok=True)
        self.folder, self.plan, self._arguments = folder, plan, arguments
        self._key = KeyFile(key_file(folder), key_fingerprint(SECRET))
        self.states = [folder / "state-0"]
        self.reports: list[Any] = []
        self.result: Any = None
        write_state(self.states[0], header_of(plan), [], SEALING_KEY)

    def take(
        self, end: int, log: Sequence[Event], *, shards: int | None = None, flags: Sequence[str] = (), batch: int = 200
    ) -> list:
        """The windows up to this one, from all of this log. Returns their reports; none with several processes."""
        is_in_this_process = not any("multi_processing" in flag for flag in flags)
        part, after, header = self._next(end)
        pipeline = local_pipeline(flags)
        batches = pipeline | beam.Create(batches_of(log, batch), reshuffle=False).with_output_types(EventBatch)
        released = batches | ReleasePart(
            self.plan, part, noise_key=self._key, run_id=RUN_ID, shards=shards, **self._arguments
        )
        collected = Collected()
        if is_in_this_process:
            _ = released.reports | "Reports" >> collected.sink()
        _ = released.state | WriteState(after, header, part, self._forget_after, "state", self._key)
        self.result = pipeline.run()
        self.result.wait_until_finish()
        self.states.append(after)
        found = sorted(collected.values, key=lambda report: report.window_start)
        self.reports += found
        return found

    def stream(
        self,
        end: int,
        source: StreamSource,
        clock: StreamClock,
        *,
        shards: int | None = None,
        stop_at: int | None = None,
    ) -> RunEnded:
        """The windows up to this one as a stream, or up to a stop at that moment."""
        part, after, header = self._next(end)
        (self.folder / "stop").touch()
        ClockOfStop.stop_at = stop_at
        pipeline, reports, ended = local_pipeline(), Collected(), Collected()
        monitor = MonitorStream(
            source,
            self.plan,
            clock=clock if stop_at is None else ClockOfStop(**vars(clock)),
            stop_file=None if stop_at is None else str(self.folder / "stop"),
            noise_key=self._key.path,
            run_id=RUN_ID,
            driver="loop",
            poll_seconds=0.05,
            shards=shards,
            part=part,
            **self._arguments,
        )
        output = pipeline | monitor
        _ = output.reports | "Reports" >> reports.sink()
        _ = output.ended | "Ended" >> ended.sink()
        _ = output.state | WriteState(
            after, header, part, self._forget_after, "state", self._key, monitor.state_senders
        )
        pipeline.run().wait_until_finish()
        self.states.append(after)
        self.reports += sorted(reports.values, key=lambda report: report.window_start)
        (told,) = ended.values
        return told

    def _next(self, end: int) -> tuple[RunPart, pathlib.Path, StateHeader]:
        """The part, where its state goes, and the header of that."""
        before = StateFile(self.states[-1])
        part = RunPart(before.header.closed_through, end, before.path, before.fingerprint)
        header = before.header.with_intent(PartRecord(part.first, end, INPUT, "report"))
        return part, self.folder / f"state-{len(self.states)}", header

    @property
    def _forget_after(self) -> int:
        return self.plan.known_for
