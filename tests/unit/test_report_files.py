"""Report files: what is in them is read here by the formats' own libraries, and hostile files end in one line."""

from __future__ import annotations

import dataclasses
import datetime
import io
import json
import math
import os
import random
import zlib

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dp_transforms.monitoring.window_report import (
    ABOVE,
    BETWEEN,
    WINDOW_REPORT_AVRO_SCHEMA,
    HeavyHitter,
    WindowReport,
)
from dp_transforms.report_files import (
    HEADER_KEY,
    ReportFileError,
    ReportHeader,
    decode_report,
    discard_file,
    encode_report,
    files,
    partial_path,
    publish_file,
    read_report_file,
    report_format,
    write_report_file,
)

HOUR = 3_600_000_000
START = 1_506_826_800_000_000  # 2017-10-01T03:00:00Z
HEADER = ReportHeader(
    "run-1", "news", "Each user's log is protected with ε = 2.", {"epsilon": 2.0, "notes": ["é", None]}
)
ENDINGS = ["avro", "jsonl", "parquet"]


def report(window, *heavy_hitters, stream="news", spent=0.25):
    start = START + window * HOUR
    return WindowReport(stream, start, start + HOUR, list(heavy_hitters), 2.0, 1e-9, spent)


LABELS = report(0, HeavyHitter('Ünï\u2028code "[b]"', ABOVE, None), HeavyHitter("b", BETWEEN, 812))
COUNTS = report(7, HeavyHitter("a", None, 4021), HeavyHitter("", None, -3), spent=1.5)
OTHER_STREAM = report(3, HeavyHitter("x", ABOVE, None), stream="alpha")
REPORTS = [COUNTS, LABELS, OTHER_STREAM]
IN_ORDER = [OTHER_STREAM, LABELS, COUNTS]


def written(folder, ending, reports=REPORTS, header=HEADER):
    path = folder / f"report.{ending}"
    write_report_file(path, header, reports)
    return path


def read_all(path):
    header, reports = read_report_file(path)
    return header, list(reports)


def refusal(path):
    """The one line with which a file is refused."""
    with pytest.raises(ReportFileError) as caught:
        read_all(path)
    assert "\n" not in str(caught.value)
    assert str(path.name) in str(caught.value)
    return str(caught.value)


def outcome(path):
    """The reports of a file that may be damaged, or the error."""
    try:
        return read_all(path)[1], ""
    except ReportFileError as error:
        return [], str(error)


@pytest.mark.parametrize("ending", [*ENDINGS, "json", "ndjson", "pq", "AVRO"])
def test_what_is_written_is_read_sorted_by_stream_and_window(tmp_path, ending):
    header, reports = read_all(written(tmp_path, ending))
    assert header == HEADER
    assert reports == IN_ORDER
    assert reports != REPORTS  # the order is the writer's work, not the test's


@pytest.mark.parametrize("ending", ENDINGS)
def test_zero_reports_make_a_valid_file(tmp_path, ending):
    assert read_all(written(tmp_path, ending, [])) == (HEADER, [])


def test_avro_as_fastavro_reads_it(tmp_path):
    with written(tmp_path, "avro").open("rb") as handle:
        reader = fastavro.reader(handle)
        records = list(reader)
    schema = reader.writer_schema
    assert [field["name"] for field in schema["fields"]] == list(WindowReport._fields)
    assert all(field["doc"] for field in schema["fields"])
    assert json.loads(reader.metadata[HEADER_KEY])["plan"] == HEADER.plan
    assert records[1] == {
        "stream": "news",
        "window_start": datetime.datetime(2017, 10, 1, 3, tzinfo=datetime.timezone.utc),
        "window_end": datetime.datetime(2017, 10, 1, 4, tzinfo=datetime.timezone.utc),
        "heavy_hitters": [
            {"item": 'Ünï\u2028code "[b]"', "zone": "above", "noisy_count": None},
            {"item": "b", "zone": "between", "noisy_count": 812},
        ],
        "epsilon_total": 2.0,
        "delta": 1e-9,
        "epsilon_spent": 0.25,
    }
    assert [entry["noisy_count"] for entry in records[2]["heavy_hitters"]] == [4021, -3]
    assert [entry["zone"] for entry in records[2]["heavy_hitters"]] == [None, None]


