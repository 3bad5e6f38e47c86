"""What the monitor is given by a replay of files: the pairs of the others, and whether the run ends in an error."""

from __future__ import annotations

import hashlib
import pathlib
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from dp_transforms import EventBatch, EventFields
from dp_transforms.core.pack_contributions import contributions_of_events
from dp_transforms.logs import EventFileError, find_log_chunks, read_joined, spread_chunks
from tests.helpers.small_runs import SECRET, held_in, names_by_hash, settings_of
from tests.neighbours.logs import ODD_USERS, PLAN, USERS, Log, without_added

SETTINGS = settings_of(PLAN)
FIELDS = EventFields()
OTHERS = (*USERS, *ODD_USERS)
Pair = tuple[int, str, str]  # window, user, item


class Given(NamedTuple):
    """pairs: of others. error: kind of the error that the run ended with, if it did; then there are no pairs."""

    pairs: frozenset[Pair]
    error: str | None = None


def pairs_of_batches(batches: Iterable[EventBatch], users: tuple[str, ...] = OTHERS) -> frozenset[Pair]:
    """The pairs of those users."""
    keys, found = SETTINGS.stream_keys(SECRET), set()
    names = names_by_hash(keys, users)
    for batch in batches:
        for _, _, pairs in contributions_of_events(batch, SETTINGS.schedule, keys, windows_per_range=1, shards=1):
            found |= {pair for pair in held_in(pairs, names) if pair[1] in users}
    return frozenset(found)


def replayed(sources: Sequence[str], fields: EventFields, users: tuple[str, ...] = OTHERS) -> Given:
    """By what reads the log of a replay, without a pipeline around it."""
    batches = []
    try:
        for joined in spread_chunks(find_log_chunks(sources, fields), 2):
            batches += [block.batch for block in read_joined(joined, fields)]
    except EventFileError as error:
        return Given(frozenset(), type(error).__name__)
    return Given(pairs_of_batches(batches, users))


class Neighbours:
    """A folder for the files of D, and one for those of D without x'."""

    def __init__(self, tmp_path: pathlib.Path) -> None:
        self.folders = tmp_path / "with", tmp_path / "without"
        for folder in self.folders:
            folder.mkdir(parents=True, exist_ok=True)

    def write(self, write: Callable[[pathlib.Path, Log], object], log: Log) -> Neighbours:
        """write: a log to a folder, under the same names for both."""
        for folder, rows in zip(self.folders, (log, without_added(log)), strict=True):
            write(folder, rows)
        return self

    def same(self, fields: EventFields = FIELDS, users: tuple[str, ...] = OTHERS) -> Given:
        """What the two give, which must be the same: what the others hold, and whether the run ends in an error."""
        with_added, without = replayed([str(self.folders[0])], fields, users), self._without(fields, users)
        assert with_added.error == without.error, "one of the runs ends in an error, and the other does not"
        assert_same_pairs(with_added.pairs, without.pairs)
        return without

    def _without(self, fields: EventFields, users: tuple[str, ...]) -> Given:
        """Very many logs without x' are the same files: these are read once."""
        files = {path.name: hashlib.sha256(path.read_bytes()).digest() for path in sorted(self.folders[1].iterdir())}
        key = (*files.items(), fields, users)
        if key not in _READ:
            _READ[key] = replayed([str(self.folders[1])], fields, users)
        return _READ[key]


_READ: dict[tuple[object, ...], Given] = {}


def assert_same_pairs(with_added: frozenset[Pair], without: frozenset[Pair]) -> None:
    lost, gained = without - with_added, with_added - without
    message = f"{len(lost)} pairs of others lost, {len(gained)} gained, as {sorted(lost or gained)[:3]}"
    assert (len(lost), len(gained)) == (0, 0), message
