"""`shh stream --state` on engines: a stream hands its state over at a stop, and a replay goes on from there."""

from __future__ import annotations

import pathlib
import shutil
import subprocess
import time
import uuid

import pytest

from dp_transforms.reports.report_topic import ReportTopic
from tests.engines import needs, on
from tests.engines.kafka_server import KafkaServer
from tests.engines.listening import FEWEST_PORTS, looked_at
from tests.helpers.beam_pipelines import plain
from tests.helpers.live_parts import WINDOWS, LiveParts, wait_for_reports
from tests.helpers.live_streams import begun, drained, started, stoppable
from tests.helpers.shh_here import shh


@pytest.mark.parametrize("engine", [on("prism"), on("flink")])
def test_a_stream_hands_over_to_a_replay(tmp_path: pathlib.Path, engine: str) -> None:
    """And listens on the loopback address alone."""
    live = LiveParts(tmp_path)
    first = live.run("replay", "1.jsonl", *live.until(2))
    assert first.returncode == 0, first.stderr
    process = begun(live, "2", "--engine", engine)
    with looked_at(process.pid) as sockets:
        drained(stoppable(process))
    assert all(one.is_of_loopback for one in sockets), sockets
    assert len({one.port for one in sockets}) >= FEWEST_PORTS[engine], sockets
    assert 4 < live.state().header.closed_through < 8
    last = live.run("replay", "3.jsonl")
    assert last.returncode == 0, last.stderr
    drawn_as_one = live.answers("1.jsonl", "2")  # a replay of a later part has noise of its own
    assert drawn_as_one == live.expected(of=live.state().header.run_id)[: len(drawn_as_one)] != []


@pytest.mark.nightly
@needs("flink")
def test_a_stream_that_was_killed_is_resumed_from_what_its_engine_stored(tmp_path: pathlib.Path) -> None:
    """By the clock of events nothing else can resume it. It ends where it is stopped then, and a replay goes on."""
    live = LiveParts(tmp_path)
    words = ("--engine", "flink", "--checkpoint-dir", str(tmp_path / "checkpoints"), "--checkpoint-interval", "1s")
    process = started(live, "1", *words)
    wait_for_reports(live.folder / "1", 3, process)
    time.sleep(3)  # until they are in a checkpoint
    process.kill()
    process.wait()
    refused = live.run("stream", "1", *words)
    assert "--resume-from SAVEPOINT" in refused.stderr
    checkpoint = max((tmp_path / "checkpoints").glob("*/chk-*/_metadata"), key=lambda path: path.stat().st_mtime)
    kept = shutil.copytree(checkpoint.parent.parent, tmp_path / "kept") / checkpoint.parent.name
    drained(started(live, "1", *words, "--resume-from", str(kept)))
    assert 4 < live.state().header.closed_through < WINDOWS
    assert live.run("replay", "2.jsonl").returncode == 0
    assert live.answers("1") == live.expected(of=live.state().header.run_id)[: len(live.answers("1"))] != []


def test_each_part_may_write_to_a_topic_of_its_own(kafka: KafkaServer, tmp_path: pathlib.Path) -> None:
    live = LiveParts(tmp_path)
    topics = [f"part-{number}-{uuid.uuid4().hex[:8]}" for number in range(2)]
    for topic in topics:
        kafka.create_topic(topic, partitions=1)

    def stream(topic: str, end: int) -> subprocess.CompletedProcess[str]:
        words = live.words("stream", "OUT", *live.until(end))
        at = words.index("--output")
        words[at : at + 2] = ["--output", f"kafka://{kafka.bootstrap}/{topic}"]
        return shh(*words, cwd=tmp_path)

    first = stream(topics[0], 2)
    assert first.returncode == 0, first.stderr
    before = (tmp_path / "run.state").read_bytes()
    refused = stream(topics[0], 4)
    assert refused.returncode == 1
    assert "Each part that is a stream has an --output of its own" in refused.stderr
    assert (tmp_path / "run.state").read_bytes() == before
    second = stream(topics[1], 4)
    assert second.returncode == 0, second.stderr
    run_id = live.state().header.run_id
    reports = [report for topic in topics for report in ReportTopic(kafka.bootstrap, topic).read(run_id)[1]]
    assert [plain(report) for report in reports] == live.expected(4, of=run_id) != []