def test_writing_leaves_the_shared_avro_schema_alone(tmp_path):
    before = json.dumps(WINDOW_REPORT_AVRO_SCHEMA)
    read_all(written(tmp_path, "avro"))
    assert json.dumps(WINDOW_REPORT_AVRO_SCHEMA) == before


def test_json_lines_as_json_reads_them(tmp_path):
    lines = written(tmp_path, "jsonl").read_bytes().split(b"\n")
    assert lines.pop() == b""
    header, *records = map(json.loads, lines)
    assert header == {"header": {"version": 1, **dataclasses.asdict(HEADER)}}
    assert records[1] == {
        "stream": "news",
        "window_start": "2017-10-01T03:00:00Z",
        "window_end": "2017-10-01T04:00:00Z",
        "heavy_hitters": [
            {"item": 'Ünï\u2028code "[b]"', "zone": "above", "noisy_count": None},
            {"item": "b", "zone": "between", "noisy_count": 812},
        ],
        "epsilon_total": 2.0,
        "delta": 1e-9,
        "epsilon_spent": 0.25,
    }


def test_parquet_as_pyarrow_reads_it(tmp_path):
    table = pq.read_table(written(tmp_path, "parquet"))
    schema = table.schema
    assert schema.field("window_start").type == pa.timestamp("us", tz="UTC")
    assert pa.types.is_list(schema.field("heavy_hitters").type)
    assert {field.name: field.type for field in schema.field("heavy_hitters").type.value_type} == {
        "item": pa.string(),
        "zone": pa.string(),
        "noisy_count": pa.int64(),
    }
    assert all(schema.field(name).metadata[b"doc"] for name in WindowReport._fields)
    assert json.loads(schema.metadata[HEADER_KEY.encode()])["guarantee"] == HEADER.guarantee
    row = table.to_pylist()[1]
    assert row["window_end"] == datetime.datetime(2017, 10, 1, 4, tzinfo=datetime.timezone.utc)
    assert row["heavy_hitters"][1] == {"item": "b", "zone": "between", "noisy_count": 812}
    assert row["heavy_hitters"][0]["noisy_count"] is None


@pytest.mark.parametrize("ending", ENDINGS)
def test_many_windows_pass_through_several_blocks(tmp_path, ending):
    reports = [report(i, *(HeavyHitter(f"item {j}", None, j - 1) for j in range(i % 60))) for i in range(3000)]
    path = written(tmp_path, ending, reports)
    if ending == "parquet":
        assert pq.ParquetFile(path).metadata.num_row_groups > 1
    assert read_all(path)[1] == reports


def test_numbers_and_times_survive_json_exactly():
    generator = random.Random(7)
    for _ in range(300):
        start = generator.randrange(-60 * 10**15, 250 * 10**15)
        original = WindowReport(
            "s",
            start,
            start + generator.randrange(1, 10**9),
            [],
            generator.random(),
            generator.random() * 1e-9,
            0.1 + 0.2,
        )
        assert decode_report(encode_report(original)) == original


