"""Write: what a part of a run has changed, and the state before it -> the state after it, a private local file."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Iterable, Iterator

import apache_beam as beam

from dp_transforms.beam.gather_all import gather_all
from dp_transforms.beam.gather_counted import GatherCounted
from dp_transforms.monitoring.counted_messages import messages_of
from dp_transforms.report_files.files import write_error
from dp_transforms.run_state.run_part import RunPart
from dp_transforms.run_state.state_cells import Cell, Kind, join_cells, unpack_cell
from dp_transforms.run_state.state_file import replace_state, write_state
from dp_transforms.run_state.state_header import StateHeader

STATE = "state"  # tag of the output with what a step hands over


class WriteState(beam.PTransform):
    """Writes a bounded PCollection of cells, as `pack_cell` packs them, joined with the state before, as one file.

    path: a local path in a draft. header: of the state after the part. named_from: known items whose window lies before
    this one are forgotten. shown_name: the name of the state, for errors.

    The file is a function of the header, of the state before and of what the part has changed, whatever the number of
    shards. Cells that nobody changed are copied. Returns a PCollection of the path.
    """

    def __init__(
        self, path: str | os.PathLike[str], header: StateHeader, part: RunPart, named_from: int, shown_name: str
    ) -> None:
        super().__init__()
        self._do_fn = WriteStateDoFn(os.fspath(path), header, part, named_from, shown_name)

    def expand(self, cells: beam.PCollection) -> beam.PCollection:
        return gather_all(cells, "WriteState") | "WriteStateFile" >> beam.ParDo(self._do_fn).with_output_types(str)


class WriteStateCounted(beam.PTransform):
    """The same of a stream: from the messages of `state_messages`, once all have come. senders: how many steps and
    shards send them."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        header: StateHeader,
        part: RunPart,
        named_from: int,
        shown_name: str,
        senders: int,
    ) -> None:
        super().__init__()
        self._do_fn = WriteStateDoFn(os.fspath(path), header, part, named_from, shown_name)
        self._senders = senders

    def expand(self, messages: beam.PCollection) -> beam.PCollection:
        return (
            messages
            | "GatherState" >> GatherCounted(self._senders)
            | "DropKey" >> beam.Values().with_output_types(list[bytes])
            | "WriteStateFile" >> beam.ParDo(self._do_fn).with_output_types(str)
        )


def state_messages(end: int, packed: list[bytes]) -> Iterator[beam.pvalue.TaggedOutput]:
    """What one shard of a step of a stream hands over when it has taken the last window of a part: counted messages,
    tagged `STATE`, for the key ``(end, 0)``."""
    for message in messages_of(packed):
        yield beam.pvalue.TaggedOutput(STATE, ((end, 0), message))


class WriteStateDoFn(beam.DoFn):
    """Writes one group of encoded cells to one file. A step that runs twice writes the same file twice."""

    def __init__(self, path: str, header: StateHeader, part: RunPart, named_from: int, shown_name: str) -> None:
        self._path = path
        self._header = header
        self._part = part
        self._named_from = named_from
        self._shown_name = shown_name

    def process(self, encoded: Iterable[bytes]) -> Iterator[str]:
        changed: dict[tuple[Kind, int], list[Cell]] = {}
        for data in encoded:
            if data:
                kind, bucket, cell = unpack_cell(data)
                changed.setdefault((kind, bucket), []).append(cell)
        draft = pathlib.Path(self._path)
        temporary = draft.with_name(f"{draft.name}.{os.getpid()}")
        try:
            temporary.unlink(missing_ok=True)
            write_state(temporary, self._header, self._joined(changed))
            replace_state(temporary, draft)
        except OSError as error:
            raise write_error(self._shown_name, error) from None
        yield self._path

    def _joined(self, changed: dict[tuple[Kind, int], list[Cell]]) -> Iterator[tuple[Kind, int, Cell]]:
        """All cells after the part, in order; one bucket at a time."""
        state = self._part.state()
        rows = [] if state is None else state.rows
        for kind, bucket in sorted({*changed, *((row.kind, row.bucket) for row in rows)}):
            before: list[Cell] = [] if state is None else list(state.cells_of(kind, [bucket]))
            is_copied = (kind, bucket) not in changed and kind not in (Kind.KNOWN, Kind.PASSED)
            cells = before if is_copied else [*before, *changed.get((kind, bucket), [])]
            for cell in cells if is_copied else join_cells(kind, cells, named_from=self._named_from):
                yield kind, bucket, cell
