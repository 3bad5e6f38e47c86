"""Prism: what it must do with keyed state; and `DirectRunner` with the Prism of `make engines`: no download, and the
reports of the FnApiRunner. Hits on it: test_threshold_monitor.py."""

import time

import apache_beam as beam
import psutil
import pytest
from apache_beam.coders import VarIntCoder
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.testing.util import assert_that, equal_to
from apache_beam.transforms.userstate import ReadModifyWriteStateSpec

from dp_transforms.beam.on_loopback import listen_on_loopback
from examples.engines import prism
from tests.engines import needs
from tests.helpers.beam_pipelines import pairs_source, run_monitor
from tests.helpers.contributions_plans import small_contributions_plan
from tests.helpers.no_network import no_network
from tests.helpers.small_runs import ordered_log

# The threads of a worker end with an error when their engine goes away.
pytestmark = [needs("prism"), pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")]


def test_contributions_of_bounded_input_on_direct_runner(key_path):
    """Also with a fresh key, which stays in this process: the workers of DirectRunner's Prism are threads of it."""
    plan = small_contributions_plan(18, window_seconds=12 * 3600, forget_after=4, most_tests=16)
    source = pairs_source(ordered_log(plan, 6))
    named = run_monitor(source, plan, noise_key=key_path).reports
    assert named
    listen_on_loopback()
    flags = [f"--prism_location={prism.prism_binary()}"]
    with no_network() as refused:
        found, fresh = (
            run_monitor(source, plan, flags=flags, runner="DirectRunner", noise_key=key) for key in (key_path, None)
        )
    assert refused == []
    assert type(found.result).__module__ == "apache_beam.runners.portability.portable_runner", "it went on elsewhere"
    assert sorted(found.reports) == sorted(named), "what comes in which order is not promised there"
    assert fresh.reports


class CountSlowly(beam.DoFn):
    """Key and value -> how many values of the key there were before. So slow that Prism may want to cut its bundle."""

    SEEN = ReadModifyWriteStateSpec("seen_v1", VarIntCoder())

    def process(self, element, seen=beam.DoFn.StateParam(SEEN)):
        before = seen.read() or 0
        time.sleep(0.3)
        seen.write(before + 1)
        yield before


def test_prism_gives_a_key_to_one_bundle_at_a_time_and_ends_with_its_block():
    """It does not when it cuts bundles: what one of two bundles writes to the state is then lost."""
    with prism.Prism() as engine, beam.Pipeline(options=PipelineOptions(prism.options(engine.endpoint))) as pipeline:
        values = pipeline | beam.Create([0]) | beam.FlatMap(lambda _: [("key", number) for number in range(12)])
        seen = values | "Slow" >> beam.ParDo(CountSlowly())
        assert_that(seen, equal_to(list(range(12))))
    assert not psutil.pid_exists(engine.process.pid)
