"""A stop of a part that hands its state over: open windows are whole in the next part."""

from __future__ import annotations

import pytest

from dp_transforms.logs.streams.partition_progress import TakenWindows
from tests.helpers.growing_partitions import (
    CLOCKS,
    PLAN,
    case_of,
    counted_by_rule,
    ended_run,
)
from tests.helpers.small_runs import MICROS


def check_handover(seed: int, kind: str, confirm: bool) -> None:
    """A stop in a part of a run: what its windows hold is what they would hold without it, with and without x', and by
    the clock of arrival all partitions end before the same window, the first that a clock at the stop leaves open."""
    log, asked, _ = case_of(seed, kind, True)
    assert asked is not None
    stop = CLOCKS[kind].stop_micros(asked)
    first = seed % 3
    taken = TakenWindows(first, PLAN.schedule.horizon - seed % 2, hands_over=True)
    by_stop = sum(PLAN.schedule.window_end_micros(n) < stop - 11 * MICROS for n in range(PLAN.schedule.horizon))
    by_stop = min(max(by_stop, first), taken.end)
    without = [[one for one in part if not one.is_of_x] for part in log]
    for partitions, own_seed in ((log, seed), (without, seed + 1)):
        run = ended_run(partitions, kind, confirm, asked, own_seed, taken)
        assert all(set(partition.ends) == {partition.progress.next_window} for partition in run)
        ends = {partition.progress.next_window for partition in run}
        assert min(ends) >= by_stop
        assert kind == "event" or ends == {by_stop}
        for partition, part in zip(run, log, strict=True):
            expected = counted_by_rule(part, kind, stop if kind == "event" else None)
            assert {pair for pair in partition.counted if pair[0] < min(ends)} == {
                pair for pair in expected if first <= pair[0] < min(ends)
            }


@pytest.mark.parametrize("kind", ["arrival", "event"])
@pytest.mark.parametrize(
    "seed", [*range(12), *(pytest.param(seed, marks=pytest.mark.nightly) for seed in range(12, 90))]
)
def test_a_stop_leaves_open_windows_whole_to_the_next_part(kind: str, seed: int) -> None:
    for confirm in (False, True):
        check_handover(seed, kind, confirm)
