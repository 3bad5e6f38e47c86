"""Elements whose type a step before has lost: read by name where they have names, else as pairs or batches."""

from __future__ import annotations

import dataclasses
import typing

import apache_beam as beam
import pytest
from apache_beam.utils.timestamp import Timestamp

from dp_transforms.beam.read_events import CollectEventsDoFn
from dp_transforms.beam.release_heavy_hitters import _named_or_pair
from dp_transforms.logs.rejected_events import RejectedEvents
from tests.helpers.small_runs import batch_of

USER, ITEM = _named_or_pair("user", 0), _named_or_pair("item", 1)


def collected(*elements):
    """The batch and the rejected events of one bundle of elements whose type was lost."""
    do_fn = CollectEventsDoFn(USER, ITEM)
    do_fn.start_bundle()
    for element in elements:
        assert list(do_fn.process(element, Timestamp(2))) == []
    batch, *rejected = do_fn.finish_bundle()
    return batch.value, [output.value.value for output in rejected]


@pytest.mark.parametrize("element", ["uv", b"uv", ["u", "i", "x"], ("u",), {0: "u", 1: "i"}, 7, None])
def test_what_is_no_pair_is_rejected_and_never_taken_apart(element):
    """Of the text "alice,news" the user would be "a"."""
    batch, rejected = collected(("u", "i"), element)
    assert batch.user.to_pylist() == ["u"]
    assert rejected == [RejectedEvents("element", [2_000_000], "user or item cannot be read")]


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
    batch, rejected = collected(element)
    assert (batch.user.to_pylist(), batch.item.to_pylist(), rejected) == (["u"], ["i"], [])


def test_a_batch_whose_type_was_lost_is_still_a_batch():
    do_fn = CollectEventsDoFn(USER, ITEM)
    do_fn.start_bundle()
    batch = batch_of([("u", "i", 7)])
    assert list(do_fn.process(batch, Timestamp(2))) == [batch]
    assert list(do_fn.finish_bundle()) == []


def test_long_ids_are_rejected():
    batch, rejected = collected(("u" * 16_384, "i"), ("u" * 16_385, "i"), ("u", "é" * 8193))
    assert len(batch) == 1
    assert sorted(events.reason for events in rejected) == [
        "item is longer than 16,384 bytes",
        "user is longer than 16,384 bytes",
    ]
