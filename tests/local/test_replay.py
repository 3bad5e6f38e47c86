"""`LocalReplay` of parts of a run: what is counted and refused. What they publish: tests/conformance."""

import pytest

from dp_transforms.beam.monitor_stream import MonitorStream
from dp_transforms.core.operator_counts import EVENTS_OUTSIDE_RANGE
from dp_transforms.core.planned_run import PlannedRun, RunPart
from dp_transforms.core.stages import stages_of
from dp_transforms.local.pool import ProcessPool, ThisProcess
from dp_transforms.local.replay import LocalReplay
from dp_transforms.runs.state_file import StateFile, StoredPart
from tests.helpers.contributions_plans import small_contributions_plan
from tests.helpers.memory_stream import MemoryStream
from tests.helpers.modes import plan_in_rounds
from tests.helpers.parts import Parts
from tests.helpers.small_runs import MICROS, SECRET, START, ordered_log


def test_worker_processes_take_a_part_as_this_one_does(tmp_path):
    """They find the state before the part, and have the key."""
    plan = small_contributions_plan(12, forget_after=4)
    log = ordered_log(plan, 6, 500)
    here, there = Parts(tmp_path / "here", plan), Parts(tmp_path / "there", plan)
    with ProcessPool(2, 0, SECRET) as pool:
        for parts, workers in ((here, ThisProcess(SECRET)), (there, pool)):
            parts.take(4, log)
            parts.take(12, log, workers=workers)
    assert there.states[-1].read_bytes() == here.states[-1].read_bytes()


class Backwards(ThisProcess):
    """The last task is done first."""

    def run(self, step, elements):
        return reversed(list(super().run(step, elements)))


class Echo:
    def start(self, secret):
        return lambda element, counts: [element]


def test_what_is_done_in_any_order_comes_in_that_of_the_log():
    run = PlannedRun(plan=small_contributions_plan(12), stream="events", run_id="r")
    assert list(LocalReplay(run, Backwards(SECRET))._outputs("reading", Echo(), "abc", 3)) == ["a", "b", "c"]


def test_events_outside_of_the_part_are_skipped_and_counted(tmp_path):
    """With sliding windows an event may lie in windows of two parts, and counts in both."""
    plan = small_contributions_plan(12, sliding=3)
    slide = plan.schedule.slide_seconds
    log = [("u", "i", (START + slide * number) * MICROS) for number in range(12)]  # event n in windows n, n + 1, n + 2
    parts = Parts(tmp_path / "run", plan)
    for end, outside in ((5, 7), (6, 9), (14, 4)):
        parts.take(end, log)
        assert parts.counts[EVENTS_OUTSIDE_RANGE] == outside


def test_a_part_must_lie_in_the_plan_and_rounds_in_no_stream():
    plan = small_contributions_plan(12)
    with pytest.raises(ValueError, match="not windows of the plan"):
        LocalReplay(PlannedRun(plan=plan, stream="events", run_id="r"), ThisProcess(SECRET), part=RunPart(3, 13))
    rounds = plan_in_rounds(plan.schedule, delta=1e-6, usual_contributions=(1, 10))
    for in_order in (
        lambda: MonitorStream(MemoryStream.of([[]]), rounds, run_id="r", noise_key="k"),
        lambda: stages_of(PlannedRun(plan=rounds, stream="events", run_id="r"), None),
    ):
        with pytest.raises(ValueError, match="rounds cannot be used with a stream"):
            in_order()


def test_a_worker_refuses_a_state_that_was_exchanged(tmp_path):
    plan = small_contributions_plan(12)
    log = ordered_log(plan, 6, 200)
    parts, others = Parts(tmp_path / "run", plan), Parts(tmp_path / "other", plan)
    parts.take(3, log)
    others.take(3, log[:50])
    fingerprint = StateFile(parts.states[-1]).fingerprint
    part = StoredPart(3, 6, state_path=str(others.states[-1]), state_fingerprint=fingerprint)
    with pytest.raises(ValueError, match="not the state that this part began with"):
        part.state()
