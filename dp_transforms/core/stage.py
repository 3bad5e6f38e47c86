"""What a step of the algorithm is, how its work is cut, what travels between steps, and how a step runs on groups."""

from __future__ import annotations

import abc
import dataclasses
import functools
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar, NamedTuple, Protocol, TypeAlias

from dp_transforms.core.item_sums import ItemHolders, ItemSums
from dp_transforms.core.item_table import ItemTable
from dp_transforms.core.named_items import NamedItems
from dp_transforms.core.planned_run import PlannedRun, RunPart
from dp_transforms.core.public_items import PublicItemsSource
from dp_transforms.core.randomness import StreamKeys
from dp_transforms.core.state_chunks import Kind, pack_by_bucket
from dp_transforms.core.tables import Table
from dp_transforms.plan.plan import Plan
from dp_transforms.plan.window_schedule import WindowSchedule

_BOUNDED_GROUPS = 128
_UNBOUNDED_SHARDS = 4
_MOST_SHARDS_OF_ITEMS = 8
_SHARDS_OF_RUN = 8  # of one range with all windows

Counts: TypeAlias = "Counter[str]"
"""For the operator alone (`operator_counts`)."""
Messages = Sequence[bytes]
Sent = ItemHolders | ItemSums | NamedItems
"""What a step sends to the next: columns with a window in each row."""
GroupKey = tuple[int, int]
"""A range of windows, and a shard of users or items."""


