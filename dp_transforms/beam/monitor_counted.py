"""Monitor by counting: complete groups of candidates -> window reports, strictly in the order of the windows."""

from __future__ import annotations

import itertools
import math
import struct
from collections.abc import Iterator
from typing import Any

import apache_beam as beam
from apache_beam.coders import BytesCoder, ListCoder, TupleCoder, VarIntCoder
from apache_beam.transforms.userstate import BagStateSpec, ReadModifyWriteStateSpec

from dp_transforms.beam.close_windows import ClosingDoFn, read_progress
from dp_transforms.beam.count_for_operator import PENDING_WINDOWS, operator_gauge
from dp_transforms.monitoring.counted_messages import MOST_MESSAGE_BYTES, Group, batches_of_blobs
from dp_transforms.monitoring.monitor_settings import MonitorSettings
from dp_transforms.monitoring.window_report import RunEnded

_LEAST_NEAR_WINDOWS = 64
ENDED = "ended"  # tag of the second output
# A window, how many parts it has, and the packed candidates of this part. Most windows have one part.
Part = tuple[int, int, list[bytes]]
_PART_CODER = TupleCoder([VarIntCoder(), VarIntCoder(), ListCoder(BytesCoder())])


class MonitorCounted(beam.PTransform):
    """``((window, 0), packed candidates)`` -> `WindowReport`, and `RunEnded` tagged `ENDED`."""

    def __init__(self, settings: MonitorSettings, noise_key: beam.Secret) -> None:
        super().__init__()
        self._do_fn = CountedMonitorDoFn(settings, noise_key)
        self._stream = settings.stream

    def expand(self, windows: beam.PCollection) -> beam.pvalue.DoOutputsTuple:
        return (
            windows
            | "OneKey" >> beam.FlatMap(parts_of_window, self._stream).with_output_types(tuple[str, Part])
            | "CloseWindows" >> beam.ParDo(self._do_fn).with_outputs(ENDED, main="reports")
        )


def parts_of_window(group: Group, stream: str) -> Iterator[tuple[str, Part]]:
    """The candidates of a window, keyed by stream, in elements that engines accept."""
    (window, _), blobs = group
    batches = batches_of_blobs(blobs, MOST_MESSAGE_BYTES)
    for batch in batches:
        yield stream, (window, len(batches), batch)


class CountedMonitorDoFn(ClosingDoFn):
    """Stateful, keyed by stream, without timers: closes each window when it has come and all before it are closed.

    A window that comes before its turn waits. Windows whose turn is soon wait apart from the others, so that the state
    that is read often stays small. Candidates for a closed window, or a second time, are dropped and counted.
    """

    NEAR = BagStateSpec("near_v1", _PART_CODER)
    FAR = BagStateSpec("far_v1", _PART_CODER)
    WAITING = ReadModifyWriteStateSpec("waiting_v1", BytesCoder())

    def __init__(self, settings: MonitorSettings, noise_key: beam.Secret) -> None:
        super().__init__(settings, noise_key)
        self._pending_windows = operator_gauge(PENDING_WINDOWS)

    def process(
        self,
        element: tuple[str, Part],
        near: Any = beam.DoFn.StateParam(NEAR),
        far: Any = beam.DoFn.StateParam(FAR),
        waiting: Any = beam.DoFn.StateParam(WAITING),
        budgets: Any = beam.DoFn.StateParam(ClosingDoFn.BUDGETS),
        progress: Any = beam.DoFn.StateParam(ClosingDoFn.PROGRESS),
    ) -> Iterator[object]:
        stream, part = element
        window, parts, _ = part
        next_window, _, _ = read_progress(progress)
        if window < next_window:
            self._late.inc()
            return
        queue = _WaitingWindows(near, far, waiting.read())
        if (window, parts) == (next_window, 1):
            due = [[part], *queue.take_from(window + 1)]
        else:
            queue.add(part)
            due = queue.take_from(window) if window == next_window else []
        self._late.inc(queue.dropped)
        waiting.write(queue.to_bytes())
        self._pending_windows.set(len(queue))
        if not due:
            return
        last = due[-1][0][0]
        slabs = [(of_one[0][0], blobs) for of_one in due if (blobs := [blob for part in of_one for blob in part[2]])]
        yield from self.close_slabs(slabs, budgets, progress, next_window=last + 1)
        self._closed.inc(len(due))
        if last + 1 == self._settings.schedule.horizon:
            _, _, reports = read_progress(progress)
            yield beam.pvalue.TaggedOutput(ENDED, RunEnded(stream, last + 1, reports))


class _WaitingWindows:
    """Parts of windows before their turn, in two bags: ``near`` holds windows before ``near_end``, ``far`` the rest.

    In whatever order the windows come, each one is seldom read from ``far``, and ``near`` stays small.
    """

    _FIELDS = struct.Struct("<qqq")

    def __init__(self, near: Any, far: Any, data: bytes | None) -> None:
        self._near = near
        self._far = far
        self._near_end, self._in_near, self._in_far = self._FIELDS.unpack(data or bytes(self._FIELDS.size))
        self.dropped = 0  # parts that came twice

    def __len__(self) -> int:
        return int(self._in_near + self._in_far)

    def to_bytes(self) -> bytes:
        return self._FIELDS.pack(self._near_end, self._in_near, self._in_far)

    def add(self, part: Part) -> None:
        if part[0] < self._near_end:
            self._near.add(part)
            self._in_near += 1
        else:
            self._far.add(part)
            self._in_far += 1

    def take_from(self, window: int) -> list[list[Part]]:
        """Takes out the complete windows from ``window`` on, in order, up to the first gap. No earlier one may wait."""
        taken: list[list[Part]] = []
        while True:
            kept: dict[int, list[Part]] = {}
            for part in self._near.read() if self._in_near else ():
                kept.setdefault(part[0], []).append(part)
            before = len(taken)
            while window in kept and len(kept[window]) >= kept[window][0][1]:
                parts = kept.pop(window)
                taken.append(parts[: parts[0][1]])
                self.dropped += len(parts) - len(taken[-1])
                window += 1
            if len(taken) > before:
                self._near.clear()
                self._in_near = 0
                for part in itertools.chain.from_iterable(kept.values()):
                    self.add(part)
            if window < self._near_end or not self._in_far:
                return taken
            self._refill(window)

    def _refill(self, window: int) -> None:
        """Moves the windows whose turn is soon from ``far`` to ``near``, which is empty."""
        self._near_end = window + max(_LEAST_NEAR_WINDOWS, 2 * math.isqrt(self._in_far))
        parts = list(self._far.read())
        self._far.clear()
        self._in_far = 0
        for part in parts:
            self.add(part)
