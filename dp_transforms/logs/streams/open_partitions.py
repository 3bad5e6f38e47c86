"""Open partitions: steps the partitions of a source by the wall clock, with readers that stay open between steps; what
an engine has confirmed; and the stop file.

A partition acts on an intent (`partition_progress`) only when no restart can forget it. Two confirmations are needed.
When a checkpoint is complete, Flink calls back for all bundles that have ended by then, including bundles that ended
after the checkpoint's barrier: the first call may be for such a bundle. The second question is asked after the first
call, so the checkpoint that answers it began after the intent was stored.
"""

from __future__ import annotations

import dataclasses
import os
import time

from dp_transforms.checks import on_one_line
from dp_transforms.core.planned_run import PlannedRun
from dp_transforms.core.public_items import PublicItemsTable
from dp_transforms.core.randomness import IdKeys
from dp_transforms.errors import StreamError
from dp_transforms.logs.streams.partition_poller import PartitionPoller, Step
from dp_transforms.logs.streams.partition_progress import PartitionProgress, StreamClock
from dp_transforms.logs.streams.stream_source import PartitionReader, StreamPartition

_CONFIRMATIONS = 2
_ASK_AGAIN_SECONDS = 30
# Until more has come: a step costs as much as thousands of records, and a message to each shard.
_GATHER_SECONDS, _GATHER_SECONDS_OF_SHARD = 0.1, 0.003
# Of this process: how often each intent was confirmed, and when each question was last asked, by (intent, number).
_CONFIRMED: dict[str, int] = {}
_ASKED: dict[tuple[str, int], float] = {}


@dataclasses.dataclass(frozen=True)
class Polling:
    """How the partitions of a stream are polled, in plain values.

    source: the fingerprint of the source. shards: of users. confirm: whether an intent waits until it is confirmed.
    stop_file, poll_seconds: as in `MonitorStream`.
    """

    partitions: dict[str, StreamPartition] = dataclasses.field(repr=False)  # may hold the settings of a client
    run: PlannedRun
    clock: StreamClock
    source: str
    shards: int
    confirm: bool
    stop_file: str | None
    poll_seconds: float


class OpenPartitions:
    """poller: steps one partition at a time."""

    def __init__(self, polling: Polling, keys: IdKeys, public_items: PublicItemsTable | None) -> None:
        self._polling = polling
        self._readers: dict[str, tuple[PartitionReader, int]] = {}
        self._stop_micros: int | None = None
        self.poller = PartitionPoller(
            polling.run,
            keys,
            polling.clock,
            polling.shards,
            domain=public_items,
            confirm=polling.confirm,
            source=polling.source,
        )

    def step(self, name: str, progress: PartitionProgress) -> Step:
        """One step. If the reader fails, it is closed and the error raised. The step has a marker only if the engine
        must be asked for it now."""
        now = now_micros()
        if name not in self._polling.partitions:
            raise StreamError(
                f"the source no longer has a partition {name!r}. Use the source that the run was started with."
            )
        if name not in self._readers:
            since_micros = self._polling.clock.first_arrival_micros(self._polling.run.plan.schedule)
            self._readers[name] = (self._polling.partitions[name].open(since_micros), now)
        reader, open_since = self._readers[name]
        asked = progress.intent
        try:
            step = self.poller.step(
                name,
                progress,
                reader,
                now,
                find_stop=self._find_stop,
                is_confirmed=asked is not None and _CONFIRMED.get(asked.name, 0) >= _CONFIRMATIONS,
                open_since_micros=open_since,
            )
        except BaseException:
            self.close_reader(name)
            raise
        if asked is not None and progress.intent is None:
            _forget(asked.name)
        if step.marker is not None and not _must_ask(step.marker):
            step.marker = None
        if progress.is_over:
            self.close_reader(name)
        return step

    def seconds_to_wait(self, step: Step) -> float:
        """Before the next step."""
        idle = self._polling.poll_seconds
        if not step.is_busy:
            return idle
        gather = max(_GATHER_SECONDS, self._polling.shards * _GATHER_SECONDS_OF_SHARD)
        return min(gather, idle) if step.is_drained else 0

    def close_reader(self, name: str) -> None:
        """If there is one."""
        if name in self._readers:
            reader, _ = self._readers.pop(name)
            reader.close()

    def close(self) -> None:
        for name in list(self._readers):
            self.close_reader(name)

    def _find_stop(self) -> int | None:
        """The last arrival that counts, if there is a stop file; else None. It follows from the change time of the
        file, which the kernel sets when the file appears. It is the same for all partitions here, whatever happens to
        the file after it was first seen."""
        if self._stop_micros is None and self._polling.stop_file is not None:
            try:
                asked_micros = os.lstat(self._polling.stop_file).st_ctime_ns // 1000
            except FileNotFoundError:
                return None
            except OSError as error:  # nobody knows whether a stop was requested, so nothing may be counted
                raise StreamError(
                    f"{on_one_line(self._polling.stop_file)}: it cannot be known whether the stop file is there"
                    f" ({error.strerror}). Let every worker see its folder, or name another with --stop-file."
                ) from None
            self._stop_micros = self._polling.clock.stop_micros(asked_micros)
        return self._stop_micros


def now_micros() -> int:
    return time.time_ns() // 1000


class Confirmation:
    """What the engine calls when it has stored the bundle that asked. Repeated calls count once."""

    def __init__(self, intent: str) -> None:
        self._intent = intent
        self._number = _CONFIRMED.get(intent, 0) + 1

    def __call__(self) -> None:
        _CONFIRMED[self._intent] = max(self._number, _CONFIRMED.get(self._intent, 0))


def _must_ask(intent: str) -> bool:
    """Whether this process has not asked for the next confirmation lately. If so, it counts as asked now."""
    now, question = time.monotonic(), (intent, _CONFIRMED.get(intent, 0))
    if now - _ASKED.get(question, -_ASK_AGAIN_SECONDS) < _ASK_AGAIN_SECONDS:
        return False
    _ASKED[question] = now
    return True


def _forget(intent: str) -> None:
    """It was acted on."""
    _CONFIRMED.pop(intent, None)
    for number in range(_CONFIRMATIONS):
        _ASKED.pop((intent, number), None)
