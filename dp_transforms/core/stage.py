"""What a stage is: one step of the algorithm as a value, and the step that runs it on groups of bounded input."""

from __future__ import annotations

import abc
import dataclasses
import functools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, ClassVar

from dp_transforms.core.item_sums import ItemHolders, ItemSums
from dp_transforms.core.named_items import NamedItems
from dp_transforms.core.planned_run import PlannedRun
from dp_transforms.core.public_items import PublicItemsSource, PublicItemsTable
from dp_transforms.core.randomness import StreamKeys
from dp_transforms.core.run_part import RunPart
from dp_transforms.core.state_chunks import Cell, Kind, pack_by_bucket
from dp_transforms.core.tables import Table
from dp_transforms.core.window_report import WindowReport
from dp_transforms.plan.plan import Plan

_BOUNDED_GROUPS = 128
_UNBOUNDED_SHARDS = 4
_MOST_SHARDS_OF_ITEMS = 8
SHARDS_OF_RUN = 8  # of one slab with all windows

Sent = ItemHolders | ItemSums | NamedItems
"""What a stage sends to the next: columns with a window in each row."""
Reported = tuple[int, WindowReport]
"""The number of a window, and its report: what the last stage makes."""
SlabKey = tuple[int, int]
"""A slab of windows, and a shard of users or items."""


