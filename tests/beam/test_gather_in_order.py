"""What one complete group sends on to a step that takes windows in order."""

from __future__ import annotations

from dp_transforms.beam.gather_in_order import parts_of_window, take_turn
from dp_transforms.monitor.counted_messages import MOST_MESSAGE_BYTES
from tests.helpers.do_fn_state import Bag, Cell


def test_a_window_with_large_blobs_that_came_twice_has_its_turn():
    """Two parts with one content count as one. So a source that delivers a batch twice could stop the run for ever."""
    blob, other = bytes([1]) * (MOST_MESSAGE_BYTES * 2 // 3), bytes([2]) * (MOST_MESSAGE_BYTES * 2 // 3)
    near, far, waiting = Bag(), Bag(), Cell()
    windows = []
    for _, part in parts_of_window(((0, 0), [blob, other, blob, other]), "events"):
        windows += take_turn(part, 0, near, far, waiting).windows
    assert [(window, set(blobs)) for window, blobs in windows] == [(0, {blob, other})]