def test_ascii_json_has_no_other_characters_and_the_same_content():
    line = encode_report(report(0, HeavyHitter("é\x9b\u202e", None, 3)), ascii_only=True)
    assert line.isascii()
    assert decode_report(line).heavy_hitters[0].item == "é\x9b\u202e"


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"heavy_hitters": [HeavyHitter("a", ABOVE, 700)]}, "noisy_count must be null"),
        ({"heavy_hitters": [HeavyHitter("a", "below", None)]}, "zone"),
        ({"heavy_hitters": [HeavyHitter("a", BETWEEN, 7.5)]}, "noisy_count"),
        ({"heavy_hitters": [HeavyHitter("a", BETWEEN, True)]}, "noisy_count"),
        ({"heavy_hitters": [HeavyHitter("a", BETWEEN, 1 << 63)]}, "noisy_count"),
        ({"heavy_hitters": [HeavyHitter("\ud800", BETWEEN, 1)]}, "item"),
        ({"heavy_hitters": [HeavyHitter(7, BETWEEN, 1)]}, "item"),
        ({"stream": None}, "stream"),
        ({"window_end": START}, "window_end"),
        ({"window_start": -(1 << 62)}, "window_start"),
        ({"window_end": 1 << 62}, "window_end"),
        ({"epsilon_spent": math.nan}, "epsilon_spent"),
        ({"epsilon_total": math.inf}, "epsilon_total"),
        ({"delta": 1.5}, "delta"),
        ({"delta": -1e-9}, "delta"),
    ],
)
@pytest.mark.parametrize("ending", ENDINGS)
def test_what_must_not_be_released_is_not_written(tmp_path, ending, change, named):
    with pytest.raises(ReportFileError, match=named):
        written(tmp_path, ending, [LABELS, LABELS._replace(**change)])
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    "fields",
    [{"plan": []}, {"run_id": 7}, {"guarantee": "\ud800"}, {"plan": {"x": math.nan}}, {"plan": {"x": object()}}],
)
def test_a_header_holds_json_only(tmp_path, fields):
    with pytest.raises(ReportFileError):
        write_report_file(tmp_path / "r.jsonl", dataclasses.replace(HEADER, **fields), [])
    assert os.listdir(tmp_path) == []


def test_format_by_ending():
    assert report_format("a/b.avro") == "avro"
    assert report_format("x.ndjson") == report_format("x.json") == report_format("x.JSONL") == "json"
    assert report_format("x.pq") == report_format("x.y.parquet") == "parquet"
    assert report_format(partial_path("out/report.pq", "run.7/é")) == "parquet"
    for path in ("report", "report.csv", "report.avro.gz", "a.avro/b", ".partial", "x\ny"):
        with pytest.raises(ReportFileError, match=r"must end in one of .*\.parquet") as caught:
            report_format(path)
        assert "\n" not in str(caught.value)


# Files from elsewhere.


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_cut_file_is_refused_except_between_its_records(tmp_path, ending):
    data = written(tmp_path, ending).read_bytes()
    cut = tmp_path / f"cut.{ending}"
    whole = {len(data)}
    if ending == "jsonl":
        whole |= {place + 1 for place, byte in enumerate(data) if byte == ord("\n")}
    if ending == "avro":  # the sync marker ends the header, and each block: here there is one
        whole |= {data.index(data[-16:]) + 16}
    for size in range(len(data) + 1):
        cut.write_bytes(data[:size])
        if size in whole:
            assert read_all(cut)[0] == HEADER
        else:
            refusal(cut)


@pytest.mark.parametrize("ending", ENDINGS)
def test_random_bytes_and_empty_files_are_refused(tmp_path, ending):
    generator = random.Random(3)
    path = tmp_path / f"junk.{ending}"
    for size in [0, 1, 4, 100, 5000]:
        path.write_bytes(generator.randbytes(size))
        refusal(path)


@pytest.mark.parametrize("ending", ENDINGS)
def test_damaged_bytes_end_in_one_line_or_in_checked_records(tmp_path, ending):
    data = written(tmp_path, ending).read_bytes()
    path = tmp_path / f"damaged.{ending}"
    generator = random.Random(11)
    refused = 0
    for _ in range(400):
        damaged = bytearray(data)
        for _ in range(generator.choice([1, 3, 20])):
            damaged[generator.randrange(len(damaged))] = generator.choice([0, 127, 128, 255, generator.randrange(256)])
        path.write_bytes(damaged)
        reports, error = outcome(path)
        assert "\n" not in error
        refused += bool(error)
        assert [decode_report(encode_report(found)) for found in reports] == reports
    assert refused > 200


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_file_under_another_ending_is_refused(tmp_path, ending):
    data = written(tmp_path, ending).read_bytes()
    for other in {*ENDINGS} - {ending}:
        path = tmp_path / f"other.{other}"
        path.write_bytes(data)
        refusal(path)


def test_errors_while_opening_name_the_path_and_the_reason(tmp_path):
    assert "No such file" in refusal(tmp_path / "absent.avro")
    (tmp_path / "folder.avro").mkdir()
    assert "Is a directory" in refusal(tmp_path / "folder.avro")