@dataclasses.dataclass(frozen=True)
class Sharding:
    """How the work is cut. Results do not depend on it.

    windows_per_slab: a slab is that many consecutive windows, which travel together, so that cost does not grow with
        the number of windows.
    shards: number of groups of users in a slab, and also of groups of items; of a stream `shards_of_items`.
    """

    windows_per_slab: int
    shards: int

    @classmethod
    def of_stream(cls, shards: int | None) -> Sharding:
        """One window a slab; 4 shards unless another number is given."""
        return cls(1, _checked(shards) or _UNBOUNDED_SHARDS)

    @classmethod
    def of_windows(cls, windows: int, shards: int | None = None) -> Sharding:
        """For bounded input that lies in so many windows: about 128 groups, and fewer shards for more slabs."""
        _checked(shards)
        slabs = min(windows, _BOUNDED_GROUPS)
        return cls(-(-windows // slabs), shards or max(1, min(16, _BOUNDED_GROUPS // slabs)))


def _checked(shards: int | None) -> int | None:
    if shards is not None and (not isinstance(shards, int) or shards < 1):
        raise ValueError(f"shards must be a whole number >= 1, got {shards!r}. Leave it out for a good default.")
    return shards


def shards_of_items(shards: int) -> int:
    """How many a stream has, by its shards of users. Each of these sends to all of those in every window: so what a
    window costs grows with the users, and not with their square. A function of nothing else: a run that goes on has the
    same number."""
    return min(shards, _MOST_SHARDS_OF_ITEMS)


@dataclasses.dataclass(frozen=True)
class Span:
    """The windows ``first .. end - 1`` of one of so many shards of users or items."""

    first: int
    end: int
    shard: int = 0
    shards: int = 1


class StageWork(abc.ABC):
    """A stage at work: for one run, with its key. It holds no state of the run; that is in values which `load` makes.

    A state is a set of *cells*, packed entries by `Kind`, of which a later one counts (`core.state_chunks`): in
    whatever
    order and however often an engine gives them back, the state is the same.

    round: of looks, where they come in rounds: it is run again in each.

    TAKES: what is sent to it.
    keeps_state: whether anything is carried from window to window.
    runs_on_empty: whether a window to which nothing comes must be advanced through, too.
    sends_to_all: whether something is sent to each shard of its slab, be it an empty table.
    """

    TAKES: ClassVar[type[Table]]
    keeps_state: ClassVar[bool] = True
    sends_to_all: bool = False

    def __init__(self, plan: Plan, keys: StreamKeys, domain: PublicItemsTable | None, number: int = 0) -> None:
        self.plan = plan
        self.keys = keys
        self.round = number
        self.runs_on_empty = domain is not None

    def columns(self, blobs: Sequence[bytes], *named: Sequence[bytes]) -> Any:
        """What came. blobs: in any order. named: in a later round, what was named before it, packed, in any order: in
        blocks, and in windows."""
        return self.told(self.unpacked(blobs), *named)

    def unpacked(self, blobs: Sequence[bytes]) -> Any:
        """As one table of `TAKES`."""
        return self.TAKES.of_messages(blobs)

    def told(self, columns: Any, *named: Sequence[bytes]) -> Any:
        """What was unpacked, as `load` and `advance` take it."""
        return columns

    @abc.abstractmethod
    def advance(self, state: Any, columns: Any, span: Span, counts: Counter[str]) -> Any:
        """Through the windows of a span, of which ``columns`` has all: `Sent`, or from the last stage an iterator of
        `Reported`. Changes the state. counts: for the operator (`operator_counts`)."""

    def load(self, part: RunPart, columns: Any, span: Span) -> Any:
        """The state before a part of a run. columns: all that comes in the part, whose users alone are needed."""
        return None

    def read(self, cells: Iterable[tuple[Kind, Cell]], first: int) -> Any:
        """The state before the window ``first``, of what was stored."""
        return None

    def cells(self, state: Any) -> Iterator[tuple[Kind, bytes]]:
        """The whole state, each user and item once."""
        return iter(())

    def changed(self, state: Any, span: Span) -> Iterator[tuple[Kind, bytes]]:
        """What was changed by advancing through this span, since the state was read."""
        return iter(())

    def measures(self, state: Any) -> dict[str, int]:
        """Of the state, for the operator (`operator_counts.STREAM_GAUGES`)."""
        return {}


@dataclasses.dataclass(frozen=True)
class Stage:
    """A step of the algorithm as a value. Equal ones do the same; it can be pickled.

    domain: of a plan with a known domain, for the stage that draws for the items that nobody holds. round: of looks.
    """

    work: type[StageWork]
    run: PlannedRun
    domain: PublicItemsSource | None = None
    round: int = 0

    def start(self, secret: bytes) -> StageWork:
        """What is done once on each worker. secret: the noise key of the run."""
        keys = self.run.stream_keys(secret)
        return self.work(self.run.plan, keys, None if self.domain is None else self.domain.table(keys), self.round)


def packed_by_cell(sent: Sent, cut: Sharding) -> Iterator[tuple[SlabKey, list[bytes]]]:
    """Table by slab and shard of items, packed in messages that engines accept. What has none is left out."""
    for slab, of_slab in sent.by_range(cut.windows_per_slab):
        for shard, of_shard in of_slab.by_shard(cut.shards):
            yield (slab, shard), list(of_shard.messages())


@dataclasses.dataclass(frozen=True)
class HandedOver:
    """A cell of the state after a part, packed by `pack_chunk`."""

    packed: bytes


@dataclasses.dataclass(frozen=True)
class AtOnceStep:
    """A stage on groups: a key, and all that was sent to it in the whole part of a run.

    cut: how the groups are cut. to: how what they send is cut; None for the last stage, which reports.
    part: None for a whole run, which hands nothing over. A group of a later round of looks comes with what was named in
    the rounds before.
    """

    stage: Stage
    cut: Sharding
    to: Sharding | None
    part: RunPart | None = None
    stores: bool = False

    @property
    def whole_or_part(self) -> RunPart:
        return self.part or RunPart.whole(self.stage.run.plan.schedule)

    def start(self, secret: bytes) -> Callable[[Any, Counter[str]], Iterator[Any]]:
        work, shards = self.stage.start(secret), self.cut.shards
        part = self.whole_or_part

        def run(group: Any, counts: Counter[str]) -> Iterator[Any]:
            (slab, shard), blobs, *named = group
            first, end = slab * self.cut.windows_per_slab, (slab + 1) * self.cut.windows_per_slab
            span = Span(max(first, part.first), min(end, part.end), shard, shards)
            columns = work.columns([blob for blob in blobs if len(blob)], *named)
            state = work.load(part, columns, span)
            advanced = work.advance(state, columns, span, counts)
            if self.to is None:
                yield from advanced
            else:
                for key, packed in packed_by_cell(advanced, self.to):
                    yield from ((key, blob) for blob in packed)
                if work.sends_to_all:
                    yield from (((slab, to), type(advanced).none().to_bytes()) for to in range(self.to.shards))
            if self.part is not None:
                yield from map(HandedOver, pack_by_bucket(work.cells(state)))

        return run


@dataclasses.dataclass(frozen=True)
class EachKeyStep(AtOnceStep):
    """The same for many keys, each of which takes the place of the stream: groups, and what is sent, are of
    ``(key, slab, shard)``."""

    def start(self, secret: bytes) -> Callable[[Any, Counter[str]], Iterator[Any]]:
        @functools.lru_cache(maxsize=256)
        def of_key(key: str) -> Callable[[Any, Counter[str]], Iterator[Any]]:
            stage = dataclasses.replace(self.stage, run=self.stage.run.of_key(key))
            return AtOnceStep.start(dataclasses.replace(self, stage=stage), secret)

        def run(group: Any, counts: Counter[str]) -> Iterator[Any]:
            (key, *cell), *blobs = group
            for to, blob in of_key(key)((tuple(cell), *blobs), counts):
                yield (key, *to), blob

        return run
