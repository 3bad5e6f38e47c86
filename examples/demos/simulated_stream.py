"""A simulated live stream for demos: stories that rise and fade within seconds.

Drawn with a seedable generator. Nothing here is private, and nothing private may use it.
"""

from __future__ import annotations

import dataclasses
import threading
import time

import numpy as np
import numpy.typing as npt

from examples.engines.engine_process import EngineError

_TICK_SECONDS = 0.05
_PAGES = 40
_STORIES = 60
_SECONDS_BETWEEN_STORIES = 7.0
_LIFE_SECONDS = 12.0  # how long a story is popular
_STORY_SHARE = 0.6  # of all events
_FLUSH_SECONDS = 10.0


@dataclasses.dataclass(frozen=True)
class LiveStream:
    """What is simulated: events a second, users, and the partitions of the topic."""

    events_per_second: int
    users: int
    partitions: int
    seed: int = 1


class LiveStreamWriter:
    """Writes JSON events to a topic in a thread, each with the current time, while the block runs. `check` raises the
    error of the thread, if it failed."""

    def __init__(self, stream: LiveStream, bootstrap_servers: str, topic: str) -> None:
        self._stream = stream
        self._bootstrap_servers = bootstrap_servers
        self._topic = topic
        self._stopped = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="live stream", daemon=True)
        self.written = 0

    def __enter__(self) -> LiveStreamWriter:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join()

    def check(self) -> None:
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        from confluent_kafka import Producer

        try:
            producer = Producer(
                {"bootstrap.servers": self._bootstrap_servers, "enable.idempotence": True, "log_level": 0}
            )
            random = np.random.default_rng(self._stream.seed)
            begin = time.monotonic()
            while not self._stopped.wait(_TICK_SECONDS):
                passed = time.monotonic() - begin
                count = int(passed * self._stream.events_per_second) - self.written
                for partition, value in live_events(self._stream, passed, count, time.time(), random):
                    producer.produce(self._topic, value, partition=partition)
                producer.poll(0)
                self.written += count
            if producer.flush(_FLUSH_SECONDS):
                raise EngineError(f"the broker did not take all events in {_FLUSH_SECONDS:g} s.")
        except BaseException as error:
            self._error = error


def live_events(
    stream: LiveStream, passed_seconds: float, count: int, now_seconds: float, random: np.random.Generator
) -> list[tuple[int, bytes]]:
    """``(partition, JSON)`` of events that happen now. passed_seconds: since the start of the stream."""
    moment = np.datetime64(int(now_seconds * 1000), "ms")
    users = (random.random(count) ** 2 * stream.users).astype(np.int64)
    items = np.minimum(np.searchsorted(np.cumsum(_shares(passed_seconds)), random.random(count)), _PAGES + _STORIES - 1)
    partitions = users % stream.partitions  # all events of a user in one partition, as a producer with keys does it
    return [
        (partition, f'{{"user":"u{user:06d}","item":"{_name(item)}","timestamp":"{moment}Z"}}'.encode())
        for partition, user, item in zip(partitions.tolist(), users.tolist(), items.tolist(), strict=True)
    ]


def _shares(passed_seconds: float) -> npt.NDArray[np.float64]:
    """The share of each item: pages that stay, and stories that begin every few seconds and fade."""
    pages = 1.0 / np.arange(1, _PAGES + 1)
    cycle = _STORIES * _SECONDS_BETWEEN_STORIES
    age = (passed_seconds - np.arange(_STORIES) * _SECONDS_BETWEEN_STORIES + cycle / 2) % cycle - cycle / 2
    stories = np.exp(-0.5 * (age / (_LIFE_SECONDS / 2)) ** 2) * (1.0 + np.arange(_STORIES) % 3)
    shares: npt.NDArray[np.float64] = np.concatenate(
        [pages * ((1 - _STORY_SHARE) / pages.sum()), stories * (_STORY_SHARE / stories.sum())]
    )
    return shares


def _name(item: int) -> str:
    return f"page-{item + 1:02d}" if item < _PAGES else f"story-{item - _PAGES + 1:02d}"
