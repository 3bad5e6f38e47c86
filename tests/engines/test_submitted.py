"""pipelines/*.py and `shh` on real engines, by the commands of the pages in `runners`: the library's answers, and no
port that other machines reach, looked up again and again while a run goes on."""

from __future__ import annotations

import contextlib
import ipaddress
import json
import os
import pathlib
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import NamedTuple

import psutil
import pytest

from dp_transforms.reports import read_report
from examples.engines import flink
from tests.engines import needs, on
from tests.helpers.replay_logs import HOURS, log_rows
from tests.pipelines.jobs import HEAVY, REPLAY, ROOT, STREAM, assert_answers, items, make_folder, words_on_page

SHH = ("-m", "dp_transforms.cli.main")
# Fewer ports than these, and the looks have missed what they are there for.
FEWEST_PORTS = {"prism": 2, "flink": 8}
_BETWEEN_CONTRIBUTIONS_SECONDS = 0.1
_PATIENCE_SECONDS = 600  # a run takes some seconds of a machine that has nothing else to do


class Socket(NamedTuple):
    """A TCP socket that listens. host: as the kernel writes it."""

    host: str
    port: int

    @property
    def is_of_loopback(self) -> bool:
        # The kernel writes an address of IPv4 in a socket of IPv6 as ::ffff:127.0.0.1.
        return ipaddress.ip_address(self.host.removeprefix("::ffff:")).is_loopback


def listening(pid: int) -> set[Socket]:
    """Of a process and all its descendants, at this moment."""
    found = set()
    with contextlib.suppress(psutil.NoSuchProcess):
        top = psutil.Process(pid)
        for process in [top, *top.children(recursive=True)]:
            with contextlib.suppress(psutil.NoSuchProcess):
                look = getattr(process, "net_connections", None) or process.connections
                found.update(Socket(*one.laddr) for one in look(kind="tcp") if one.status == psutil.CONN_LISTEN)
    return found


def run_and_listen(words: Sequence[str], folder: pathlib.Path, program: Sequence[str] = SHH) -> set[Socket]:
    """Runs a program in this folder, its stderr in the file `err` there, and returns all sockets that were seen while
    it ran. Where it does not end in time, it is killed with what it started. Raises TimeoutError."""
    sockets, deadline = set[Socket](), time.monotonic() + _PATIENCE_SECONDS
    with open(folder / "err", "wb") as err:
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        command = [sys.executable, *program, *words]
        process = subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.DEVNULL, stderr=err)
        while process.poll() is None and time.monotonic() < deadline:
            sockets |= listening(process.pid)
            time.sleep(_BETWEEN_CONTRIBUTIONS_SECONDS)
    said = (folder / "err").read_text()
    if process.poll() is None:
        for one in [*psutil.Process(process.pid).children(recursive=True), process]:
            with contextlib.suppress(psutil.NoSuchProcess):
                one.kill()
        raise TimeoutError(f"{words} did not end in {_PATIENCE_SECONDS} s: {said}")
    assert process.returncode == 0, said[-4000:]
    return sockets


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
@pytest.mark.parametrize(("engine", "by_command"), [("direct", True), on("prism", False), on("flink", True)])
def test_the_words_of_the_page_give_the_answers_of_the_library(engine, by_command, name, tmp_path):
    """A run in this process listens on nothing."""
    make_folder(tmp_path)
    before = {path.name for path in tmp_path.iterdir()}
    words = [word for word in words_on_page(engine, name) if word != "--runner=DirectRunner"]
    words += ["--noise-key-file", "noise.key"] if engine == "direct" else []
    if by_command:
        sockets = run_and_listen(command(words, tmp_path), tmp_path)
    else:
        sockets = run_and_listen(words, tmp_path, program(name))
    made = {path.name for path in tmp_path.iterdir()} - before
    assert made == {"err", "report.avro" if name == REPLAY else "reports"}, "a draft is left"
    assert_answers(name, tmp_path)
    assert all(one.is_of_loopback for one in sockets), sockets
    assert bool(sockets) == (engine != "direct")
    assert len({one.port for one in sockets}) >= FEWEST_PORTS.get(engine, 0)


def test_a_pool_of_workers_for_flink_listens_on_loopback_alone():
    with flink.WorkerPool() as pool:
        sockets = listening(os.getpid())
    assert int(pool.address.rpartition(":")[2]) in {one.port for one in sockets}
    assert all(one.is_of_loopback for one in sockets)


@pytest.mark.nightly
@needs("prism")
def test_a_topic_is_read(kafka, tmp_path):
    """The command of the page about Kafka, for history: the stop waits a minute for what the topic may still show."""
    make_folder(tmp_path)
    kafka.create_topic("clicks-of-a-page")
    rows, fields = sorted(log_rows(), key=lambda row: row[2]), ("user", "item", "timestamp")
    kafka.produce("clicks-of-a-page", [json.dumps(dict(zip(fields, row, strict=True))).encode() for row in rows])
    place = f"{kafka.bootstrap}/clicks-of-a-page"
    words = [word.replace("localhost:9092/clicks", place) for word in words_on_page("kafka", STREAM)]
    more = ["--clock", "event", "--time-format", "s", "--stop-file", "stop"]
    run_and_listen([*words, *more], tmp_path, program(STREAM))
    report = read_report(tmp_path / "trends")
    assert (report.ended.windows, items(list(report))) == (HOURS, HEAVY)
