"""Kafka records through the real decoders, the poller and both clocks: others' pairs do not depend on x'."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest

from dp_transforms.logs import EventFields
from dp_transforms.logs.streams.kafka_topic import KafkaPartition, KafkaTopic
from tests.helpers.small_runs import MICROS, START, settings_of
from tests.neighbours import hostile_lines
from tests.neighbours.broker import Consumer, Message, Partition
from tests.neighbours.logs import ODD_USERS, as_json, odd_json_lines
from tests.neighbours.replayed import Pair, assert_same_pairs
from tests.neighbours.stepped import PLANS, Stepped, Treatment, WallClock
from tests.neighbours.stream_logs import CLOCKS, HISTORY_SECONDS, MILLI, Stamped, others, pairs_that_count, with_added


def some(source: random.Random, count: int = 60) -> list[bytes | None]:
    """Records of x'."""
    lines = [line for case in hostile_lines.JSON.values() for line in case[:20]]
    folded = [line.replace(b", ", b",\n") for line in lines if len(line) < 1_000]
    return source.choices([*lines, *folded, b"", None, b"\n", b"{\n}"], k=count)


class Case:
    """A log with x' in it and one without, stepped side by side, each with choices of its own.

    begin: the wall clock when reading begins, in seconds after the declared start. lag_millis: how long the broker
    takes to show a record.
    """

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        clock: str,
        added: Sequence[bytes | None],
        *,
        seed: int = 0,
        count: int = 300,
        where: str = "spread",
        plan: str = "fixed",
        begin: int = 0,
        lag_millis: int = 0,
    ) -> None:
        self._patch, self._clock, self._settings = monkeypatch, CLOCKS[clock], settings_of(PLANS[plan])
        self.deaths = 0
        self._seed, self._begin, self._lag = seed, (START + begin) * MICROS, lag_millis
        # Where events set the clock, their times must be in the order that guarantee.md wants: those are not.
        self.without = others(self._clock, as_json, seed, count, odd_json_lines() if clock != "event" else ())
        # Where events set the clock, none of the added ones may be ahead of it: those that can be read have this time.
        added_time = (START + 90 + HISTORY_SECONDS) * MICROS if clock == "event" else 0
        later = (number for number, record in enumerate(self.without) if record.micros >= added_time)
        self.mixed = with_added(self.without, added, seed, where=where, first=next(later))

    def check(self, last_arrival: int | None = None, **treatment: Any) -> None:
        """Both runs give the monitor the pairs of others that must count by each record alone, and no other."""
        expected = pairs_that_count(self.without, self._settings.schedule, self._clock, last_arrival)
        asked = self._asked(last_arrival)
        kept = [number for number, record in enumerate(self.mixed) if not record.is_added]
        odd: list[frozenset[Pair]] = []
        for log, offsets, seed in (
            (self.mixed, range(len(self.mixed)), 0),
            (self.without, range(len(self.without)), 1),
            (self.without, kept, 2),  # compacted: the added offsets are missing
        ):
            drawn = Treatment(3 * self._seed + seed, last_arrival=last_arrival, asked=asked, **treatment)
            self.run = self.stepped(log, offsets, drawn)
            self.deaths += self.run.deaths
            odd.append(frozenset(pair for pair in self.run.pairs if pair[1] in ODD_USERS))
            assert_same_pairs(self.run.pairs - odd[-1], expected)
            assert_same_pairs(odd[0], odd[-1])

    def _asked(self, last_arrival: int | None) -> int | None:
        return None if last_arrival is None else last_arrival - self._clock.out_of_order_micros - MICROS

    def stepped(self, log: Sequence[Stamped], offsets: Sequence[int], treatment: Treatment) -> Stepped:
        wall = WallClock(self._begin)
        messages = [Message(at, record.micros // MILLI, record.body) for at, record in zip(offsets, log, strict=True)]
        partition = Partition(messages, wall, self._lag)
        self._patch.setattr(KafkaTopic, "open_consumer", lambda *_, **__: Consumer(partition))
        read = KafkaPartition(KafkaTopic("b:1", "t", EventFields()), 0).open
        return Stepped(read, self._clock, wall, treatment, settings=self._settings)


BACKLOG = 10**10  # seconds: all has long arrived


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("clock", CLOCKS)
def test_a_backlog(monkeypatch: pytest.MonkeyPatch, clock: str, plan: str) -> None:
    source = random.Random(f"json {clock} {plan}")
    case = Case(monkeypatch, clock, some(source), seed=source.getrandbits(32), plan=plan, begin=BACKLOG)
    case.check(confirm=source.random() < 0.7)


@pytest.mark.parametrize(("clock", "begin", "confirm"), [("arrival, in order", 100, False), ("arrival", -5, True)])
def test_a_live_stream_with_pauses(monkeypatch: pytest.MonkeyPatch, clock: str, begin: int, confirm: bool) -> None:
    """Without x' the partition is idle where with x' it is not: windows close by the wall clock, or by the records."""
    source = random.Random(f"json {clock}")
    seed = source.getrandbits(32)
    case = Case(monkeypatch, clock, some(source, 40), seed=seed, count=150, begin=begin, lag_millis=3_500)
    case.check(jump_seconds=5, confirm=confirm, deaths=0.01)
    assert begin > 0 or case.run.intents > 0, "windows closed by the wall clock"


@pytest.mark.parametrize("clock", CLOCKS)
def test_a_drain_at_any_moment_in_a_backlog(monkeypatch: pytest.MonkeyPatch, clock: str) -> None:
    source = random.Random(f"json {clock}")
    case = Case(monkeypatch, clock, some(source, 200), seed=source.getrandbits(32), begin=BACKLOG)
    case.check(source.choice(case.mixed).micros, deaths=0.06)
    case.check(source.choice(case.mixed).micros, confirm=False)
    assert case.deaths > 0, "workers died, and others went on"


@pytest.mark.parametrize(("size", "clock"), [(1, "arrival"), (1_000, "arrival"), (1_000, "event"), (50_000, "arrival")])
def test_a_drain_whatever_the_size_of_a_poll(monkeypatch: pytest.MonkeyPatch, size: int, clock: str) -> None:
    """Many records of x' before those of the others: with them, as many of theirs lie behind the first poll."""
    added = [as_json(("x'", "A", (START + 1) * MICROS))] * min(100 * size, 1_000)
    source = random.Random(f"{size} {clock}")
    where, count = source.choice(["first", "spread"]), 150 if size == 1 else 1_500
    case = Case(monkeypatch, clock, added, count=count, where=where, begin=BACKLOG)
    case.check(case.without[-1].micros, polls=(size,), confirm=False)
    case.check(source.choice(case.without).micros, polls=(size, 700), deaths=0.01)
