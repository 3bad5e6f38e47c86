"""Known domains and release mode kms21 in whole pipelines, bounded and streaming: the oracle's transcript."""

from __future__ import annotations

import apache_beam as beam
import pytest

from dp_transforms.beam.release_heavy_hitters import ShiftingHeavyHitters
from dp_transforms.beam.set_up_workers import operator_counts
from dp_transforms.monitor.event_batch import EventBatch
from dp_transforms.monitor.item_domain import ItemDomain
from dp_transforms.monitor.operator_counts import EVENTS_OUTSIDE_DOMAIN, EVENTS_OUTSIDE_RANGE
from dp_transforms.monitor.window_report import WindowReport
from tests.helpers.beam_pipelines import Branches, LocalCounter, Script, values
from tests.helpers.oracle import oracle_reports, oracle_transcript
from tests.helpers.small_runs import (
    MICROS,
    SECRET,
    START,
    batch_of,
    batches_of,
    key_file,
    random_log,
    settings_of,
    small_plan,
)

DOMAIN = (*(f"item-{number}" for number in range(0, 12, 2)), *(f"nobody's-{number}" for number in range(30)))
THRESHOLDS = {"labels": 2, "counts": 2, "kms21": 100}


def plan_of(release, sliding=1, windows=12):
    return small_plan(
        windows, release=release, sliding=sliding, threshold=THRESHOLDS[release], domain=DOMAIN, hits_per_user=2
    )


def test_transcripts_in_a_known_domain_equal_the_oracle(tmp_path):
    """Of a log, of one without events, and of one without an item of the domain; from a file and from the job."""
    branches, key, expected = Branches(), key_file(tmp_path), {}
    items = tmp_path / "items.txt"
    items.write_text("\n".join(reversed(DOMAIN)))
    foreign = outside = 0
    for release, sliding, shards in (("labels", 1, 3), ("labels", 3, None), ("counts", 3, 1), ("kms21", 1, None)):
        plan = plan_of(release, sliding)
        busy = random_log(plan, seed=5)
        declared = range(plan.schedule.start_seconds * MICROS, plan.schedule.end_seconds * MICROS)
        for name, log, domain in (
            ("busy", busy, ItemDomain.of_ids(DOMAIN)),
            ("no event", [], items),
            ("no item", [(user, "foreign", time) for user, _, time in busy], str(items)),
        ):
            label = f"{name}, {release}, {sliding}"
            expected[label] = oracle_transcript(log, settings_of(plan), SECRET, DOMAIN)
            branches.add(label, batches_of(log, 300), plan, noise_key=key, domain=domain, shards=shards)
            foreign += sum(item not in DOMAIN and time in declared for _, item, time in log)
            outside += sum(time not in declared for _, _, time in log)
    found, result = branches.run()

    for label, transcript in expected.items():
        assert transcript.false_reports > 5, label
        assert values(found[label]) == transcript.reports, label
        if label.startswith("busy"):
            assert transcript.kept_out > 0
            assert transcript.idle > 0 or "labels" in label
        else:
            assert values(found[label]) == values(found[label.replace("no item", "no event")])
    counts = operator_counts(result)
    assert (counts[EVENTS_OUTSIDE_DOMAIN], counts[EVENTS_OUTSIDE_RANGE]) == (foreign, outside)


def test_one_transform_without_a_key_serves_several_pipelines():
    """Each application draws a key of its own: in two pipelines, and twice in one of them."""
    plan = plan_of("labels", windows=2)
    log = [(f"u{user}", "item-0", (START + 1) * MICROS) for user in range(200)]
    monitor = ShiftingHeavyHitters(plan, domain=ItemDomain.of_ids(DOMAIN))
    for branches in (Branches(), Branches()):
        source = branches.pipeline | "Batches" >> batches_create(log)
        for name in ("first", "second"):
            branches.attach(name, source, monitor)
        found, result = branches.run()
        assert operator_counts(result).get(EVENTS_OUTSIDE_DOMAIN, 0) == 0
        for name in ("first", "second"):
            assert "item-0" in {hitter.item for hitter in values(found[name])[0].heavy_hitters}


