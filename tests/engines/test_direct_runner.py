"""`DirectRunner` with the Prism of `make prism`: no download, and the reports of the FnApiRunner."""

from __future__ import annotations

import collections

import apache_beam as beam
import pytest
from apache_beam.transforms.periodicsequence import PeriodicSequence

from dp_transforms.engines import prism
from dp_transforms.engines.on_loopback import listen_on_loopback
from tests.engines import skip_reason
from tests.helpers.beam_pipelines import pairs_source, run_monitor
from tests.helpers.looks_plans import small_looks_plan
from tests.helpers.no_network import no_network
from tests.helpers.oracle import oracle_reports
from tests.helpers.small_runs import MICROS, SECRET, ordered_log, settings_of, small_plan

# The threads of a worker end with an error when their engine goes away.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")


def on_prism(source, plan, key):
    """What comes in which order is not promised there."""
    if (reason := skip_reason("prism")) is not None:
        pytest.skip(reason)
    listen_on_loopback()
    with no_network() as refused:
        flags = [f"--prism_location={prism.prism_binary()}"]
        found = run_monitor(source, plan, flags=flags, runner="DirectRunner", noise_key=key)
    assert refused == []
    assert type(found.result).__module__ == "apache_beam.runners.portability.portable_runner", "it went on elsewhere"
    return sorted(found.reports)


@pytest.mark.parametrize("mode", ["hits", "looks"])
def test_bounded_input(key_path, mode):
    if mode == "looks":
        plan = small_looks_plan(18, window_seconds=12 * 3600, forget_after=4, most_looks=16)
    else:
        plan = small_plan(mode=mode, sliding=3, hits_per_user=2)
    source = pairs_source(ordered_log(plan, 6))
    named = run_monitor(source, plan, noise_key=key_path).reports
    assert named
    assert on_prism(source, plan, key_path) == sorted(named)


def test_a_fresh_key_stays_in_this_process(key_path):
    """The workers of DirectRunner's Prism are threads of it."""
    plan = small_plan(mode="hits", hits_per_user=2)
    assert on_prism(pairs_source(ordered_log(plan, 6)), plan, None)


def test_unbounded_input(key_path):
    """A source whose watermark closes the windows."""
    plan = small_plan(mode="hits", hits_per_user=2)
    low, high = plan.schedule.start_seconds, plan.schedule.end_seconds
    by_second = collections.defaultdict(set)
    for user, item, time in ordered_log(plan, 6):
        by_second[time // MICROS].add((user, item))
    log = [(*pair, second * MICROS) for second in range(low, high) for pair in by_second[second]]

    def source(pipeline):
        seconds = pipeline | beam.Create([(low, high + 1, 1)], reshuffle=False) | PeriodicSequence()
        pairs = seconds | beam.FlatMap(lambda second: sorted(by_second[int(second)]))
        pairs.element_type = tuple[str, str]
        assert not pairs.is_bounded
        return pairs

    expected = oracle_reports(log, settings_of(plan), SECRET)
    assert expected
    assert on_prism(source, plan, key_path) == expected
