"""A part of a run with a state before it, which lies in a file."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence

from dp_transforms.core.run_part import RunPart
from dp_transforms.core.state_chunks import Kind
from dp_transforms.runs.records import StateError
from dp_transforms.runs.state_file import StateFile
from dp_transforms.runs.state_header import at_path


@dataclasses.dataclass(frozen=True, kw_only=True)
class StoredPart(RunPart):
    """The windows ``first .. end - 1`` of a run, and where the state before them is. Each method raises StateError for
    a file that cannot be used.

    state_path: a file that every worker can read. state_fingerprint: of that state: a worker that finds another one
        refuses it.
    """

    state_path: str
    state_fingerprint: str

    def state(self) -> StateFile:
        """The state before the part."""
        return _opened(self)

    def chunks(self, kind: Kind, buckets: Sequence[int]) -> list[memoryview]:
        return list(self.state().cells_of(kind, buckets))


@functools.lru_cache(maxsize=1)
def _opened(part: StoredPart) -> StateFile:
    """The state that this process read last, so that each of its chunks is checked once and not for each shard."""
    state = StateFile(part.state_path)
    if state.fingerprint != part.state_fingerprint or state.header.closed_through != part.first:
        raise at_path(
            part.state_path,
            StateError("it is not the state that this part began with. Do not change it while a part runs."),
        )
    return state