def json_file(tmp_path, *lines):
    path = tmp_path / "hostile.jsonl"
    path.write_bytes(b"".join(line if isinstance(line, bytes) else line.encode() for line in lines))
    return path


HEADER_LINE = f'{{"header": {HEADER.to_json()}}}\n'
RECORD_LINE = encode_report(LABELS) + "\n"


@pytest.mark.parametrize(
    "lines",
    [
        ["[" * 100_000 + "]" * 100_000 + "\n"],
        ['{"header": ' + '{"a":' * 50_000 + "1" + "}" * 50_000 + "}\n"],
        [RECORD_LINE],
        ['{"header": {"version": 2}}\n'],
        ['{"header": {"version": 1, "run_id": "r"}}\n'],
        ['{"header": []}\n'],
        ["null\n"],
        [HEADER_LINE, "{}\n"],
        [HEADER_LINE, "[1]\n"],
        [HEADER_LINE, "\n"],
        [HEADER_LINE, RECORD_LINE, RECORD_LINE[:-20]],
        [HEADER_LINE, RECORD_LINE.rstrip("\n")],
        [HEADER_LINE, RECORD_LINE.replace("0.25", "1e400")],
        [HEADER_LINE, RECORD_LINE.replace("0.25", "NaN")],
        [HEADER_LINE, RECORD_LINE.replace("0.25", "1" * 400)],
        [HEADER_LINE, RECORD_LINE.replace("812", "1" * 5000)],
        [HEADER_LINE, RECORD_LINE.replace("812", "1e2")],
        [HEADER_LINE, RECORD_LINE.replace('"b"', '"\\ud800"')],
        [HEADER_LINE, RECORD_LINE.replace('"delta"', '"stream": "x", "delta"')],
        [HEADER_LINE, RECORD_LINE.replace('"delta"', '"raw_count": 5, "delta"')],
        [HEADER_LINE, RECORD_LINE.replace('"zone": "above", "noisy_count": null', '"zone": "above", "noisy_count": 5')],
        [HEADER_LINE, RECORD_LINE.replace("2017-10-01T04:00:00Z", "2017-10-01T04:00:00+02:00")],
        [HEADER_LINE, RECORD_LINE.replace("2017-10-01T04:00:00Z", "2017-13-01T04:00:00Z")],
        [HEADER_LINE, RECORD_LINE.replace("2017-10-01T04:00:00Z", "٢٠١٧-10-01T04:00:00Z")],
        [HEADER_LINE, RECORD_LINE.replace('"2017-10-01T04:00:00Z"', "7")],
        [HEADER_LINE, b'{"stream": "\xff"}\n'],
    ],
)
def test_hostile_json_is_refused(tmp_path, lines):
    refusal(json_file(tmp_path, *lines))


def test_the_json_cases_above_start_from_a_file_that_is_read(tmp_path):
    assert read_all(json_file(tmp_path, HEADER_LINE, RECORD_LINE)) == (HEADER, [LABELS])


def zigzag(value):
    value = (value << 1) ^ (value >> 63)
    data = bytearray()
    while value > 0x7F:
        data.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*data, value])


def avro_file(tmp_path, schema, blocks=b"", *, codec=b"deflate", count=3, header=None):
    """An Avro container made by hand."""
    entries = [
        (b"avro.schema", schema if isinstance(schema, bytes) else json.dumps(schema).encode()),
        (b"avro.codec", codec),
        (HEADER_KEY.encode(), HEADER.to_json().encode() if header is None else header),
    ]
    data = b"Obj\x01" + zigzag(count)
    for key, value in entries:
        data += zigzag(len(key)) + key + zigzag(len(value)) + value
    path = tmp_path / "hostile.avro"
    path.write_bytes(data + zigzag(0) + b"S" * 16 + blocks)
    return path


def avro_block(count, payload, size=None):
    packer = zlib.compressobj(wbits=-15)
    data = packer.compress(payload) + packer.flush()
    return zigzag(count) + zigzag(len(data) if size is None else size) + data + b"S" * 16