# ---------------------------------------------------------------------------------------------------------------------
# How the work is cut. Results do not depend on it.
# ---------------------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Sharding:
    """How work is divided. windows_per_range: so many consecutive windows travel together, so that cost does not grow
    with their number. shards: into how many groups the users of a range are divided, and its items; those of a stream
    into `shards_of_items`."""

    windows_per_range: int
    shards: int

    @classmethod
    def of_stream(cls, shards: int | None) -> Sharding:
        """One window a range; 4 shards unless another number is given."""
        return cls(1, _checked(shards) or _UNBOUNDED_SHARDS)

    @classmethod
    def of_windows(cls, windows: int, shards: int | None = None) -> Sharding:
        """For bounded input that lies in so many windows: about 128 groups, and fewer shards for more ranges."""
        ranges = min(windows, _BOUNDED_GROUPS)
        return cls(-(-windows // ranges), _checked(shards) or max(1, min(16, _BOUNDED_GROUPS // ranges)))


class Partitioning(NamedTuple):
    """How bounded input is divided. users: for what users hold, and what they add to items; where they pay for tests of
    contributions one range with all windows, since a user budget lasts for the run. windows: for what is found among
    items, on its way to the reports."""

    users: Sharding
    windows: Sharding

    @classmethod
    def of(
        cls, schedule: WindowSchedule, *, pays_tests: bool, shards: int | None, part: RunPart | None = None
    ) -> Partitioning:
        """shards: None for a good number. part: None for the whole run."""
        by_window = Sharding.of_windows(schedule.horizon if part is None else part.windows, shards)
        return cls(Sharding(schedule.horizon, shards or _SHARDS_OF_RUN) if pays_tests else by_window, by_window)


def _checked(shards: int | None) -> int | None:
    if shards is not None and (not isinstance(shards, int) or shards < 1):
        raise ValueError(f"shards must be a whole number >= 1, got {shards!r}. Leave it out for a good default.")
    return shards


def shards_of_items(shards: int) -> int:
    """How many shards of items a stream has, by the number of its shards of users. Each shard of users sends to each
    shard of items in every window; since these are few, what a window costs grows with the users, and not with their
    square. Nothing else decides the number: a run that is resumed has the same one."""
    return min(shards, _MOST_SHARDS_OF_ITEMS)


@dataclasses.dataclass(frozen=True)
class Span:
    """The windows ``first .. end - 1`` of one of so many shards of users or items."""

    first: int
    end: int
    shard: int = 0
    shards: int = 1


# ---------------------------------------------------------------------------------------------------------------------
# What travels in a stream: messages that are gathered by counting
#
# What belongs to one shard of one window travels in messages of bounded size. The last message of a sender announces
# how many the sender sends, itself included. A window is complete when all its senders have announced and as many
# messages have come (`beam.turns`). No timer decides it, so what is gathered does not depend on the order of delivery
# or on restarts.
# ---------------------------------------------------------------------------------------------------------------------

EncodedMessage = tuple[int, int, bytes]  # the fields of a `Message`, as engines encode them
ToShard = tuple[int, EncodedMessage]  # what travels: all windows of a shard have one key, since their order counts


class Message(NamedTuple):
    """From one sender to one shard, for one window.

    announced: on the last message of its sender for the window, how many messages this sender sends, this one included;
        0 on all others.
    blob: packed content; empty for none.
    """

    window: int
    announced: int
    blob: bytes


def messages_of(window: int, blobs: list[bytes]) -> list[Message]:
    """All that one sender has for one shard of one window, as messages. The last one announces them."""
    *first, last = blobs or [b""]
    return [*(Message(window, 0, blob) for blob in first), Message(window, len(first) + 1, last)]


def packed_by_group(sent: Sent, cut: Sharding) -> Iterator[tuple[GroupKey, list[bytes]]]:
    """Columns by range of windows and shard of items, packed in messages that engines accept. What has none is left
    out."""
    for number, of_range in sent.by_range(cut.windows_per_range):
        for shard, of_shard in of_range.by_shard(cut.shards):
            yield (number, shard), list(of_shard.messages())


# ---------------------------------------------------------------------------------------------------------------------
# A step, and how it runs on groups
# ---------------------------------------------------------------------------------------------------------------------


class Step(abc.ABC):
    """A step of the algorithm, for one run, with its key. What it carries from window to window is in a value of its
    own, which `restore` makes of what was stored: entries of which a later one counts (`core.state_chunks`), in
    whatever order and however often an engine gives them back.

    public_items: for a step that draws for those that nobody holds. round: of tests, where they come in rounds: the
    step is run again in each.

    TAKES: what is sent to it. KIND: of the state that it keeps; None for none.
    sends_to_all: whether something is sent to each shard, be it an empty table.
    """

    TAKES: ClassVar[type[Table]]
    KIND: ClassVar[Kind | None] = None
    sends_to_all: ClassVar[bool] = False

    def __init__(self, plan: Plan, keys: StreamKeys, public_items: ItemTable | None = None, number: int = 0) -> None:
        self.plan, self.keys, self.public_items, self.round = plan, keys, public_items, number

    @property
    def runs_on_empty(self) -> bool:
        """Whether it has work in a window to which nothing comes, too."""
        return self.public_items is not None

    @property
    def state_kind(self) -> Kind | None:
        return self.KIND

    def restore(self, entries: Sequence[Any], first: int) -> Any:
        """The state before the window ``first``, of what was stored for this shard. Raises ValueError for entries that
        no run of this plan can have made."""
        return None

    @abc.abstractmethod
    def process(self, state: Any, columns: Any, span: Span, counts: Counts, *named: Messages) -> Sent:
        """Takes the state through the windows of a span, of which ``columns`` has all. named: in a later round, what
        was named before it, packed, in any order: in blocks, and in windows."""

    def delta(self, state: Any) -> list[tuple[Kind, bytes]]:
        """What has changed since the state was restored."""
        return [] if self.state_kind is None else [(self.state_kind, chunk) for chunk in state.delta()]

    def chunks(self, state: Any) -> list[tuple[Kind, bytes]]:
        """The whole state, each user and item once."""
        return [] if self.state_kind is None else [(self.state_kind, chunk) for chunk in state.chunks()]

    def measures(self, state: Any) -> dict[str, int]:
        """Of the state, for the operator (`operator_counts`)."""
        return {}


@dataclasses.dataclass(frozen=True)
class Stage:
    """A step as a value: equal ones do the same. It can be pickled, and has no secret. Fields as in `Step`."""

    step: type[Step]
    run: PlannedRun
    public_items: PublicItemsSource | None = None
    round: int = 0

    def start(self, secret: bytes, key: str | None = None) -> Step:
        """What is done once on each worker. secret: the noise key of the run. key: takes the place of the stream."""
        keys = (self.run if key is None else self.run.of_key(key)).stream_keys(secret)
        public_items = None if self.public_items is None else self.public_items.table(keys)
        return self.step(self.run.plan, keys, public_items, self.round)


Work = Callable[[Any, Counts], Iterator[Any]]
"""An element -> outputs."""


class WorkerStep(Protocol):
    """What workers do with each element, with all settings, and without the key. It can be pickled."""

    def start(self, secret: bytes) -> Work:
        """What is done once, before the first element. secret: the noise key of the run."""
        ...


@dataclasses.dataclass(frozen=True)
class StateChunk:
    """What a group has changed in the state of a part, packed by `pack_chunk`."""

    packed: bytes


@dataclasses.dataclass(frozen=True)
class AtOnceStep:
    """A step on groups: a key, and all that was sent to it in the whole part of a run; in a later round also what was
    named in the rounds before. Groups of many keys, each of which takes the place of the stream, are of ``(key, range
    of windows, shard)``; so is what they send.

    cut: how the groups are cut. to: how what they send is cut. part: None for a whole run, which hands nothing over.
    """

    stage: Stage
    cut: Sharding
    to: Sharding
    part: RunPart | None = None

    @property
    def whole_or_part(self) -> RunPart:
        return self.part or RunPart.whole(self.stage.run.plan.schedule)

    def start(self, secret: bytes) -> Work:
        step_of = functools.lru_cache(maxsize=256)(lambda *key: self.stage.start(secret, *key))
        part, size, shards = self.whole_or_part, self.cut.windows_per_range, self.cut.shards

        def run(group: Any, counts: Counts) -> Iterator[Any]:
            (*key, number, shard), messages, *earlier = group
            step = step_of(*key)
            span = Span(max(number * size, part.first), min((number + 1) * size, part.end), shard, shards)
            columns = step.TAKES.of_messages([message for message in messages if len(message)])
            before = () if step.state_kind is None else part.entries(step.state_kind, shard, shards)
            state = step.restore(before, span.first)
            sent = step.process(state, columns, span, counts, *earlier)
            for to, packed in packed_by_group(sent, self.to):
                yield from (((*key, *to), message) for message in packed)
            if step.sends_to_all:
                yield from (((*key, number, to), type(sent).none().to_bytes()) for to in range(self.to.shards))
            if self.part is not None:
                yield from map(StateChunk, pack_by_bucket(step.delta(state)))

        return run
