"""The noise key: where it comes from, which runs may do without one, and that it and all users leave no trace outside
of the data itself: in no report, log line, metric, job graph, error or file."""

from __future__ import annotations

import base64
import bz2
import itertools
import os
import pathlib
import pickle

import apache_beam as beam
import numpy as np
import pyarrow as pa
import pytest
from apache_beam.internal import pickler
from apache_beam.transforms.window import TimestampedValue
from apache_beam.utils.timestamp import Timestamp

from dp_transforms.beam import workers
from dp_transforms.beam.release_heavy_hitters import ShiftingHeavyHitters
from dp_transforms.beam.workers import FreshKey, KeyFile, operator_counts, resolve_noise_key
from dp_transforms.beam.write_reports import WriteRejected, WriteReports
from dp_transforms.core.event_batch import EventBatch
from dp_transforms.core.operator_counts import EVENTS_REJECTED
from dp_transforms.plan.plan import Plan
from dp_transforms.plan.window_schedule import WindowSchedule
from dp_transforms.reports import ReportHeader, read_report_file
from tests.helpers.beam_pipelines import Collected, batches_source, local_pipeline
from tests.helpers.leak_search import forms_of, places_with, traces  # noqa: F401
from tests.helpers.small_runs import MICROS, RUN_ID, SECRET, START, batch_of, key_file, small_plan
from tests.reference.run import reference

KEY = bytes(range(100, 140))
# A dry run: else Beam asks Google over the network about the bucket, for minutes where there is none.
DATAFLOW = [
    *("--project=some-project", "--region=r", "--temp_location=gs://some/t", "--staging_location=gs://some/s"),
    "--dry_run=true",
]
ANOTHER_PROCESS = ["--direct_running_mode=multi_processing", "--direct_num_workers=1"]
ROOT = pathlib.Path(__file__).parents[2]


def write_key(path, content=KEY, mode=0o600):
    path.write_bytes(content)
    path.chmod(mode)
    return path


def pipeline(runner="FnApiRunner", *flags):
    return local_pipeline(flags, runner)


@pytest.mark.parametrize(
    ("content", "mode", "message"),
    [
        *((KEY, mode, rf"mode {mode:04o}.*chmod 600 ") for mode in (0o640, 0o601)),
        *((bad, 0o600, "must hold 32 to 65536 random bytes.*urandom") for bad in (KEY[:31], b"ab" * 16)),
    ],
)
def test_a_file_that_is_no_private_random_key_is_refused_with_the_command_that_makes_one(
    tmp_path, content, mode, message
):
    path = write_key(tmp_path / "key", content, mode)
    with pytest.raises(ValueError, match=message) as raised:
        resolve_noise_key(path, pipeline())
    assert places_with(forms_of(content), {"error": str(raised.value).encode()}) == []


def test_a_private_file_of_random_bytes_is_a_key_also_in_hexadecimal(tmp_path):
    """False alarm: 64 random digits have fewer than 8 different ones with probability below 10^-15."""
    for number, content in enumerate((KEY[:32], os.urandom(32).hex().encode())):
        path = write_key(tmp_path / f"key-{number}", content)
        for given in (path, str(path), KeyFile(path)):
            assert resolve_noise_key(given, pipeline()).get_secret_bytes() == content


def test_a_key_that_would_travel_in_the_job_graph_is_refused():
    raw = pytest.importorskip("apache_beam.utils.secret", reason="Beam before 2.77 has no RawSecret").RawSecret(KEY)
    for given, message in ((raw, "RawSecret would be pickled"), (KEY, "must be a path"), (7, "must be a path")):
        with pytest.raises(ValueError, match=message) as raised:
            resolve_noise_key(given, pipeline())
        assert repr(KEY) not in str(raised.value)


@pytest.mark.parametrize("runner", ["FnApiRunner", "BundleBasedDirectRunner", "DirectRunner"])
def test_without_a_file_each_run_in_this_process_draws_its_own_key(runner):
    keys = {resolve_noise_key(None, pipeline(runner)).get_secret_bytes() for _ in range(5)}
    assert [len(key) for key in keys] == [32] * 5


@pytest.mark.parametrize(
    ("runner", "flags"),
    [
        ("FnApiRunner", ANOTHER_PROCESS),
        ("DirectRunner", ANOTHER_PROCESS[:1]),
        ("DataflowRunner", DATAFLOW),
        ("PortableRunner", ["--job_endpoint=embed"]),
        ("FlinkRunner", []),
        ("PrismRunner", []),
    ],
)
def test_a_run_with_workers_elsewhere_needs_a_key_file(tmp_path, runner, flags):
    elsewhere = pipeline(runner, *flags)
    with pytest.raises(ValueError, match=r"outside this process.*noise_key=PATH.*--noise-key-file"):
        resolve_noise_key(None, elsewhere)
    assert resolve_noise_key(write_key(tmp_path / "key"), elsewhere).get_secret_bytes() == KEY


