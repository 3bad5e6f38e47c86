"""HDFS through WebHDFS: on a real name node and data node."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator

import pytest

from dp_transforms import remote_files
from dp_transforms.event_files import EventFields, EventFileError, find_log_chunks, read_log_chunk
from dp_transforms.remote_files import RemoteFileError
from dp_transforms.report_files import read_report_file
from tests.engines import skip_reason
from tests.engines.hdfs_server import HdfsServer
from tests.helpers.replay_logs import BUDGET, write_log
from tests.helpers.shh_here import shh
from tests.helpers.store_contract import CONTRACT


@pytest.fixture(scope="module")
def hdfs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of its root."""
    if (reason := skip_reason("hdfs")) is not None:
        pytest.skip(reason)
    with HdfsServer(tmp_path_factory.mktemp("hdfs")) as server:
        yield f"hdfs://{server.address}"


def test_hdfs_holds_what_every_store_does(hdfs: str) -> None:
    for number, holds in enumerate(CONTRACT):
        holds(f"{hdfs}/contract-{number}")


def test_a_large_folder_is_listed_in_pages_and_in_order(hdfs: str) -> None:
    names = [f"{number:03}/a.csv" for number in range(0, 40, 2)] + [f"{number:03}.csv" for number in range(40)]
    for name in names:
        remote_files.put_new(f"{hdfs}/many/{name}", b"")
    found = [file.url.removeprefix(f"{hdfs}/many/") for file in remote_files.find_files(f"{hdfs}/many")]
    assert found == sorted(names)
    some = [file.url.removeprefix(f"{hdfs}/many/") for file in remote_files.find_files(f"{hdfs}/many/01*")]
    assert some == [name for name in sorted(names) if name.startswith("01")]


def test_a_replay_from_hdfs_to_hdfs(hdfs: str, tmp_path: pathlib.Path) -> None:
    for name in ("a.parquet", "b.avro", "c.csv", "d.jsonl"):
        write_log(tmp_path / name)
        remote_files.put_new(f"{hdfs}/logs/{name}", (tmp_path / name).read_bytes())
    events = []
    for source in (str(tmp_path), f"{hdfs}/logs"):
        chunks = find_log_chunks([source], EventFields())
        blocks = [block for chunk in chunks for block in read_log_chunk(chunk, EventFields())]
        events.append([one for block in blocks for one in block.batch.item.to_pylist()])
    assert events[0] == events[1]
    output = f"{hdfs}/reports/one.avro"
    result = shh("replay", f"{hdfs}/logs/*.parquet", *BUDGET, "--output", output, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    _, reports = read_report_file(output)
    assert [hitter.item for report in reports for hitter in report.heavy_hitters] == [
        f"heavy-{hour}" for hour in (0, 1, 3, 5)
    ]
    again = shh("replay", f"{hdfs}/logs/*.parquet", *BUDGET, "--output", output, cwd=tmp_path)
    assert "exists and is never overwritten" in again.stderr


def test_what_hdfs_refuses_is_said(hdfs: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(EventFileError, match="there is no such file or folder"):
        find_log_chunks([f"{hdfs}/absent"], EventFields())
    monkeypatch.setenv("HADOOP_USER_NAME", "somebody")
    with pytest.raises(RemoteFileError, match="HDFS denies the access: check its rights, and HADOOP_USER_NAME"):
        remote_files.put_new(f"{hdfs}/owned/by/another.csv", b"")
    with pytest.raises(RemoteFileError, match=r"cannot be reached.* is the one of WebHDFS \(9870\)"):
        remote_files.look_at("hdfs://127.0.0.1:9/a.csv")
