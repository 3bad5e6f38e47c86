"""What `ShiftingHeavyHitters` takes and gives: every kind of input is the same log, a bundle that runs twice has one
answer. Whole logs in every mode: tests/conformance."""

from __future__ import annotations

import datetime
import typing

import apache_beam as beam
import numpy as np
import pytest
from apache_beam.transforms.window import SlidingWindows, TimestampedValue
from apache_beam.typehints import row_type
from apache_beam.utils.timestamp import Timestamp

from dp_transforms.beam.read_events import CollectEvents
from dp_transforms.beam.release_heavy_hitters import ShiftingHeavyHitters
from dp_transforms.beam.release_rows import HeavyHitterRows
from dp_transforms.plan.plan import plan_for
from dp_transforms.plan.window_schedule import WindowSchedule
from tests.helpers.beam_pipelines import Collected, batches_source, local_pipeline, run_monitor
from tests.helpers.contributions_plans import small_contributions_plan
from tests.helpers.small_runs import RUN_ID, SECRET, batches_of, key_file, random_log, small_plan
from tests.reference.run import reference

Pair = tuple[str, str]


class Visit(typing.NamedTuple):
    reader: str
    article: str
    at: int
    text: str


class Fields(typing.TypedDict):
    who: str
    what: str


beam.coders.registry.register_coder(Visit, beam.coders.RowCoder)
VISIT = {"user": "reader", "item": "article"}


def visit(user, item, micros) -> Visit:
    return Visit(user, item, micros, f"{datetime.datetime(1970, 1, 1) + datetime.timedelta(microseconds=micros)}Z")


def stamp(make, element_type):
    """Of events ``(user, item, micros)``."""
    made = beam.Map(lambda event: TimestampedValue(make(*event[:2]), Timestamp(micros=event[2])))
    return made.with_output_types(element_type)


def kinds_of(events):
    """Each kind of input, and its arguments: first those whose time is their timestamp."""
    fields = row_type.RowTypeConstraint.from_fields([("u", str), ("i", str)])
    rows = events | "Rows" >> stamp(lambda user, item: beam.Row(u=user, i=item), fields)
    inputs = {
        "pairs of no type": (events | "Any" >> stamp(lambda user, item: (user, item), typing.Any), {}),
        "rows": (rows, {"user": "u", "item": lambda row: row.i}),
    }
    for kind in (dict, Fields, dict[str, str] | None):
        dicts = events | f"Dicts {kind}" >> stamp(lambda user, item: {"who": user, "what": item}, kind)
        inputs[f"dicts {kind}"] = (dicts, {"user": lambda row: row["who"], "item": "what"})
    visits = events | "Visits" >> beam.Map(lambda event: visit(*event)).with_output_types(Visit)
    untyped = visits | "Untyped" >> beam.Map(lambda visit: visit._asdict()).with_output_types(typing.Any)
    pairs = visits | "Nested" >> beam.Map(lambda visit: (visit.reader, visit)).with_output_types(tuple[str, Visit])
    functions = {"user": lambda pair: pair[0], "item": lambda pair: pair[1].article}
    return {
        **inputs,
        "numbers": (visits, {**VISIT, "time": "at", "time_unit": "us"}),
        "text": (visits, {**VISIT, "time": "text"}),
        "text of no type": (untyped, {**VISIT, "time": "text"}),
        "Beam's times": (visits, {**VISIT, "time": lambda visit: Timestamp(micros=visit.at)}),
        "functions": (pairs, {**functions, "time": lambda pair: np.datetime64(pair[1].at, "us")}),
    }


# Beam's windows hold no timestamp far out, and refuse some: events outside are tested with batches.
LOG = [event for event in random_log(small_plan(), seed=1, events=400) if event[2] > 0]


def test_every_kind_of_input_is_the_same_log():
    pipeline, found = local_pipeline(), {}
    events = pipeline | "Events" >> beam.Create(LOG, reshuffle=False)
    for name, (source, arguments) in kinds_of(events).items():
        found[name] = Collected()
        batches, _ = source | f"Collect {name}" >> CollectEvents(**{"user": "user", "item": "item", **arguments})
        _ = batches | f"See {name}" >> found[name].sink()
    pipeline.run().wait_until_finish()
    for name, batches in found.items():
        columns = ((batch.user.to_pylist(), batch.item.to_pylist(), batch.time_micros) for batch in batches.values)
        assert sorted(event for each in columns for event in zip(*each, strict=True)) == sorted(LOG), name


