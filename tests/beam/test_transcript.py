"""Whole bounded pipelines publish the oracle's transcript, however the work is cut, ordered, repeated or spread."""

from __future__ import annotations

import ast
import random

import apache_beam as beam
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dp_transforms.beam.read_events import ReadEvents
from dp_transforms.beam.release_heavy_hitters import ShiftingHeavyHitters
from dp_transforms.beam.set_up_workers import operator_counts
from dp_transforms.logs import EventFields, find_log_chunks
from dp_transforms.monitor.item_domain import ItemDomain
from dp_transforms.monitor.operator_counts import EVENTS_OUTSIDE_RANGE, EVENTS_READ
from tests.helpers.beam_pipelines import (
    Branches,
    Collected,
    batches_source,
    local_pipeline,
    plain,
    rebuilt,
    run_monitor,
    values,
)
from tests.helpers.oracle import oracle_reports, oracle_transcript
from tests.helpers.small_runs import (
    MICROS,
    RUN_ID,
    SECRET,
    START,
    batches_of,
    key_file,
    random_log,
    settings_of,
    small_plan,
    thousand_windows,
)

DOMAIN = (*(f"item-{number}" for number in range(0, 12, 2)), *(f"nobody's-{number}" for number in range(30)))
TWO_PROCESSES = ("--direct_running_mode=multi_processing", "--direct_num_workers=2")
REPEATED = ("--direct_runner_bundle_repeat=1",)


def plan_of(release="labels", sliding=3, limit=1):
    return small_plan(release=release, sliding=sliding, max_items_per_user=limit, hits_per_user=2)


@pytest.mark.parametrize("release", ["counts", "labels"])
@pytest.mark.parametrize("sliding", [1, 3])
def test_transcript_equals_oracle(tmp_path, release, sliding):
    branches, key, expected, logs = Branches(), key_file(tmp_path), {}, {}
    for limit in (1, 3):
        plan = plan_of(release, sliding, limit)
        logs[limit] = random_log(plan, seed=3 + limit)
        expected[f"L = {limit}"] = oracle_transcript(logs[limit], settings_of(plan), SECRET)
        branches.add(f"L = {limit}", batches_of(logs[limit], 300), plan, noise_key=key)
    found, result = branches.run()

    for name, transcript in expected.items():
        assert transcript.reports
        assert transcript.bounded
        assert transcript.kept_out > 0
        assert values(found[name]) == transcript.reports, name
        assert [stamp.micros for _, stamp in found[name]] == [report.window_end - 1 for report in transcript.reports]
    declared = range(plan.schedule.start_seconds * MICROS, plan.schedule.end_seconds * MICROS)
    outside = sum(time not in declared for log in logs.values() for _, _, time in log)
    assert outside > 0
    read = sum(len(log) for log in logs.values())
    assert operator_counts(result) == {EVENTS_READ: read, EVENTS_OUTSIDE_RANGE: outside}


def test_transcript_does_not_depend_on_how_the_work_is_cut(tmp_path):
    """One pipeline, a branch for each number of shards, size of a batch and order."""
    plan = plan_of()
    log = random_log(plan, seed=5)
    shuffled = random.Random(6).sample(log, len(log))
    cuts = {
        "one shard, one batch": (1, batches_of(log, len(log))),
        "three shards, small batches": (3, batches_of(shuffled, 61)),
        "seven shards, tiny batches": (7, batches_of(sorted(log), 23)),
        "default shards, backwards": (None, batches_of(log[::-1], 400)[::-1]),
        "each event in two batches": (None, [*batches_of(log, 500), *batches_of(shuffled, 700)]),
    }
    branches, key = Branches(), key_file(tmp_path)
    for name, (shards, batches) in cuts.items():
        branches.add(name, batches, plan, noise_key=key, shards=shards)
    found, _ = branches.run()
    expected = oracle_reports(log, settings_of(plan), SECRET)
    assert expected
    for name, reports in found.items():
        assert values(reports) == expected, name


def write_parquet(path, log, rows):
    users, items, times = zip(*log, strict=True)
    table = pa.table({"user": users, "item": items, "timestamp": pa.array(times, pa.timestamp("us", "UTC"))})
    pq.write_table(table, path, row_group_size=rows)


