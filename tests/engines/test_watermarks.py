"""`ShiftingHeavyHitters` on unbounded input: engines close its windows by their watermarks, and the reports are the
oracle's."""

import contextlib
import json
import time

import apache_beam as beam
import pytest
from apache_beam.coders import BytesCoder
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.testing import test_stream
from apache_beam.transforms.window import TimestampedValue
from apache_beam.utils.timestamp import Timestamp

from dp_transforms.beam.release_heavy_hitters import ShiftingHeavyHitters
from examples.engines import flink, prism
from tests.engines import on
from tests.engines.stream_case import history_case, plain_reports
from tests.helpers.beam_pipelines import Collected
from tests.helpers.small_runs import MICROS, RUN_ID, START

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")


def _stream(events, size=150):
    """In disorder within each part; the watermark follows behind it."""
    events = sorted(events, key=lambda event: event[2])
    stream = test_stream.TestStream(coder=BytesCoder()).advance_watermark_to(START - 60)
    for low in range(0, len(events), size):
        part = sorted(events[low : low + size])
        stream.add_elements(
            [TimestampedValue(json.dumps(event[:2]).encode(), Timestamp(micros=event[2])) for event in part]
        )
        stream.advance_watermark_to(events[low : low + size][-1][2] // MICROS)
    return stream.advance_watermark_to_infinity()


@contextlib.contextmanager
def _engine(name, tmp_path):
    """The options of a pipeline on it."""
    if name == "prism":
        with prism.Prism() as engine:
            yield prism.options(engine.endpoint)
    else:
        with flink.JobServer() as server:
            yield flink.options(server.endpoint, checkpointing_interval_seconds=1, checkpoint_dir=str(tmp_path))


@pytest.mark.parametrize(("engine", "mode"), [on("prism", "hits"), on("flink", "looks", is_long=True)])
def test_windows_that_a_watermark_closes(key_path, tmp_path, engine, mode):
    case = history_case(mode=mode)
    reports = Collected()
    with _engine(engine, tmp_path) as flags:
        begin = time.monotonic()
        pipeline = beam.Pipeline(options=PipelineOptions([*flags, "--streaming"]))
        events = (
            pipeline
            | "Script" >> _stream(case.counted).with_output_types(bytes)
            | "Contributions" >> beam.Map(lambda data: tuple(json.loads(data))).with_output_types(tuple[str, str])
        )
        heavy = events | ShiftingHeavyHitters(case.plan, noise_key=key_path, run_id=RUN_ID, shards=2)
        _ = heavy.reports | "See" >> reports.sink()
        result = pipeline.run()
        try:
            deadline = time.monotonic() + 180
            while len(reports.values) < len(case.expected) and time.monotonic() < deadline:
                time.sleep(0.2)
            time.sleep(1)  # whatever comes too often
        finally:
            with contextlib.suppress(Exception):
                result.cancel()
        print(f"watermarks on {engine}, {mode}: {time.monotonic() - begin:.1f} s")
    assert plain_reports(reports.values) == plain_reports(case.expected)