def test_pairs_batches_and_times_in_fields_in_windows_of_the_plan_or_in_none_give_the_same_reports(tmp_path):
    plan = small_plan(sliding=3, mode="hits", hits_per_user=2)
    windows = SlidingWindows(60, 20, Timestamp(plan.schedule.start_seconds % 20))
    pipeline, found = local_pipeline(), {}
    events = pipeline | "Events" >> beam.Create(LOG, reshuffle=False)
    pairs = events | "Pairs" >> stamp(lambda user, item: (user, item), Pair)
    visits = events | "Visits" >> beam.Map(lambda event: visit(*event)).with_output_types(Visit)
    batches = batches_source(batches_of(LOG, 200))(pipeline)
    for name, source, arguments in (
        ("batches", batches | beam.WindowInto(windows), {}),
        ("pairs", pairs, {}),
        ("visits", visits, {**VISIT, "time": "at", "time_unit": "us"}),
    ):
        found[name] = Collected()
        monitor = ShiftingHeavyHitters(plan, noise_key=key_file(tmp_path), run_id=RUN_ID, **arguments)
        _ = (source | f"Monitor {name}" >> monitor).reports | f"Reports {name}" >> found[name].sink()
    pipeline.run().wait_until_finish()
    expected = reference(LOG, plan)
    assert expected
    for name, reports in found.items():
        assert reports.values == expected, name


def test_it_runs_where_beam_checks_the_types_of_elements(tmp_path):
    """Elements, and in windows, counts and rows all that is stamped."""
    schedule = WindowSchedule.fixed("2026-01-01T00:00:00Z", "2026-01-01T03:00:00Z", "1h")
    made = {"rounds": {"usual_contributions": (1, 10), "most_contributions": 20}, "hits": {"charge": "hits"}}
    pipeline, found = local_pipeline(["--runtime_type_check"]), {}
    stamped = beam.Map(lambda pair: TimestampedValue[Pair](pair, Timestamp(schedule.start_seconds + 60)))
    pairs = pipeline | beam.Create([(f"u{number}", "x") for number in range(900)]) | stamped.with_output_types(Pair)
    rows = pairs | "Rows" >> beam.Map(lambda pair: beam.Row(user=pair[0], item=pair[1]))
    for name, choices in made.items():
        plan = plan_for(epsilon=4, delta=1e-6, schedule=schedule, **choices)
        (tmp_path / f"{name}.json").write_text(plan.to_json())
        if name == "hits":
            output = (pairs | name >> ShiftingHeavyHitters(plan)).reports
        else:
            output = rows | name >> HeavyHitterRows(str(tmp_path / f"{name}.json"))
        found[name] = Collected()
        _ = output | f"See {name}" >> found[name].sink()
    pipeline.run().wait_until_finish()
    assert all(each.values for each in found.values())


@pytest.mark.parametrize("plan", [small_plan(), small_contributions_plan()], ids=["hits", "contributions"])
def test_a_bundle_that_runs_twice_publishes_one_answer_with_a_fresh_key_too(plan):
    """A sink fused to the stages that draw sees both attempts: fresh noise would show two."""
    source = batches_source(batches_of(random_log(plan, seed=7, events=600), 200))
    found = run_monitor(source, plan, flags=["--direct_runner_bundle_repeat=1"]).reports
    windows = {report.window_start for report in found}
    assert len(found) == 2 * len(windows) > 2
    assert all(found.count(report) == 2 for report in found)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"stream": ""}, "stream must be printable text and not empty"),
        ({"run_id": ""}, "run_id must be printable text and not empty"),
        ({"shards": 0}, "shards must be a whole number >= 1, got 0"),
        ({"noise_key": SECRET}, "noise_key must be a path"),
        ({"noise_key": "/nowhere/at/all"}, "cannot be read: No such file"),
        ({"public_items": "items.txt"}, "no public items"),
    ],
)
def test_arguments_that_cannot_be_used_are_refused_when_the_pipeline_is_built(arguments, message):
    pairs = local_pipeline() | beam.Create([("u", "i")]).with_output_types(Pair)
    with pytest.raises(ValueError, match=message) as raised:
        _ = pairs | ShiftingHeavyHitters(small_plan(), **arguments)
    assert repr(SECRET) not in str(raised.value)
