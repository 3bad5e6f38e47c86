"""The benchmark of replays beside peers: what it runs, subtracts and writes. No clock is tested."""

import dataclasses

import pyarrow.parquet as pq
import pytest

from benchmarks import peers, pipeline_dp_replay, tables
from benchmarks.beam_elements import _items_in_windows
from benchmarks.processes import Measurement
from dp_transforms.cli.main import main

HOUR = 3600


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    path = tmp_path_factory.mktemp("peers") / "log.parquet"
    main(["simulate", "--events", "20000", "--users", "4000", "--items", "20", "--start", "2026-01-01T00:00:00Z",
          "--days", "16", "--seed", "3", "--output", str(path)])  # fmt: skip
    return path


def test_all_peers_see_the_same_items_in_the_same_windows(log):
    table = pq.read_table(log)
    cells = [
        (int(at.timestamp()) // HOUR, item)
        for at, item in zip(table["timestamp"].to_pylist(), table["item"].to_pylist(), strict=True)
    ]
    assert list(_items_in_windows(table, HOUR)) == cells
    rows = pipeline_dp_replay._rows(str(log), HOUR)
    assert list(rows) == list(zip(table["user"].to_pylist(), cells, strict=True))


def measurement(seconds, cpu, peak):
    return Measurement(seconds, cpu, 0.0, peak, "")


def test_a_row_is_the_smallest_of_its_rounds_beside_ours_without_start():
    starts = [measurement(2.0, 1.5, 1), measurement(1.0, 1.0, 1)]
    ours = [
        peers._row(name, 1000, [measurement(4.0, 3.0, 5), measurement(3.0, 3.5, 7)], starts, 8) for name in peers.OURS
    ]
    other = peers._row("a peer", 1000, [measurement(10.0, 9.0, 2 * 10**9)], starts, None)
    assert ours[0].rest == (2.0, 2.0)
    assert ours[0].peak_bytes == 7
    figures = {figure.name: figure for figure in peers._figures([*ours, other])}
    assert figures["1,000 events, a peer"].value == 100
    beside = figures["1,000 events, a peer: clock / ours by 2 processes"]
    assert beside.value == pytest.approx(10 / 3)
    assert beside.note.startswith("CPU without start / ours by 1 process: 4.0;")
    *_, last = tables.of_peers([dataclasses.asdict(row) for row in [*ours, other]])
    assert last == "| a peer | 1,000 | 10.0 | 9.0 | 100 | 111 | 9000.00 | 8000.00 | 2.00 GB | - | 3.33 | 4.0 |"
