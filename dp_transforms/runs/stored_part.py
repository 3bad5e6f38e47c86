"""A part of a run with a state before it, which lies in a file; and the state after it."""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Iterable, Iterator, Sequence

from dp_transforms.core.columns import Packed
from dp_transforms.core.planned_run import RunPart
from dp_transforms.core.state_chunks import Kind, join_chunks, unpack_chunk
from dp_transforms.runs.records import StateError
from dp_transforms.runs.state_file import StateFile, write_state
from dp_transforms.runs.state_header import StateHeader, at_path


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


def write_next_state(
    path: str | os.PathLike[str],
    header: StateHeader,
    part: RunPart,
    handed_over: Iterable[bytes],
    forget_after: int,
    key: bytes,
) -> None:
    """What a part has changed, joined with the state before it, as the file of the state after it. Raises OSError.

    header: of the state before the part, with the part as its intent. handed_over: packed by `pack_chunk`.
    forget_after: followed items that were named longer ago than so many windows are forgotten. key: `sealing_key`.

    The file is a function of the header, of the state before and of what the part has changed, whatever the number of
    shards. Chunks that nobody changed are copied.
    """
    assert header.intent is not None
    changed: dict[tuple[Kind, int], list[Packed]] = {}
    for data in handed_over:
        kind, bucket, cell = unpack_chunk(data)
        changed.setdefault((kind, bucket), []).append(cell)
    write_state(path, header.after(header.intent), _joined(part, changed, part.end - forget_after), key)


def _joined(
    part: RunPart, changed: dict[tuple[Kind, int], list[Packed]], named_from: int
) -> Iterator[tuple[Kind, int, Packed]]:
    """All cells after the part, in order; one bucket at a time. named_from: as in `join_chunks`."""
    state = part.state() if isinstance(part, StoredPart) else None
    rows = [] if state is None else state.rows
    for kind, bucket in sorted({*changed, *((row.kind, row.bucket) for row in rows)}):
        before: list[Packed] = [] if state is None else list(state.cells_of(kind, [bucket]))
        is_copied = (kind, bucket) not in changed and not kind.is_of_items
        cells = before if is_copied else [*before, *changed.get((kind, bucket), [])]
        for cell in cells if is_copied else join_chunks(kind, cells, named_from=named_from):
            yield kind, bucket, cell
