"""One answer for each window, whatever dies and whenever: a whole `MonitorStream` on an engine that dies.

Which events are in time depends on clocks that the engine keeps. So each window is asked for two things: whatever is
announced for it in any life is the same, and what is published is what the reference makes of what was announced.
"""

from __future__ import annotations

import bisect
import pathlib
import random
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import pytest

from dp_transforms import MonitorStream, PublicItems
from dp_transforms.beam import turns
from dp_transforms.core import user_budgets
from dp_transforms.core.contributions import Contributions
from dp_transforms.core.window_report import WindowReport
from dp_transforms.logs.streams import partition_poller
from dp_transforms.logs.streams.partition_progress import StreamClock
from dp_transforms.reports.report_records import RunEnded
from tests.conformance.cuts import Cut, arrivals_of, log_of
from tests.conformance.drivers import MODES
from tests.conformance.dying_engine import DyingEngine
from tests.helpers.beam_pipelines import local_pipeline
from tests.helpers.memory_stream import Arrival, MemoryPartition
from tests.helpers.small_runs import MICROS, RUN_ID, SECRET, held_in, key_file, names_by_hash
from tests.helpers.trials import trial_of
from tests.reference.run import reference
from tests.transcripts.cases import HOUR, START, calibrated, public_of

SHARDS = 2
MINUTE = 60


CLOCK = StreamClock("arrival", 25 * MINUTE, 5 * MINUTE, 8 * MINUTE)


class GrowingPartition:
    """Its records are there from a moment on that is not that of their stamp: with a record that shows late all behind
    it show late, so an idle clock may have passed them by."""

    def __init__(self, name: str, arrivals: Sequence[Arrival], source: random.Random) -> None:
        self.name, self._source, self.now, shows = name, source, float(START), 0.0
        self._arrivals, self._shown_at = arrivals, []
        for arrival in arrivals:
            shows = max(shows, arrival.micros / MICROS + (HOUR if source.random() < 0.01 else 0))
            self._shown_at.append(shows)

    def __deepcopy__(self, memo: Any) -> GrowingPartition:
        return self  # a log is there, whoever dies

    def open(self, since_micros: int = 0) -> GrowingReader:
        return GrowingReader(self, since_micros)

    def shown(self) -> int:
        return bisect.bisect_right(self._shown_at, self.now)

    def as_shown(self) -> MemoryPartition:
        return MemoryPartition(self.name, tuple(self._arrivals[: self.shown()]), self._source.randrange(1, 200))


class GrowingReader:
    def __init__(self, partition: GrowingPartition, since_micros: int) -> None:
        self._partition, self._since, self._asked, self._at = partition, since_micros, None, 0

    def poll(self, position: str | None, **limits: Any) -> Any:
        polled = self._partition.as_shown().open(self._since).poll(position, **limits)
        self._at = int(polled.position)
        return polled

    def confirm_end(self) -> bool:
        return True  # it is asked within the step that has polled, and shows nothing more meanwhile

    def confirm_passed(self) -> bool:
        self._asked = self._partition.shown() if self._asked is None else self._asked
        return self._at >= self._asked

    def close(self) -> None:
        pass


class GrowingLog:
    def __init__(self, source: random.Random) -> None:
        arrivals = arrivals_of(Cut("shuffled"))
        self._partitions = [GrowingPartition(f"p{number}", arrivals[number::2], source) for number in range(2)]

    def fingerprint(self) -> str:
        return "growing"

    def partitions(self) -> list[GrowingPartition]:
        return self._partitions


