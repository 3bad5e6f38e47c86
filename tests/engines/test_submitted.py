"""pipelines/*.py on real engines, by the commands of the pages in `runners`: the library's answers, no open port."""

from __future__ import annotations

import json
import pathlib

import pytest
from apache_beam.portability.api import beam_runner_api_pb2
from confluent_kafka import Producer

from dp_transforms.beam.runner_options import waits_for_storing
from dp_transforms.reports import ReportFolder
from tests.engines import needs, on
from tests.engines.listening import FEWEST_PORTS, ROOT, run_and_listen
from tests.helpers.leak_search import texts_within
from tests.helpers.replay_logs import HOURS, log_rows
from tests.pipelines.jobs import (
    HEAVY,
    REPLAY,
    STREAM,
    assert_answers,
    items,
    made_job,
    make_folder,
    words_on_page,
)


def program(name: str) -> list[str]:
    return [str(ROOT / "pipelines" / f"{name}.py")]


def command(words: list[str], folder: pathlib.Path) -> list[str]:
    """The words of `shh` for those of a program."""
    if "--log" in words:
        at = words.index("--log")
        return ["replay", words[at + 1], *words[:at], *words[at + 2 :]]
    (folder / "stop").unlink()
    at = words.index("--stop-file")
    return ["stream", *words[:at], "--once", *words[at + 2 :]]


@pytest.mark.parametrize("name", [REPLAY, STREAM])
@pytest.mark.parametrize(
    ("engine", "by_command"), [on("prism", False), on("flink", True), on("flink", False, is_long=True)]
)
def test_the_words_of_the_page_give_the_answers_of_the_library(engine, by_command, name, tmp_path):
    make_folder(tmp_path)
    before = {path.name for path in tmp_path.iterdir()}
    words = words_on_page(engine, name)
    if by_command:
        run = run_and_listen(command(words, tmp_path), tmp_path)
    else:
        run = run_and_listen(words, tmp_path, program(name))
    assert run.code == 0, run.err[-4000:]
    made = {path.name for path in tmp_path.iterdir()} - before
    assert made == {"err", "report.avro" if name == REPLAY else "reports"}, "a draft is left"
    assert_answers(name, tmp_path)
    assert run.beyond_loopback == set()
    assert len(run.ports) >= FEWEST_PORTS[engine]


@pytest.fixture
def folder(kafka, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """The current folder; its log is in the topic that is called like its last part."""
    topic = tmp_path.name
    kafka.create_topic(topic)
    producer = Producer({"bootstrap.servers": kafka.bootstrap})
    for user, item, seconds in sorted(log_rows(), key=lambda row: row[2]):
        producer.produce(topic, json.dumps({"user": user, "item": item, "timestamp": seconds}).encode())
    assert producer.flush(60) == 0
    make_folder(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_stream_on_dataflow_has_loops_of_timers_that_wait_until_they_are_stored(kafka, folder, monkeypatch):
    pytest.importorskip("google.cloud.dataflow", reason="Google's client is missing: pip install -e '.[dev]'")
    places = {"BROKER:9092": kafka.bootstrap, "clicks": folder.name, "PROJECT": "project", "BUCKET": "bucket"}
    job, options = made_job(STREAM, places, monkeypatch)
    timers = []
    for transform in job.components.transforms.values():
        if transform.spec.urn == "beam:transform:pardo:v1":
            payload = beam_runner_api_pb2.ParDoPayload.FromString(transform.spec.payload)
            timers += [transform.unique_name] if payload.timer_family_specs else []
    assert any("PollPartitions" in name for name in timers)
    parts = list(texts_within(job.SerializeToString()))
    assert any(folder.name.encode() in part for part in parts)
    assert not any(b"heavy-" in part for part in parts), "items of the topic"
    assert waits_for_storing(options)


@pytest.mark.nightly
@needs("prism")
def test_a_topic_is_read(kafka, folder):
    """The command of the page about Kafka, for history: the stop waits a minute for what the topic may still show."""
    words = [
        word.replace("localhost:9092/clicks", f"{kafka.bootstrap}/{folder.name}")
        for word in words_on_page("kafka", STREAM)
    ]
    more = ["--clock", "event", "--time-format", "s", "--stop-file", "stop"]
    run = run_and_listen([*words, *more], folder, program(STREAM))
    assert run.code == 0, run.err[-4000:]
    _, reports, ended = ReportFolder(str(folder / "trends")).read()
    assert ended is not None
    assert ended.windows == HOURS
    assert items(list(reports)) == HEAVY
