"""What `ShiftingHeavyHitters` takes and gives: every kind of input is the same log, and anything else is refused when
the pipeline is built."""

from __future__ import annotations

import typing

import apache_beam as beam
import pytest
from apache_beam.transforms.window import FixedWindows, Sessions, SlidingWindows, TimestampedValue
from apache_beam.typehints import row_type
from apache_beam.utils.timestamp import Timestamp

from dp_transforms.beam.read_events import CollectEvents
from dp_transforms.beam.release_heavy_hitters import ShiftingHeavyHitters
from dp_transforms.beam.release_rows import HeavyHitterRows
from dp_transforms.core.event_batch import EventBatch
from dp_transforms.logs.rejected_events import RejectedEvents
from dp_transforms.plan.plan import plan_for
from dp_transforms.plan.window_schedule import WindowSchedule
from tests.helpers.beam_pipelines import Collected, assert_all_give, local_pipeline
from tests.helpers.small_runs import (
    MICROS,
    SECRET,
    batches_of,
    key_file,
    random_log,
    small_plan,
)

Pair = tuple[str, str]


class Visit(typing.NamedTuple):
    reader: str
    article: str


class Fields(typing.TypedDict):
    who: str
    what: str


beam.coders.registry.register_coder(Visit, beam.coders.RowCoder)


def events_of(log):
    """In the pipelines below events are tuples ``(user, item, micros)``, stamped on the way."""
    return beam.Create(log, reshuffle=False)


def stamp(make):
    return beam.Map(lambda event: TimestampedValue(make(*event[:2]), Timestamp(micros=event[2])))


@pytest.mark.parametrize("sliding", [1, 3])
def test_every_kind_of_input_is_the_same_log(tmp_path, sliding):
    plan = small_plan(sliding=sliding, mode="hits", hits_per_user=2)
    # Beam's windows hold no timestamp far out, and refuse some: events outside are tested with batches.
    log = [event for event in random_log(plan, seed=1, events=400) if event[2] > 0]
    offset = plan.schedule.start_seconds % plan.schedule.slide_seconds
    windows = FixedWindows(60, Timestamp(offset)) if sliding == 1 else SlidingWindows(60, 20, Timestamp(offset))
    pipeline = local_pipeline()
    events = pipeline | "Events" >> events_of(log)
    pairs = events | "Contributions" >> stamp(lambda user, item: (user, item)).with_output_types(Pair)
    visits = events | "Visits" >> stamp(Visit).with_output_types(Visit)
    rows = events | "Rows" >> stamp(lambda user, item: beam.Row(u=user, i=item)).with_output_types(
        row_type.RowTypeConstraint.from_fields([("u", str), ("i", str)])
    )

    def as_dict(user, item):
        return {"who": user, "what": item}

    def as_fields(user, item) -> Fields:
        return {"who": user, "what": item}

    dicts = {
        "plain": stamp(as_dict).with_output_types(dict),
        "of text": stamp(as_dict).with_output_types(dict[str, str]),
        "of anything": stamp(as_dict).with_output_types(typing.Mapping[str, typing.Any]),
        "with keys": stamp(as_fields).with_output_types(Fields),
        "or nothing": stamp(as_dict).with_output_types(dict[str, str] | None),
        "of no known type": stamp(as_dict).with_output_types(typing.Any),
    }
    untyped = events | "Untyped" >> stamp(lambda user, item: {"who": user, "what": item}).with_output_types(dict)
    batches = pipeline | "Batches" >> beam.Create(batches_of(log, 200), reshuffle=False).with_output_types(EventBatch)
    fields = {"user": "reader", "item": "article"}
    inputs = {
        "windowed batches": (batches | "Window batches" >> beam.WindowInto(windows), {"window": windows}),
        "windowed pairs": (pairs | "Window pairs" >> beam.WindowInto(windows), {"window": windows}),
        "windowed field names": (visits | "Window visits" >> beam.WindowInto(windows), {"window": None, **fields}),
    }
    without_windows = {
        "batches": (batches, {}),
        "pairs": (pairs, {}),
        "pairs of no known type": (pairs | beam.Map(lambda pair: pair).with_output_types(typing.Any), {}),
        "field names": (visits, fields),
        "rows": (rows, {"user": "u", "item": "i"}),
        "functions": (rows, {"user": lambda row: row.u, "item": lambda row: row.i}),
        "a name and a function": (rows, {"user": "u", "item": lambda row: row.i}),
        "a function and a name of dicts": (untyped, {"user": lambda row: row["who"], "item": "what"}),
        **{
            f"dicts {name}": (events | f"Dicts {name}" >> step, {"user": "who", "item": "what"})
            for name, step in dicts.items()
        },
        "functions of anything": (untyped, {"user": lambda row: row["who"], "item": lambda row: row["what"]}),
    }
    inputs |= without_windows if sliding == 1 else {}
    assert_all_give(pipeline, inputs, plan, key_file(tmp_path), log)


