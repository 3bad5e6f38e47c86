"""`ThresholdMonitorEvolving`, the transform: each key is a monitor of its own, whose windows a timer closes in order.

In bounded input and by `TestStream`, and its DoFn by itself, with a state that counts what is read and written. On
engines: tests/engines/test_threshold_monitor.py. Beside the algorithm as printed: test_threshold_monitor_evolving.py.
"""

import random

import apache_beam as beam
import pytest
from apache_beam.coders import FastPrimitivesCoder
from apache_beam.testing.test_stream import TestStream
from apache_beam.transforms.window import TimestampedValue
from apache_beam.utils.timestamp import Timestamp

from dp_transforms import EventBatch, PublicItems, ThresholdMonitorEvolving
from dp_transforms.beam.assign_windows import closing_time, group_once
from dp_transforms.beam.threshold_monitor import ThresholdMonitorEvolvingDoFn, batches_of_blobs
from dp_transforms.core.contributions import bound_contributions
from dp_transforms.core.item_sums import ItemHolders
from dp_transforms.core.operator_counts import EVENTS_OF_OTHER_KEYS, EVENTS_REJECTED, LATE_BATCHES
from dp_transforms.core.pack_contributions import contributions_of_events
from tests.helpers.beam_pipelines import Collected, LocalCounter, holders, local_pipeline
from tests.helpers.do_fn_state import Bag, Cell, HeldSecret, Timer
from tests.helpers.looks_plans import small_looks_plan
from tests.helpers.small_runs import MICROS, RUN_ID, START, batch_of, key_file, random_log, settings_of, small_plan
from tests.reference.run import reference

KEYS = ("DE", "FR")
REPEATED = ("--direct_runner_bundle_repeat=1",)


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


def run(elements, plan, path, flags=(), **arguments):
    """Reports by key, in the order of windows, of bounded input."""
    collected, pipeline = Collected(), local_pipeline(flags)
    source = elements if isinstance(elements, beam.PTransform) else beam.Create(elements) | beam.Map(stamped)
    monitor = ThresholdMonitorEvolving(plan, key_file(path), run_id=RUN_ID, **arguments)
    _ = pipeline | source | monitor | collected.sink()
    pipeline.run().wait_until_finish()
    return by_key(collected)


def stamped(value):
    return value


def stream_of(*lines):
    """Of `TestStream`: lists of elements, and seconds after the start, which the watermark reaches."""
    stream = TestStream(coder=FastPrimitivesCoder()).advance_watermark_to(Timestamp(START - 60))
    for line in lines:
        stream = stream.add_elements(line) if isinstance(line, list) else stream.advance_watermark_to(START + line)
    return stream.advance_watermark_to_infinity()


def run_stream(stream, plan, path, **arguments):
    """Reports as they come, in a list of pairs, and their timestamps."""
    collected, pipeline = Collected(), local_pipeline(["--streaming"], "BundleBasedDirectRunner")
    _ = (
        pipeline
        | stream
        | ThresholdMonitorEvolving(plan, key_file(path), run_id=RUN_ID, **arguments)
        | collected.sink()
    )
    pipeline.run().wait_until_finish()
    return collected


@pytest.fixture
def logs():
    plan = small_plan()
    return {key: random_log(plan, seed) for seed, key in enumerate(KEYS)}


@pytest.mark.parametrize("mode", ["hits", "hits-with-counts"])
def test_each_key_is_a_stream_of_its_own(mode, logs, tmp_path):
    plan = small_plan(mode=mode)
    assert run(of_keys(logs), plan, tmp_path) == expected(plan, logs)
    assert run(of_keys(logs), plan, tmp_path, REPEATED) == expected(plan, logs), "a bundle that runs twice"


def test_batches_of_events_are_the_same_log(logs, tmp_path):
    plan = small_plan()
    batches = [(key, batch_of(log[low::3])) for key, log in logs.items() for low in range(3)]
    assert run(beam.Create(batches), plan, tmp_path) == expected(plan, logs)
    typed = beam.Create(batches).with_output_types(tuple[str, EventBatch])
    assert run(typed, plan, tmp_path) == expected(plan, logs)