def test_no_secret_is_pickled_or_shown_even_after_it_was_cached_and_a_fresh_one_stays_here(tmp_path, monkeypatch):
    for secret in (KeyFile(write_key(tmp_path / "key")), FreshKey()):
        key = secret.get_bytes(cacheSecret=True) if hasattr(beam.Secret, "get_bytes") else secret.get_secret_bytes()
        pickles = [pickle.dumps(secret), bz2.decompress(base64.b64decode(pickler.dumps(secret)))]
        places = {"pickle": pickles[0], "Beam's pickle": pickles[1], "text": f"{secret} {secret!r}".encode()}
        assert places_with(forms_of(key), places) == []
        assert pickle.loads(pickles[0]).get_secret_bytes() == key  # noqa: S301
        assert places_with(forms_of(key), {"careless": pickle.dumps([key])}), "the search can find one"
    monkeypatch.setattr(workers, "_FRESH_KEYS", {})  # as in another process
    with pytest.raises(RuntimeError, match="the noise key was drawn in another process") as raised:
        secret.get_secret_bytes()
    assert places_with(forms_of(key), {"error": str(raised.value).encode()}) == []


# --- one key for a run, another for another


NOISY_LOG = [(f"u{hour}-{user}", "news", (START + 60 * hour) * MICROS) for hour in range(40) for user in range(200)]
"""40 counts of 200 users each, no user in two of them."""


def noisy_plan():
    """With noise of scale 5 or more."""
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
    return plan


def noisy_counts(reports):
    return {
        (report.window_start, hitter.item): hitter.noisy_count for report in reports for hitter in report.heavy_hitters
    }


def test_a_key_file_gives_one_answer_per_run_and_every_other_run_has_noise_of_its_own(tmp_path):
    """Equal counts happen with probability under 0.06 each, so over 13 of 40 less than once in 10^7 times; noise of one
    key and run would give 40. Also of a transform that is applied twice."""
    plan, key, job, found = noisy_plan(), key_file(tmp_path), local_pipeline(), {}
    batches = batches_source([batch_of(NOISY_LOG)])(job)
    twice = ShiftingHeavyHitters(plan, noise_key=key)
    monitors = {"fresh run": twice, "another fresh run": twice} | {
        name: ShiftingHeavyHitters(plan, noise_key=key, run_id=run_id)
        for name, run_id in (("a", "a"), ("a again", "a"), ("b", "b"))
    }
    for name, monitor in monitors.items():
        found[name] = Collected()
        _ = (batches | f"Monitor {name}" >> monitor).reports | f"See {name}" >> found[name].sink()
    job.run().wait_until_finish()
    counts = {name: noisy_counts(collected.values) for name, collected in found.items()}
    assert [len(each) for each in counts.values()] == [40] * 5
    assert counts.pop("a again") == counts["a"]
    for one, another in itertools.combinations(counts.values(), 2):
        assert sum(one[cell] == another[cell] for cell in one) <= 13


# --- written nowhere

USERS = 300
MARK = b"PLANTED-"
ITEMS = ("news", *(f"nobody's-{number}" for number in range(20)))


def planted(user):
    return f"PLANTED-{user:04d}-qzx"


class Record:
    """An element whose fields must never show, not even when reading them fails."""

    def __init__(self, user, item):
        self.user, self.item = user, item


def read_user(record):
    if record.item == "unreadable":
        raise ValueError(f"no user in {record.user} / {record.item}")
    return record.user


def make_records(_):
    """Made on the worker: otherwise the log would stand in the job graph, as the test's own input."""
    for user in map(planted, range(USERS)):
        for item, second in (("news", int(user[8:12]) % 200), (f"of {user}", 1), ("outside", 10**6)):
            yield TimestampedValue(Record(user, item), Timestamp(START + second))
        for bad in ((user, None), (None, user), ({user: 1}, "news"), (user.encode() + b"\xff", "x"), (user, [user])):
            yield TimestampedValue(Record(*bad), Timestamp(START + 5))
        yield TimestampedValue(Record(user, "unreadable"), Timestamp(START + 5))


def read_item(record):
    return record.item


