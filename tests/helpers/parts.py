"""A run that is taken in parts, in this process: pipelines of `ReleasePart` with the state between them."""

from __future__ import annotations

import pathlib
from collections.abc import Sequence
from typing import Any

import apache_beam as beam

from dp_transforms.beam.keys import KeyFile
from dp_transforms.beam.run_stages import ReleasePart
from dp_transforms.beam.write_state import WriteState
from dp_transforms.core.event_batch import EventBatch
from dp_transforms.core.run_part import RunPart
from dp_transforms.plan.plan import Plan
from dp_transforms.runs.fingerprints import key_fingerprint, sealing_key
from dp_transforms.runs.state_file import StateFile, write_state
from dp_transforms.runs.state_header import PartRecord, StateHeader
from dp_transforms.runs.stored_part import StoredPart
from tests.helpers.beam_pipelines import Collected, local_pipeline
from tests.helpers.oracle import Event
from tests.helpers.small_runs import RUN_ID, SECRET, batches_of, key_file

INPUT = "1" * 64
NONCE = "2" * 32  # in the intent of each later part
SEALING_KEY = sealing_key(SECRET)


def header_of(plan: Plan) -> StateHeader:
    return StateHeader(plan.to_json(), plan.fingerprint, "events", RUN_ID, key_fingerprint(SECRET), "user", "item")


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

    def _next(self, end: int) -> tuple[RunPart, pathlib.Path, StateHeader]:
        """The part, where its state goes, and the header of that."""
        before = StateFile(self.states[-1])
        part = StoredPart(
            before.header.closed_through, end, state_path=before.path, state_fingerprint=before.fingerprint
        )
        nonce = NONCE if part.first else ""
        header = before.header.with_intent(PartRecord(part.first, end, INPUT, "report"), draws_as=nonce)
        return part, self.folder / f"state-{len(self.states)}", header

    @property
    def _forget_after(self) -> int:
        return self.plan.followed_for
