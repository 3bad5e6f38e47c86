"""The noise key: where it comes from, which runs may do without one, that it is fresh for every run that has none and
one for all workers of a run, and that it is written nowhere."""

import base64
import bz2
import itertools
import os
import pathlib
import pickle

import apache_beam as beam
import pytest
from apache_beam.internal import pickler

from dp_transforms.beam import workers as noise_keys
from dp_transforms.beam.release_heavy_hitters import ShiftingHeavyHitters
from dp_transforms.beam.workers import FreshKey, KeyFile, resolve_noise_key
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
from tests.helpers.shh_process import run_python
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
from tests.reference.hits import oracle_reports

KEY = bytes(range(100, 140))
# A dry run: else Beam asks Google over the network about the bucket, for minutes where there is none.
DATAFLOW = [
    *("--project=some-project", "--region=r", "--temp_location=gs://some/t", "--staging_location=gs://some/s"),
    "--dry_run=true",
]
ROOT = pathlib.Path(__file__).parents[2]


def write_key(path, content=KEY, mode=0o600):
    path.write_bytes(content)
    path.chmod(mode)
    return path


def pipeline(runner="FnApiRunner", *flags):
    return local_pipeline(flags, runner)


def test_a_private_file_of_32_bytes_is_a_key(tmp_path):
    path = write_key(tmp_path / "key", KEY[:32])
    assert KeyFile(path).get_secret_bytes() == KEY[:32]
    assert resolve_noise_key(path, pipeline()).get_secret_bytes() == KEY[:32]
    assert resolve_noise_key(str(path), pipeline()).get_secret_bytes() == KEY[:32]


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o644, 0o610, 0o601, 0o620])
def test_a_file_that_others_can_use_is_refused_with_the_command_that_closes_it(tmp_path, mode):
    path = write_key(tmp_path / "key", mode=mode)
    with pytest.raises(ValueError, match=rf"mode {mode:04o}.*chmod 600 {path}"):
        resolve_noise_key(path, pipeline())


@pytest.mark.parametrize("size", [0, 1, 31])
def test_a_short_file_is_refused_with_its_size(tmp_path, size):
    with pytest.raises(ValueError, match=rf"32 to \d+ bytes, got {size}\b.*urandom"):
        resolve_noise_key(write_key(tmp_path / "key", KEY[:size]), pipeline())


def test_errors_never_hold_the_content(tmp_path):
    for content, mode in ((KEY[:31], 0o600), (KEY, 0o644)):
        with pytest.raises(ValueError, match="noise key file") as raised:
            resolve_noise_key(write_key(tmp_path / "key", content, mode), pipeline())
        assert content not in str(raised.value).encode()
        assert content.hex() not in str(raised.value)


def test_no_secret_shows_in_repr(tmp_path):
    for secret in (KeyFile(write_key(tmp_path / "key")), FreshKey()):
        key = cached(secret)
        for text in (repr(secret), str(secret)):
            assert key.hex() not in text
            assert repr(key) not in text


def test_a_raw_secret_is_refused():
    beams = pytest.importorskip("apache_beam.utils.secret", reason="Beam before 2.77 has no RawSecret")
    with pytest.raises(ValueError, match="RawSecret would be pickled"):
        resolve_noise_key(beams.RawSecret(KEY), pipeline())


def test_foreign_types_are_refused():
    for other in (KEY, 7, ["key"]):
        with pytest.raises(ValueError, match="must be a path") as raised:
            resolve_noise_key(other, pipeline())
        assert repr(KEY) not in str(raised.value)


@pytest.mark.parametrize("runner", ["FnApiRunner", "BundleBasedDirectRunner", "DirectRunner"])
def test_without_a_file_each_run_in_this_process_draws_its_own_key(runner):
    keys = {resolve_noise_key(None, pipeline(runner)).get_secret_bytes() for _ in range(5)}
    assert len(keys) == 5
    assert {len(key) for key in keys} == {32}


def test_a_fresh_key_is_one_key(tmp_path):
    secret = FreshKey()
    assert secret.get_secret_bytes() == pickle.loads(pickle.dumps(secret)).get_secret_bytes()  # noqa: S301


@pytest.mark.parametrize(
    ("runner", "flags"),
    [
        ("FnApiRunner", ["--direct_running_mode=multi_processing", "--direct_num_workers=2"]),
        ("DirectRunner", ["--direct_running_mode=multi_processing"]),
        ("DataflowRunner", DATAFLOW),
        ("PortableRunner", ["--job_endpoint=embed"]),
        ("FlinkRunner", []),
        ("SparkRunner", []),
        ("PrismRunner", []),
    ],
)
def test_a_run_with_workers_elsewhere_needs_a_key_file(tmp_path, runner, flags):
    elsewhere = pipeline(runner, *flags)
    with pytest.raises(ValueError, match=r"outside this process.*noise_key=PATH.*--noise-key-file"):
        resolve_noise_key(None, elsewhere)
    assert resolve_noise_key(write_key(tmp_path / "key"), elsewhere).get_secret_bytes() == KEY


def pickles_of(value):
    """By pickle, and by Beam's own pickler, whose output is compressed."""
    return pickle.dumps(value), bz2.decompress(base64.b64decode(pickler.dumps(value)))


def cached(secret):
    """The bytes, which the secret keeps where Beam's secrets can (since 2.77)."""
    return secret.get_bytes(cacheSecret=True) if hasattr(beam.Secret, "get_bytes") else secret.get_secret_bytes()


def test_no_secret_is_pickled_even_after_it_was_cached(tmp_path):
    for secret in (KeyFile(write_key(tmp_path / "key")), FreshKey()):
        key = cached(secret)
        assert not any(key in data for data in pickles_of(secret))
        assert all(key in data for data in pickles_of([key]))  # the search can find one


def run_elsewhere(secret):
    """Unpickles a secret in another process and asks for its bytes; returns what that process says."""
    program = "import pickle, sys; print(pickle.loads(bytes.fromhex(sys.stdin.read())).get_secret_bytes().hex())"
    return run_python("-c", program, input=pickle.dumps(secret).hex(), cwd=ROOT)


def test_a_fresh_key_in_another_process_is_a_clear_error():
    secret = FreshKey()
    found = run_elsewhere(secret)
    assert found.returncode != 0
    assert "RuntimeError: the noise key was drawn in another process" in found.stderr
    assert "noise_key=PATH" in found.stderr
    assert secret.get_secret_bytes().hex() not in found.stdout + found.stderr


@pytest.mark.parametrize("content", [bytes(32), b"\xff" * 64, b"ab" * 16, b"\n" * 40, b"1234567" * 5])
def test_a_key_that_is_plainly_not_random_is_refused(tmp_path, content):
    with pytest.raises(ValueError, match=r"is not random: .* only \d different bytes?, .* head -c 32 /dev/urandom"):
        KeyFile(write_key(tmp_path / "key", content)).get_secret_bytes()


def test_hexadecimal_keys_are_taken(tmp_path):
    """False alarm: 64 random digits have fewer than 8 different ones with probability below 10^-15."""
    for _ in range(100):
        content = os.urandom(32).hex().encode()
        assert KeyFile(write_key(tmp_path / "key", content)).get_secret_bytes() == content
        (tmp_path / "key").unlink()


# --- one key for a run, another for another


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
