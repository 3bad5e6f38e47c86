"""`--stream-field`: several streams in one purse, from a log, a table or a stream to reports: byte for byte those of a
log whose items were joined beforehand."""

import json
import os

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from dp_transforms import read_report, replay
from tests.helpers.shh_here import shh
from tests.helpers.small_runs import key_file

BUDGET = ("--start", "2026-01-01", "--end", "2026-01-03", "--window", "6h", "--epsilon", "8", "--delta", "1e-4")
WORDS = {"start": "2026-01-01", "end": "2026-01-03", "window": "6h", "epsilon": 8.0, "delta": 1e-4}
FIELD = ("--stream-field", "kind")
LABELS = {"click: even", "click: odd", "search: even", "search: odd"}


def log():
    """800 users: in each window half search and half click, each for one of two items; and a row of no stream."""
    users, hours = np.meshgrid(np.arange(800), np.arange(0, 48, 6))
    users, hours = users.reshape(-1), hours.reshape(-1)
    kinds = np.where((users // 2 + hours // 6) % 2, "search", "click").astype(object)
    kinds[5] = ""
    return pa.table(
        {
            "user": pa.array(users),
            "item": np.where(users % 2, "odd", "even"),
            "timestamp": pa.array((1_767_225_600 + 3600 * hours + users) * 1_000_000, pa.timestamp("us", "UTC")),
            "kind": pa.array(kinds, pa.string()),
        }
    )


def joined():
    """The log with its items as they are to be, without the row that is none."""
    table = log().filter(pc.not_equal(log().column("kind"), ""))
    items = pc.binary_join_element_wise(table.column("kind"), table.column("item"), ": ")
    return table.set_column(1, "item", items).drop_columns("kind")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("streams")
    pa.csv.write_csv(log(), made / "log.csv")
    key_file(made)
    return made


def report_of(folder, log_name, *words):
    """Of a replay with --stream-field."""
    given = (*BUDGET, *FIELD, "--noise-key-file", "noise.key", "--output", f"{log_name}.jsonl")
    done = shh("replay", log_name, *given, *words, cwd=folder)
    assert done.returncode == 0, done.stderr
    return (folder / f"{log_name}.jsonl").read_bytes()


def report_of_table(folder, table, like, **more):
    """Of a replay of a table with the noise of that other one."""
    key, run_id = folder / "noise.key", json.loads(like.splitlines()[0])["header"]["run_id"]
    (folder / "table.jsonl").unlink(missing_ok=True)
    replay(table, noise_key=key, run_id=run_id, resume=True, **WORDS, **more).write(folder / "table.jsonl")
    return (folder / "table.jsonl").read_bytes()


def test_a_replay_gives_the_bytes_of_a_log_that_was_joined_beforehand(folder):
    found = report_of(folder, "log.csv", "--dead-letter", "bad.jsonl")
    assert all(label.encode() in found for label in LABELS)
    assert json.loads((folder / "bad.jsonl").read_text()) == {
        "file": "log.csv",
        "position": 7,
        "reason": "empty stream",
    }
    assert report_of_table(folder, joined(), found) == found
    with pytest.warns(UserWarning, match="empty stream: 1"):
        assert report_of_table(folder, log(), found, stream_field="kind") == found
    with pytest.raises(ValueError, match="Name one with stream_field="):
        report_of_table(folder, log(), found, stream_field="sort")


@pytest.mark.parametrize(
    ("words", "more"),
    [
        (("--by", "amount=1,2"), {"by": {"amount": ["1", "2"]}}),
        (("--weight", "amount", "--most-weight", "9"), {"weight": "amount", "most_weight": 9}),
    ],
)
def test_so_it_does_with_facets_and_a_weight(folder, words, more):
    of_log, of_joined = (
        each.append_column("amount", pc.bit_wise_and(each.column("user"), 3)) for each in (log(), joined())
    )
    name = f"{words[0].strip('-')}.parquet"
    pq.write_table(of_log, folder / name)
    found = report_of(folder, name, *words)
    assert all(label.encode() in found for label in LABELS)
    assert report_of_table(folder, of_joined, found, **more) == found


def test_nights_and_a_stream_go_on_with_the_same_field_alone(folder):
    """And the items of a domain are those that were joined."""
    known = LABELS - {"click: odd"}
    (folder / "items.txt").write_text("\n".join(sorted(known)) + "\n")
    (folder / "live").mkdir()
    pq.write_table(log(), folder / "live" / "log.parquet")
    os.utime(folder / "live" / "log.parquet", (1_767_500_000, 1_767_500_000))
    of_run = ("--domain-file", "items.txt", "--noise-key-file", "noise.key", "--state", "run.state")
    night = ("replay", "log.csv", *BUDGET, *of_run)
    first = shh(*night, *FIELD, "--until", "2026-01-02", "--output", "night.avro", cwd=folder)
    assert first.returncode == 0, first.stderr
    clock = ("--engine", "in-process", "--clock", "event", "--idle-timeout", "1s", "--once")
    live = ("stream", "--input", "live", *BUDGET, *of_run, *clock, "--output", "reports")
    for words in ((*night, "--output", "2.avro"), live):
        for others in ((), ("--stream-field", "item", "--item-field", "kind")):
            refused = shh(*words, *others, cwd=folder)
            assert refused.returncode == 1
            assert f"begun with --{'item-field item' if others else 'stream-field kind'}" in refused.stderr.replace(
                "'", ""
            )
    second = shh(*live, *FIELD, cwd=folder)
    assert second.returncode == 0, second.stderr
    night, stream = read_report(folder / "night.avro"), read_report(*(folder / "reports").glob("2*"))
    for report in (night, stream):
        assert {hitter.item for window in report for hitter in window.heavy_hitters} == known
    assert max(window.window_start for window in night) < min(window.window_start for window in stream)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--stream-field", "item"), "--stream-field must name a field that is not user, item, time, by or weight"),
        (
            ("--stream-field", "sort"),
            "no field 'sort'; its fields are: user, item, timestamp, kind. Name one with --stream",
        ),
        ((*FIELD, "--by", "kind=click"), "--stream-field must name a field that is not"),
    ],
)
def test_what_cannot_be_a_stream_is_refused(folder, words, message):
    refused = shh("replay", "log.csv", *BUDGET, *words, "--output", "refused.avro", cwd=folder)
    assert refused.returncode == 1
    assert message in " ".join(refused.stderr.split())


def test_the_command_that_is_proposed_has_it(folder):
    proposed = shh("replay", "log.csv", *FIELD, cwd=folder)
    assert proposed.returncode == 2
    assert "--stream-field kind" in proposed.stderr
