"""Whole runs over D and over D without x', with one noise key and run id: reports may differ in x' alone."""

from __future__ import annotations

import os
import pathlib
import random
from collections.abc import Collection, Sequence
from typing import Any

import pytest

from dp_transforms.beam.monitor_stream import MonitorStream
from dp_transforms.cli.main import main
from dp_transforms.core.window_report import HeavyHitter, WindowReport
from dp_transforms.logs import EventFields
from dp_transforms.logs.streams.kafka_topic import KafkaTopic
from dp_transforms.logs.streams.log_folder import LogFolder
from dp_transforms.logs.streams.partition_poller import PartitionPoller
from dp_transforms.logs.streams.partition_progress import StreamClock
from dp_transforms.plan.window_schedule import WindowSchedule
from dp_transforms.reports import read_report_file
from tests.helpers.beam_pipelines import Collected, local_pipeline
from tests.helpers.looks_plans import small_looks_plan
from tests.helpers.small_runs import MICROS, RUN_ID, START, key_file, small_plan
from tests.neighbours.binary_files import PARQUET, cells_of, hostile_cells, odd_cells, write_avro, write_parquet
from tests.neighbours.broker import Brokers, Message, Partition
from tests.neighbours.logs import WINDOWS, Log, Row, as_json, crowd, iso, place, without_added
from tests.neighbours.replayed import FIELDS
from tests.neighbours.stepped import WallClock
from tests.neighbours.text_files import FORMATS, write, write_members
from tests.reference.log import Event


def mine(body: Any, number: int) -> Any:
    """The same row of x', of an item that nobody else holds, and no other row of x'."""
    item = f"mine {number}".encode()
    if isinstance(body, tuple):
        return tuple(item if cell == b"A" else cell for cell in body)
    return body.replace(b"A", item) if len(body) < 100_000 else body


def hostile(cases: dict[str, Sequence[Any]], source: random.Random, count: int = 150) -> list[Any]:
    chosen = source.choices(list(cases.values()), k=count)
    return [mine(source.choice(rows), number) for number, rows in enumerate(chosen)]


def logs_of(events: Sequence[Event]) -> dict[str, Log]:
    """A part of the events in each format, with rows of x' all over."""
    source, logs = random.Random(7), {}
    names = [*FORMATS, "members", "parquet", "avro deflate", "avro zstandard"]
    for number, name in enumerate(names):
        own = list(events[number :: len(names)])
        if name in FORMATS or name == "members":
            form = FORMATS[name if name in FORMATS else "jsonl.gz"]
            others, added = [*map(form.spell, own), *form.odd()], hostile(form.hostile, source)
        else:
            others, added = cells_of(own, "whole") + odd_cells("whole"), hostile(hostile_cells("whole"), source)
        logs[name] = place(others, added, "spread", number)
    return logs


def write_all(folder: pathlib.Path, logs: dict[str, Log], *, with_added: bool) -> dict[str, list[str]]:
    """Files of all formats, by their names."""
    folder.mkdir()
    for name, log in logs.items():
        rows = log if with_added else without_added(log)
        own = folder / name.replace(" ", "-")
        own.mkdir()
        if name in FORMATS:
            write(own, FORMATS[name], rows)
        elif name == "members":
            half = len(rows) // 2
            write_members(own, FORMATS["jsonl.gz"], [rows[:half], [], rows[half:]])
        elif name == "parquet":
            write_parquet(own / "log.parquet", PARQUET["small dictionary"], rows)
        else:
            write_avro(own / "log.avro", "whole", rows, name.split()[1], 2_000)
    return {name: [str(folder / name.replace(" ", "-"))] for name in logs}


BUDGET = [
    *("--start", iso(START * MICROS), "--end", iso((START + WINDOWS * 60) * MICROS), "--window", "1m"),
    *("--epsilon", "8", "--delta", "1e-6", "--charge", "hits", "--counts", "--max-items-per-user", "50"),
]


def replay(folder: pathlib.Path, words: Sequence[str], monkeypatch: pytest.MonkeyPatch) -> tuple[int, list[Any]]:
    """Exit code and reports of `shh replay` in this process. The key is kept, and the id of the run is the same: no
    user may choose both, so the test takes the place of what draws ids."""
    monkeypatch.setattr("dp_transforms.cli.run_account.fresh_run_id", lambda: "7")
    monkeypatch.setattr("dp_transforms.cli.replay_run.MOST_REJECTED", 1)
    output = folder.parent / f"{folder.name}.jsonl"
    try:
        main(["replay", str(folder), *BUDGET, *words, "--output", str(output)])
        code = 0
    except SystemExit as stopped:
        code = int(stopped.code or 0)
    reports = list(read_report_file(str(output))[1]) if code == 0 else []
    return code, reports