def avro_payload(*reports):
    buffer = io.BytesIO()
    for one in reports:
        fields = {**one._asdict(), "heavy_hitters": [entry._asdict() for entry in one.heavy_hitters]}
        fastavro.schemaless_writer(
            buffer, fastavro.parse_schema(json.loads(json.dumps(WINDOW_REPORT_AVRO_SCHEMA))), fields
        )
    return buffer.getvalue()


def test_the_avro_cases_below_start_from_a_file_that_is_read(tmp_path):
    blocks = avro_block(1, avro_payload(LABELS)) + avro_block(0, b"") + avro_block(1, avro_payload(COUNTS))
    path = avro_file(tmp_path, WINDOW_REPORT_AVRO_SCHEMA, blocks)
    assert read_all(path) == (HEADER, [LABELS, COUNTS])


def nested_schema(depth):
    schema = "string"
    for _ in range(depth):
        schema = {"type": "array", "items": schema}
    return schema


@pytest.mark.parametrize(
    "schema",
    [
        b"not json",
        b"[" * 200_000,
        b'{"type":"array","items":' * 20_000 + b'"string"' + b"}" * 20_000,
        "string",
        nested_schema(100),
        {"type": "record", "name": "R", "fields": [{"name": "next", "type": "R"}]},
        {**WINDOW_REPORT_AVRO_SCHEMA, "fields": WINDOW_REPORT_AVRO_SCHEMA["fields"][:-1]},
    ],
)
def test_an_avro_file_with_another_schema_is_refused_before_it_is_decoded(tmp_path, schema):
    refusal(avro_file(tmp_path, schema, avro_block(1, b"\0" * 100)))


@pytest.mark.parametrize(
    "blocks",
    [
        avro_block(1, avro_payload(LABELS))[:-1],
        avro_block(1, avro_payload(LABELS))[:-1] + b"X",
        avro_block(3, avro_payload(LABELS, COUNTS)),
        avro_block(1, avro_payload(LABELS, COUNTS)),
        avro_block(0, avro_payload(LABELS)),
        avro_block(-1, avro_payload(LABELS)),
        avro_block(1 << 60, avro_payload(LABELS)),
        avro_block(1, avro_payload(LABELS), size=1 << 60),
        avro_block(1, avro_payload(LABELS), size=-1),
        avro_block(1, b"\xff" * 200),
        zigzag(1) + zigzag(8) + b"\xff" * 8 + b"S" * 16,
        b"\xff" * 30,
        avro_block(1, avro_payload(LABELS._replace(heavy_hitters=[HeavyHitter("a", ABOVE, 5)]))),
        avro_block(1, avro_payload(LABELS._replace(window_end=(1 << 63) - 1))),
    ],
)
def test_broken_avro_blocks_are_refused(tmp_path, blocks):
    refusal(avro_file(tmp_path, WINDOW_REPORT_AVRO_SCHEMA, blocks))


def test_an_avro_block_that_unpacks_to_more_than_the_bound_is_refused(tmp_path, monkeypatch):
    from dp_transforms.report_files import avro

    path = avro_file(tmp_path, WINDOW_REPORT_AVRO_SCHEMA, avro_block(1, b"\0" * 5_000_000))
    assert path.stat().st_size < 20_000
    monkeypatch.setattr(avro, "MAX_RECORD_BYTES", 1_000_000)
    assert "unpacks to more than 1000000 bytes" in refusal(path)


@pytest.mark.parametrize(
    "metadata",
    [{"codec": b"zstandard"}, {"count": 1 << 40}, {"header": b"{"}, {"header": b"[" * 99_999}, {"header": b"7"}],
)
def test_hostile_avro_metadata_is_refused(tmp_path, metadata):
    refusal(avro_file(tmp_path, WINDOW_REPORT_AVRO_SCHEMA, **metadata))


def test_a_parquet_file_with_another_schema_or_without_header_is_refused(tmp_path):
    path = written(tmp_path, "parquet")
    table = pq.read_table(path)
    other = tmp_path / "other.parquet"
    pq.write_table(table.drop_columns(["delta"]), other)
    assert "schema" in refusal(other)
    pq.write_table(table.replace_schema_metadata({}), other)
    assert HEADER_KEY in refusal(other)
    pq.write_table(table, other)
    assert read_all(other) == (HEADER, IN_ORDER)


