"""Whole bounded pipelines publish the oracle's transcript, however the work is cut, ordered, repeated or spread."""

from __future__ import annotations

import ast
import random

import apache_beam as beam
import pytest

from dp_transforms.operator_counters import EVENTS_OUTSIDE_RANGE, EVENTS_READ, operator_counts
from dp_transforms.shifting_heavy_hitters import ShiftingHeavyHitters
from tests.oracle import oracle_reports, oracle_transcript
from tests.pipeline_helpers import (
    MICROS,
    RUN_ID,
    SECRET,
    START,
    Collected,
    batches_of,
    batches_source,
    key_file,
    local_pipeline,
    plain,
    random_log,
    rebuilt,
    run_monitor,
    settings_of,
    small_plan,
    thousand_windows,
)

MODES = [
    pytest.param(release, sliding, limit, id=f"{release}-{'sliding' if sliding > 1 else 'fixed'}-{limit}")
    for release in ("counts", "labels")
    for sliding in (1, 3)
    for limit in (1, 3)
]
TWO_PROCESSES = ("--direct_running_mode=multi_processing", "--direct_num_workers=2")
REPEATED = ("--direct_runner_bundle_repeat=1",)


def plan_of(release="labels", sliding=3, limit=1):
    return small_plan(release=release, sliding=sliding, max_items_per_user=limit, hits_per_user=2)


@pytest.mark.parametrize(("release", "sliding", "limit"), MODES)
def test_transcript_equals_oracle(tmp_path, release, sliding, limit):
    plan = plan_of(release, sliding, limit)
    log = random_log(plan, seed=4)
    expected = oracle_transcript(log, settings_of(plan), SECRET)
    assert expected.reports
    assert expected.bounded
    assert expected.kept_out > 0

    found = run_monitor(batches_source(batches_of(log, 300)), plan, noise_key=key_file(tmp_path))

    assert found.reports == expected.reports
    assert [stamp.micros for _, stamp in found.stamped] == [report.window_end - 1 for report in expected.reports]
    assert found.rejected == []
    declared = range(plan.schedule.start_seconds * MICROS, plan.schedule.end_seconds * MICROS)
    outside = sum(time not in declared for _, _, time in log)
    assert outside > 0
    assert operator_counts(found.result) == {EVENTS_READ: len(log), EVENTS_OUTSIDE_RANGE: outside}


def test_transcript_does_not_depend_on_how_the_work_is_cut(tmp_path):
    """One pipeline, a branch for each number of shards, size of a batch and order; also the default for a file."""
    plan = plan_of()
    log = random_log(plan, seed=5)
    expected = oracle_reports(log, settings_of(plan), SECRET)
    shuffled = random.Random(6).sample(log, len(log))
    by_user, backwards = sorted(log), log[::-1]
    cuts = {
        "one shard, one batch": (1, batches_of(log, len(log))),
        "three shards, small batches": (3, batches_of(shuffled, 61)),
        "seven shards, tiny batches": (7, batches_of(by_user, 23)),
        "default shards, batches backwards": (None, batches_of(backwards, 400)[::-1]),
        "an event in two batches": (None, [*batches_of(log, 500), *batches_of(shuffled, 700)]),
    }
    pipeline, key, found = local_pipeline(), key_file(tmp_path), {}
    for name, (shards, batches) in cuts.items():
        found[name] = Collected()
        monitored = batches_source(batches)(
            LabelledPipeline(pipeline, name)
        ) | f"Monitor {name}" >> ShiftingHeavyHitters(plan, noise_key=key, run_id=RUN_ID, shards=shards)
        _ = monitored.reports | f"Reports {name}" >> found[name].sink()
    pipeline.run().wait_until_finish()

    assert expected
    for name, reports in found.items():
        assert reports.values == expected, name


class LabelledPipeline:
    """Lets the same source stand several times in one pipeline."""

    def __init__(self, pipeline, name):
        self._pipeline = pipeline
        self._name = name

    def __or__(self, transform):
        return self._pipeline | f"{transform.label} {self._name}" >> transform


def test_a_bundle_that_runs_twice_publishes_one_answer(tmp_path):
    """A sink fused to the drawing stages sees both attempts; fresh noise would show an observer two counts."""
    plan = plan_of("counts", 1)
    log = random_log(plan, seed=7)
    found = run_monitor(
        batches_source(batches_of(log, 200)), plan, flags=REPEATED, noise_key=key_file(tmp_path), shards=3
    )
    expected = oracle_reports(log, settings_of(plan), SECRET)
    assert expected
    assert found.reports == expected * 2