def test_it_runs_where_beam_checks_the_types_of_elements(tmp_path):
    """Elements, and in windows, counts, blocks and rows all that is stamped."""
    schedule = WindowSchedule.fixed("2026-01-01", "2026-01-02", "1h")
    made = {
        "looks": {"use": "stream"},
        "rounds": {"usual_contributions": (1, 10), "most_contributions": 20},
        "hits": {"charge": "hits"},
        "hits-with-counts": {"charge": "hits", "counts": True},
    }
    pipeline, found = local_pipeline(["--runtime_type_check"]), {}
    stamp = beam.Map(lambda pair: TimestampedValue[Pair](pair, Timestamp(schedule.start_seconds + 60)))
    pairs = pipeline | beam.Create([(f"u{number}", "x") for number in range(900)]) | stamp.with_output_types(Pair)
    for name, choices in made.items():
        plan = plan_for(epsilon=4, delta=1e-6, schedule=schedule, **choices)
        (tmp_path / f"{name}.json").write_text(plan.to_json())
        released = pairs | name >> ShiftingHeavyHitters(plan, with_blocks=name == "rounds")
        outputs = {"": released.reports, " in blocks": released.blocks} if released.blocks else {"": released.reports}
        rows = pairs | f"Fields {name}" >> beam.Map(lambda pair: beam.Row(user=pair[0], item=pair[1]))
        outputs[" as rows"] = rows | f"Rows {name}" >> HeavyHitterRows(str(tmp_path / f"{name}.json"))
        for kind, output in outputs.items():
            found[name + kind] = Collected()
            _ = output | f"See {name}{kind}" >> found[name + kind].sink()
    pipeline.run().wait_until_finish()
    numbers = {name: len(each.values) for name, each in found.items()}
    for name in ("rounds", "rounds as rows"):  # noise alone names the item of a block in other windows, now and then
        assert numbers.pop(name) >= 1
    assert numbers == dict.fromkeys(numbers, 1)
    assert len(found) == 9


def test_a_batch_from_single_elements_is_stamped_with_its_earliest_event(monkeypatch):
    """Whatever comes later in the bundle: a watermark must not overtake an event that waits in a batch."""
    monkeypatch.setattr("dp_transforms.beam.read_events._MAX_BATCH", 3)
    times = [50, 20, 40, 90, 80, 70, 60]
    pipeline, found = local_pipeline(), Collected()
    batches, rejected = (
        pipeline
        | beam.Create([0])
        | beam.FlatMap(lambda _: [TimestampedValue(("u", "i"), Timestamp(time)) for time in times])
        | CollectEvents(lambda pair: pair[0], lambda pair: pair[1])
    )
    assert batches.element_type is EventBatch
    assert rejected.element_type is RejectedEvents
    _ = batches | found.sink()
    pipeline.run().wait_until_finish()
    assert [(stamped.micros, (batch.time_micros // MICROS).tolist()) for batch, stamped in found.stamped] == [
        (20 * MICROS, [50, 20, 40]),
        (70 * MICROS, [90, 80, 70]),
        (60 * MICROS, [60]),
    ]


# --- refused when the pipeline is built


def build(plan, *, windowing=None, element_type=Pair, runner="FnApiRunner", flags=(), **arguments):
    """Applies the transform to a PCollection of that type; nothing runs."""
    source = (
        local_pipeline(flags, runner) | beam.Create([1]) | beam.Map(lambda one: one).with_output_types(element_type)
    )
    if windowing is not None:
        source |= beam.WindowInto(windowing)
    return source | ShiftingHeavyHitters(plan, **arguments)


FIXED, SLIDING = {"sliding": 1}, {"sliding": 3}


@pytest.mark.parametrize(
    ("kind", "window", "message"),
    [
        (FIXED, Sessions(60), "must be FixedWindows or SlidingWindows, got Sessions"),
        (FIXED, FixedWindows(61), "not those of the plan"),
        (FIXED, FixedWindows(60, offset=7), r"offset 7 s\) are not those of the plan \(60 s every 60 s"),
        (FIXED, SlidingWindows(60, 20), "60 s every 20 s.* not those of the plan"),
        (SLIDING, SlidingWindows(60, 30), "not those of the plan"),
        (SLIDING, SlidingWindows(60, 20, offset=5), "not those of the plan"),
    ],
)
def test_other_windows_are_refused(kind, window, message):
    plan = small_plan(**kind)
    with pytest.raises(ValueError, match=message):
        ShiftingHeavyHitters(plan, window=window)
    with pytest.raises(ValueError, match=message):
        build(plan, windowing=window)


@pytest.mark.parametrize(
    ("element_type", "arguments", "message"),
    [
        (Visit, {}, "user='user' is not a field of the input, which has reader, article"),
        (Visit, {"user": "reader", "item": "Article"}, "item='Article' is not a field"),
        (str, {}, "has no schema, .*: give functions for user, item"),
        (tuple[str, ...], {"user": len}, "has no schema, .*: give functions for item"),
    ],
)
def test_input_without_the_fields_is_refused(element_type, arguments, message):
    with pytest.raises(ValueError, match=message):
        build(small_plan(), element_type=element_type, **arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"user": ""}, "user must be a field name or a function"),
        ({"stream": ""}, "stream must be printable text and not empty"),
        ({"run_id": ""}, "run_id must be printable text and not empty"),
        ({"shards": 0}, "shards must be a whole number >= 1, got 0"),
        ({"noise_key": SECRET}, "noise_key must be a path"),
        ({"noise_key": "/nowhere/at/all"}, "cannot be read: No such file"),
        ({"flags": ["--direct_running_mode=multi_processing"]}, "FnApiRunner in mode multi_processing runs workers"),
        ({"runner": "FlinkRunner"}, "FlinkRunner runs workers outside this process"),
        ({"runner": "PortableRunner", "flags": ["--job_endpoint=embed"]}, "PortableRunner runs workers outside"),
    ],
)
def test_other_arguments_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message) as raised:
        build(small_plan(), **arguments)
    assert repr(SECRET) not in str(raised.value)
