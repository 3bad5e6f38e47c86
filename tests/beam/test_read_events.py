"""Elements one by one: read by name, or as pairs; what cannot be read is rejected alone, for the operator."""

from __future__ import annotations

import dataclasses
import json
import operator
import typing

import apache_beam as beam
import numpy as np
import pytest
from apache_beam.testing import test_stream
from apache_beam.transforms.window import TimestampedValue
from apache_beam.typehints.row_type import RowTypeConstraint
from apache_beam.utils.timestamp import Timestamp

from dp_transforms.beam.read_events import CollectEvents, CollectEventsDoFn, getter_of
from dp_transforms.core.event_batch import MAX_ID_BYTES, EventBatch
from dp_transforms.logs.rejected_events import RejectedEvents
from tests.helpers.beam_pipelines import Collected, local_pipeline
from tests.helpers.small_runs import MICROS, START, batch_of

USER, ITEM = getter_of("user", 0), getter_of("item", 1)


def collected(elements, user=USER, item=ITEM, *time):
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
    wrong = [True, object(), [1], np.timedelta64(1, "s"), Timestamp(micros=2**70)]
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


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b"u\xc3", "{0} is not valid UTF-8 (of Latin-1: iconv -f latin1 -t utf-8)"),
        ("\ud800", "{0} is not valid UTF-8 (of Latin-1: iconv -f latin1 -t utf-8)"),
        (b"\xff" * (MAX_ID_BYTES + 1), "{0} is longer than 16,384 bytes"),
        (10**MAX_ID_BYTES, "{0} is longer than 16,384 bytes"),
        (True, "{0} has the wrong type"),
        (1.5, "{0} has the wrong type"),
    ],
    ids=lambda value: repr(value)[:12] if not isinstance(value, int) else str(type(value)),
)
def test_a_bad_id_has_the_reason_that_it_has_in_a_file(value, reason):
    _, rejected = collected([("u", "i"), (value, "i"), ("u", value), (value, value)])
    assert rejected == {reason.format("user"): [1, 3], reason.format("item"): [2]}


@pytest.mark.parametrize("element", ["uv", b"uv", ["u", "i", "x"], ("u",), {0: "u", 1: "i"}, 7, None])
def test_what_is_no_pair_is_rejected_and_never_taken_apart(element):
    """Of the text "alice,news" the user would be "a"."""
    batch, rejected = collected([("u", "i"), element])
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
    batch, rejected = collected([element])
    assert (batch.user.to_pylist(), batch.item.to_pylist(), rejected) == (["u"], ["i"], {})


def test_a_batch_whose_type_was_lost_is_still_a_batch():
    do_fn, batch = CollectEventsDoFn(USER, ITEM), batch_of([("u", "i", 7)])
    do_fn.start_bundle()
    assert list(do_fn.process(batch, Timestamp(2))) == [batch]
    assert list(do_fn.finish_bundle()) == []


def test_a_batch_from_single_elements_is_stamped_with_its_earliest_event(monkeypatch):
    """Whatever comes later in the bundle: a watermark must not overtake an event that waits in a batch."""
    monkeypatch.setattr("dp_transforms.beam.read_events._MAX_BATCH", 3)
    pipeline, found = local_pipeline(), Collected()
    once = pipeline | beam.Create([0])
    stamped = once | beam.FlatMap(lambda _: [TimestampedValue(("u", "i"), at) for at in (50, 20, 40, 90, 80, 70, 60)])
    batches, rejected = stamped | CollectEvents(lambda pair: pair[0], lambda pair: pair[1])
    assert (batches.element_type, rejected.element_type) == (EventBatch, RejectedEvents)
    _ = batches | found.sink()
    pipeline.run().wait_until_finish()
    assert [(stamp.micros // MICROS, (batch.time_micros // MICROS).tolist()) for batch, stamp in found.stamped] == [
        (20, [50, 20, 40]),
        (70, [90, 80, 70]),
        (60, [60]),
    ]


Visit = RowTypeConstraint.from_fields([("reader", str), ("article", str), ("at", int)])
VISIT = {"user": "reader", "item": "article"}


@pytest.mark.parametrize(
    ("element_type", "arguments", "message"),
    [
        (Visit, {}, "user='user' is not a field of the input, which has reader, article"),
        (Visit, {**VISIT, "item": "Article"}, "item='Article' is not a field"),
        (Visit, {**VISIT, "time": "when"}, "time='when' is not a field of the input"),
        (Visit, {"user": ""}, "user must be a field name or a function"),
        (Visit, {"time_unit": "s"}, "time_unit must be one of .* belongs to time"),
    ],
)
def test_what_the_type_of_elements_cannot_have_is_refused_when_the_pipeline_is_built(element_type, arguments, message):
    elements = local_pipeline() | beam.Create([1]) | beam.Map(lambda one: one).with_output_types(element_type)
    with pytest.raises(ValueError, match=message):
        _ = elements | CollectEvents(**{"user": "user", "item": "item", **arguments})


def test_a_stream_has_the_times_that_its_source_sets():
    stream = test_stream.TestStream().add_elements(["x"]).advance_watermark_to_infinity()
    elements = local_pipeline() | stream | beam.Map(json.loads).with_output_types(Visit)
    with pytest.raises(ValueError, match="time cannot be used with unbounded input"):
        _ = elements | CollectEvents(**VISIT, time="at", time_unit="s")
