"""The noise key: fresh for every run that has none, one for all workers of a run, and written nowhere."""

import itertools

import apache_beam as beam
import pytest

from dp_transforms.beam import workers as noise_keys
from dp_transforms.beam.release_heavy_hitters import ShiftingHeavyHitters
from dp_transforms.core.event_batch import EventBatch
from dp_transforms.plan.plan import Plan
from dp_transforms.plan.window_schedule import WindowSchedule
from tests.helpers.beam_pipelines import (
    Branches,
    Collected,
    batches_source,
    local_pipeline,
    run_monitor,
    values,
)
from tests.helpers.leak_search import forms_of, job_graph, options_of, places_with, texts_within, traces  # noqa: F401
from tests.helpers.oracle import oracle_reports
from tests.helpers.small_runs import (
    MICROS,
    RUN_ID,
    SECRET,
    START,
    batch_of,
    batches_of,
    key_file,
    random_log,
    settings_of,
    small_plan,
)


def noisy_counts(reports):
    return {
        (report.window_start, hitter.item): hitter.noisy_count for report in reports for hitter in report.heavy_hitters
    }


@pytest.fixture(scope="module")
def noisy_log():
    """40 counts of 200 users each, no user in two of them, and a plan with noise of scale 5 or more."""
    plan = Plan.for_hits(
        epsilon=1,
        delta=1e-3,
        schedule=WindowSchedule(START, START + 60 * 40, 60, 60),
        hits_per_user=1,
        max_items_per_user=1,
        counts=True,
        max_users=10**6,
        max_items=10**6,
    )
    assert plan.charged_hits.noise.scale > 5
    assert plan.threshold < 120
    log = [(f"u{window}-{user}", "news", (START + 60 * window) * MICROS) for window in range(40) for user in range(200)]
    return plan, [batch_of(log)]


def test_two_runs_without_a_key_file_share_no_draw(noisy_log):
    """Even under one run id. Equal counts happen with probability under 0.06 each, so over 13 of 40 less than once in
    10^7 times; noise of one key would give 40."""
    plan, batches = noisy_log
    first, second = (noisy_counts(run_monitor(batches_source(batches), plan).reports) for _ in range(2))
    assert len(first) == len(second) == 40
    assert sum(first[cell] == second[cell] for cell in first) <= 13


def test_a_key_file_gives_one_answer_per_run_and_fresh_noise_for_another(noisy_log, tmp_path):
    plan, batches = noisy_log
    key = key_file(tmp_path)
    branches = Branches()
    for name, run_id in {"first": "a", "again": "a", "other": "b", "unnamed": None}.items():
        branches.add(name, batches, plan, noise_key=key, run_id=run_id)
    source = branches.pipeline | "Batches" >> beam.Create(batches, reshuffle=False).with_output_types(EventBatch)
    monitor = ShiftingHeavyHitters(plan, noise_key=key)
    branches.attach("one transform", source, monitor)
    branches.attach("applied twice", source, monitor)
    first, again, *others = (noisy_counts(values(found)) for found in branches.run()[0].values())
    assert first == again
    assert len(others) == 4
    for one, another in itertools.combinations([first, *others], 2):
        assert sum(one[cell] == another[cell] for cell in first) <= 13


# --- written nowhere


def monitored(plan, log, key):
    """A pipeline that is built and has not run, and where its reports will be seen."""
    pipeline, reports = local_pipeline(), Collected()
    found = batches_source(batches_of(log, 100))(pipeline) | ShiftingHeavyHitters(plan, noise_key=key, run_id=RUN_ID)
    return pipeline, found.reports, reports


def new_fresh_key(before):
    (token,) = noise_keys._FRESH_KEYS.keys() - before
    return noise_keys._FRESH_KEYS[token]


@pytest.mark.parametrize("kind", ["key file", "fresh key"])
def test_the_key_is_written_nowhere(tmp_path, traces, kind):  # noqa: F811
    plan = small_plan(mode="hits", hits_per_user=2)
    log = random_log(plan, seed=1, events=600)
    before = set(noise_keys._FRESH_KEYS)
    pipeline, reports, collected = monitored(plan, log, key_file(tmp_path) if kind == "key file" else None)
    _ = reports | collected.sink()
    key = SECRET if kind == "key file" else new_fresh_key(before)
    pipeline.run().wait_until_finish()
    if kind == "key file":
        assert collected.values == oracle_reports(log, settings_of(plan), SECRET)  # it is the key that was used
    graph = job_graph(pipeline)
    assert any(b"ThresholdMonitorEvolvingDoFn" in text for text in texts_within(graph))  # the search reads pickles
    places = {"job graph": graph, "options": options_of(pipeline), **traces.places()}
    assert len(places["log"]) > 1000
    assert places_with(forms_of(key), places) == []
