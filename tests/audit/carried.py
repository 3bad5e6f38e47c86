"""The state of a stage, carried from window to window as a run stores it."""

from __future__ import annotations

import pathlib
import tempfile
from collections.abc import Iterator
from typing import Any

from dp_transforms.core.stage import Span, Step
from dp_transforms.core.state_chunks import Kind, entries_of_chunk, join_chunks, pack_by_bucket, unpack_chunk
from dp_transforms.runs.state_file import StateFile, StateHeader, StoredPart, write_state

_KEY = bytes(32)  # of the seal: the file is gone as soon as it was read


class Carried:
    """The state of a stage before the next window of a stream, as a real run stores it.

    Before every other window a part of the run ends: the state goes through the cells and the file that parts hand
    over. Before the others it is read from what a worker keeps.
    is_refused: whether a reader has refused what was stored. It is then carried on as it was, and tested all the same.
    """

    def __init__(self, step: Step) -> None:
        self.step = step
        self._kept: list[tuple[Kind, bytes]] = []
        self.state: Any = None
        self.is_refused = False

    def over_to(self, window: int) -> None:
        """Reads the state for this window."""
        try:
            is_of_part = window > 0 and window % 2 == 0
            self.state = self._of_part(Span(window, window + 1)) if is_of_part else self._of_worker(window)
        except ValueError:
            self.is_refused = True

    def over_to_part(self, span: Span) -> Any:
        """Reads the state for a part of a run.

        Raises ValueError for a state that is refused.
        """
        self.state = self._of_part(span)
        return self.state

    def keep(self) -> None:
        """Stores what was changed."""
        self._kept += self.step.delta(self.state)

    def _of_worker(self, window: int) -> Any:
        return self.step.restore([entries_of_chunk(kind, chunk) for kind, chunk in self._kept], window)

    def _of_part(self, span: Span) -> Any:
        if not span.first:
            return self.step.restore([], 0)
        with tempfile.TemporaryDirectory() as folder:
            path = str(pathlib.Path(folder) / "state")
            named_from = span.first - self.step.plan.followed_for
            write_state(path, StateHeader("audit", span.first), self._joined(named_from), _KEY)
            part = StoredPart(span.first, span.end, state_path=path, state_fingerprint=StateFile(path).fingerprint)
            kind = self.step.state_kind
            entries = [] if kind is None else part.entries(kind, span.shard, span.shards)
            return self.step.restore(entries, span.first)

    def _joined(self, named_from: int) -> Iterator[tuple[Kind, int, bytes]]:
        cells: dict[tuple[Kind, int], list[memoryview]] = {}
        for kind, bucket, cell in map(unpack_chunk, pack_by_bucket(self._kept)):
            cells.setdefault((kind, bucket), []).append(cell)
        for (kind, bucket), of_place in sorted(cells.items(), key=lambda each: each[0]):
            for joined in join_chunks(kind, of_place, named_from=named_from):
                yield kind, bucket, joined