def left_by(job, result):
    return {
        "metrics": repr(result.metrics().query()).encode(),
        "job graph": job.to_runner_api().SerializeToString(),
        "options": repr(job.options.get_all_options()).encode(),
    }


def test_planted_users_and_a_fresh_key_leave_no_trace(traces):  # noqa: F811
    before = set(workers._FRESH_KEYS)
    job, reports, rejected = local_pipeline(), Collected(), Collected()
    records = job | beam.Create([0]) | beam.FlatMap(make_records).with_output_types(Record)
    # A threshold at which none of 300 items of one user each passes, under any key.
    plan = small_plan(hits_per_user=2, threshold=40)
    found = records | ShiftingHeavyHitters(plan, user=read_user, item=read_item, run_id=RUN_ID)
    _, _ = found.reports | "See" >> reports.sink(), found.rejected | "See rejected" >> rejected.sink()
    result = job.run()
    result.wait_until_finish()
    secret = workers._FRESH_KEYS[(set(workers._FRESH_KEYS) - before).pop()]
    assert {hitter.item for report in reports.values for hitter in report.heavy_hitters} == {"news"}
    assert operator_counts(result)[EVENTS_REJECTED] == 6 * USERS
    places = {"reports": repr(reports.values).encode(), "rejected": repr(rejected.values).encode()}
    places |= {**left_by(job, result), **traces.places()}
    assert len(places["log"]) > 1000
    assert places_with([MARK, *forms_of(secret)], places) == []


def make_pairs(_):
    for user in map(planted, range(USERS)):
        yield TimestampedValue((user, "news"), Timestamp(START + 2 * int(user[8:12])))
        yield TimestampedValue((user, "no public item"), Timestamp(START))
        yield TimestampedValue(("", user), Timestamp(START))


def test_a_worker_in_another_process_has_key_and_items_and_leaves_no_trace_either(tmp_path, traces):  # noqa: F811
    """There Beam decodes rows as types of its own: they are written as those of the library."""
    plan, report = small_plan(mode="hits", threshold=2, public=ITEMS, hits_per_user=2), tmp_path / "report.jsonl"
    (tmp_path / "items.txt").write_text("\n".join(ITEMS))
    job = local_pipeline(ANOTHER_PROCESS)
    pairs = job | beam.Create([0]) | beam.FlatMap(make_pairs).with_output_types(tuple[str, str])
    found = pairs | ShiftingHeavyHitters(
        plan, noise_key=key_file(tmp_path), run_id=RUN_ID, public_items=tmp_path / "items.txt"
    )
    _ = found.reports | WriteReports(report, ReportHeader.of_plan(plan, RUN_ID, "events"))
    _ = found.rejected | WriteRejected(tmp_path / "rejected")
    result = job.run()
    result.wait_until_finish()
    log = [(user, item, stamped.timestamp.micros) for stamped in make_pairs(0) for user, item in [stamped.value]]
    expected = reference([event for event in log if event[0]], plan, ITEMS)
    assert len(expected) > 5
    assert list(read_report_file(report)[1]) == expected
    places = {**left_by(job, result), **traces.places()}
    places |= {"reports": report.read_bytes(), "rejected": (tmp_path / "rejected").read_bytes()}
    assert b"sdk_worker" in places["log"] + places["output"]
    assert b"empty user" in places["rejected"]
    assert places_with([MARK, *forms_of(SECRET)], places) == []


@pytest.mark.parametrize("kind", ["nulls", "key file is gone"])
def test_a_run_that_fails_shows_no_user(tmp_path, traces, kind):  # noqa: F811
    def broken_batch(_):
        users = pa.array([planted(0), None] * (USERS // 2) if kind == "nulls" else [planted(0)] * USERS)
        items = pa.array([f"of {planted(user)}" for user in range(USERS)])
        return EventBatch(users.dictionary_encode(), items.dictionary_encode(), np.full(USERS, START * MICROS))

    job, path = local_pipeline(), key_file(tmp_path)
    batches = job | beam.Create([0]) | beam.Map(broken_batch).with_output_types(EventBatch)
    _ = batches | ShiftingHeavyHitters(small_plan(), noise_key=path, run_id=RUN_ID)
    if kind == "key file is gone":
        (tmp_path / "noise.key").unlink()
    with pytest.raises(Exception, match="none of them null" if kind == "nulls" else "cannot be read") as raised:
        job.run().wait_until_finish()
    places = {"error": repr(raised.value).encode(), "text": str(raised.value).encode(), **traces.places()}
    assert places_with([MARK], places) == []
