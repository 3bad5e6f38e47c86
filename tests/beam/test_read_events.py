"""Elements one by one: read by name, or as pairs where a step before has lost their type; with a time of their own or
that of a field. What cannot be read is rejected alone; what has no time is counted and warned of, once."""

from __future__ import annotations

import dataclasses
import datetime
import logging
import operator
import typing

import apache_beam as beam
import numpy as np
import pytest
from apache_beam.testing import test_stream
from apache_beam.transforms.window import TimestampedValue
from apache_beam.utils.timestamp import Timestamp

from dp_transforms.beam.read_events import CollectEventsDoFn, getter_of
from dp_transforms.beam.release_heavy_hitters import ShiftingHeavyHitters
from dp_transforms.beam.threshold_monitor import ThresholdMonitorEvolving
from dp_transforms.beam.workers import operator_counts
from dp_transforms.core.operator_counts import EVENTS_OUTSIDE_RANGE, EVENTS_WITHOUT_TIME
from dp_transforms.logs.rejected_events import RejectedEvents
from tests.helpers.beam_pipelines import assert_all_give, local_pipeline
from tests.helpers.small_runs import MICROS, RUN_ID, START, batch_of, key_file, random_log, small_plan


class Visit(typing.NamedTuple):
    user: str
    item: str
    at: int
    text: str


beam.coders.registry.register_coder(Visit, beam.coders.RowCoder)


def iso(micros: int) -> str:
    return (datetime.datetime(1970, 1, 1) + datetime.timedelta(microseconds=micros)).isoformat() + "Z"


def test_a_field_or_a_function_gives_the_times_that_timestamps_would(tmp_path):
    plan = small_plan(mode="hits", hits_per_user=2)
    log = random_log(plan, seed=1, events=900)
    pipeline = local_pipeline()
    visits = pipeline | beam.Create([Visit(user, item, at, iso(at)) for user, item, at in log], reshuffle=False)
    typed = visits | "Typed" >> beam.Map(lambda visit: visit).with_output_types(Visit)
    untyped = visits | "Untyped" >> beam.Map(lambda visit: visit._asdict()).with_output_types(typing.Any)
    pairs = visits | "Contributions" >> beam.Map(lambda visit: (visit.user, visit)).with_output_types(tuple[str, Visit])
    inputs = {
        "a field with numbers": (typed, {"time": "at", "time_unit": "us"}),
        "a field with text": (typed, {"time": "text"}),
        "a field of what has lost its type": (untyped, {"time": "text", "time_unit": "iso"}),
        "a function to Beam's times": (typed, {"time": lambda visit: Timestamp(micros=visit.at)}),
        "functions of anything": (
            pairs,
            {
                "user": lambda pair: pair[0],
                "item": lambda pair: pair[1].item,
                "time": lambda pair: np.datetime64(pair[1].at, "us"),
            },
        ),
    }
    assert_all_give(pipeline, inputs, plan, key_file(tmp_path), log)


def ran(tmp_path, caplog, elements, **arguments) -> tuple[dict[str, int], list[str]]:
    """The operator's counts of a run over these elements, and what was warned of."""
    pipeline = local_pipeline()
    monitor = ShiftingHeavyHitters(small_plan(), noise_key=key_file(tmp_path), run_id=RUN_ID, **arguments)
    with caplog.at_level(logging.WARNING, logger="dp_transforms"):
        _ = (
            pipeline
            | beam.Create(elements, reshuffle=False)
            | beam.Map(lambda row: row).with_output_types(object)
            | monitor
        )
        result = pipeline.run()
        result.wait_until_finish()
    warned = [record.getMessage() for record in caplog.records if record.name.startswith("dp_transforms")]
    return operator_counts(result), warned


def test_elements_of_keys_without_a_timestamp_are_warned_of_once_by_the_name_of_their_transform(tmp_path, caplog):
    """Not once for each key of the bundle."""
    elements = [(f"key-{n % 9}", (f"user-{n}", "item")) for n in range(90)]
    monitor = ThresholdMonitorEvolving(small_plan(mode="hits"), key_file(tmp_path), run_id=RUN_ID)
    with caplog.at_level(logging.WARNING, logger="dp_transforms"), local_pipeline() as pipeline:
        _ = pipeline | beam.Create(elements, reshuffle=False) | monitor
    (warning,) = [record.getMessage() for record in caplog.records if record.name.startswith("dp_transforms")]
    assert warning.startswith("ThresholdMonitorEvolving: elements have no timestamp")
    assert "time='...'" not in warning, "which it does not take"


def test_a_log_with_no_event_in_the_range_is_warned_of_once_and_another_is_not(tmp_path, caplog):
    outside = [TimestampedValue((f"user-{n}", "item"), START - 60) for n in range(1000)]
    counts, (warning,) = ran(tmp_path, caplog, outside)
    assert counts[EVENTS_OUTSIDE_RANGE] == 1000
    assert EVENTS_WITHOUT_TIME not in counts
    assert "None of the events" in warning
    assert "2023-11-14T22:13:00Z .. 2023-11-14T22:25:00Z" in warning
    caplog.clear()
    inside = TimestampedValue(("user", "item"), START + 1)
    assert ran(tmp_path, caplog, [*outside, inside])[1] == []


