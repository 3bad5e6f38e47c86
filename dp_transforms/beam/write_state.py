"""Write: what a part of a run has changed, and the state before it -> the state after it, a private local file."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Iterator

import apache_beam as beam

from dp_transforms.beam.write_files import Gathered, gather_all
from dp_transforms.core.packed_arrays import Packed
from dp_transforms.core.run_part import RunPart
from dp_transforms.core.state_chunks import Kind, join_chunks, unpack_chunk
from dp_transforms.reports.files import write_error
from dp_transforms.runs.fingerprints import sealing_key
from dp_transforms.runs.state_file import replace_state, write_state
from dp_transforms.runs.state_header import StateHeader
from dp_transforms.runs.stored_part import StoredPart

STATE = "state"  # tag of the output with what a step carries over to the next part


class WriteState(beam.PTransform):
    """Writes what a part has changed, joined with the state before, as one file.

    Its input are cells, as `pack_chunk` packs them.

    path: a local path in a draft. header: of the state before the part, with the part as its intent. forget_after:
    known items that were named longer ago than so many windows are forgotten. shown_name: of the state, for errors.
    noise_key: of the run, by which the file is sealed.

    The file is a function of the header, of the state before and of what the part has changed, whatever the number of
    shards. Cells that nobody changed are copied. Returns a PCollection of the path.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        header: StateHeader,
        part: RunPart,
        forget_after: int,
        shown_name: str,
        noise_key: beam.Secret,
    ) -> None:
        super().__init__()
        self._file = os.fspath(path), header, part, forget_after, shown_name, noise_key

    def expand(self, changed: beam.PCollection) -> beam.PCollection:
        gathered = gather_all(changed, "WriteState")
        return gathered | "WriteStateFile" >> beam.Map(write_gathered, *self._file).with_output_types(str)


def write_gathered(
    group: Gathered,
    path: str,
    header: StateHeader,
    part: RunPart,
    forget_after: int,
    shown_name: str,
    noise_key: beam.Secret,
) -> str:
    """Writes all encoded cells to one file. A step that runs twice writes the same file twice. Arguments: as in
    `WriteState`."""
    _, encoded = group
    assert header.intent is not None
    changed: dict[tuple[Kind, int], list[Packed]] = {}
    for data in encoded:
        if data:
            kind, bucket, cell = unpack_chunk(data)
            changed.setdefault((kind, bucket), []).append(cell)
    draft = pathlib.Path(path)
    temporary = draft.with_name(f"{draft.name}.{os.getpid()}")
    key = sealing_key(noise_key.get_secret_bytes())
    try:
        temporary.unlink(missing_ok=True)
        write_state(temporary, header.after(header.intent), _joined(part, changed, part.end - forget_after), key)
        replace_state(temporary, draft)
    except OSError as error:
        raise write_error(shown_name, error) from None
    return path


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