def test_the_replay_command_publishes_the_same(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Noisy counts tell by the digest of an item's holders whether a single one of them was lost."""
    events = [
        (f"u{user}", f"item {user % 3}", (START + second) * MICROS + user)
        for user in range(900)
        for second in (user % 60, 60 + user % 60, 180 + user % 60)
    ]
    logs = logs_of(events)
    key = ["--noise-key-file", key_file(tmp_path)]
    found = {}
    for kind in ("with", "without"):
        write_all(tmp_path / kind, logs, with_added=kind == "with")
        found[kind] = replay(tmp_path / kind, key, monkeypatch)
    capsys.readouterr()
    assert found["with"] == found["without"]
    code, reports = found["with"]
    assert (code, [len(report.heavy_hitters) for report in reports]) == (0, [3, 3, 3])


PLAN = small_plan(WINDOWS, max_items_per_user=4, hits_per_user=24)
NAMES = small_looks_plan(WINDOWS, most_tests=30)
HISTORY = StreamClock("event", 400, 400, 300, 0.3)
ARRIVAL = StreamClock("arrival", 60, 0, 300, 0.3)


def kafka_log(schedule: WindowSchedule, count: int) -> list[tuple[int, Row]]:
    """(arrival in milliseconds, record), so many evenly, and 3 in 10 of x'."""
    span = (schedule.end_seconds - schedule.start_seconds) * MICROS
    source, log = random.Random(8), []
    added = hostile(FORMATS["jsonl"].hostile, source, count)
    for number in range(count):
        micros = schedule.start_seconds * MICROS + span * number // count
        own = Row(added[number], True) if source.random() < 0.3 else None
        event = (f"u{source.randrange(40)}", source.choice(["A", "B", f"C {9 * number // count}"]), micros)
        log.append((micros // 1_000, own or Row(as_json(event))))
    return log


def serve(brokers: Brokers, name: str, log: Sequence[tuple[int, Row]]) -> KafkaTopic:
    messages = [Message(at, millis, row.body) for at, (millis, row) in enumerate(log)]
    brokers.partitions[name] = Partition(messages, WallClock(2**60))
    return KafkaTopic("b:1", name, EventFields())


# A huge row of x' is one of item A, in the second window. Where hits are paid, the item is left out there: x' has more
# than it may. Where looks are paid, it counts.
HELD_BY_ADDED = {((START + 60) * MICROS, "A")}


def of_others(
    reports: Sequence[WindowReport], left_out: Collection[tuple[int, str]] = ()
) -> list[tuple[int, list[HeavyHitter]]]:
    """What is published of the others: an item of x' alone passes with a small probability, which is x's to pay."""
    return [
        (
            report.window_start,
            [
                heavy
                for heavy in report.heavy_hitters
                if "mine" not in heavy.item and (report.window_start, heavy.item) not in left_out
            ],
        )
        for report in reports
    ]


def test_streams_end_to_end(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In one pipeline: Kafka with a plan of looks, where what x' spends, and what is known of its items, changes
    nothing for the others; and a folder by the clock of events."""
    # Each poll brings 120 records: so where a poll ends, x' decides.
    monkeypatch.setitem(PartitionPoller.__init__.__kwdefaults__, "max_records", 120)
    brokers = Brokers(monkeypatch)
    pipeline, key = local_pipeline(), key_file(tmp_path)
    reports, ended = {}, {}

    def add(name: str, source: Any, plan: Any, clock: StreamClock) -> None:
        monitor = MonitorStream(
            source, plan, **vars(clock), noise_key=key, run_id=RUN_ID, driver="loop", poll_seconds=0.05, shards=2
        )
        found, reports[name], ended[name] = pipeline | name >> monitor, Collected(), Collected()
        _ = found.reports | f"{name} reports" >> reports[name].sink()
        _ = found.ended | f"{name} ended" >> ended[name].sink()

    records, logs = kafka_log(PLAN.schedule, 600), logs_of(crowd(4, 450))
    for kind in ("with", "without"):
        topic = serve(brokers, kind, [entry for entry in records if kind == "with" or not entry[1].is_added])
        folder = tmp_path / kind
        folder.mkdir()
        for number, paths in enumerate(write_all(tmp_path / f"{kind} files", logs, with_added=kind == "with").values()):
            (written,) = pathlib.Path(paths[0]).iterdir()
            os.rename(written, folder / f"{number}-{written.name}")
        add(f"folder, event, {kind}", LogFolder(str(folder), FIELDS, 0.1), PLAN, HISTORY)
        add(f"kafka, looks, {kind}", topic, NAMES, ARRIVAL)
    pipeline.run().wait_until_finish()
    for name in ("kafka, looks", "folder, event"):
        left_out = HELD_BY_ADDED if "looks" in name else ()
        published = [of_others(reports[f"{name}, {kind}"].values, left_out) for kind in ("with", "without")]
        assert published[0] == published[1], name
        assert ended[f"{name}, with"].values == ended[f"{name}, without"].values != []
        assert len(reports[f"{name}, with"].values) == WINDOWS, name