def test_a_key_that_one_user_has_alone_is_not_seen(logs, tmp_path):
    plan = small_plan()
    alone = {"LU": [("alone", f"item {number}", (START + number) * MICROS) for number in range(600)]}
    assert run(of_keys(logs | alone), plan, tmp_path) == run(of_keys(logs), plan, tmp_path) == expected(plan, logs)


def test_other_keys_than_those_named_are_left_out_and_counted(logs, tmp_path, monkeypatch):
    plan, counts = small_plan(), LocalCounter.install(monkeypatch)
    found = run(of_keys(logs), plan, tmp_path, keys=["FR"])
    assert found == expected(plan, {"FR": logs["FR"]}) != {}
    assert counts[EVENTS_OF_OTHER_KEYS] == len(logs["DE"])


def test_what_cannot_be_read_is_set_apart_under_its_key_and_nothing_else_is_lost(logs, tmp_path, monkeypatch):
    counts = LocalCounter.install(monkeypatch)
    bad = [
        "secret",
        7,
        None,
        ("DE",),
        ("DE", "secret"),
        ("DE", ("user", None)),
        (None, ("user", "item")),
        ("", ("u", "i")),
    ]
    bad += [("FR", ("a", "b", "c")), (("FR",), ("a", "b"))]
    elements = [*of_keys(logs), *(TimestampedValue(element, Timestamp(START)) for element in bad)]
    reports, rejected, pipeline = Collected(), Collected(), local_pipeline()
    monitor = ThresholdMonitorEvolving(small_plan(), key_file(tmp_path), run_id=RUN_ID, with_rejected=True)
    output = pipeline | beam.Create(elements) | beam.Map(stamped) | monitor
    _, _ = output.reports | "Reports" >> reports.sink(), output.rejected | "Rejected" >> rejected.sink()
    pipeline.run().wait_until_finish()
    assert by_key(reports) == expected(small_plan(), logs)
    assert sum(len(found.positions) for _, found in rejected.values) == len(bad) == counts[EVENTS_REJECTED]
    assert {key for key, _ in rejected.values} == {"", "DE", "FR"}
    assert not any(word in found.reason for _, found in rejected.values for word in ("secret", "'"))


ITEMS = tuple(f"item-{number}" for number in range(12))


def public(path):
    (path / "items.txt").write_text("\n".join(ITEMS))
    return str(path / "items.txt")


def test_public_items_are_tested_under_each_key_that_is_named_in_every_window(logs, tmp_path):
    plan = small_plan(domain=ITEMS, threshold=1)
    given = {"public_items": public(tmp_path), "keys": [*KEYS, "LU"]}
    found = run(of_keys(logs), plan, tmp_path, **given)
    assert found == expected(plan, logs | {"LU": []}, ITEMS)
    assert found["LU"], "noise names items that nobody holds, in a key that nobody has"
    in_time = {key: [event for event in log if event[2] < 2 * START * MICROS] for key, log in logs.items()}
    stream = stream_of(of_keys(in_time), 700)
    assert by_key(run_stream(stream, plan, tmp_path, **given)) == found


def test_one_row_does_not_decide_whether_public_items_are_tested(tmp_path):
    """Also where the watermark jumps over windows, all at once."""
    plan = small_plan(domain=ITEMS, threshold=1)
    given = {"public_items": public(tmp_path), "keys": ["DE"]}
    alone = of_keys({"DE": holders(2, [1], "item-3")})
    nobody, one = (by_key(run_stream(stream_of(log, 0, 400), plan, tmp_path, **given)) for log in ([], alone))
    assert nobody == expected(plan, {"DE": []}, ITEMS) != {}
    assert one == expected(plan, {"DE": holders(2, [1], "item-3")}, ITEMS)


