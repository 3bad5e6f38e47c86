"""A run goes on only with records that are read as before: another user field would give every user a budget anew."""

from __future__ import annotations

import pathlib

import apache_beam as beam
import pytest

from dp_transforms import LogFolder, MonitorStream, StreamClock
from dp_transforms.beam.monitor_stream import PollInTimersDoFn
from dp_transforms.errors import StreamError
from dp_transforms.logs import EventFields
from dp_transforms.logs.streams.partition_poller import PartitionPoller
from dp_transforms.logs.streams.stream_source import StreamSource
from tests.helpers.small_runs import RUN_ID, key_file, small_plan

FIELDS = EventFields("user", "item", "timestamp")


def poller_of(source: StreamSource, folder: pathlib.Path) -> PartitionPoller:
    """What `MonitorStream` polls this source with, ready to restore a state."""
    pipeline = beam.Pipeline()
    key = key_file(folder)
    _ = pipeline | MonitorStream(source, small_plan(), clock=StreamClock(), noise_key=key, run_id=RUN_ID)
    found: list[PollInTimersDoFn] = []

    class Visitor(beam.pipeline.PipelineVisitor):
        def visit_transform(self, node: beam.pipeline.AppliedPTransform) -> None:
            do_fn = getattr(node.transform, "dofn", None)
            if isinstance(do_fn, PollInTimersDoFn):
                found.append(do_fn)

    pipeline.visit(Visitor())
    (do_fn,) = found
    do_fn.setup()
    return do_fn._open.poller


def test_monitor_stream_refuses_the_state_of_other_records(tmp_path):
    stored = poller_of(LogFolder(str(tmp_path), FIELDS), tmp_path).start().to_bytes()
    assert poller_of(LogFolder(str(tmp_path), FIELDS), tmp_path).restore(stored).next_window == 0
    other = LogFolder(str(tmp_path), EventFields("mail", "item", "timestamp"))
    with pytest.raises(StreamError, match="with other fields, formats or schemas of its records"):
        poller_of(other, tmp_path).restore(stored)
