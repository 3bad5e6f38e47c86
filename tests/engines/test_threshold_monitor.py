"""`ThresholdMonitorEvolving` on engines: two keys, open and public items, each window once and in order.

By every engine the reports of each key are those of the oracle for a stream of that name. They show what was paid: who
paid for two hits is in no later window of that key, so a charge that is lost, by a worker that dies too, adds a report.
"""

from __future__ import annotations

import functools
import json
import os
import pathlib
import random
import signal
import sys
import time

import apache_beam as beam
import pytest
from apache_beam.io.restriction_trackers import OffsetRange, OffsetRestrictionTracker
from apache_beam.io.watermark_estimators import ManualWatermarkEstimator
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners.runner import PipelineState
from apache_beam.transforms.core import RestrictionProvider
from apache_beam.utils.timestamp import Duration, Timestamp

from dp_transforms import PublicItems, ThresholdMonitorEvolving
from dp_transforms.plan.plan import Plan
from dp_transforms.plan.window_schedule import WindowSchedule
from examples.engines import flink, prism
from examples.engines.flink_cluster import worker_pids
from tests.engines import needs, wait_for
from tests.engines.conftest import ROOT
from tests.helpers.no_network import no_network
from tests.helpers.small_runs import MICROS, MINUTE, RUN_ID, SECRET, START, settings_of
from tests.reference.hits import oracle_transcript

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")

KEYS, WINDOWS, PLANS = ("DE", "FR"), 6, ("open", "public")
HELD = {"news": {"DE": (0, 1, 2, 4, 5), "FR": (1, 2, 4)}, "film": {"DE": (1, 4, 5), "FR": (2, 4, 5)}}
"""In which windows 30 users of each item hold it. In window 3 nothing happens."""
PUBLIC = (*HELD, *(f"quiet-{number}" for number in range(10)))


def plan_of(name):
    is_public = name == "public"
    return Plan.for_hits(
        epsilon=40,
        delta=0.1,
        schedule=WindowSchedule(START, START + WINDOWS * MINUTE, MINUTE, MINUTE),
        counts=True,
        hits_per_user=2,
        most_keys=2,
        threshold=1 if is_public else None,
        public_items=PublicItems.of_ids(PUBLIC) if is_public else None,
        max_users=1000,
        max_items=1000,
    )


def events(*windows, key=None):
    """``[key, user, item, micros]`` in disorder."""
    source = random.Random(0)
    rows = [
        [of_key, f"{item}-{user}", item, (START + window * MINUTE) * MICROS + source.randrange(MINUTE * MICROS)]
        for item, keys in HELD.items()
        for of_key in KEYS
        for window in windows
        if window in keys[of_key] and key in (None, of_key)
        for user in range(30)
    ]
    return source.sample(rows, len(rows))


@functools.cache
def transcript(name, key):
    log = [tuple(row[1:]) for row in events(*range(WINDOWS), key=key)]
    return oracle_transcript(log, settings_of(plan_of(name), key), SECRET, PUBLIC if name == "public" else ())