def test_a_group_without_a_start_is_late(monkeypatch):
    """As of a window that was closed, where an engine that went back to a checkpoint takes a late row."""
    counts, seen, pipeline = LocalCounter.install(monkeypatch), Collected(), local_pipeline()
    blobs = pipeline | beam.Create([("started", b""), ("started", b"row"), ("late", b"row")])
    _ = blobs | group_once(are_started=True) | beam.Keys() | seen.sink()
    pipeline.run().wait_until_finish()
    assert (seen.values, counts[LATE_BATCHES]) == (["started"], 1)


def test_windows_close_in_order_whatever_the_order_of_events(tmp_path):
    """Thirty windows, whose events come in any order, before the watermark passes some at a time."""
    plan = small_plan(windows=30)
    windows = list(range(30))
    random.Random(4).shuffle(windows)
    log = {window: holders(window, range(window * 2, window * 2 + 40)) for window in windows}
    lines = [of_keys({"DE": log[window], "FR": log[window][:35]}) for window in windows]
    collected = run_stream(stream_of(*lines, 300, 301, 1500), plan, tmp_path)
    whole = [event for window in range(30) for event in log[window]]
    parts = [event for window in range(30) for event in log[window][:35]]
    assert by_key(collected) == expected(plan, {"DE": whole, "FR": parts})
    for key in KEYS:
        starts = [report.window_start for name, report in collected.values if name == key]
        assert starts == sorted(set(starts)), "in order, once each"
    assert all(stamp.micros == report.window_end - 1 for (_, report), stamp in collected.stamped)


def test_late_elements_change_nothing(tmp_path):
    plan = small_plan(max_items_per_user=3)
    first = [event for item in "abc" for event in holders(0, range(40), item)]
    late = [event for item in "abcd" for event in holders(0, range(80), item)]
    later = holders(3, range(100, 140))
    lines = [of_keys({"DE": first}), 61, of_keys({"DE": late}), 170, of_keys({"DE": late}), of_keys({"DE": later}), 400]
    found = by_key(run_stream(stream_of(*lines), plan, tmp_path))
    assert found == expected(plan, {"DE": first + later}) != {}


def test_a_user_with_an_item_too_many_in_a_second_pane_does_not_count_with_it(monkeypatch):
    """DirectRunner gives a second pane for what is late (apache/beam #19736). Each pane would be bounded by itself."""
    counts = LocalCounter.install(monkeypatch)
    trigger = {
        "trigger": beam.trigger.Repeatedly(beam.trigger.AfterCount(1)),
        "accumulation_mode": beam.trigger.AccumulationMode.DISCARDING,
    }
    seen, pipeline = Collected(), local_pipeline(["--streaming"], "BundleBasedDirectRunner")
    stream = TestStream(coder=FastPrimitivesCoder())
    for item in "ab":
        stream = stream.add_elements([TimestampedValue(("user", item), START + 1)])
    windowed = (
        pipeline | stream.advance_watermark_to_infinity() | beam.WindowInto(beam.window.FixedWindows(60), **trigger)
    )
    _ = windowed | group_once() | beam.MapTuple(lambda user, items: (user, list(items))) | seen.sink()
    pipeline.run().wait_until_finish()
    assert seen.values == [("user", ["a"])]
    assert counts[LATE_BATCHES] == 1


def test_what_is_declared_is_checked(tmp_path):
    with pytest.raises(ValueError, match="charges no hits"):
        ThresholdMonitorEvolving(small_looks_plan())
    with pytest.raises(ValueError, match="plan must be a Plan"):
        ThresholdMonitorEvolving("plan")
    with pytest.raises(ValueError, match="keys must be given"):
        ThresholdMonitorEvolving(small_plan(domain=ITEMS), public_items=PublicItems.of_ids(ITEMS))
    in_other_windows = local_pipeline() | beam.Create([]) | beam.WindowInto(beam.window.FixedWindows(7))
    with pytest.raises(ValueError, match="are not those of the plan"):
        _ = in_other_windows | ThresholdMonitorEvolving(small_plan())


