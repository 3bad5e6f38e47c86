"""`DirectRunner` gives what the named local runners give, without a network too.

It is Beam's SwitchingDirectRunner: Prism, which it downloads, else FnApiRunner, else BundleBasedDirectRunner
(docs/engines.md). With a Prism that is there: tests/engines/test_prism.py.
"""

import apache_beam as beam
import pytest
from apache_beam.options.pipeline_options import DebugOptions
from apache_beam.runners.portability.prism_runner import PrismJobServer

from dp_transforms.beam.release_heavy_hitters import ShiftingHeavyHitters
from tests.helpers.beam_pipelines import local_pipeline, pairs_source, run_monitor
from tests.helpers.looks_plans import small_looks_plan
from tests.helpers.no_network import no_network
from tests.helpers.small_runs import RUN_ID, key_file, ordered_log, small_plan

DOWNLOADS_FROM = "github.com"


def hits_plan():
    return small_plan(mode="hits", sliding=3, hits_per_user=2)


@pytest.fixture(autouse=True)
def refused(tmp_path, monkeypatch):
    """What the test wanted from the network. No Prism was downloaded before."""
    monkeypatch.setattr(PrismJobServer, "BIN_CACHE", str(tmp_path / "downloaded"))
    with no_network() as names:
        yield names


def bounded(tmp_path, runner, *flags):
    plan = hits_plan()
    source = pairs_source(ordered_log(plan, 6, events=500))
    return run_monitor(source, plan, flags=flags, runner=runner, noise_key=key_file(tmp_path)).reports


def test_bounded_input(tmp_path, refused):
    """It tries to download Prism, gives up at once, and goes on with the FnApiRunner. If it is told of a place where no
    Prism is, it asks nobody; the experiment: else a process keeps to the location that it had first."""
    named = bounded(tmp_path, "FnApiRunner")
    assert named
    flags = [f"--prism_location={tmp_path / 'nothing'}", "--experiments=disable_prism_server_singleton"]
    assert bounded(tmp_path, "DirectRunner", *flags) == named
    assert refused == []
    assert bounded(tmp_path, "DirectRunner") == named
    assert refused == [DOWNLOADS_FROM]


@pytest.mark.parametrize(("runner", "splits"), [("DirectRunner", False), ("FnApiRunner", True)])
def test_prism_is_told_to_split_no_bundle(tmp_path, runner, splits):
    """Else two bundles may have one key at once, and charges are lost (docs/engines.md)."""
    pipeline = local_pipeline(runner=runner)
    plan = hits_plan()
    pairs = pipeline | beam.Create([("user", "item")]).with_output_types(tuple[str, str])
    _ = pairs | ShiftingHeavyHitters(plan, noise_key=key_file(tmp_path), run_id=RUN_ID)
    assert pipeline.options.view_as(DebugOptions).lookup_experiment("prism_disable_sdf_split", False) != splits


@pytest.mark.parametrize("runner", ["FnApiRunner", "BundleBasedDirectRunner"])
@pytest.mark.parametrize("pays_hits", [True, False])
def test_what_is_released_of_bounded_input_can_be_grouped(runner, pays_hits, tmp_path):
    """As every writer of a file does. The older runner groups nothing that a timer sent of bounded input, and says so:
    such a pipeline gets it from nobody but who names it."""
    pipeline, plan = local_pipeline(runner=runner), hits_plan() if pays_hits else small_looks_plan(6)
    pairs = pairs_source(ordered_log(plan, 6))(pipeline)
    reports = (pairs | ShiftingHeavyHitters(plan, noise_key=key_file(tmp_path))).reports
    _ = reports | beam.Map(lambda report: (report.stream, report.window_end)) | beam.GroupByKey()
    if pays_hits and runner == "BundleBasedDirectRunner":
        with pytest.raises(AssertionError):
            pipeline.run().wait_until_finish()
    else:
        pipeline.run().wait_until_finish()
