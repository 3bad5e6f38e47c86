"""`ThresholdMonitorEvolving`, the transform: each key is a monitor of its own, whose windows a timer closes in order.

In bounded input and by `TestStream`, and its DoFn by itself, with a state that counts what is read and written. On
engines: tests/engines/test_threshold_monitor.py. Beside the algorithm as printed: test_threshold_monitor_as_printed.py.
"""

import random

import apache_beam as beam
import pytest
from apache_beam.coders import FastPrimitivesCoder
from apache_beam.testing.test_stream import TestStream
from apache_beam.transforms.window import TimestampedValue
from apache_beam.utils.timestamp import Timestamp

from dp_transforms import EventBatch, PublicItems, ThresholdMonitorEvolving
from dp_transforms.beam.assign_windows import closing_time
from dp_transforms.beam.threshold_monitor import ThresholdMonitorEvolvingDoFn, batches_of_blobs
from dp_transforms.core.contributions import bound_contributions
from dp_transforms.core.item_sums import ItemHolders
from dp_transforms.core.operator_counts import EVENTS_OF_OTHER_KEYS, EVENTS_REJECTED, LATE_BATCHES
from dp_transforms.core.pack_contributions import contributions_of_events
from tests.helpers.beam_pipelines import Collected, LocalCounter, holders, local_pipeline
from tests.helpers.contributions_plans import small_contributions_plan
from tests.helpers.do_fn_state import Cell, CountingBag, HeldSecret, Timer
from tests.helpers.small_runs import MICROS, RUN_ID, START, batch_of, key_file, random_log, settings_of, small_plan
from tests.reference.run import reference

KEYS = ("DE", "FR")
ITEMS = tuple(f"item-{number}" for number in range(12))
PLAN = small_plan()
LOGS = {key: random_log(PLAN, seed, 800) for seed, key in enumerate(KEYS)}


def of_keys(logs):
    """``(key, (user, item))`` with timestamps."""
    return [
        TimestampedValue((key, (user, item)), Timestamp(micros=time))
        for key, log in logs.items()
        for user, item, time in log
    ]


def expected(plan, logs, items=()):
    """By the slow reference, which knows nothing of keys: each key is a stream of its own."""
    return {key: found for key, log in logs.items() if (found := reference(log, plan, items, stream=key))}


def by_key(collected):
    found = {}
    for key, report in sorted(collected.values, key=lambda pair: (pair[0], pair[1].window_start)):
        if report not in found.setdefault(key, []):  # a bundle that runs twice sends it twice
            found[key].append(report)
    return found


def run(elements, plan, folder, **arguments):
    """Reports by key, in the order of windows, of bounded input."""
    collected, pipeline = Collected(), local_pipeline()
    monitor = ThresholdMonitorEvolving(plan, key_file(folder), run_id=RUN_ID, **arguments)
    _ = pipeline | beam.Create(elements) | beam.Map(lambda each: each) | monitor | collected.sink()
    pipeline.run().wait_until_finish()
    return by_key(collected)


def run_stream(lines, plan, folder, **arguments):
    """What comes of a `TestStream`. lines: lists of elements, and seconds after the start, which the watermark
    reaches."""
    stream = TestStream(coder=FastPrimitivesCoder()).advance_watermark_to(Timestamp(START - 60))
    for line in lines:
        stream = stream.add_elements(line) if isinstance(line, list) else stream.advance_watermark_to(START + line)
    collected, pipeline = Collected(), local_pipeline(["--streaming"], "BundleBasedDirectRunner")
    monitor = ThresholdMonitorEvolving(plan, key_file(folder), run_id=RUN_ID, **arguments)
    _ = pipeline | stream.advance_watermark_to_infinity() | monitor | collected.sink()
    pipeline.run().wait_until_finish()
    return collected


def test_each_key_is_a_stream_of_its_own_and_a_key_that_one_user_has_alone_is_not_seen(tmp_path):
    """Of pairs and of batches of events, and where each bundle runs twice."""
    logs = LOGS | {"LU": [("alone", f"item {number}", (START + 7 * number) * MICROS) for number in range(100)]}
    batches = [(key, batch_of(log[low::3])) for key, log in logs.items() for low in range(3)]
    sources = {
        "pairs": beam.Create(of_keys(logs)) | beam.Map(lambda each: each),
        "batches": beam.Create(batches).with_output_types(tuple[str, EventBatch]),
    }
    pipeline, found = local_pipeline(["--direct_runner_bundle_repeat=1"]), {name: Collected() for name in sources}
    monitor = ThresholdMonitorEvolving(PLAN, key_file(tmp_path), run_id=RUN_ID)
    for name, source in sources.items():
        _ = pipeline | name >> source | f"Monitor {name}" >> monitor | f"See {name}" >> found[name].sink()
    pipeline.run().wait_until_finish()
    assert by_key(found["pairs"]) == by_key(found["batches"]) == expected(PLAN, LOGS)


