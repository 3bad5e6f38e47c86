"""Whole bounded pipelines: repeated bundles, processes, and logs that look alike.

What they publish, however the work is cut: tests/conformance.
"""

import ast
import random

import apache_beam as beam
import pytest

from dp_transforms.beam.release_heavy_hitters import ShiftingHeavyHitters
from dp_transforms.beam.workers import operator_counts
from dp_transforms.core.operator_counts import EVENTS_OUTSIDE_DOMAIN, EVENTS_OUTSIDE_RANGE
from dp_transforms.core.public_items import PublicItems
from tests.helpers.beam_pipelines import Branches, batches_source, local_pipeline, plain, rebuilt, values
from tests.helpers.looks_plans import small_looks_plan
from tests.helpers.small_runs import (
    MICROS,
    RUN_ID,
    SECRET,
    START,
    batch_of,
    batches_of,
    key_file,
    random_log,
    settings_of,
    small_plan,
)
from tests.reference.hits import oracle_reports, oracle_transcript

DOMAIN = (*(f"item-{number}" for number in range(0, 12, 2)), *(f"nobody's-{number}" for number in range(30)))
TWO_PROCESSES = ("--direct_running_mode=multi_processing", "--direct_num_workers=2")
REPEATED = ("--direct_runner_bundle_repeat=1",)


def test_a_bundle_that_runs_twice_publishes_one_answer(tmp_path):
    """With a fresh key too. A sink fused to the stages that draw sees both attempts: fresh noise would show two."""
    plan = small_plan(sliding=3, max_items_per_user=1, hits_per_user=2)
    log = random_log(plan, seed=7)
    branches, expected = Branches(REPEATED), oracle_reports(log, settings_of(plan), SECRET)
    branches.add("key file", batches_of(log, 200), plan, noise_key=key_file(tmp_path), shards=3)
    branches.add("fresh key", batches_of(log, 200), plan)
    branches.add("names", batches_of(log, 200), small_looks_plan(most_tests=12))
    found, _ = branches.run()
    assert values(found["key file"]) == expected * 2 != []
    twice = values(found["fresh key"])
    assert len(twice) > 1
    assert twice == twice[: len(twice) // 2] * 2
    assert twice != expected * 2
    named = sorted(values(found["names"]))
    assert named[::2] == named[1::2] != []


def test_workers_in_other_processes_share_the_files_of_the_key_and_the_domain(tmp_path):
    plan = small_plan(sliding=3, mode="hits", threshold=2, domain=DOMAIN, hits_per_user=2)
    items = tmp_path / "items.txt"
    items.write_text("\n".join(DOMAIN))
    log = random_log(plan, seed=9)
    pipeline = local_pipeline(TWO_PROCESSES)
    found = batches_source(batches_of(log, 100))(pipeline) | "Monitor" >> ShiftingHeavyHitters(
        plan, noise_key=key_file(tmp_path), run_id=RUN_ID, public_items=items
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


def test_empty_windows_quiet_windows_and_outside_events_look_the_same(tmp_path):
    """One log has heavy items in two windows and nothing else; the other has single users all over and much outside."""
    plan = small_plan(60, mode="hits-with-counts", hits_per_user=2)
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


def test_one_transform_without_a_key_serves_several_pipelines():
    """Each application draws a key of its own: in two pipelines, and twice in one of them."""
    plan = small_plan(2, mode="hits", threshold=2, domain=DOMAIN, hits_per_user=2)
    log = [(f"u{user}", "item-0", (START + 1) * MICROS) for user in range(200)]
    log.append(("u0", "an item that is not in it", (START + 1) * MICROS))
    monitor = ShiftingHeavyHitters(plan, public_items=PublicItems.of_ids(DOMAIN))
    for branches in (Branches(), Branches()):
        source = batches_source([batch_of(log)])(branches.pipeline)
        for name in ("first", "second"):
            branches.attach(name, source, monitor)
        found, result = branches.run()
        assert operator_counts(result)[EVENTS_OUTSIDE_DOMAIN] == 2
        for name in ("first", "second"):
            assert "item-0" in {hitter.item for hitter in values(found[name])[0].heavy_hitters}
    with pytest.raises(ValueError, match="Give public_items=PATH"):
        ShiftingHeavyHitters(plan)
