"""What users and items carry from one window of a stream to the next, as a real run stores it.

Before every other window a part of the run ends: purses and known items go through the cells and the file that parts
hand over. Before the others the purses are read from what a worker keeps.
"""

from __future__ import annotations

import pathlib
import tempfile

import numpy as np
import numpy.typing as npt

from dp_transforms.mechanisms.randomness import StreamKeys
from dp_transforms.monitor.known_items import KnownItems
from dp_transforms.monitor.naming_settings import NamingSettings
from dp_transforms.monitor.purses import PurseEntries, Purses
from dp_transforms.runs.run_part import RunPart
from dp_transforms.runs.state_cells import Kind, join_cells, known_cells, pack_cell, purse_cells, unpack_cell
from dp_transforms.runs.state_file import StateFile, write_state
from dp_transforms.runs.state_header import PartRecord, StateHeader

_KEY = bytes(32)  # of the seal: the file is gone as soon as it was read


class Carried:
    """The purses and the known items before the next window.

    is_refused: whether a reader has refused what was stored. It is then carried on as it was, and audited all the same.
    """

    def __init__(self, settings: NamingSettings, keys: StreamKeys) -> None:
        self.purses = Purses(settings, keys)
        self.known = KnownItems.none()
        self._settings, self._keys = settings, keys
        self._kept: list[bytes] = []
        self.is_refused = False

    def over_to(self, window: int, users: npt.NDArray[np.uint64]) -> None:
        """Stores what there is, and reads it again for this window. users: who is there in it, ascending."""
        try:
            self._store_and_read(window, users)
        except ValueError:
            self.is_refused = True

    def _store_and_read(self, window: int, users: npt.NDArray[np.uint64]) -> None:
        self._kept += self.purses.changed_cells()
        if window % 2 or not window:
            self.purses = Purses(self._settings, self._keys, self._kept)
            return
        with tempfile.TemporaryDirectory() as folder:
            path = str(pathlib.Path(folder) / "state")
            write_state(path, self._header(window), self._cells(window), _KEY)
            part = RunPart(window, window + 1, path, StateFile(path).fingerprint)
            # A replay in parts reads the purses of the users that it meets, a stream those of a shard of users.
            entries = part.purses_of_shard(0, 1) if window % 4 else part.purses(users)
            self.known = part.known(Kind.KNOWN)
        self.purses = Purses.of_entries(self._settings, self._keys, entries, window)

    def _cells(self, window: int) -> list[tuple[Kind, int, bytes]]:
        packed = [
            pack_cell(Kind.PURSES, *of_bucket)
            for cell in self._kept
            for of_bucket in purse_cells(PurseEntries.from_cell(cell))
        ]
        packed += [pack_cell(Kind.KNOWN, *of_bucket) for of_bucket in known_cells(self.known)]
        cells: dict[tuple[Kind, int], list[memoryview]] = {}
        for kind, bucket, cell in map(unpack_cell, packed):
            cells.setdefault((kind, bucket), []).append(cell)
        named_from = window - self._settings.forget_after
        joined = {place: join_cells(place[0], found, named_from=named_from) for place, found in cells.items()}
        return [(*place, cell) for place in sorted(joined) for cell in joined[place]]

    def _header(self, window: int) -> StateHeader:
        settings, digits = self._settings, "0" * 64
        part = PartRecord(0, window, digits, "report")
        run = (settings.plan_fingerprint, settings.stream, settings.run_id, digits)
        return StateHeader("plan", *run, user_field="user", item_field="item", parts=(part,))