def test_what_cannot_be_read_is_set_apart_under_its_key_and_other_keys_than_those_named_are_left_out(
    tmp_path, monkeypatch
):
    counts = LocalCounter.install(monkeypatch)
    bad = ["secret", 7, None, ("DE",), ("DE", "secret"), ("DE", ("user", None)), (None, ("user", "item"))]
    bad += [("", ("u", "i")), ("FR", ("a", "b", "c")), (("FR",), ("a", "b"))]
    elements = [*of_keys(LOGS), *(TimestampedValue(element, Timestamp(START)) for element in bad)]
    reports, rejected, pipeline = Collected(), Collected(), local_pipeline()
    monitor = ThresholdMonitorEvolving(PLAN, key_file(tmp_path), run_id=RUN_ID, keys=["FR"], with_rejected=True)
    output = pipeline | beam.Create(elements) | beam.Map(lambda each: each) | monitor
    _, _ = output.reports | "Reports" >> reports.sink(), output.rejected | "Rejected" >> rejected.sink()
    pipeline.run().wait_until_finish()
    assert by_key(reports) == expected(PLAN, {"FR": LOGS["FR"]}) != {}
    assert counts[EVENTS_OF_OTHER_KEYS] == len(LOGS["DE"])
    assert sum(len(found.positions) for _, found in rejected.values) == len(bad) == counts[EVENTS_REJECTED]
    assert {key for key, _ in rejected.values} == {"", "DE", "FR"}
    assert not any(word in found.reason for _, found in rejected.values for word in ("secret", "'"))


def test_public_items_are_tested_under_each_named_key_in_every_window_whatever_one_row_does(tmp_path):
    """Also where the watermark jumps over windows, all at once."""
    plan = small_plan(public=ITEMS, threshold=1)
    (tmp_path / "items.txt").write_text("\n".join(ITEMS))
    given = {"public_items": str(tmp_path / "items.txt"), "keys": [*KEYS, "LU"]}
    found = run(of_keys(LOGS), plan, tmp_path, **given)
    assert found == expected(plan, LOGS | {"LU": []}, ITEMS)
    assert found["LU"], "noise names items that nobody holds, in a key that nobody has"
    log = {"DE": holders(2, [1], "item-3")}
    jumped = run_stream([of_keys(log), 0, 400], plan, tmp_path, **{**given, "keys": ["DE"]})
    assert by_key(jumped) == expected(plan, log, ITEMS)


def test_windows_close_in_order_whatever_the_order_of_events_and_late_ones_change_nothing(tmp_path):
    """Twelve windows, whose events come in any order, before the watermark passes some at a time; then some that come
    behind it, of a window that had none too."""
    plan, windows = small_plan(12, max_items_per_user=3), [0, *range(2, 12)]
    random.Random(4).shuffle(windows)
    log = {window: holders(window, range(window * 2, window * 2 + 40)) for window in windows}
    late = of_keys({"DE": [event for item in "abcd" for at in (0, 1) for event in holders(at, range(80), item)]})
    lines = [of_keys({"DE": log[window], "FR": log[window][:35]}) for window in windows]
    collected = run_stream([*lines, 121, late, 300, 301, late, 1500], plan, tmp_path)
    whole = [event for window in windows for event in log[window]]
    parts = [event for window in windows for event in log[window][:35]]
    assert by_key(collected) == expected(plan, {"DE": whole, "FR": parts})
    for key in KEYS:
        starts = [report.window_start for name, report in collected.values if name == key]
        assert starts == sorted(set(starts)), "in order, once each"
    assert all(stamp.micros == report.window_end - 1 for (_, report), stamp in collected.stamped)


def test_what_is_declared_is_checked():
    public = small_plan(public=ITEMS)
    for arguments, message in (
        ([small_contributions_plan()], "charges no hits"),
        (["plan"], "plan must be a Plan"),
        ([public], "Give public_items"),
    ):
        with pytest.raises(ValueError, match=message):
            ThresholdMonitorEvolving(*arguments)
    with pytest.raises(ValueError, match="keys must be given"):
        ThresholdMonitorEvolving(public, public_items=PublicItems.of_ids(ITEMS))
    in_other_windows = local_pipeline() | beam.Create([]) | beam.WindowInto(beam.window.FixedWindows(7))
    with pytest.raises(ValueError, match="are not those of the plan"):
        _ = in_other_windows | ThresholdMonitorEvolving(small_plan())


