"""pipelines/*.py on real engines, by the commands of the pages in `runners`: the library's answers, no open port."""

from __future__ import annotations

import json
import pathlib

import pytest

from dp_transforms.reports import read_report
from tests.engines import needs, on
from tests.engines.listening import FEWEST_PORTS, ROOT, run_and_listen
from tests.helpers.replay_logs import HOURS, log_rows
from tests.pipelines.jobs import (
    HEAVY,
    REPLAY,
    STREAM,
    assert_answers,
    items,
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
@pytest.mark.parametrize(("engine", "by_command"), [on("prism", False), on("flink", True)])
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


@pytest.mark.nightly
@needs("prism")
def test_a_topic_is_read(kafka, tmp_path):
    """The command of the page about Kafka, for history: the stop waits a minute for what the topic may still show."""
    make_folder(tmp_path)
    kafka.create_topic("clicks-of-a-page")
    rows = sorted(log_rows(), key=lambda row: row[2])
    fields = ("user", "item", "timestamp")
    kafka.produce("clicks-of-a-page", [json.dumps(dict(zip(fields, row, strict=True))).encode() for row in rows])
    place = f"{kafka.bootstrap}/clicks-of-a-page"
    words = [word.replace("localhost:9092/clicks", place) for word in words_on_page("kafka", STREAM)]
    more = ["--clock", "event", "--time-format", "s", "--stop-file", "stop"]
    run = run_and_listen([*words, *more], tmp_path, program(STREAM))
    assert run.code == 0, run.err[-4000:]
    report = read_report(tmp_path / "trends")
    assert (report.ended.windows, items(list(report))) == (HOURS, HEAVY)