def batches_create(log):
    return beam.Create([batch_of(log)], reshuffle=False).with_output_types(EventBatch)


def test_kms21_in_an_open_domain_equals_the_oracle(tmp_path):
    """Here a threshold is safe from about 1,100 users on: two windows with 2,400 holders, then they have paid."""
    plan = small_plan(release="kms21", hits_per_user=2)
    crowd = [
        (f"u{user}", item, (START + 60 * window + 7) * MICROS)
        for window in (1, 2, 7)
        for user in range(2400)
        for item in (("news", "sport") if user % 2 or window < 7 else ("news",))
    ]
    log = [*crowd, *random_log(plan, seed=8, events=300)]
    expected = oracle_transcript(log, settings_of(plan), SECRET)
    assert [[hitter.item for hitter in report.heavy_hitters] for report in expected.reports] == [["news", "sport"]]
    assert expected.kept_out == 2 * 2400 + 2400 + 1200
    branches = Branches()
    branches.add("kms21", batches_of(log, 1000), plan, noise_key=key_file(tmp_path), shards=3)
    found, _ = branches.run()
    assert values(found["kms21"]) == expected.reports


@pytest.mark.parametrize(("release", "sliding"), [("labels", 1), ("kms21", 3)])
def test_windows_of_a_stream_close_with_and_without_events(tmp_path, monkeypatch, release, sliding):
    """Each report comes when the watermark passes the end of its window, whether the window holds an event or not."""
    counts = LocalCounter.install(monkeypatch)
    plan = plan_of(release, sliding)
    slide = plan.schedule.slide_seconds
    log = [
        event for event in random_log(plan, seed=3, events=500) if 0 < event[2] <= plan.schedule.end_seconds * MICROS
    ]
    log = sorted((event for event in log if (event[2] // MICROS - START) // slide not in range(3, 7)), key=time_of)
    script, ends = Script(plan), range(slide, slide * (plan.schedule.horizon + 1), slide)
    for end in ends:
        script.events([event for event in log if end - slide <= event[2] // MICROS - START < end])
        script.watermark(end - 0.002).mark(f"before {end}").watermark(end)
    expected = oracle_transcript(log, settings_of(plan), SECRET, DOMAIN)
    assert expected.false_reports > 5
    reports = {report.window_end // MICROS - START: report for report in expected.reports}
    size = plan.schedule.window_seconds
    without_events = {
        end for end in ends if not any(0 <= (START + end) * MICROS - time <= size * MICROS for *_, time in log)
    }
    assert without_events & set(reports)
    in_order = [thing for end in ends for thing in (f"before {end}", *([reports[end]] if end in reports else []))]
    found = script.run(key_file(tmp_path), domain=ItemDomain.of_ids(DOMAIN))
    assert [thing for thing in found if isinstance(thing, WindowReport)] == expected.reports
    assert found == in_order
    declared = range(START * MICROS, plan.schedule.end_seconds * MICROS)
    assert counts[EVENTS_OUTSIDE_DOMAIN] == sum(item not in DOMAIN and time in declared for _, item, time in log)


def time_of(event):
    return event[2]


def test_what_is_late_in_a_known_domain_changes_nothing(tmp_path):
    """The pane on time holds the items that nobody held in time; late holders of theirs do not displace them."""
    plan = plan_of("labels", windows=6)
    in_time = [(f"u{user}", "item-0", (START + 1) * MICROS) for user in range(30)]
    script = Script(plan).events(in_time).watermark(200)
    for item in DOMAIN:
        script.events(
            [(f"late {user}", item, (START + 60 * window + 1) * MICROS) for window in (0, 1, 2) for user in range(9)]
        )
    expected = oracle_reports(in_time, settings_of(plan), SECRET, DOMAIN)
    assert len(expected) > 2
    assert script.run(key_file(tmp_path), domain=ItemDomain.of_ids(DOMAIN)) == expected