# ---------------------------------------------------------------------------------------------------------------------
# The DoFn by itself
# ---------------------------------------------------------------------------------------------------------------------


class Counted(Bag):
    """read_entries: how many, over all reads."""

    reads = writes = read_entries = 0

    def read(self):
        self.reads += 1
        self.read_entries += len(self.content)
        return super().read()

    def add(self, value):
        self.writes += 1
        super().add(value)


class Monitored:
    """The DoFn with the state of one key."""

    def __init__(self, settings):
        self.plan, self.timer = settings.plan, Timer()
        self.do_fn = ThresholdMonitorEvolvingDoFn(settings, HeldSecret())
        self.do_fn.setup()
        self.waiting = {name: Counted() for name in ("pending", "soon", "far")}
        self.counters, self.progress = Counted(), Cell()

    def send(self, window, blobs, missing=0):
        due = ("DE", (window, missing, blobs))
        self.do_fn.process(due, **self.waiting, progress=self.progress, close=self.timer)

    def firing(self, at=None):
        state = {**self.waiting, "counters": self.counters, "progress": self.progress, "close": self.timer}
        return self.do_fn.close_windows("DE", at or self.timer.at, **state)

    def fire(self, at=None):
        return [output.value[1] for output in self.firing(at)]


@pytest.fixture
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
    found, firings = [], 0
    while monitored.progress.content is not None and firings < 30:
        assert monitored.timer.at == closing_time(settings.plan.schedule, firings), "set again for the next window"
        found += monitored.fire()
        firings += 1
        assert monitored.counters.reads == firings
    assert found == reports
    assert monitored.fire() == [], "nothing waits"


def test_all_windows_of_bounded_input_are_closed_by_one_firing(case):
    settings, candidates, reports = case
    monitored = Monitored(settings)
    monitored.send(29, [blob for blobs in candidates.values() for blob in blobs])
    assert monitored.fire() == reports
    assert (monitored.counters.reads, monitored.counters.writes) == (1, 1)


def test_nothing_is_closed_before_all_of_it_has_come(case):
    """Of a large group come several elements, and an engine may fire between them."""
    settings, candidates, reports = case
    monitored = Monitored(settings)
    blobs = [blob for blobs in candidates.values() for blob in blobs]
    monitored.send(29, blobs[10:], missing=-1)
    assert monitored.fire() == []
    assert monitored.timer.at == closing_time(settings.plan.schedule, 29)
    monitored.send(29, blobs[:10], missing=1)
    assert monitored.fire() == reports


def test_a_firing_of_an_earlier_time_and_a_window_that_was_closed_change_nothing(case, monkeypatch):
    counts = LocalCounter.install(monkeypatch)
    settings, candidates, reports = case
    monitored = Monitored(settings)
    monitored.send(7, [blob for window in range(8) for blob in candidates[window]])
    assert monitored.fire(at=closing_time(settings.plan.schedule, 6)) == []
    found = monitored.fire()
    assert found == [report for report in reports if report.window_start < (START + 8 * 60) * MICROS]
    monitored.send(5, candidates[5])
    assert counts[LATE_BATCHES] == 1
    assert monitored.fire(at=closing_time(settings.plan.schedule, 7)) == []
    assert monitored.counters.reads == 1


def test_the_windows_that_wait_are_read_seldom():
    """Not all of them at each firing: two thousand windows that come at once are read some thirty times each, and not
    a thousand times."""
    settings = settings_of(small_plan(windows=2000), stream="DE")
    monitored, empty = Monitored(settings), ItemHolders.none().to_bytes()
    for window in reversed(range(2000)):
        monitored.send(window, [empty])
    for _ in range(2000):
        monitored.fire()
    assert not any(bag.content for bag in monitored.waiting.values())
    assert sum(bag.read_entries for bag in monitored.waiting.values()) < 2000 * 40


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
    assert batches_of_blobs(blobs, 1) == [[blob] for blob in blobs]
    assert batches_of_blobs([], 5) == [[]]