# --- The DoFn by itself


class Monitored:
    """The DoFn with the state of one key."""

    def __init__(self, settings):
        self.plan, self.timer = settings.plan, Timer()
        self.do_fn = ThresholdMonitorEvolvingDoFn(settings, HeldSecret())
        self.do_fn.setup()
        self.waiting = {name: CountingBag() for name in ("pending", "soon", "far")}
        self.counters, self.progress = CountingBag(), Cell()

    def send(self, window, blobs, missing=0):
        due = ("DE", (window, missing, blobs))
        self.do_fn.process(due, **self.waiting, progress=self.progress, close=self.timer)

    def firing(self, at=None):
        state = {**self.waiting, "counters": self.counters, "progress": self.progress, "close": self.timer}
        return self.do_fn.close_windows("DE", at or self.timer.at, **state)

    def fire(self, at=None):
        return [output.value[1] for output in self.firing(at)]


@pytest.fixture(scope="module")
def case():
    """A plan, the candidates of each window, and what is reported of them."""
    plan = small_plan(windows=30, hits_per_user=2)
    log = [event for window in range(30) for event in holders(window, range(3 * window, 3 * window + 40))]
    settings = settings_of(plan, stream="DE")
    keys = settings.stream_keys(HeldSecret().get_secret_bytes())
    found = {}
    for window, _, pairs in contributions_of_events(batch_of(log), plan.schedule, keys, windows_per_range=1, shards=1):
        held = bound_contributions(pairs, plan.charged_hits.max_items_per_user, keys)
        found.setdefault(window, []).append(ItemHolders.of_contributions(held).to_bytes())
    return settings, found, reference(log, plan, stream="DE")


def test_windows_wait_for_their_turn_and_each_firing_closes_what_is_due(case):
    settings, candidates, reports = case
    monitored, windows = Monitored(settings), list(candidates)
    random.Random(1).shuffle(windows)
    for window in windows:
        monitored.send(window, candidates[window])
    assert (monitored.counters.reads, monitored.counters.writes) == (0, 0), "an element neither reads nor writes them"
    found = []
    for firing in range(30):
        assert monitored.timer.at == closing_time(settings.plan.schedule, firing), "set again for the next window"
        found += monitored.fire()
        assert monitored.counters.reads == firing + 1
    assert found == reports
    assert monitored.fire() == [], "nothing waits"


def test_all_windows_of_bounded_input_are_closed_by_one_firing_when_all_of_them_has_come(case):
    """Of a large group come several elements, and an engine may fire between them."""
    settings, candidates, reports = case
    monitored = Monitored(settings)
    blobs = [blob for blobs in candidates.values() for blob in blobs]
    monitored.send(29, blobs[10:], missing=-1)
    assert monitored.fire() == []
    assert monitored.timer.at == closing_time(settings.plan.schedule, 29)
    monitored.send(29, blobs[:10], missing=1)
    assert monitored.fire() == reports
    assert (monitored.counters.reads, monitored.counters.writes) == (1, 1)


def test_a_firing_of_an_earlier_time_and_a_window_that_was_closed_change_nothing(case, monkeypatch):
    counts = LocalCounter.install(monkeypatch)
    settings, candidates, reports = case
    monitored = Monitored(settings)
    monitored.send(7, [blob for window in range(8) for blob in candidates[window]])
    assert monitored.fire(at=closing_time(settings.plan.schedule, 6)) == []
    assert monitored.fire() == [report for report in reports if report.window_start < (START + 8 * 60) * MICROS]
    monitored.send(5, candidates[5])
    assert counts[LATE_BATCHES] == 1
    assert monitored.fire(at=closing_time(settings.plan.schedule, 7)) == []
    assert monitored.counters.reads == 1


def test_counters_are_written_before_a_report_is_sent(case):
    """A worker that dies after a report was sent has charged for it: never the other way round."""
    settings, candidates, _ = case
    monitored = Monitored(settings)
    monitored.send(0, candidates[0])
    report = next(monitored.firing()).value[1]
    assert report.heavy_hitters
    assert monitored.counters.writes == 1


def test_blobs_are_batched_in_order_and_never_cut():
    blobs = [b"aaa", b"bb", b"c", b"dddddd", b"e"]
    assert batches_of_blobs(blobs, 5) == [[b"aaa", b"bb"], [b"c"], [b"dddddd"], [b"e"]]
    assert batches_of_blobs([], 5) == [[]]