def test_a_bundle_that_runs_twice_under_a_fresh_key_publishes_one_answer():
    plan = plan_of("counts", 3)
    log = random_log(plan, seed=8)
    found = run_monitor(batches_source(batches_of(log, 200)), plan, flags=REPEATED)
    half = len(found.reports) // 2
    assert half > 0
    assert found.reports[:half] == found.reports[half:]


class ForgetfulDraw(beam.DoFn):
    """What the monitor must not be: noise of its own for each attempt."""

    def process(self, element):
        yield element, random.SystemRandom().getrandbits(64)


def test_the_runner_does_repeat_the_bundles():
    """The two tests above could not fail if the flag did nothing: fresh noise is seen twice."""
    pipeline, found = local_pipeline(REPEATED), Collected()
    _ = pipeline | beam.Create([1]) | beam.Reshuffle() | beam.ParDo(ForgetfulDraw()) | found.sink()
    pipeline.run().wait_until_finish()
    assert len(found.values) == 2
    assert found.values[0] != found.values[1]


def test_workers_in_other_processes_share_the_key_file(tmp_path):
    plan = plan_of("labels", 3)
    log = random_log(plan, seed=9)
    pipeline = local_pipeline(TWO_PROCESSES)
    found = batches_source(batches_of(log, 100))(pipeline) | "Monitor" >> ShiftingHeavyHitters(
        plan, noise_key=key_file(tmp_path), run_id=RUN_ID
    )
    _ = (
        found.reports
        | "Plain" >> beam.Map(lambda report: repr(plain(report)))
        | "Write" >> beam.io.WriteToText(str(tmp_path / "reports"), shard_name_template="")
    )
    pipeline.run().wait_until_finish()
    lines = (tmp_path / "reports").read_text().splitlines()
    assert sorted(rebuilt(ast.literal_eval(line)) for line in lines) == oracle_reports(log, settings_of(plan), SECRET)


def test_a_thousand_shuffled_windows_come_out_in_order(tmp_path):
    """A third of the windows is empty, a third quiet, a third heavy, until the users are exhausted."""
    plan = small_plan(1000, hits_per_user=3, max_items_per_user=3)
    log = thousand_windows()
    expected = oracle_transcript(log, settings_of(plan), SECRET)
    assert len(expected.reports) > 200
    assert expected.kept_out > 0

    found = run_monitor(batches_source(batches_of(log, 97)), plan, noise_key=key_file(tmp_path))

    starts = [report.window_start for report in found.reports]
    assert starts == sorted(set(starts))
    assert found.reports == expected.reports


def test_empty_windows_quiet_windows_and_outside_events_look_the_same(tmp_path):
    """One log has heavy items in two windows and nothing else; the other has single users all over and much outside."""
    plan = small_plan(60, release="counts", hits_per_user=2)
    heavy = [(f"u{user}", "news", (START + 60 * window + user) * MICROS) for window in (7, 41) for user in range(40)]
    source = random.Random(11)
    quiet = [
        (f"quiet-{number}", f"rare-{number}", source.randrange(START * MICROS, (START + 3600) * MICROS))
        for number in range(200)
    ]
    outside = [
        (f"u{user}", "outside", time)
        for user in range(40)
        for time in (START * MICROS - 1, (START + 3600) * MICROS, -(2**63), 2**63 - 1)
    ]
    pipeline, key = local_pipeline(), key_file(tmp_path)
    found = {}
    for name, log in {"bare": heavy, "full": [*outside, *heavy, *quiet]}.items():
        found[name] = Collected()
        monitored = batches_source([*batches_of(log, 90)])(LabelledPipeline(pipeline, name)) | f"Monitor {name}" >> (
            ShiftingHeavyHitters(plan, noise_key=key, run_id=RUN_ID)
        )
        _ = monitored.reports | f"Reports {name}" >> found[name].sink()
    result = pipeline.run()
    result.wait_until_finish()

    assert found["bare"].stamped == found["full"].stamped
    assert [(report.window_start // MICROS - START) // 60 for report in found["full"].values] == [7, 41]
    assert operator_counts(result)[EVENTS_OUTSIDE_RANGE] == len(outside)


def test_no_events_at_all_is_no_report(tmp_path):
    plan = plan_of()
    found = run_monitor(batches_source([]), plan, noise_key=key_file(tmp_path))
    assert (found.reports, found.rejected) == ([], [])
