"""What an account of runs, such as a ledger, hears of a part of a run: `PartFacts`, by way of a `RunAccount`."""

from __future__ import annotations

import dataclasses

from dp_transforms.beam.set_up_workers import KeyFile
from dp_transforms.plan.release_plan import ReleasePlan
from dp_transforms.runs.state_header import PartRecord, StateHeader

NEW, CONTINUES, RESUMES, DONE = "new", "continues", "resumes", "done"


@dataclasses.dataclass(frozen=True)
class PartFacts:
    """What an account needs to know of a part.

    how: NEW for the first part of a run, which pays for all of it; CONTINUES for a later one; RESUMES for a part that
        was begun and not finished, with the same input; DONE for one that was finished with the same input.
    record: its windows, its input and its output. header: of the state before it; with DONE, after it.
    state_fingerprint: of that state. noise_key: the key of the run, which refuses another one in its place.
    """

    how: str
    plan: ReleasePlan
    record: PartRecord
    header: StateHeader
    state_path: str
    state_fingerprint: str
    noise_key: KeyFile

    @property
    def start_micros(self) -> int:
        """The start of the first window, microseconds since 1970 UTC."""
        return self.plan.schedule.window_start_micros(self.record.first)

    @property
    def end_micros(self) -> int:
        """The end of the last window."""
        return self.plan.schedule.window_end_micros(self.record.end - 1)


class RunAccount:
    """Keeps no account. A ledger is one that does: each method may raise UserError, and then nothing more happens.

    Each call may come again for the same part, after a kill.
    """

    def reserve(self, facts: PartFacts) -> None:
        """Before the intent is written and the log is opened by the pipeline."""

    def start(self, facts: PartFacts) -> None:
        """From here on the part counts as drawn."""

    def publishing(self, facts: PartFacts, state_fingerprint: str) -> None:
        """The report is published next, and then the new state. state_fingerprint: of the new state."""

    def finish(self, facts: PartFacts, state_fingerprint: str) -> None:
        """The report and the new state are in place. state_fingerprint: of the new state."""

    @property
    def resumes(self) -> bool:
        """Whether an earlier process has begun the part that was reserved."""
        return False

    @property
    def was_publishing(self) -> bool:
        """Whether an earlier process has said `publishing` of the part that was reserved."""
        return False

    def fail(self, facts: PartFacts, *, forget: bool) -> None:
        """The part has failed, and this process has published nothing of it. forget: nor has another one, and the log
        alone is why: so it may be taken from another log."""
