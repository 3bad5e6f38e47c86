"""Monitor by counting: complete groups of candidates -> window reports, strictly in the order of the windows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import apache_beam as beam

from dp_transforms.beam.close_windows import ClosingDoFn, read_progress, write_progress
from dp_transforms.beam.gather_in_order import FAR, NEAR, WAITING, Part, parts_of_window, take_turn
from dp_transforms.beam.set_up_workers import operator_gauge
from dp_transforms.beam.write_state import STATE, state_messages
from dp_transforms.monitor.hit_settings import are_followed
from dp_transforms.monitor.known_items import KnownItems
from dp_transforms.monitor.monitor_settings import MonitorSettings
from dp_transforms.monitor.naming_settings import NamingSettings
from dp_transforms.monitor.operator_counts import PENDING_WINDOWS
from dp_transforms.monitor.user_budgets import UserBudgets
from dp_transforms.monitor.window_report import RunEnded
from dp_transforms.runs.run_part import RunPart
from dp_transforms.runs.state_cells import (
    Kind,
    budget_cells,
    hit_bound_cell,
    hits_of_cell,
    known_cells,
    pack_cell,
)

ENDED = "ended"  # tag of the second output


class MonitorCounted(beam.PTransform):
    """``((window, 0), packed candidates)`` -> `WindowReport`, and `RunEnded` tagged `ENDED`.

    part: of a run that is taken in parts. What it hands over is tagged `STATE`.
    """

    def __init__(
        self, settings: MonitorSettings | NamingSettings, noise_key: beam.Secret, part: RunPart | None = None
    ) -> None:
        super().__init__()
        self._do_fn = CountedMonitorDoFn(settings, noise_key, part)
        self._stream = settings.stream

    def expand(self, windows: beam.PCollection) -> beam.pvalue.DoOutputsTuple:
        return (
            windows
            | "OneKey" >> beam.FlatMap(parts_of_window, self._stream).with_output_types(tuple[str, Part])
            | "CloseWindows" >> beam.ParDo(self._do_fn).with_outputs(ENDED, STATE, main="reports")
        )


class CountedMonitorDoFn(ClosingDoFn):
    """Stateful, keyed by stream, without timers: closes each window when it has come and all before it are closed.

    Candidates for a closed window, or a second time, are dropped and counted.
    """

    def __init__(
        self, settings: MonitorSettings | NamingSettings, noise_key: beam.Secret, part: RunPart | None = None
    ) -> None:
        super().__init__(settings, noise_key)
        self._part, self._is_whole = part or RunPart.whole(settings.schedule), part is None
        self._pending_windows = operator_gauge(PENDING_WINDOWS)

    def process(
        self,
        element: tuple[str, Part],
        near: Any = beam.DoFn.StateParam(NEAR),
        far: Any = beam.DoFn.StateParam(FAR),
        waiting: Any = beam.DoFn.StateParam(WAITING),
        budgets: Any = beam.DoFn.StateParam(ClosingDoFn.BUDGETS),
        progress: Any = beam.DoFn.StateParam(ClosingDoFn.PROGRESS),
        known: Any = beam.DoFn.StateParam(ClosingDoFn.KNOWN),
    ) -> Iterator[object]:
        stream, part = element
        if progress.read() is None:
            self._load(budgets, progress, known)
        next_window, _, _ = read_progress(progress)
        turn = take_turn(part, next_window, near, far, waiting)
        self._late.inc(turn.dropped)
        if turn.waiting is not None:
            self._pending_windows.set(turn.waiting)
        if not turn:
            return
        end = next_window + len(turn.windows)
        slabs = [(window, blobs) for window, blobs in turn.windows if blobs]
        yield from self.close_slabs(slabs, budgets, progress, known, next_window=end)
        self._closed.inc(len(turn.windows))
        if end == self._part.end if self._is_whole else turn.ends:
            _, hit_bound, reports = read_progress(progress)
            if turn.ends:
                yield from state_messages(end, self._packed(budgets, known, hit_bound))
            yield beam.pvalue.TaggedOutput(ENDED, RunEnded(stream, end, reports))

    def _load(self, budgets: Any, progress: Any, known: Any) -> None:
        """Puts what is carried into the part into the state."""
        for blob in self._part.all_hits():
            budgets.add(blob)
        if are_followed(self._settings):
            for cell in self._part.known(Kind.KNOWN).to_cells():
                known.add(cell)
        write_progress(progress, self._part.first, self._part.hit_bound, 0)

    def _packed(self, budgets: Any, known: Any, hit_bound: int) -> list[bytes]:
        """What is carried on after the part."""
        found = [pack_cell(Kind.HIT_BOUND, 0, hit_bound_cell(hit_bound))]
        for blob in UserBudgets(budgets.read()).to_blobs():
            found += [pack_cell(Kind.BUDGETS, *cell) for cell in budget_cells(*hits_of_cell(blob))]
        if are_followed(self._settings):
            found += [pack_cell(Kind.KNOWN, *cell) for cell in known_cells(KnownItems.from_cells(known.read()))]
        return found