class Stream:
    """A run of a mode on the engine. answers, ends: all that ever reached the end of the pipeline."""

    def __init__(
        self,
        folder: pathlib.Path,
        mode: str,
        seed: int,
        patch: pytest.MonkeyPatch,
        *,
        confirm: bool = True,
    ) -> None:
        self._patch, self._source, self._now = patch, random.Random(f"{mode} {seed}"), float(START)
        self._mode, self.plan, self._log = MODES[mode], calibrated(MODES[mode]), GrowingLog(self._source)
        self._settings = trial_of(self.plan, stream="events", run_id=RUN_ID)
        self._stops_at = self._source.choice((None, None, START + 4 * HOUR, START + 8 * HOUR))
        self._stop = folder / f"stop-{mode}-{seed}"
        self.answers: dict[int, WindowReport] = {}
        self.ends: set[RunEnded] = set()
        self._announced: dict[Any, frozenset] = {}
        self._users = names_by_hash(self._settings.stream_keys(SECRET), {user for user, _, _ in log_of(12)})
        for name in ("time", "monotonic"):
            patch.setattr(time, name, lambda: self._now)
        patch.setattr(time, "time_ns", lambda: round(self._now * MICROS) * 1000)
        self._stop_micros, self._asked_micros = CLOCK.stop_micros, 0
        # Whatever the clock of the file system says.
        patch.setattr(StreamClock, "stop_micros", lambda *_: self._stop_micros(self._asked_micros))
        pipeline = local_pipeline()
        monitor = MonitorStream(
            self._log,
            self.plan,
            **vars(CLOCK),
            noise_key=key_file(folder),
            run_id=RUN_ID,
            shards=SHARDS,
            confirm=confirm,
            stop_file=str(self._stop),
            public_items=PublicItems.of_ids(public_of(self._mode)) if self._mode.public else None,
        )
        _ = pipeline | monitor
        self._engine = DyingEngine(
            pipeline,
            self._source,
            see=self._see,
            new_process=self._new_process,
            pass_time=self._wait,
        )

    def _new_process(self) -> None:
        self._patch.setattr(partition_poller, "_QUESTIONS", defaultdict(partition_poller._Question))

    def _wait(self) -> None:
        """Also a stop file comes, goes away again, and comes at another time."""
        self._now += self._source.choice((1, 5, 20)) * MINUTE
        for partition in self._log.partitions():
            partition.now = self._now
        if self._stops_at is not None and self._now > self._stops_at:
            if self._source.random() < 0.6:
                if not self._stop.exists():
                    self._asked_micros = round(self._now * MICROS)
                    self._stop.touch()
            else:
                self._stop.unlink(missing_ok=True)

    # --- what is seen

    def _see(self, label: str, tag: str | None, value: Any, told: dict[Any, Any]) -> None:
        if isinstance(value, WindowReport):
            known = self.answers.setdefault(value.window_start, value)
            assert known == value, "a window has two answers"
        elif isinstance(value, RunEnded):
            self.ends.add(value)
        elif "PollPartitions/Poll/" in f"{label}/" and tag in (None, "messages"):
            self._take(*value, told)

    def _take(self, shard: int, message: tuple[int, int, bytes], told: dict[Any, Any]) -> None:
        """Of one partition each: what any life announces for a window, also one that then dies, is the same."""
        window, announced, blob = message
        key = window, shard
        sent, senders = told.get(key, (frozenset(), 0))
        sent |= held_in(Contributions.from_bytes(blob), self._users) if blob else frozenset()
        senders += announced > 0
        told[key] = sent, senders
        if senders == len(self._log.partitions()):
            assert self._announced.setdefault(key, sent) == sent, "a window has two contents"

    def expected(self) -> list[WindowReport]:
        held: dict[int, dict[str, set[str]]] = {}
        for content in self._announced.values():
            for window, user, item in content:
                held.setdefault(window, {}).setdefault(user, set()).add(item)
        if self._mode.public:
            held |= {window: held.get(window, {}) for window in range(self.plan.schedule.horizon)}
        return reference(held, self.plan, public_of(self._mode), in_order=True)

    def check(self) -> None:
        self._engine.run()
        assert len(self._announced) == self.plan.schedule.horizon * SHARDS
        (ended,) = self.ends
        assert ended == RunEnded("events", self.plan.schedule.horizon, len(self.answers))
        assert [self.answers[start] for start in sorted(self.answers)] == self.expected()
        assert not self._engine.waiting(), "state is freed"


# Each mode has a life, by turns with state in few pieces and in as many as there can be; most are for the night. "hits"
# finds a stream that acts on its first confirmation.
BY_DAY = ("hits", "contributions-sliding", "hits-sliding", "contributions-twice-sliding", "hits-from-noise-public")
IN_ORDER_MODES = [name for name, mode in MODES.items() if mode.choices.get("use") != "replay"]
LIVES = [
    pytest.param(mode, number % 2, marks=() if mode in BY_DAY else pytest.mark.nightly, id=mode)
    for number, mode in enumerate(IN_ORDER_MODES)
]


@pytest.mark.parametrize(("mode", "seed"), LIVES)
def test_one_answer_whatever_dies(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, mode: str, seed: int
) -> None:
    if seed == 1:
        cut_finely(monkeypatch)
    Stream(tmp_path, mode, seed, monkeypatch).check()


def cut_finely(patch: pytest.MonkeyPatch) -> None:
    """In as many pieces as there can be; and what is carried on is rewritten each time."""
    patch.setattr(turns, "_CHUNKS_BEFORE_REWRITING", -10_000)
    for name, module in list(sys.modules.items()):
        if name.startswith("dp_transforms.") and hasattr(module, "MOST_MESSAGE_BYTES"):
            patch.setattr(module, "MOST_MESSAGE_BYTES", 1)
    patch.setattr(user_budgets.BudgetEntries, "to_chunks", lambda entries: list(entries.messages(150)))


def test_who_does_not_wait_for_a_snapshot_is_found_out(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The seeds begin with the life that did it when this was written."""
    lives = (Stream(tmp_path, "hits", seed, monkeypatch, confirm=False) for seed in range(1, 40))
    assert any(map(is_contradicted, lives))


def is_contradicted(life: Stream) -> bool:
    try:
        life.check()
    except AssertionError as error:
        return "did not end" not in str(error)
    except ValueError as error:  # a state that is ahead of its window is refused
        return "damaged" in str(error)
    return False
