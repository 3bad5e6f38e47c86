"""`CloseByWatermark` on state that the test holds: each window is announced once, with all that came in time."""

import random

import numpy as np
import pytest

from dp_transforms.beam import close_by_watermark
from dp_transforms.beam.close_by_watermark import CloseByWatermarkDoFn
from tests.helpers.do_fn_state import Bag, Cell, Timer
from tests.helpers.looks_plans import small_looks_plan


@pytest.mark.parametrize("near", [64, 1, 4])
@pytest.mark.parametrize("seed", range(6))
def test_bundles_that_die_and_run_again_announce_each_window_once(seed, near, monkeypatch):
    """The step by itself: state and timer are stored together with what is sent, or nothing is. near: windows whose
    messages are counted apart from those of the windows behind them."""
    monkeypatch.setattr(close_by_watermark, "_LEAST_NEAR_WINDOWS", near)
    monkeypatch.setattr(close_by_watermark, "_FIRST", np.array([0, near], dtype="<i8").tobytes())
    schedule = small_looks_plan(30).schedule
    source = random.Random(seed)
    do_fn, cell, later, alarm = CloseByWatermarkDoFn(schedule), Cell(), Bag(), Timer()
    waiting = sorted(source.randrange(30) for _ in range(120))
    in_time, sent, announced, watermark = dict.fromkeys(range(30), 0), dict.fromkeys(range(30), 0), [], -1

    def keep(messages):
        for shard, (window, number, blob) in messages:
            assert shard == 2
            assert window not in announced, "nothing comes behind the announcement"
            sent[window] += not number
            if number:
                announced.append(window)
                assert (number, blob) == (sent[window] + 1, b"")

    def bundle(run):
        before = cell.content, list(later.content), alarm.at
        while source.random() < 0.3:  # it dies when it is done, and nothing is kept
            run()
            cell.content, later.content, alarm.at = before[0], list(before[1]), before[2]
        return run()

    list(do_fn.process((2, (-1, b"")), cell, later, alarm))
    while len(announced) < 30:
        if waiting and source.random() < 0.6:
            window = waiting.pop(source.randrange(min(len(waiting), 9)))
            in_time[window] += window > watermark
            keep(bundle(lambda window=window: list(do_fn.process((2, (window, b"pairs")), cell, later, alarm))))
        else:
            watermark += source.choice([0, 1, 1, 5])
        while alarm.at is not None and alarm.at.micros < schedule.window_end_micros(watermark):

            def ring():
                alarm.at = None
                return [output.value for output in do_fn.announce_window(2, cell, later, alarm)]

            keep(bundle(ring))
    assert announced == list(range(30))
    assert sent == in_time


def test_what_a_message_writes_does_not_grow_with_the_windows_ahead():
    """The messages of 9,000 windows come before the first of these closes."""
    plan, written = small_looks_plan(9000), []

    class Measured(Cell):
        def write(self, value):
            written.append(len(value))
            super().write(value)

    do_fn, cell, later, alarm = CloseByWatermarkDoFn(plan.schedule), Measured(), Bag(), Timer()
    list(do_fn.process((0, (-1, b"")), cell, later, alarm))
    for window in (*range(9000), *range(8999, -1, -3)):
        list(do_fn.process((0, (window, b"pairs")), cell, later, alarm))
    assert max(written) <= 16 + 16 * 64
    counts = [
        output.value[1].announced - 1 for _ in range(9000) for output in do_fn.announce_window(0, cell, later, alarm)
    ]
    assert counts == [2 if window % 3 == 2 else 1 for window in range(9000)]
    assert max(written) <= 16 + 32 * 9000**0.5
    assert later.content == []