def collected(elements, user, item, *time):
    """One bundle of elements, a second apart: its batch, and the seconds of the rejected ones by reason."""
    do_fn = CollectEventsDoFn(user, item, *time)
    do_fn.start_bundle()
    for second, element in enumerate(elements):
        assert list(do_fn.process(element, Timestamp(second))) == []
    batch, *rejected = [output.value for output in do_fn.finish_bundle()]
    assert all(isinstance(each.value, RejectedEvents) for each in rejected)
    return batch, {each.value.reason: [place // MICROS for place in each.value.positions] for each in rejected}


class Unreadable:
    def __getattr__(self, name):
        raise OverflowError("a cell")


def test_a_row_that_cannot_be_read_is_left_out_alone():
    """In one bundle, so in one batch, with all kinds of numbers that are not times."""
    good = [("u1", "i1", START), ("u2", "i2", START + 7)]
    bad = [10**30, -(10**30), float("nan"), float("inf"), "soon", "½", 10**17]
    wrong = [True, b"1", [1], np.timedelta64(1, "s"), Timestamp(micros=2**70)]
    rows = [*good, *(("u3", "i3", time) for time in [*bad, *wrong, "", None]), (None, "i3", 1), ("u3", "", 1)]
    elements = [beam.Row(who=user, what=item, at=time) for user, item, time in rows]
    elements += [beam.Row(who="u3", other="i3", at=1), Unreadable()]
    batch, rejected = collected(elements, *(operator.attrgetter(name) for name in ("who", "what", "at")), "s")
    assert batch.to_bytes() == batch_of([(user, item, time * MICROS) for user, item, time in good]).to_bytes()
    assert rejected == {
        "bad time": list(range(2, 9)),
        "time has the wrong type": list(range(9, 14)),
        "missing time": [14, 15],
        "missing user": [16],
        "empty item": [17],
        "user, item or time cannot be read": [18, 19],
    }


def test_a_time_that_the_input_cannot_have_is_refused_when_the_pipeline_is_built(tmp_path):
    def apply(source: beam.PTransform, element_type: object, **arguments: object) -> None:
        monitor = ShiftingHeavyHitters(small_plan(), noise_key=key_file(tmp_path), run_id=RUN_ID, **arguments)
        _ = local_pipeline() | source | beam.Map(lambda row: row).with_output_types(element_type) | monitor

    def rows() -> beam.PTransform:
        return beam.Create([Visit("u", "i", 0, "")])

    with pytest.raises(ValueError, match=r"time='when' is not a field of the input, which has user, item, at, text"):
        apply(rows(), Visit, time="when")
    with pytest.raises(ValueError, match="give functions for user, item, time"):
        apply(rows(), tuple[str, str], time="at")
    with pytest.raises(ValueError, match="give functions for time"):
        apply(rows(), str, user=lambda row: row, item=lambda row: row, time="at")
    with pytest.raises(ValueError, match="time cannot be used with unbounded input"):
        apply(test_stream.TestStream().add_elements(["x"]).advance_watermark_to_infinity(), Visit, time="at")


# Elements whose type a step before has lost: read by name where they have names, else as pairs or batches.

USER, ITEM = getter_of("user", 0), getter_of("item", 1)


@pytest.mark.parametrize("element", ["uv", b"uv", ["u", "i", "x"], ("u",), {0: "u", 1: "i"}, 7, None])
def test_what_is_no_pair_is_rejected_and_never_taken_apart(element):
    """Of the text "alice,news" the user would be "a"."""
    batch, rejected = collected([("u", "i"), element], USER, ITEM)
    assert batch.user.to_pylist() == ["u"]
    assert rejected == {"user or item cannot be read": [1]}


class Turned(typing.NamedTuple):
    item: str
    user: str


@dataclasses.dataclass
class Click:
    item: str
    user: str


@pytest.mark.parametrize(
    "element", [Turned("i", "u"), Click("i", "u"), beam.Row(item="i", user="u"), {"item": "i", "user": "u"}, ["u", "i"]]
)
def test_elements_whose_type_was_lost_are_still_read_by_name(element):
    """Stamping by a lambda makes Any of a schema; read by position, the user of `Turned` would be published."""
    batch, rejected = collected([element], USER, ITEM)
    assert (batch.user.to_pylist(), batch.item.to_pylist(), rejected) == (["u"], ["i"], {})


def test_a_batch_whose_type_was_lost_is_still_a_batch():
    do_fn = CollectEventsDoFn(USER, ITEM)
    do_fn.start_bundle()
    batch = batch_of([("u", "i", 7)])
    assert list(do_fn.process(batch, Timestamp(2))) == [batch]
    assert list(do_fn.finish_bundle()) == []
