"""One partition of a stream, stepped as engines step it: polls of any size, workers that die, a clock that jumps.

What reaches the monitor from it is a function of the records alone, whatever is chosen here at random.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable

from dp_transforms.core.contributions import Contributions
from dp_transforms.logs.streams.partition_poller import PartitionPoller, Step
from dp_transforms.logs.streams.partition_progress import PartitionProgress, StreamClock
from dp_transforms.logs.streams.stream_source import PartitionReader
from tests.helpers.memory_stream import poller_of
from tests.helpers.small_runs import MICROS, SECRET, held_in, names_by_hash, settings_of, small_plan
from tests.helpers.trial_plan import TrialPlan
from tests.neighbours.replayed import OTHERS, Pair

PLANS = {"fixed": small_plan(6, max_items_per_user=50), "sliding": small_plan(12, sliding=2, max_items_per_user=50)}
SHARDS = 2
_MOST_STEPS = 200_000

Key = tuple[int, int]  # window, shard
Content = frozenset[Pair]
Sent = tuple[Content, int]  # and the number of messages


@dataclasses.dataclass
class WallClock:
    """The one clock of a simulated run, in microseconds since 1970."""

    now: int


@dataclasses.dataclass(frozen=True)
class Treatment:
    """How a run is treated.

    polls: sizes of polls. confirm: whether the engine stores state; then workers die, with this chance at each step.
    last_arrival: with a stop, the last arrival that counts; asked: by the wall clock, when the stop appears.
    jump_seconds: how far the wall clock may jump at a step.
    """

    seed: int
    polls: tuple[int, ...] = (1, 2, 7, 40, 1_000, 50_000)
    confirm: bool = True
    deaths: float = 0.05
    last_arrival: int | None = None
    asked: int | None = None
    jump_seconds: float = 10.0


class Stepped:
    """Steps a partition until all windows are closed. pairs: of the others, all that was sent and announced in them."""

    def __init__(
        self,
        open_reader: Callable[[], PartitionReader],
        clock: StreamClock,
        wall: WallClock,
        treatment: Treatment,
        *,
        settings: TrialPlan | None = None,
        users: tuple[str, ...] = OTHERS,
    ) -> None:
        self._settings = settings or settings_of(PLANS["fixed"])
        self._keys = self._settings.stream_keys(SECRET)
        self._names = names_by_hash(self._keys, users)
        self._open_reader, self._clock, self._wall, self._treatment = open_reader, clock, wall, treatment
        self._choice = random.Random(treatment.seed)
        self._pollers = [self._poller(size) for size in treatment.polls]
        self._store(self._pollers[0].start(), {})
        self._announced: dict[Key, Content] = {}
        self.deaths = self.intents = self.steps = 0
        self.pairs = self._run()

    def _poller(self, max_records: int) -> PartitionPoller:
        return poller_of(
            self._settings,
            self._keys,
            self._clock,
            SHARDS,
            confirm=self._treatment.confirm,
            max_records=max_records,
        )

    def _store(self, progress: PartitionProgress, sent: dict[Key, Sent]) -> None:
        self._stored = progress.to_bytes(), dict(sent)
        self._stored_intent = self._pollers[0].restore(self._stored[0]).intent

    def _begin(self) -> None:
        """As a new worker does: from what is stored, with a reader of its own."""
        state, sent = self._stored
        self._progress, self._sent = self._pollers[0].restore(state), dict(sent)
        self._reader, self._open_since = self._open_reader(), self._wall.now
        self._confirmed: set[str] = set()

    def _run(self) -> frozenset[Pair]:
        self._begin()
        while not self._progress.is_over:
            self.steps += 1
            assert self.steps < _MOST_STEPS, "it never ends"
            step = self._step()
            self._take(step)
            if self._treatment.confirm:
                self._store_or_die()
            if not step.is_busy or self._choice.random() < 0.02:
                self._wall.now += int(self._choice.random() ** 2 * self._treatment.jump_seconds * MICROS)
        self._reader.close()
        windows = range(self._settings.schedule.horizon)
        assert set(self._announced) == {(window, shard) for window in windows for shard in range(SHARDS)}
        others = {*self._names.values()}
        return frozenset(pair for part in self._announced.values() for pair in part if pair[1] in others)

    def _step(self) -> Step:
        intent, asked = self._progress.intent, self._treatment.asked
        is_asked = asked is not None and self._wall.now >= asked
        step = self._choice.choice(self._pollers).step_at(
            "p",
            self._progress,
            self._reader,
            self._wall.now,
            is_confirmed=intent is not None and intent.name in self._confirmed,
            open_since_micros=self._open_since,
            find_stop=lambda: self._treatment.last_arrival if is_asked else None,
        )
        self.intents += intent is None and self._progress.intent is not None
        return step

    def _store_or_die(self) -> None:
        luck = self._choice.random()
        if luck < self._treatment.deaths:
            self.deaths += 1
            self._reader.close()
            self._begin()
        elif luck < 4 * self._treatment.deaths or luck > 0.9:
            self._store(self._progress, self._sent)
        if self._stored_intent is not None and self._choice.random() < 0.5:
            self._confirmed.add(self._stored_intent.name)

    def _take(self, step: Step) -> None:
        """What any worker ever announces for a window, also one that then dies, is the same."""
        for shard, message in step.messages:
            key = message.window, shard
            content, count = self._sent.get(key, (frozenset(), 0))
            content |= held_in(Contributions.from_bytes(message.blob), self._names) if message.blob else frozenset()
            count += 1
            self._sent[key] = content, count
            if message.announced:
                assert message.announced == count, "another number of messages than announced"
                assert self._announced.setdefault(key, content) == content, "two contents for one window"