def test_a_parquet_row_group_of_more_values_than_the_bound_is_refused(tmp_path, monkeypatch):
    from dp_transforms.report_files import parquet

    path = written(tmp_path, "parquet")
    monkeypatch.setattr(parquet, "_MAX_VALUES_PER_COLUMN", 4)
    assert "more than 4 values" in refusal(path)


# Names of files.


def test_a_file_that_exists_is_never_overwritten_by_writing(tmp_path):
    path = tmp_path / "report.avro"
    path.write_text("precious")
    with pytest.raises(ReportFileError, match="Name another output"):
        write_report_file(path, HEADER, REPORTS)
    assert path.read_text() == "precious"


def test_writing_into_a_missing_folder_names_the_remedy(tmp_path):
    with pytest.raises(ReportFileError, match="Check the folder"):
        write_report_file(tmp_path / "none" / "report.avro", HEADER, [])


def no_links(source, target, **options):
    raise PermissionError(1, "Operation not permitted")


@pytest.mark.parametrize("links", [True, False])
class TestPublishing:
    @pytest.fixture(autouse=True)
    def _file_system(self, links, monkeypatch):
        if not links:
            monkeypatch.setattr(os, "link", no_links)

    def test_a_finished_file_gets_its_name(self, tmp_path):
        output = tmp_path / "report.avro"
        partial = partial_path(output, "run-1")
        assert os.path.basename(partial).startswith(".report.avro.")
        write_report_file(partial, HEADER, REPORTS)
        os.chmod(partial, 0o600)
        publish_file(partial, output)
        assert os.listdir(tmp_path) == ["report.avro"]
        assert output.stat().st_mode & 0o777 == 0o600
        assert read_all(output) == (HEADER, IN_ORDER)

    def test_nothing_is_overwritten(self, tmp_path):
        output = tmp_path / "report.avro"
        output.write_text("precious")
        partial = tmp_path / ".partial"
        partial.write_text("new")
        with pytest.raises(ReportFileError, match=r"exists and is never overwritten\. Name another output"):
            publish_file(partial, output)
        assert output.read_text() == "precious"
        assert partial.read_text() == "new"

    def test_a_dangling_link_is_not_followed(self, tmp_path):
        output = tmp_path / "report.avro"
        output.symlink_to(tmp_path / "elsewhere")
        partial = tmp_path / ".partial"
        partial.write_text("new")
        with pytest.raises(ReportFileError, match="exists"):
            publish_file(partial, output)
        assert not (tmp_path / "elsewhere").exists()

    def test_a_missing_partial_file_leaves_no_output(self, tmp_path):
        with pytest.raises(ReportFileError, match="No such file"):
            publish_file(tmp_path / "none", tmp_path / "report.avro")
        assert os.listdir(tmp_path) == []

    def test_a_full_disk_leaves_no_output(self, tmp_path, monkeypatch):
        partial = tmp_path / ".partial"
        partial.write_text("new")

        def fail(source, target):
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(os, "link", fail)
        monkeypatch.setattr(os, "replace", fail)
        with pytest.raises(ReportFileError, match="No space left"):
            publish_file(partial, tmp_path / "report.avro")
        assert os.listdir(tmp_path) == [".partial"]


def test_discarding_removes_the_partial_file_and_the_copies_of_workers_only(tmp_path):
    partial = partial_path(tmp_path / "re[p]ort.avro", "run")
    for name in [
        partial,
        f"{partial}.0a1b.tmp",
        str(tmp_path / "other.tmp"),
        str(tmp_path / ".rep.avro.run.partial.0.tmp"),
    ]:
        open(name, "w").close()
    discard_file(partial)
    discard_file(partial)
    assert sorted(os.listdir(tmp_path)) == [".rep.avro.run.partial.0.tmp", "other.tmp"]


def test_partial_paths_stay_beside_the_output_whatever_the_run_id(tmp_path):
    output = tmp_path / "report.avro"
    for run_id in ["a/b", "../../x", "", "ü\n", "a.b"]:
        partial = partial_path(output, run_id)
        assert os.path.dirname(partial) == str(tmp_path)
        assert files.report_format(partial) == "avro"
        assert "\n" not in partial