def test_transcript_does_not_depend_on_files_and_row_groups(tmp_path):
    plan = plan_of("counts")
    log = [event for event in random_log(plan, seed=12) if event[2] < 2**60]
    layouts = {"one file": [len(log)], "many row groups": [37], "three files": [500, 64, 1000]}
    branches, key, fields = Branches(), key_file(tmp_path), EventFields()
    for name, rows in layouts.items():
        folder = tmp_path / name
        folder.mkdir()
        for number, rows_per_group in enumerate(rows):
            write_parquet(folder / f"{number}.parquet", log[number :: len(rows)], rows_per_group)
        chunks = find_log_chunks([str(folder)], fields)
        for order, workers in ((1, None), (-1, None), (1, 1), (-1, 3)):
            label = f"{name} {order} {workers}"
            read = branches.pipeline | f"Read {label}" >> ReadEvents(chunks[::order], fields, workers=workers)
            branches.apply(label, read[0], plan, noise_key=key)
    found, result = branches.run()
    expected = oracle_reports(log, settings_of(plan), SECRET)
    assert expected
    for name, reports in found.items():
        assert values(reports) == expected, name
    assert operator_counts(result)[EVENTS_READ] == 12 * len(log)


def test_a_bundle_that_runs_twice_publishes_one_answer(tmp_path):
    """A sink fused to the drawing stages sees both attempts; fresh noise would show an observer two counts."""
    plan = plan_of("counts", 1)
    log = random_log(plan, seed=7)
    branches, expected = Branches(REPEATED), oracle_reports(log, settings_of(plan), SECRET)
    branches.add("key file", batches_of(log, 200), plan, noise_key=key_file(tmp_path), shards=3)
    branches.add("fresh key", batches_of(log, 200), plan)
    known = small_plan(release="kms21", threshold=100, domain=DOMAIN, hits_per_user=2)
    in_domain = oracle_reports(log, settings_of(known), SECRET, DOMAIN)
    branches.add("domain", batches_of(log, 200), known, noise_key=key_file(tmp_path), domain=ItemDomain.of_ids(DOMAIN))
    found, _ = branches.run()
    assert expected
    assert values(found["key file"]) == expected * 2
    assert in_domain
    assert values(found["domain"]) == in_domain * 2
    twice = values(found["fresh key"])
    assert len(twice) > 1
    assert twice == twice[: len(twice) // 2] * 2
    assert twice != expected * 2


class ForgetfulDraw(beam.DoFn):
    """What the monitor must not be: noise of its own for each attempt."""

    def process(self, element):
        yield element, random.SystemRandom().getrandbits(64)


def test_the_runner_does_repeat_the_bundles():
    """The test above could not fail if the flag did nothing: fresh noise is seen twice."""
    pipeline, found = local_pipeline(REPEATED), Collected()
    _ = pipeline | beam.Create([1]) | beam.Reshuffle() | beam.ParDo(ForgetfulDraw()) | found.sink()
    pipeline.run().wait_until_finish()
    assert len(found.values) == 2
    assert found.values[0] != found.values[1]


@pytest.mark.long
def test_workers_in_other_processes_share_the_files_of_the_key_and_the_domain(tmp_path):
    plan = small_plan(sliding=3, release="labels", threshold=2, domain=DOMAIN, hits_per_user=2)
    items = tmp_path / "items.txt"
    items.write_text("\n".join(DOMAIN))
    log = random_log(plan, seed=9)
    pipeline = local_pipeline(TWO_PROCESSES)
    found = batches_source(batches_of(log, 100))(pipeline) | "Monitor" >> ShiftingHeavyHitters(
        plan, noise_key=key_file(tmp_path), run_id=RUN_ID, domain=items
    )
    _ = (
        found.reports
        | "Plain" >> beam.Map(lambda report: repr(plain(report)))
        | "Write" >> beam.io.WriteToText(str(tmp_path / "reports"), shard_name_template="")
    )
    pipeline.run().wait_until_finish()
    lines = (tmp_path / "reports").read_text().splitlines()
    expected = oracle_transcript(log, settings_of(plan), SECRET, DOMAIN)
    assert expected.false_reports > 5
    assert sorted(rebuilt(ast.literal_eval(line)) for line in lines) == expected.reports


@pytest.mark.long
def test_a_thousand_shuffled_windows_come_out_in_order(tmp_path):
    """A third of the windows is empty, a third quiet, a third heavy, until the users are excluded."""
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
    branches, key = Branches(), key_file(tmp_path)
    for name, log in {"bare": heavy, "full": [*outside, *heavy, *quiet], "nothing": [], "only quiet": quiet}.items():
        branches.add(name, batches_of(log, 90), plan, noise_key=key)
    found, result = branches.run()

    assert found["bare"] == found["full"]
    assert [(report.window_start // MICROS - START) // 60 for report in values(found["full"])] == [7, 41]
    assert found["nothing"] == found["only quiet"] == []
    assert operator_counts(result)[EVENTS_OUTSIDE_RANGE] == len(outside)
