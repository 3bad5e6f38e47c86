"""A thousand users with ids that can be recognised leave no trace outside the data itself: not in a report, log line,
metric, error or file. (`rejected` is for the operator: even it holds places and reasons, and no cell.)"""

import logging
import tempfile

import apache_beam as beam
import numpy as np
import pyarrow as pa
import pytest
from apache_beam.metrics import Metrics
from apache_beam.transforms.window import TimestampedValue
from apache_beam.utils.timestamp import Timestamp

from dp_transforms.beam.release_heavy_hitters import ShiftingHeavyHitters
from dp_transforms.beam.workers import operator_counts
from dp_transforms.core.event_batch import EventBatch
from dp_transforms.core.operator_counts import EVENTS_REJECTED
from tests.helpers.beam_pipelines import Collected, local_pipeline, run_monitor
from tests.helpers.leak_search import forms_of, job_graph, metrics_of, places_with, traces  # noqa: F401
from tests.helpers.small_runs import MICROS, RUN_ID, SECRET, START, key_file, small_plan

USERS = 1000
MARK = b"PLANTED-"
OTHER_PROCESS = ("--direct_running_mode=multi_processing", "--direct_num_workers=1")


def planted(user):
    return f"PLANTED-{user:04d}-qzx"


class Record:
    """An element whose fields must never show, not even when reading them fails."""

    def __init__(self, user, item, error=None):
        self.user = user
        self.item = item
        self.error = error


def read_user(record):
    if record.error == "user":
        raise ValueError(f"no user in {record.user} / {record.item}")
    return record.user


def read_item(record):
    if record.error == "item":
        raise KeyError(record.user, record.item)
    return record.item


def make_elements(_):
    """Made on the worker: otherwise the log would stand in the job graph, as the test's own input."""
    for user in range(USERS):
        for item, second in (("news", user % 700), (f"of {planted(user)}", 1), ("outside", 10**6)):
            yield stamped(planted(user), item, second)
        for bad in (
            Record(planted(user), None),
            Record(planted(user), [planted(user)]),
            Record(None, planted(user)),
            Record({planted(user): 1}, "news"),
            Record(planted(user).encode() + b"\xff", "news"),
            Record("u", planted(user).encode() + b"\xc0"),
            Record(planted(user), "news", error="user"),
            Record(planted(user), "news", error="item"),
        ):
            yield TimestampedValue(bad, Timestamp(START + 5))


def stamped(user, item, second):
    return TimestampedValue(Record(user, item), Timestamp(START + second))


def test_planted_users_leave_no_trace(tmp_path, traces):  # noqa: F811
    found = run_monitor(
        lambda pipeline: pipeline | beam.Create([0]) | beam.FlatMap(make_elements).with_output_types(Record),
        small_plan(hits_per_user=2, threshold=40),  # so that none of 1,000 items of one user each passes, under any key
        user=read_user,
        item=read_item,
        noise_key=key_file(tmp_path),
    )
    assert {hitter.item for report in found.reports for hitter in report.heavy_hitters} == {"news"}
    assert operator_counts(found.result)[EVENTS_REJECTED] == 8 * USERS
    assert sum(len(rejected.positions) for rejected in found.rejected) == 8 * USERS
    places = {
        "reports": repr(found.reports).encode(),
        "rejected": repr(found.rejected).encode(),
        "metrics": metrics_of(found.result),
        **traces.places(),
    }
    assert EVENTS_REJECTED.encode() in places["metrics"]
    assert places_with([MARK], places) == []


def test_planted_users_and_the_key_leave_no_trace_in_other_processes(tmp_path, traces):  # noqa: F811
    pipeline = local_pipeline(OTHER_PROCESS)
    pairs = pipeline | beam.Create([0]) | beam.FlatMap(make_pairs).with_output_types(tuple[str, str])
    found = pairs | ShiftingHeavyHitters(small_plan(hits_per_user=2), noise_key=key_file(tmp_path), run_id=RUN_ID)
    for name, results in (("reports", found.reports), ("rejected", found.rejected)):
        path = tempfile.gettempdir() + f"/{name}"
        _ = results | f"Text {name}" >> beam.Map(str) | f"Write {name}" >> beam.io.WriteToText(path)
    result = pipeline.run()
    result.wait_until_finish()
    places = {"metrics": metrics_of(result), "job graph": job_graph(pipeline), **traces.places()}
    assert b"sdk_worker" in places["log"] + places["output"]
    assert any(b"'news'" in data for name, data in places.items() if name.startswith("file reports"))
    assert any(b"empty user" in data for name, data in places.items() if name.startswith("file rejected"))
    assert places_with([MARK, *forms_of(SECRET)], places) == []


def make_pairs(_):
    for user in range(USERS):
        yield TimestampedValue((planted(user), "news"), Timestamp(START + user % 700))
        yield TimestampedValue(("", planted(user)), Timestamp(START))


def broken_batch(kind):
    users = pa.array([planted(user) for user in range(USERS)])
    items = pa.array([f"of {planted(user)}" for user in range(USERS)])
    if kind == "nulls":
        users = pa.array([planted(0), None] * (USERS // 2))
    return EventBatch(users.dictionary_encode(), items.dictionary_encode(), np.full(USERS, START * MICROS))


@pytest.mark.parametrize("kind", ["nulls", "key file is gone"])
def test_a_run_that_fails_shows_no_user(tmp_path, traces, kind):  # noqa: F811
    pipeline = local_pipeline()
    path = key_file(tmp_path)
    batches = pipeline | beam.Create([kind]) | beam.Map(broken_batch).with_output_types(EventBatch)
    _ = batches | ShiftingHeavyHitters(small_plan(), noise_key=path, run_id=RUN_ID)
    if kind == "key file is gone":
        (tmp_path / "noise.key").unlink()
    with pytest.raises(Exception) as raised:  # noqa: PT011  (whatever it is)
        pipeline.run().wait_until_finish()
    if kind == "key file is gone":
        assert "cannot be read" in str(raised.value)
    places = {"error": repr(raised.value).encode(), "text": str(raised.value).encode(), **traces.places()}
    assert places_with([MARK], places) == []


class Careless(beam.DoFn):
    """What must not be: users in a log line, a metric's name, a file, an error."""

    def process(self, element):
        logging.getLogger("careless").debug("odd user %s", element)
        Metrics.counter("careless", f"events of {element}").inc()
        with tempfile.NamedTemporaryFile("w", delete=False) as file:
            file.write(element)
        yield element


def test_the_search_finds_what_careless_code_leaves(traces):  # noqa: F811
    pipeline, found = local_pipeline(), Collected()
    _ = (
        pipeline
        | beam.Create([0])
        | beam.FlatMap(lambda _: [planted(user) for user in range(3)])
        | beam.ParDo(Careless())
        | found.sink()
    )
    result = pipeline.run()
    result.wait_until_finish()
    places = {"metrics": metrics_of(result), "reports": repr(found.values).encode(), **traces.places()}
    leaks = places_with([MARK], places)
    assert {"metrics", "reports", "log"} <= set(leaks)
    assert any(name.startswith("file ") for name in leaks)