def line(key, report, stamp):
    """Engines keep milliseconds."""
    return json.dumps([key, (*report[:3], list(map(tuple, report[3])), *report[4:]), stamp.micros // 1000])


def expected(name, windows=WINDOWS):
    """``{key: lines}`` of the first windows, in their order."""
    end = (START + windows * MINUTE) * MICROS
    assert all(len(transcript(name, key).excluded) >= 30 for key in KEYS), "a lost charge would not show"
    found = {key: [each for each in transcript(name, key).reports if each.window_end <= end] for key in KEYS}
    return {key: [line(key, each, Timestamp(micros=each.window_end - 1)) for each in of] for key, of in found.items()}


class WriteLine(beam.DoFn):
    def __init__(self, path):
        self._path = path

    def process(self, element, stamp=beam.DoFn.TimestampParam):
        with open(self._path, "a") as file:
            file.write(line(*element, stamp) + "\n")


class _Lines(RestrictionProvider):
    def initial_restriction(self, element):
        return OffsetRange(0, sys.maxsize)

    def create_tracker(self, restriction):
        return OffsetRestrictionTracker(restriction)

    def restriction_size(self, element, restriction):
        return 1


_READING = beam.DoFn.RestrictionParam(_Lines())
_WATERMARK = beam.DoFn.WatermarkEstimatorParam(ManualWatermarkEstimator.default_provider())


class ReadGrowing(beam.DoFn):
    """A source: the events of a file that grows. A number in it is a watermark."""

    @beam.DoFn.unbounded_per_element()
    def process(self, path, tracker=_READING, watermark=_WATERMARK):
        lines = pathlib.Path(path).read_text().splitlines()
        for number in range(tracker.current_restriction().start, len(lines)):
            if not tracker.try_claim(number):
                return
            row = json.loads(lines[number])
            if isinstance(row, int):
                watermark.set_watermark(Timestamp(row))
            else:
                yield stamped(row)
        tracker.defer_remainder(Duration(1.1))  # Flink cuts it to whole seconds


def stamped(row):
    key, user, item, micros = row
    return beam.window.TimestampedValue((key, (user, item)), Timestamp(micros=micros))


class Job:
    """A log that grows, and two files of reports."""

    def __init__(self, folder, key_path):
        self.folder, self._key_path, self._rows = folder, key_path, []
        self.feed(START - MINUTE)

    def feed(self, *rows):
        """Events, and numbers: seconds that the watermark reaches."""
        self._rows += rows
        (self.folder / "new").write_text("".join(json.dumps(row) + "\n" for row in self._rows))
        os.replace(self.folder / "new", self.folder / "log")

    def start(self, flags, runner=None, *, streaming=True):
        pipeline = beam.Pipeline(runner, options=PipelineOptions(flags))
        if streaming:
            log = pipeline | beam.Create([str(self.folder / "log")], reshuffle=False) | beam.ParDo(ReadGrowing())
            assert not log.is_bounded
        else:
            log = pipeline | beam.Create(events(*range(WINDOWS))) | beam.Map(stamped)
        log.element_type = tuple[str, tuple[str, str]]
        for name, known in (("open", {}), ("public", {"public_items": PublicItems.of_ids(PUBLIC), "keys": KEYS})):
            monitor = ThresholdMonitorEvolving(plan_of(name), self._key_path, run_id=RUN_ID, shards=2, **known)
            _ = log | name >> monitor | f"Write {name}" >> beam.ParDo(WriteLine(str(self.folder / name)))
        return pipeline.run()

    def reports(self, name):
        """``{key: lines}`` in the order in which they came."""
        path = self.folder / name
        lines = path.read_text().splitlines() if path.exists() else []
        return {key: [each for each in lines if json.loads(each)[0] == key] for key in KEYS}

    def has_reports(self, windows):
        """Waits for those of the first windows; some may be there again."""
        wanted = [(name, key, set(of)) for name in PLANS for key, of in expected(name, windows).items()]
        wait_for(
            f"reports of {windows} windows", lambda: all(of <= set(self.reports(name)[key]) for name, key, of in wanted)
        )

    def assert_reports(self, windows=WINDOWS, *, may_repeat=False):
        for name in PLANS:
            for key, found in self.reports(name).items():
                found = list(dict.fromkeys(found)) if may_repeat else found
                assert found == expected(name, windows)[key], (name, key)


@pytest.fixture
def job(tmp_path, key_path):
    return Job(tmp_path, key_path)


@needs("prism")
def test_bounded_input_on_the_prism_of_direct_runner(job):
    with no_network() as refused:
        result = job.start([f"--prism_location={prism.prism_binary()}"], "DirectRunner", streaming=False)
        result.wait_until_finish()
    assert refused == []
    assert type(result).__module__.endswith("portable_runner"), "it went on elsewhere"
    job.assert_reports()


@needs("flink")
def test_bounded_input_on_flink(cluster, job):
    job.start(cluster.options(streaming=False, parallelism=1), streaming=False).wait_until_finish()
    job.assert_reports()


def feed_first(job):
    """Two windows in one: both close at once."""
    job.feed(*events(0, 1), START + 2 * MINUTE)
    job.has_reports(2)


def feed_rest(job):
    """A window; then late events of one that is closed, as many as would be named, and three windows, the first empty.

    Events are late for the attempt that reads them: after a restart only if the watermark has come so far again.
    """
    job.feed(*events(2), START + 3 * MINUTE)
    job.has_reports(3)
    late = [["DE", f"late-{user}", "film", (START + MINUTE) * MICROS] for user in range(30)]
    job.feed(*late, *events(3, 4, 5), START + WINDOWS * MINUTE + 1)
    job.has_reports(WINDOWS)
    time.sleep(1)  # whatever comes too often


@needs("prism")
def test_a_stream_on_prism(job):
    with prism.Prism() as engine:
        job.start(prism.options(engine.endpoint))
        feed_first(job)
        feed_rest(job)
    job.assert_reports()


@needs("prism")
def test_nothing_comes_after_the_death_of_a_worker_on_prism(job):
    """The job fails, or waits for the worker without end."""
    with prism.Prism() as engine, flink.WorkerPool(env={"PYTHONPATH": str(ROOT)}) as pool:
        place = ["--environment_type=EXTERNAL", f"--environment_config={pool.address}"]
        result = job.start([*prism.options(engine.endpoint), *place])
        feed_first(job)
        (pid,) = worker_pids(pool)
        os.kill(pid, signal.SIGKILL)
        job.feed(*events(2, 3, 4, 5), START + WINDOWS * MINUTE)
        deadline = time.monotonic() + 4
        while result.state != PipelineState.FAILED and time.monotonic() < deadline:
            time.sleep(0.1)
        assert result.state != PipelineState.DONE
    job.assert_reports(2)


@needs("flink")
def test_a_worker_that_dies_on_flink_changes_nothing(cluster, job):
    """What was published before may come again, and is the same."""
    known = cluster.job_ids()
    job.start(cluster.options())
    running = cluster.newest_job(known)
    try:
        cluster.wait_for_checkpoint(running)  # a worker that dies before is not missed
        feed_first(job)
        cluster.kill_worker()
        wait_for("the job runs again", lambda: cluster.is_restarted(running, 0))
        feed_rest(job)
    finally:
        cluster.cancel(running)
    job.assert_reports(may_repeat=True)
