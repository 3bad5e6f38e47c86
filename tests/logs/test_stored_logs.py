"""Logs in a store are read by ranges, of one version; nothing of them reaches a disk. On a real S3 server."""

import contextlib
import gzip
import io
import json
import os
import resource

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dp_transforms.logs import EventFields, EventFileError, find_log_chunks
from dp_transforms.logs.discovery import cut_chunks
from dp_transforms.stores import remote_files
from tests.helpers.event_files_oracle import read_chunks
from tests.helpers.log_files import write_avro, write_csv, write_json

pytestmark = pytest.mark.xdist_group("s3")
FIELDS = EventFields()
ROWS = [(f"user {n % 100}", f"item {n % 7}", f"2026-01-01T00:{n % 60:02}:00Z") for n in range(3_000)]
PADDING = os.urandom(1 << 19).hex()


def _parquet(groups=3):
    users, items, times = (pa.array(column) for column in zip(*ROWS, strict=True))
    other = pa.array([os.urandom(600) for _ in ROWS])
    file = io.BytesIO()
    names = ["before", "user", "between", "item", "timestamp", "after"]
    table = pa.table([other, users, other, items, times, other], names)
    pq.write_table(table, file, row_group_size=len(ROWS) // groups)
    return file.getvalue()


ENDINGS = ("parquet", "avro", "csv", "csv.gz", "jsonl", "jsonl.gz")


@pytest.fixture(scope="module")
def contents(tmp_path_factory):
    """Of a log in each format."""
    folder = tmp_path_factory.mktemp("logs")
    (folder / "log.parquet").write_bytes(_parquet())
    write_avro(folder / "log.avro", ROWS, ("string",) * 3, "deflate", 2_000)
    write_csv(folder / "log.csv", ROWS)
    write_json(folder / "log.jsonl", ROWS)
    for text in ("csv", "jsonl"):
        (folder / f"log.{text}.gz").write_bytes(gzip.compress((folder / f"log.{text}").read_bytes()))
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def _events(chunks):
    events, rejected = read_chunks(chunks, FIELDS)
    assert not rejected
    return events


@contextlib.contextmanager
def no_large_file():
    """While the block runs, this process cannot write a file of more than 20 KB."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_stored_log_has_the_events_of_the_same_local_one(bucket, contents, tmp_path, ending):
    name, content = f"log.{ending}", contents[f"log.{ending}"]
    remote_files.put(f"{bucket}/{name}", content)
    (tmp_path / name).write_bytes(content)
    local = find_log_chunks([str(tmp_path)], FIELDS)
    with no_large_file():
        stored = find_log_chunks([bucket], FIELDS)
        events = _events(stored)
    assert events == _events(local)
    assert len(events) == len(ROWS)
    assert [chunk.group for chunk in stored] == [chunk.group for chunk in local]
    assert sum(chunk.bytes for chunk in stored) == len(content)


def test_of_a_parquet_log_the_columns_that_are_needed_are_read(s3, bucket):
    content = _parquet()
    remote_files.put(f"{bucket}/log.parquet", content)
    s3.forget()
    chunks = find_log_chunks([f"{bucket}/log.parquet"], FIELDS)
    footer = [(read.bytes_range, read.sent) for read in s3.reads()]
    assert footer == [(f"bytes={len(content) - (1 << 16)}-{len(content) - 1}", 1 << 16)]
    assert len(_events(chunks)) == len(ROWS)
    columns = s3.reads()[1:]
    assert [chunk.group for chunk in chunks] == [0, 1, 2]
    assert len(columns) <= 3 * 6, "the first row of each column, and all of it"
    assert sum(read.sent for read in columns) < len(content) / 4, "three random columns of 600 bytes a row are left out"


@pytest.mark.parametrize("ending", ["csv", "jsonl"])
def test_parts_of_a_text_fetch_their_own_bytes_and_count_lines_where_they_reject(s3, bucket, ending):
    """19 MB for two workers: four parts. The third row and the one before the last are broken."""
    rows = [{"user": f"u{n}", "item": "i", "timestamp": ROWS[0][2], "p": PADDING} for n in range(20)]
    lines = [json.dumps(row) if ending == "jsonl" else ",".join(row.values()) for row in rows]
    lines[2] = lines[18] = "no row"
    content = "\n".join(lines if ending == "jsonl" else [",".join(rows[0]), *lines]).encode()
    url = f"{bucket}/log.{ending}"
    remote_files.put(url, content)
    whole = find_log_chunks([url], FIELDS)
    cut = cut_chunks(whole, 2)
    assert len(cut) == 4
    found, fetched = [], []
    for part in cut:
        s3.forget()
        found.append(read_chunks([part], FIELDS))
        fetched.append(sum(read.sent for read in s3.reads()))
    events, rejected = read_chunks(whole, FIELDS)
    assert [event for part, _ in found for event in part] == events
    assert len(events) == 18
    reason, positions = next(iter(rejected.items()))
    assert positions == ([3, 19] if ending == "jsonl" else [4, 20])
    assert [part for _, part in found] == [{reason: positions[:1]}, {}, {}, {reason: positions[1:]}]
    more = 4 << 20  # the head of a CSV file; a line, which has 1 MB, at each end; and what is fetched ahead
    assert all(size < part.bytes + more for size, part in zip(fetched[:3], cut[:3], strict=True))
    assert fetched[3] < len(content) + cut[3].bytes + more


@pytest.mark.parametrize("ending", ["parquet", "avro", "csv.gz", "jsonl"])
def test_a_log_that_changes_while_it_is_read_is_an_error(s3, bucket, contents, ending):
    """Also where a library is between, which makes another error of it; never a mixture of two versions."""
    url, content = f"{bucket}/log.{ending}", contents[f"log.{ending}"]
    remote_files.put(url, content)
    chunks = find_log_chunks([url], FIELDS)
    remote_files.put(url, content + b"\n", replaces=True)
    with pytest.raises(EventFileError, match="it cannot be read: it was changed or removed while it was read"):
        _events(chunks)
