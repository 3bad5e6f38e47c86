"""Reports from before there were levels: files, folder and record that shh wrote then, in tests/data, are still read.

The rule: a heavy hitter has all five fields, or item, zone and noisy_count alone, whatever version the header says.
Then level and at_least_users are null. What is written has all five.
"""

from __future__ import annotations

import json
import pathlib
import shutil
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dp_transforms.event_streams.stream_source import StreamError
from dp_transforms.monitoring.window_report import WINDOW_REPORT_AVRO_SCHEMA, HeavyHitter, RunEnded
from dp_transforms.report_files import HEADER_KEY, ReportFileError, decode_report, encode_report, records
from dp_transforms.report_streams import ReportFolder
from dp_transforms.report_streams.topic_records import decode_record, encode_record
from tests.helpers.report_samples import COUNTS, ENDINGS, HEADER, LABELS, NAMES, WITHOUT_LEVELS, read_all, written

OLD = pathlib.Path(__file__).parents[1] / "data" / "reports_without_levels"
ALL_FIELDS = ["item", "zone", "noisy_count", "level", "at_least_users"]


def fields_of(path: pathlib.Path) -> list[str]:
    """Of a heavy hitter, as the library of the format reads them."""
    if path.suffix == ".avro":
        with path.open("rb") as handle:
            schema: Any = fastavro.reader(handle).writer_schema
        fields = {field["name"]: field["type"] for field in schema["fields"]}
        return [field["name"] for field in fields["heavy_hitters"]["items"]["fields"]]
    if path.suffix == ".parquet":
        return [field.name for field in pq.read_schema(path).field("heavy_hitters").type.value_type]
    return list(json.loads(path.read_text().split("\n")[1])["heavy_hitters"][0])


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_file_without_levels_is_read_and_written_again_with_them(tmp_path: pathlib.Path, ending: str) -> None:
    old = OLD / f"report.{ending}"
    assert fields_of(old) == ["item", "zone", "noisy_count"]
    header, reports = read_all(old)
    assert (header, reports) == (HEADER, WITHOUT_LEVELS)
    assert {(found.level, found.at_least_users) for one in reports for found in one.heavy_hitters} == {(None, None)}
    for other in ENDINGS:
        new = written(tmp_path, other, reports, header)
        assert fields_of(new) == ALL_FIELDS
        assert read_all(new) == (HEADER, WITHOUT_LEVELS)


def test_a_reader_that_knows_levels_resolves_avro_without_them() -> None:
    """As the defaults of the schema promise to readers of other programs."""
    with (OLD / "report.avro").open("rb") as handle:
        found: list[Any] = list(fastavro.reader(handle, reader_schema=WINDOW_REPORT_AVRO_SCHEMA))
    assert [len(record["heavy_hitters"]) for record in found] == [1, 2, 2]
    sizes = {(entry["level"], entry["at_least_users"]) for record in found for entry in record["heavy_hitters"]}
    assert sizes == {(None, None)}


def test_a_record_of_a_topic_without_levels_is_read_by_the_fingerprint_of_its_schema() -> None:
    old = (OLD / "topic.avro_record").read_bytes()
    assert decode_record(old) == ("run-1", LABELS)
    assert encode_record(LABELS, "run-1", "avro")[2:10] != old[2:10]
    with pytest.raises(ReportFileError, match="more than its Avro datum"):
        decode_record(old + b"\0")
    for length in range(10, len(old)):
        with pytest.raises(ReportFileError):
            decode_record(old[:length])
    line = (OLD / "report.jsonl").read_text().split("\n")[2]
    assert decode_record(json.dumps({"run_id": "run-1", **json.loads(line)}).encode()) == ("run-1", LABELS)


def test_the_run_of_a_folder_without_levels_is_read_and_goes_on(tmp_path: pathlib.Path) -> None:
    folder = tmp_path / "stream"
    shutil.copytree(OLD / "stream", folder)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    sink = ReportFolder(str(folder))
    held = sink.read("run-1")
    assert (held[0], list(held[1]), held[2]) == (HEADER, [LABELS, COUNTS], RunEnded("news", 12, 2))
    writer = sink.open(HEADER)
    writer.write(LABELS)  # the same answer, in other bytes
    with pytest.raises(StreamError, match="already has another answer"):
        writer.write(LABELS._replace(heavy_hitters=LABELS.heavy_hitters[:1]))
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    with pytest.raises(StreamError, match="the run has ended with 2 reports, and all are there"):
        writer.write(NAMES)
    (folder / "ended.json").unlink()
    writer.write(NAMES)
    assert list(sink.read("run-1")[1]) == [LABELS, COUNTS, NAMES]


@pytest.mark.parametrize("missing", ["level", "at_least_users"])
def test_one_of_the_two_fields_alone_is_refused(tmp_path: pathlib.Path, missing: str) -> None:
    for one in (LABELS, NAMES):
        fields = json.loads(encode_report(one))
        for entry in fields["heavy_hitters"]:
            del entry[missing]
        with pytest.raises(ReportFileError, match="exactly the fields item, zone, noisy_count, level, at_least_users"):
            decode_report(json.dumps(fields))

    schema = json.loads(json.dumps(WINDOW_REPORT_AVRO_SCHEMA))
    hitter = schema["fields"][3]["type"]["items"]
    hitter["fields"] = [field for field in hitter["fields"] if field["name"] != missing]
    with (tmp_path / "one.avro").open("wb") as handle:
        fastavro.writer(handle, schema, [], metadata={HEADER_KEY: HEADER.to_json()})
    with pytest.raises(ReportFileError, match="schema is not that of a report"):
        read_all(tmp_path / "one.avro")

    schema = pq.read_schema(written(tmp_path, "parquet"))
    kept = [field for field in schema.field("heavy_hitters").type.value_type if field.name != missing]
    hitters = pa.field("heavy_hitters", pa.list_(pa.field("element", pa.struct(kept), False)), False)
    pq.write_table(schema.set(3, hitters).empty_table(), tmp_path / "one.parquet")
    with pytest.raises(ReportFileError, match="schema is not that of a report"):
        read_all(tmp_path / "one.parquet")


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_file_of_a_later_version_names_the_remedy_whatever_its_schema(tmp_path: pathlib.Path, ending: str) -> None:
    header = HEADER.to_json().replace('"version": 2', '"version": 3')
    path = tmp_path / f"later.{ending}"
    if ending == "avro":
        with path.open("wb") as handle:
            later = {"type": "record", "name": "Later", "fields": []}
            fastavro.writer(handle, later, [], metadata={HEADER_KEY: header})
    elif ending == "parquet":
        schema = pq.read_schema(written(tmp_path, "parquet")).append(pa.field("later", pa.int64()))
        pq.write_table(schema.empty_table().replace_schema_metadata({HEADER_KEY: header}), path)
    else:
        path.write_text(f'{{"header": {header}}}\n')
    with pytest.raises(ReportFileError, match=r"must have version 1 or 2\. Read it with the version of shh"):
        read_all(path)


def test_the_largest_report_without_levels_can_be_written_with_them() -> None:
    """Then a heavy hitter was told to have 80 bytes without its label, and a report at most 2^25."""
    more = records._HEAVY_HITTER_FRAME_BYTES - 80
    assert (1 << 25) + more * records.MAX_HEAVY_HITTERS <= records.MAX_RECORD_BYTES
    old, new = {"item": "a", "zone": None, "noisy_count": 5}, HeavyHitter("a", None, 5)._asdict()
    assert len(json.dumps(new)) - len(json.dumps(old)) <= more
